"""Sample independent random networks, and return named quantities such as gradient norms for each of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from simulate.counts import check_count
from simulate.network.allocator import all_freed_memory_kept
from simulate.network.conditioned import ConditionedEngine
from simulate.network.dense import DenseEngine
from simulate.network.gram import GramEngine
from simulate.network.random_streams import RandomStreams
from simulate.network.record import on_host
from simulate.network.transformer import run
from simulate.runs.cell import Cell, DtypeName, EngineName, check_device, device_name
from simulate.runs.inputs import network_inputs, source_inputs
from simulate.runs.memory import BatchLimits, fitting, next_batch
from simulate.runs.tables import cell_columns, layer_frame
from simulate.text import TextWindows, read_windows
from simulate.threads import one_numpy_thread
from theory.stack import Stack
from theory.stack.quantities import NamedArrays

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Samples(NamedArrays):
    """The sampled quantities of one network configuration, with one value for each random network.

    Attributes:
        cell: the configuration that was sampled.
        seeds: the root seed of every draw, (draws,); they differ if runs with several seeds were merged.
        arrays: arrays of shape (draws,) or, per layer, (draws, L) with layer l at index l - 1; for an
            encoder, L is its own depth.
    """

    cell: Cell
    seeds: NDArray[np.integer]
    arrays: dict[str, NDArray[np.floating]]

    def __repr__(self) -> str:
        return f"<Samples of {self.stack!r}: {self.draws} draws of {len(self)} quantities>"

    def _repr_html_(self) -> str:
        means = self.to_frame().groupby("layer")[list(self)].mean().to_html(float_format="%.4g", na_rep="")
        return f"<p>Means of {self.draws} draws of <code>{escape(repr(self.stack))}</code></p>{means}"

    @property
    def stack(self) -> Stack:
        """The description of the sampled networks."""
        return self.cell.stack

    @property
    def draws(self) -> int:
        """The number of sampled random networks."""
        return len(self.seeds)

    def to_frame(self) -> "pd.DataFrame":
        """Return a data frame with one row for each random network and layer, and one column for each quantity.

        Layer 0 is the whole network.
        """
        import pandas as pd  # late: workers do without it, and it takes a third of a second to load

        constants = cell_columns(self.cell)
        if self.cell.text is not None:
            constants["text"] = self.cell.text.source
        draws = pd.DataFrame({"seed": self.seeds, "draw": np.arange(self.draws)}).assign(**constants)
        known = np.ones(self.draws, dtype=bool)
        values = {name: (value.ravel(), known) for name, value in self.arrays.items()}
        return layer_frame(draws[[*constants, "seed", "draw"]], values)


def sample(
    stack: Stack,
    *,
    draws: int,
    seed: int,
    engine: EngineName = "auto",
    device: str | torch.device = "cpu",
    dtype: DtypeName = "float32",
    text: str | Path | TextWindows | None = None,
    memory: float | None = None,
) -> Samples:
    """Sample random networks, each with one forward and one backward pass, and return their quantities.

    The same arguments give the same numbers, and n draws are the first n of a larger number of draws.

    Args:
        stack: the network.
        draws: number of random networks, at least 1.
        seed: root seed, a nonnegative integer.
        engine: "dense" samples every weight matrix, "conditioned" only its products with the tokens, "gram" only
            the hidden units (not for every stack). The distribution is the same. "auto" chooses the cheaper of the
            first two.
        device: "cpu", "cuda", "cuda:N", or a `torch.device`.
        dtype: type of weights and activations, "float32" or "float64".
        text: a text file, "lighthouse", or `TextWindows`, for inputs and labels; each draw uses one random window.
            Without it, inputs are Gaussian tokens and labels are independent, as the Stack describes them.
        memory: bytes for a batch of draws beyond its first block. None means half of the free memory, at most 6 GiB.
            The numbers do not depend on it.

    Returns:
        The sampled quantities by name.

    Raises:
        ValueError: an argument is outside its range.

    >>> draws = sample(Stack(width=16, depth=2), draws=3, seed=0)
    >>> draws["hidden_energy"].shape
    (3, 2)
    """
    if isinstance(text, str | Path):
        text = read_windows(text, tokens=stack.tokens, vocab=stack.vocab)
    cell = Cell(stack, engine, device_name(device), dtype, text)
    check_device(cell.device)
    check_count("draws", draws, 1)
    check_count("seed", seed, 0)
    blocks = sample_batches(cell, seed, range(cell.blocks(draws)), BatchLimits(memory=memory))
    values = {name: np.concatenate([b[name] for b in blocks])[:draws] for name in blocks[0]}
    return Samples(cell, np.full(draws, seed), values)


_ENGINES = {"dense": DenseEngine, "conditioned": ConditionedEngine, "gram": GramEngine}


def sample_block(cell: Cell, seed: int, block: int) -> dict[str, NDArray[np.floating]]:
    """Sample the random networks of one block, the unit of work, and return their quantities by name.

    A block is also the unit of seeding and storage.
    """
    return sample_blocks(cell, seed, [block])[0]


def sample_batches(
    cell: Cell, seed: int, blocks: Sequence[int], limits: BatchLimits
) -> list[dict[str, NDArray[np.floating]]]:
    """Sample several blocks in batches as large as the memory allows, and return the quantities of each block.

    The result is a dictionary of arrays for each block; batches have limits too.

    Raises:
        ValueError: one block does not fit into memory.
    """
    most = limits.blocks(cell)
    # Each batch takes as much as the one before.
    with all_freed_memory_kept() if len(blocks) > most else nullcontext():
        return _in_batches(cell, seed, blocks, most)


def _in_batches(cell: Cell, seed: int, blocks: Sequence[int], most: int) -> list[dict[str, NDArray[np.floating]]]:
    """Sample several blocks in batches of at most `most` blocks, or smaller ones if memory does not allow that.

    Raises:
        ValueError: one block does not fit into memory.
    """
    arrays: list[dict[str, NDArray[np.floating]]] = []
    while len(arrays) < len(blocks):
        batch = blocks[len(arrays) : len(arrays) + next_batch(len(blocks) - len(arrays), most)]
        try:
            arrays += sample_blocks(cell, seed, batch)
        except ValueError:
            # Somebody else may have taken the memory that was free.
            if len(batch) == 1:
                raise
            most = len(batch) // 2
    return arrays


def sample_blocks(cell: Cell, seed: int, blocks: Sequence[int]) -> list[dict[str, NDArray[np.floating]]]:
    """Sample several blocks in one batch of tensors, on one thread, and return the quantities of each block.

    The result is a dictionary of arrays for each block.

    Raises:
        ValueError: the batch does not fit into memory.
    """
    with one_thread(), fitting(cell):
        streams = RandomStreams([cell.block_seed(seed, block) for block in blocks], cell.draws_per_block, cell.device)
        dtype = getattr(torch, cell.dtype)
        engine = _ENGINES[cell.engine](streams, dtype, *[cell.stack] * (cell.engine == "gram"))
        record = run(cell.stack, engine, *network_inputs(cell, engine), source_inputs(cell.stack, engine))
        # Of tied embeddings the engine draws the columns of words that the batch does not have.
        if isinstance(engine, DenseEngine) and cell.stack.embeddings == "untied":
            record.network("head_norm", engine.spectral_norm("Wemb"))
        values = record.per_network | {name: torch.stack(layers, 1) for name, layers in record.per_layer.items()}
        arrays = on_host({name: value.to(dtype) for name, value in values.items()})
    # Copies: kept as they are, these small tensors pin the heap around the large ones that were freed.
    each = {name: np.split(array, len(blocks)) for name, array in arrays.items()}
    return [{name: parts[k].copy() for name, parts in each.items()} for k in range(len(blocks))]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch operations and NumPy products to one thread within a `with` block."""
    # Sums must not depend on the count, and small matrices are faster so.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_numpy_thread():
            yield
    finally:
        torch.set_num_threads(before)
