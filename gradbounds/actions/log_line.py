"""The first step of a training log: its loss, its gradient norm, and norms of single parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradbounds.actions.log_records import LOSS, NORM, PARAMETER, STEP, log_records, number_of, plain


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log's first step.

    Attributes:
        loss: of the step; None where the log has norms of parameters alone.
        norm: of its gradient; None where the log has none.
        step: its number; None where the log has none.
        parameters: norms of the gradients of single parameters, by their names.
    """

    loss: float | None
    norm: float | None = None
    step: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)


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
        named = {plain(name): value for name, value in record.items()}
        step, loss = number_of(named, STEP), number_of(named, LOSS)
        norms = {name: value for name, value in record.items() if PARAMETER.search(name)}
        if first and (loss is not None or step not in (None, number_of(first, STEP))):
            break
        if first or loss is not None:
            same = not before or step in (None, number_of(before, STEP))
            first = named | first if first else (before if same else {}) | named
        elif norms or number_of(named, NORM) is not None:
            if before and step not in (None, number_of(before, STEP)):
                continue
            before = named | before
        parameters = parameters | {name: value for name, value in norms.items() if name not in parameters}
    start = first or (before if parameters else {})
    loss, norm, step = (number_of(start, names) for names in (LOSS, NORM, STEP))
    if not start:
        raise ValueError(
            "logged must have a loss, as loss: 11.0, a column 'loss', or lines of step, loss and norm, or norms of "
            f"parameters, as layers.3.self_attn.q_proj.weight: 0.12, got {str(path)!r} without."
        )
    if step is not None and step not in (0, 1):
        raise ValueError(f"logged must begin at step 0 or 1, got step {step:g} first in {str(path)!r}.")
    for name, value in (("loss", loss), ("norm", norm)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"logged must have positive finite numbers, got {name} {value:g} in {str(path)!r}.")
    return LogLine(loss, norm, None if step is None else int(step), parameters)
