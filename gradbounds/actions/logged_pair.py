"""Two logs of one configuration, compared by `gradbounds predict --logged A --logged B`: ratios and usual causes."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.actions.logged import MOST_CAUSES, THRESHOLDS
from gradbounds.actions.logged_as import LoggedAs, has_line, reading
from gradbounds.actions.logged_layers import names_line
from gradbounds.result import Result

_NEAR = 0.05
"""Relative difference of two first steps with other seeds and texts: GPT-2's public logs have 0.2% to 6%."""

Factors = tuple[str, float, float]
"""A cause in words, and what it multiplies loss and norm of the first log by, as if the second were right."""


def compare_logs(files: Sequence[Path], batch: int, tokens: int, *, logged_as: Sequence[str] = ()) -> Result:
    """The ratio of two logs' first steps, and the usual causes with that ratio.

    Raises:
        ValueError: there are not two logs, or one of them cannot be read.
    """
    if len(files) != 2:
        raise ValueError(f"logged must be one log or two, got {len(files)}.")
    said = LoggedAs.of(logged_as)
    first, second = (reading(read_log(file), said, batch * tokens).line for file in files)
    rows = [row for row in _causes(first, second, batch, tokens) if row[3] <= _NEAR]
    tried = sum(1 for _ in _causes(first, second, batch, tokens))
    near = pd.DataFrame(rows, columns=["cause", "loss_factor", "norm_factor", "distance"])
    near = near.sort_values("distance", kind="stable").head(MOST_CAUSES)
    ratios = {name: _ratio(getattr(first, name), getattr(second, name)) for name in ("loss", "norm")}
    agree = all(abs(math.log(ratio)) <= _NEAR for ratio in ratios.values() if ratio is not None)
    layers = _by_parameter(first, second)
    said_ratio = has_line({f"ratio of the {name}": ratio for name, ratio in ratios.items()})
    return Result(
        about=f"step 1 of {files[0]} and {files[1]}", tables={"causes": near, "parameters": layers},
        values={"loss_ratio": ratios["loss"], "norm_ratio": ratios["norm"], "agree": agree, "tried": tried},
        lines=[
            *(f"{file}: {has_line({'loss': line.loss, 'gradient norm': line.norm})}, {line.facts()}."
              for file, line in zip(files, (first, second), strict=True)),
            f"First over second: {said_ratio}.", "",
            *(_explained(near, tried) if not agree else [f"Both agree within {_NEAR:.0%}, as two seeds do."]),
            *_of_parameters(layers),
        ],
        alarm=not agree,
    )  # fmt: skip


def _ratio(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first / second


def _causes(first: LogLine, second: LogLine, batch: int, tokens: int) -> Iterator[tuple[str, float, float, float]]:
    """Every cause that is tried, with its factors and how far the ratios are from them, as the larger logarithm."""
    for words, loss, norm in (*_of_counts(batch, tokens), *_of_norms(first, second)):
        offs = [
            abs(math.log(one / other / factor))
            for one, other, factor in ((first.loss, second.loss, loss), (first.norm, second.norm, norm))
            if one is not None and other is not None
        ]
        yield words, loss, norm, max(offs, default=math.inf)


def _of_counts(batch: int, tokens: int) -> Iterator[Factors]:
    """Sums in the place of means, and what ranks add to a norm, of either log."""
    ranks = sorted({k for k in range(2, min(batch, 2**16) + 1) if batch % k == 0} | {2**k for k in range(1, 11)})
    for log, other, power in (("first", "second", 1), ("second", "first", -1)):
        for k in ranks:
            whole, root = float(k) ** power, float(k) ** (0.5 * power)
            yield (
                f"the {log} log adds up the gradients of {k} ranks or accumulation steps, without their mean",
                1.0,
                whole,
            )
            yield f"the {log} log adds up loss and gradient of {k} ranks or accumulation steps", whole, whole
            yield (
                f"the {log} log has the norm of one rank's gradient, before the mean over {k} ranks; "
                f"or it counts {k} times what {k} tensor-parallel ranks all hold",
                1.0, root,
            )  # fmt: skip
        for number, what in ((tokens, "a sequence"), (batch * tokens, "the batch")):
            factor = float(number) ** power
            yield f"the {log} log sums over the {number} tokens of {what}, the {other} one takes a mean", factor, factor
            yield f"the {log} log has the gradient of a sum over the {number} tokens of {what}", 1.0, factor
        yield f"the {log} log has the loss in bits", (1.0 / math.log(2.0)) ** power, 1.0


def _of_norms(first: LogLine, second: LogLine) -> Iterator[Factors]:
    """Norms that were squared, or logged after clipping."""
    if first.norm is None or second.norm is None:
        return
    for log, norm, other, power in (("first", first.norm, second.norm, 1), ("second", second.norm, first.norm, -1)):
        yield f"the {log} log has squared norms", 1.0, other**power
        for limit in THRESHOLDS:
            if abs(norm / limit - 1.0) < 1e-3 and other > limit:
                yield f"the {log} log has the norm after it was clipped at {limit:g}", 1.0, (limit / other) ** power


def _explained(near: pd.DataFrame, tried: int) -> list[str]:
    """The causes with the ratio, of so many that were tried."""
    if near.empty:
        return [f"No usual cause has these ratios, of {tried} that were tried."]
    lines = [f"What would make these ratios within {_NEAR:.0%}, the nearest first, of {tried} causes that were tried:"]
    return lines + [
        f"  {row.cause}: loss times {row.loss_factor:.4g}, norm times {row.norm_factor:.4g}"
        for row in near.itertuples()
    ]


def _by_parameter(first: LogLine, second: LogLine) -> pd.DataFrame:
    """Norms of parameters that both logs have."""
    rows = [
        (name, norm, second.parameters[name], norm / second.parameters[name])
        for name, norm in first.parameters.items()
        if norm > 0 and second.parameters.get(name, 0.0) > 0
    ]
    return pd.DataFrame(rows, columns=["name", "first", "second", "ratio"])


def _of_parameters(table: pd.DataFrame) -> list[str]:
    """Whether one factor is in all parameters, or which ones differ."""
    if table.empty:
        return []
    middle = float(table["ratio"].median())
    far = table[np.abs(np.log(table["ratio"] / middle)) > 2 * _NEAR]
    whole = f"{len(table)} parameters have the ratio {middle:.4g} in the median"
    if far.empty:
        return [f"All {whole}: one factor in the whole gradient."]
    worst = far.loc[np.abs(np.log(far["ratio"] / middle)).idxmax()]
    return [
        f"{whole}; {len(far)} differ from it by more than {2 * _NEAR:.0%}: {names_line(far['name'])}.",
        f"The furthest is {worst['name']} with {worst['ratio']:.4g}.",
    ]
