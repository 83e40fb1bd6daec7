"""The first step of a training log: its loss, its gradient norm, and norms of single parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradbounds.actions.log_records import (
    LOSS,
    NORM,
    PARAMETER,
    STEP,
    bare,
    is_clipped,
    is_squared,
    log_records,
    number_of,
    plain,
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log's first step.

    Attributes:
        loss: of the step; None where the log has norms of parameters alone.
        norm: of its gradient; None where the log has none.
        step: its number; None where the log has none.
        parameters: norms of the gradients of single parameters, by their names.
        norm_name: the norm's, if it says more than that: squared, before or after clipping; else "".
    """

    loss: float | None
    norm: float | None = None
    step: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    norm_name: str = ""


def read_log(path: str | Path) -> LogLine:
    """The first step of a log, of which the beginning is read.

    Args:
        path: as `log_records` takes it.

    Raises:
        ValueError: the file cannot be read or is no text, has neither a loss nor norms of parameters, begins at a later
            step, or has a loss or a norm that is not finite.
    """
    parameters: dict[str, float] = {}
    first: dict[str, float] = {}  # the record with the loss, and what other records of its step have
    before: dict[str, float] = {}  # of the first step without a loss
    for record in log_records(path):
        named = {_short(name): value for name, value in record.items()}
        step, loss = number_of(named, STEP), number_of(named, LOSS)
        norms = {name: value for name, value in record.items() if PARAMETER.search(name)}
        if first and (loss is not None or step not in (None, number_of(first, STEP))):
            break
        if first or loss is not None:
            same = not before or step in (None, number_of(before, STEP))
            first = named | first if first else (before if same else {}) | named
        elif norms or _norm_name(named) is not None:
            if before and step not in (None, number_of(before, STEP)):
                continue
            before = named | before
        for name, norm in norms.items():
            parameters.setdefault(name, norm)
    start = first or (before if parameters else {})
    whole = _norm_name(start)
    loss, whole_norm, step = (number_of(start, names) for names in (LOSS, () if whole is None else (whole,), STEP))
    if not start:
        raise ValueError(
            "logged must have a loss, as loss: 11.0, a column 'loss', or lines of step, loss and norm, or norms of "
            f"parameters, as layers.3.self_attn.q_proj.weight: 0.12, got {str(path)!r} without."
        )
    if step is not None and step not in (0, 1):
        raise ValueError(f"logged must begin at step 0 or 1, got step {step:g} first in {str(path)!r}.")
    for name, value in (("loss", loss), ("norm", whole_norm)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"logged must have positive finite numbers, got {name} {value:g} in {str(path)!r}.")
    marked = whole if whole is not None and whole not in NORM else ""
    return LogLine(loss, whole_norm, None if step is None else int(step), parameters, marked)


def _short(name: str) -> str:
    """A name as `plain` has it; that of a norm that says more as it is."""
    return name if name != bare(name) and plain(bare(name)) in NORM else plain(name)


def _norm_name(named: Mapping[str, float]) -> str | None:
    """The name of the gradient's norm: that before clipping rather than after it, and the norm rather than its square.

    Args:
        named: by names of `_short`.
    """
    names = [name for name in named if plain(bare(name)) in NORM]
    after = {False: 0, None: 1, True: 2}
    return min(
        names, default=None,
        key=lambda name: (after[is_clipped(name)], is_squared(name), NORM.index(plain(bare(name)))),
    )  # fmt: skip
