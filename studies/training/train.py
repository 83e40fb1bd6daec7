"""Independent random networks that are trained for some steps: named quantities of each before every step."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulate.counts import check_count
from simulate.network.random_streams import RandomStreams
from simulate.network.record import Record, on_host
from simulate.network.transformer import run
from simulate.runs.cell import Cell, DtypeName, EngineName, check_device
from simulate.runs.inputs import input_batches
from simulate.runs.memory import BatchLimits, fitting
from simulate.runs.registrations import unpack
from simulate.runs.sample import one_thread
from simulate.runs.store import Run
from simulate.text import TextWindows, read_windows
from studies.training.cells import TrainingCell, arrays_in, as_columns, training_cell
from studies.training.maps import LearningMaps
from studies.training.optimizers import Optimizer, TrainingOptimizer
from studies.training.schedule import BatchName, Schedule, roles
from theory.stack import Stack, check_stack
from theory.stack.quantities import NamedArrays


@dataclass(frozen=True, slots=True, eq=False)
class Training(NamedArrays):
    """Values of named quantities over draws and steps.

    The names are those of samples, and two more where the batch stays the same: `feature_change_sq` of a layer,
    ‖h_k - h_0‖²/‖h_0‖² of the residual sums that `hidden_energy` is about, over all tokens; and `logit_change_sq`, the
    mean square over positions and classes of what logits have moved by. ReZero has `branch_scalar` of every layer.

    Attributes:
        cell: what was trained, and how it was sampled.
        schedule: how it was trained.
        seed: root seed of all draws.
        arrays: arrays of shape (draws, steps + 1) or, per layer, (draws, steps + 1, L): index k has what the network
            does after k steps, and 0 what it does at initialization.
    """

    cell: Cell
    schedule: Schedule
    seed: int
    arrays: dict[str, NDArray[np.floating]]

    def __repr__(self) -> str:
        of = f"{self.draws} draws of {len(self)} quantities, {self.schedule.steps} steps"
        return f"<Training of {self.stack!r}: {of}>"

    @property
    def stack(self) -> Stack:
        """The network that was trained."""
        return self.cell.stack

    @property
    def draws(self) -> int:
        """The number of draws."""
        return len(self.arrays["loss"])


def train(
    stack: Stack, *, steps: int, learning_rate: float | Mapping[str, float], draws: int, seed: int,
    optimizer: TrainingOptimizer = "sgd", momentum: float = 0.0, weight_decay: float = 0.0,
    factors: Sequence[float] | None = None, batch: BatchName = "same", engine: EngineName = "auto",
    device: str = "cpu", dtype: DtypeName = "float32", text: str | Path | TextWindows | None = None,
) -> Training:  # fmt: skip
    """Independent random networks of a Stack, trained for some steps from initialization.

    The same arguments give the same numbers. With an engine that is named, fewer draws give the first draws of more,
    and fewer steps the first steps of more.

    Args:
        stack: the network. Inputs are fixed; norms have no parameters.
        steps: how many steps, at least 1.
        learning_rate: of every matrix, or by role ("WV", "WO", "W1", "W2", "WG", "Wemb", ..., and
            "scalar" of ReZero): the others are fixed.
        draws: how many networks, at least 1.
        seed: root seed, a nonnegative integer.
        optimizer: "sgd" as torch has it, "polar", Muon with the exact polar factor, or "adam", torch's AdamW, for which
            matrices are drawn. Others are refused.
        momentum: of all matrices, in [0, 1); Adam's beta_1.
        weight_decay: of all matrices; in the gradient for "sgd", beside it for the others.
        factors: of the learning rate at each step, as a warm-up has them; None for 1.
        batch: "same" trains on one batch of inputs and labels, "fresh" draws another before each step; words of a text
            and positions keep their vectors.
        engine: "dense" draws every weight matrix, "conditioned" only what it does to the tokens of all steps; the law
            is the same. "auto" takes the cheaper one.
        device: "cpu", "cuda" or "cuda:N".
        dtype: "float32" or "float64", of weights and tokens.
        text: as for `sample`: windows of it, one or before each step another.

    Raises:
        ValueError: an argument is outside its range, or the stack has what training does not cover.

    >>> found = train(Stack(width=64, depth=2, tokens=2), steps=3, learning_rate=0.1, draws=2, seed=0)
    >>> found["loss"].shape, found["grad_sq_W2"].shape
    ((2, 4), (2, 4, 2))
    """
    check_stack(stack)
    rule = Optimizer(name=optimizer, momentum=momentum, weight_decay=weight_decay)
    check_count("steps", steps, 1)
    schedule = Schedule.of(
        roles(stack), steps=steps, learning_rate=learning_rate, optimizer=rule, factors=factors, batch=batch
    )
    if isinstance(text, str | Path):
        text = read_windows(text, tokens=stack.tokens, vocab=stack.vocab)
    cell = training_cell(stack, schedule, engine=engine, device=device, dtype=dtype, text=text)
    check_device(device)
    check_count("draws", draws, 1)
    check_count("seed", seed, 0)
    each = cell.draws_per_block
    blocks = [train_block(cell, schedule, cell.block_seed(seed, k), each) for k in range(cell.blocks(draws))]
    arrays = {name: np.concatenate([block[name] for block in blocks])[:draws] for name in blocks[0]}
    return Training(cell, schedule, seed, arrays)


def train_task(
    cell: Cell, seed: int, blocks: Sequence[int], _: BatchLimits, registrations: bytes = b""
) -> list[dict[str, NDArray[np.floating]]]:
    """The draws of the blocks of a task, as a run keeps them; what `Execution` calls instead of sampling.

    Raises:
        ValueError: as `simulate.runs.execution.sample_task`; the cell is not of training.
    """
    unpack(cell.stack, registrations)
    check_device(cell.device)
    if not isinstance(cell, TrainingCell):
        raise ValueError(f"cell must be one of training, got {cell!r}.")
    each = cell.draws_per_block
    return [as_columns(train_block(cell, cell.trained, cell.block_seed(seed, k), each)) for k in blocks]


def trainings(run: Run, cells: Sequence[TrainingCell], *, seed: int, draws: int | Mapping[str, int]) -> list[Training]:
    """What has landed in a run of the first draws of every cell.

    Args:
        run: where they landed.
        cells: which.
        seed: root seed.
        draws: of each cell at most, or by its name.

    Raises:
        ValueError: a cell has no draws there, or a file is damaged.
    """
    landed = arrays_in(run, cells, seed, draws)
    for cell, arrays in zip(cells, landed, strict=True):
        if not arrays:
            raise ValueError(f"run must hold draws of every network, but {str(run.folder)!r} has none of {cell.stack}.")
    return [Training(cell, cell.trained, seed, arrays) for cell, arrays in zip(cells, landed, strict=True)]


def train_block(cell: Cell, schedule: Schedule, seed: int, draws: int) -> dict[str, NDArray[np.floating]]:
    """Some draws in one batch of tensors, with a stream of random numbers of their own. One intra-op thread.

    Raises:
        ValueError: the batch does not fit into memory.
    """
    with one_thread(), fitting(cell):
        streams = RandomStreams([seed], draws, cell.device)
        dtype, drawn = getattr(torch, cell.dtype), cell.engine == "dense"
        maps = LearningMaps(streams, dtype, drawn=drawn, passes=schedule.steps + 1)
        return on_host(trained(cell.stack, schedule, maps, batches(cell, schedule, maps)))


def batches(cell: Cell, schedule: Schedule, maps: LearningMaps) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of every pass, drawn when they are asked for."""
    given = input_batches(cell, maps)
    if schedule.batch == "same":
        given = itertools.repeat(next(given))
    return given


def trained(
    stack: Stack, schedule: Schedule, maps: LearningMaps, given: Iterator[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Quantities of a batch of networks before the first step and after each, (draws, steps + 1, ...)."""
    passes, first = [], list[Tensor]()
    for step in range(schedule.steps + 1):
        maps.begin()
        record = Record(streams=[] if schedule.batch == "same" else None)
        run(stack, maps, *next(given), record=record)
        first = first or record.streams or []
        _record_changes(record, first)
        for scalar in maps.scalars:
            record.layer("branch_scalar", scalar.value)
        passes.append({name: [value] for name, value in record.per_network.items()} | record.per_layer)
        if step < schedule.steps:
            maps.learn(schedule.optimizer, schedule.rates_at(step))
    values = {
        name: torch.stack([value for quantities in passes for value in quantities[name]], 1) for name in passes[0]
    }
    return values | {name: values[name].unflatten(1, (len(passes), -1)) for name in record.per_layer}


def _record_changes(record: Record, first: list[Tensor]) -> None:
    """How far the residual sums and the logits have moved from where they began."""
    if record.streams is None:
        return
    moved = [(now - then).square().sum((1, 2)) for now, then in zip(record.streams, first, strict=True)]
    for change, then in zip(moved[:-1], first[:-1], strict=True):
        record.layer("feature_change_sq", change / then.square().sum((1, 2)))
    record.network("logit_change_sq", moved[-1] / first[-1][0].numel())
