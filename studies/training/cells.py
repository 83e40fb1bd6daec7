"""A cell of training: a network, how it is sampled and how it is trained; its blocks land in run folders as samples do.

A row of such a run is a draw, as everywhere. Its columns are lists over steps, and over steps and layers: `trainings`
gives them their shapes back.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulate.runs.cell import MOST_DRAWS, Cell, DtypeName, EngineName
from simulate.runs.cost import block_work
from simulate.runs.store import Run
from simulate.text import TextWindows
from studies.training.schedule import Schedule, check_covered
from theory.stack import Stack
from theory.stack.initializations import NORMAL
from theory.stack.quantities import QUANTITIES
from theory.stack.weights import law

# Random numbers of a pass of all draws that share a batch of tensors: about 8 MiB of them, which every step keeps.
_BLOCK_NORMALS = 2**21

_CONDITIONED_FROM = 2

ADDED = {"feature_change_sq": True, "logit_change_sq": False, "branch_scalar": True}
"""What training has besides the quantities of samples, and whether layers have it."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCell(Cell):
    """A Stack with the way it is sampled, and a schedule by which it is trained.

    Attributes:
        schedule: how it is trained; part of the key.
    """

    schedule: Schedule | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Cell.__post_init__(self)  # which a class with slots has no other way to call
        content = json.loads(self.key) | {"training": asdict(self.trained)}
        object.__setattr__(self, "key", json.dumps(content, sort_keys=True, separators=(",", ":"), default=float))
        object.__setattr__(self, "name", hashlib.sha256(self.key.encode()).hexdigest()[:16])

    @property
    def trained(self) -> Schedule:
        """The schedule.

        Raises:
            ValueError: there is none.
        """
        if self.schedule is None:
            raise ValueError("schedule must be given for a network that is trained, got None.")
        return self.schedule

    @property
    def network(self) -> Cell:
        """The cell of the network as it is before it is trained."""
        return Cell(self.stack, self.engine, self.device, self.dtype, self.text)

    @property
    def draws_per_block(self) -> int:
        """How many draws share a batch of tensors: a power of two that depends on the Stack and the engine alone."""
        return draws_at_once(self.network)

    def block_seed(self, seed: int, block: int) -> int:
        """The seed of a block, the same for every schedule, so that two are compared on the same networks."""
        digest = hashlib.sha256(f"training:{seed}:{self.network.key}".encode()).digest()
        return (int.from_bytes(digest[:7], "big") + block) % 2**56


def training_cell(
    stack: Stack,
    schedule: Schedule,
    *,
    engine: EngineName = "auto",
    device: str = "cpu",
    dtype: DtypeName = "float32",
    text: TextWindows | None = None,
) -> TrainingCell:
    """The cell of a network that is trained; arguments as `train` has them.

    Raises:
        ValueError: the stack has what training does not cover, or an argument is unknown.
    """
    check_covered(stack, schedule)
    elementwise = schedule.optimizer.name == "adam"
    if elementwise and engine == "conditioned":
        raise ValueError(
            "engine must be 'dense' for adam, whose steps are elementwise and have no low rank, got 'conditioned'."
        )
    chosen = ("dense" if elementwise else cheaper_engine(stack, schedule.steps)) if engine == "auto" else engine
    return TrainingCell(stack, chosen, device, dtype, text, schedule=schedule)


def cheaper_engine(stack: Stack, steps: int) -> Literal["dense", "conditioned"]:
    """The engine that takes less time: a rule of counts, since it decides the numbers.

    Every step adds n rows to what a matrix is known to do, and meets all of them.
    """
    if law(stack) != NORMAL:
        return "dense"
    return "conditioned" if stack.width >= _CONDITIONED_FROM * stack.rows * (steps + 1) else "dense"


def draws_at_once(cell: Cell) -> int:
    """How many draws share a batch of tensors: a power of two that depends on the Stack and the engine alone."""
    each = block_work(cell).normals / cell.draws_per_block
    return max(1, min(MOST_DRAWS, 1 << max(0, math.floor(_BLOCK_NORMALS / each).bit_length() - 1)))


def as_columns(values: Mapping[str, NDArray[np.floating]]) -> dict[str, NDArray[np.floating]]:
    """Quantities of a block as a run keeps them: (draws, numbers), step after step and layer after layer."""
    return {name: value.reshape(len(value), -1) for name, value in values.items()}


def arrays_in(
    run: Run, cells: Sequence[TrainingCell], seed: int, draws: int | Mapping[str, int]
) -> list[dict[str, NDArray[np.floating]]]:
    """Quantities of the first draws of every cell, of shape (draws, steps + 1) or (draws, steps + 1, L).

    Args:
        run: where they landed.
        cells: which; one without draws there has no arrays.
        seed: root seed.
        draws: of each cell at most, or by its name.

    Raises:
        ValueError: a file is damaged.
    """
    tables = list(run.tables())
    parts: list[dict[str, NDArray[np.floating]]] = []
    for cell in cells:
        most = draws[cell.name] if isinstance(draws, Mapping) else draws
        pieces: dict[str, list[NDArray[np.floating]]] = {}
        numbers: list[NDArray[np.integer]] = [np.zeros(0, dtype=np.int64)]
        for rows in tables:
            kept = _rows_of(rows, cell, seed, most)
            if kept.num_rows:
                numbers.append(kept["draw"].to_numpy())
                for name in kept.column_names:
                    if (name in ADDED or name in QUANTITIES) and not kept[name].null_count:
                        pieces.setdefault(name, []).append(_shaped(kept, name, cell))
        order = np.argsort(np.concatenate(numbers))
        # A block of an older version lacks the quantities that came later.
        common = {name: values for name, values in pieces.items() if len(values) == len(numbers) - 1}
        parts.append({name: np.concatenate(values)[order] for name, values in common.items()})
    return parts


def _rows_of(rows: pa.Table, cell: Cell, seed: int, draws: int) -> pa.Table:
    """The rows of a table that are of the first draws of a cell."""
    names, seeds, numbers = (rows[name].to_numpy(zero_copy_only=False) for name in ("cell", "seed", "draw"))
    return rows.filter(pa.array((names == cell.name) & (seeds == seed) & (numbers < draws)))


def _shaped(rows: pa.Table, name: str, cell: TrainingCell) -> NDArray[np.floating]:
    flat = np.asarray(rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False))
    layers = ADDED[name] if name in ADDED else QUANTITIES[name].per_layer
    shape = (rows.num_rows, cell.trained.steps + 1)
    return flat.reshape(*shape, -1) if layers else flat.reshape(shape)
