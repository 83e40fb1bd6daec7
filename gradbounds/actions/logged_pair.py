"""The comparison of the first steps of two training logs of one model (`gradbounds predict --logged A B`)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradbounds.actions.batch import family_of, law_of, line_text, resolve_batch
from gradbounds.actions.first_line import COARSE, first_line, quick_sampling, scale_of_batch, spread_of_texts
from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.actions.logged import MOST_CAUSES, THRESHOLDS, Cause, off_words
from gradbounds.actions.logged_as import LoggedAs, has_line, reading
from gradbounds.actions.logged_layers import matrix_of, names_line
from gradbounds.budget import Budget, by_estimates
from gradbounds.described_network import Description
from gradbounds.network_text import loss_of_head, other_codes
from gradbounds.result import Result
from theory.configurations.vectors import learned_vectors
from theory.mean_field.text_law import TextLaw

# The largest logarithm of a ratio that counts as agreement.
#
# Public logs of GPT-2 differ by 0.2% to 6% in the norm and by less than 1% in the loss.
_NEAR = 0.05
# The factor by which a parameter's ratio may differ from the median ratio, and the largest ratio of the numbers of
# tokens with and without padding that is tested.
#
# Five seeds of four networks with 128 or 256 hidden units differ by up to 1.61, and their matrices by up to 1.44.
_FAR, _MOST_PADDING = 1.7, 4.0
# The relative rounding of a norm that was clipped to a threshold; the largest power of two that is tested as a number
# of ranks: larger numbers are tested if they divide the batch.
_ROUND, _MOST_RANKS = 1e-3, 2**10


@dataclass(frozen=True, slots=True)
class PairCause:
    """A usual reason why two runs of one model differ in step 1, with the ratios of losses and norms that it causes.

    Causes of a higher `rank` are listed first: 1 if other numbers of the logs show the cause, -1 if it is fitted to the
    ratio of losses.
    """

    words: str
    loss: float
    norm: float
    rank: int = 0


def compare_logs(
    files: Sequence[Path], batch: int, tokens: int, *, logged_as: Sequence[str] = (),
    judge: Callable[[Mapping[Path, LogLine]], tuple[list[str], list[str]]] | None = None,
) -> Result:  # fmt: skip
    """Compare loss and gradient norm of the first steps of two logs, and list the usual causes of such a difference.

    A step has `batch` sequences of `tokens` tokens. `logged_as` states how the numbers of both logs were computed.
    `judge` compares each log with theory if the two differ, as `judged_quickly` does.

    Raises:
        ValueError: there are more than two logs, one cannot be read, or they have no number in common.
    """
    if len(files) != 2:
        raise ValueError(f"logged must be one log or two, got {len(files)}.")
    reads = [reading(read_log(file), LoggedAs.of(logged_as), batch * tokens) for file in files]
    others = reads[1].line.parameters
    # The layer is 0 for a parameter outside the layers.
    table = pd.DataFrame(
        [
            (name, 1 + (matrix_of(name) or (-1, ()))[0], norm, others[name], norm / others[name])
            for name, norm in reads[0].line.parameters.items()
            if norm > 0 and others.get(name, 0.0) > 0
        ],
        columns=["name", "layer", "first", "second", "ratio"],
    )
    first, second = (
        _with_norm(read.line, table, column) for read, column in zip(reads, ("first", "second"), strict=True)
    )
    pairs = {"loss": (first.loss, second.loss), "gradient norm": (first.norm, second.norm)}
    ratios = {name: None if None in pair else pair[0] / pair[1] for name, pair in pairs.items()}  # type: ignore[operator]
    known = [ratio for ratio in ratios.values() if ratio is not None]
    if not known:
        raise ValueError(
            f"logged must be two logs that both have a loss, or both a norm, got {files[0]} and {files[1]}."
        )
    # The furthest first.
    times = np.log(table["ratio"] / table["ratio"].median()).abs()
    far = table.loc[times[times > math.log(_FAR)].sort_values(ascending=False, kind="stable").index]
    agree = far.empty and all(abs(math.log(ratio)) <= _NEAR for ratio in known)
    judged, right = ([], []) if agree or judge is None else judge(dict(zip(files, (first, second), strict=True)))
    causes = _causes(first, second, batch, tokens, far if len(far) < len(table) / 2 else far.head(0))
    near, tried = _nearest(causes, right, *ratios.values()), len(causes)
    return Result(
        about=f"step 1 of {files[0]} and {files[1]}",
        tables={"causes": near.head(0) if agree else near, "parameters": table},
        values={
            "loss_ratio": ratios["loss"], "norm_ratio": ratios["gradient norm"], "agree": agree, "tried": tried,
            "read_as": [read.lines for read in reads],
        },
        lines=[
            *(f"{file}: {has_line({'loss': read.line.loss, 'gradient norm': read.line.norm})}, {read.line.facts()}."
              for file, read in zip(files, reads, strict=True)),
            *dict.fromkeys(line for read in reads for line in read.lines),
            f"Ratio, first divided by second: {has_line(ratios)}.",
            *judged, "",
            *([_agreement(ratios)] if agree else _explained(near, tried, right)), *_of_parameters(table, far),
        ],
        alarm=not agree,
    )  # fmt: skip


def judged_quickly(
    given: Mapping[str, Any], batch: int, of: Description, logs: Mapping[Path, LogLine], seconds: float = 10.0
) -> tuple[list[str], list[str]]:
    """Compare each of two logs with a quick prediction of step 1.

    The result has lines of text, and "first" and "second" for the logs that are as predicted. The initialization is
    that of the known codes whose loss is nearest to the loss of one of the logs.

    Args:
        given: fields of the network.
        batch: number of sequences.
        of: further description of the network.
        logs: first steps by file.
        seconds: limit of the theory.
    """
    each = f"To judge one log with its causes: {'; '.join(f'--logged {file}' for file in logs)}."
    try:
        asked = resolve_batch(given, of, text=None, patterns=2, max_time=None)
        codes = {name: replace(of, drawn_by=name) for name in (of.drawn_by, *other_codes(of.read(given)[1]))}
        losses = [line.loss for line in logs.values() if line.loss is not None]
        networks = {name: code.read(asked.given) for name, code in codes.items()}
        name = min(
            networks, key=lambda name: min((abs(loss_of_head(networks[name][0]) - x) for x in losses), default=0)
        )
        (stack, notes), law = networks[name], law_of(networks[name][0], asked.text)
        patterns, coarse = quick_sampling(stack, law or TextLaw.distinct(stack.vocab), None)
        with by_estimates():  # without timing a small batch, which has no coarse groups
            scale = scale_of_batch(stack, law, patterns, Budget.of(f"{seconds}s", None), coarse=coarse)
    except ValueError as error:  # no rule, or it takes longer
        return [f"Theory does not judge the two logs here: {error}", each], []
    line = first_line(
        scale, batch, learned_vectors(stack, family_of(notes, of), notes), law, spread_of_texts(asked.text, stack.vocab)
    )
    wider = math.hypot(line.norm_deviation, COARSE * line.norm * (coarse and stack.ffn == "gated"))
    healthy = Cause("", replace(line, norm_deviation=wider))
    verdicts = {
        file: "as predicted" if healthy.explains(log) else f"not as predicted ({' and '.join(off_words(healthy, log))})"
        for file, log in logs.items()
    }
    right = [
        log for log, verdict in zip(("first", "second"), verdicts.values(), strict=True) if verdict == "as predicted"
    ]
    return [
        "", f"Theory, a quick estimate for {stack.tokens} tokens, weights drawn by {name}: {line_text(healthy.line)}.",
        *(f"  {file}: {verdict}" for file, verdict in verdicts.items()),
        f"{each}{f' Add --drawn-by {name} for these weights.' * (name != of.drawn_by)}",
    ], right  # fmt: skip


def _with_norm(line: LogLine, table: pd.DataFrame, column: str) -> LogLine:
    # Return a log's first step; without a norm, that of the parameters that both logs have.
    is_known = line.norm is not None or table.empty
    return line if is_known else replace(line, norm=float(np.linalg.norm(table[column])))


def _causes(first: LogLine, second: LogLine, batch: int, tokens: int, far: pd.DataFrame) -> list[PairCause]:
    causes = [*_of_counts(batch, tokens)]
    if first.norm is None or second.norm is None:
        return causes
    square = second.norm**2 + float((far["first"] ** 2 - far["second"] ** 2).sum())
    if not far.empty and square > 0:
        words = f"gradients of single matrices differ in the first log ({names_line(far['name'])})"
        causes.append(PairCause(words, 1.0, math.sqrt(square) / second.norm, rank=1))
    share = first.loss / second.loss if first.loss and second.loss else 1.0
    if _NEAR < abs(math.log(share)) < math.log(_MOST_PADDING):
        log, ratio = ("first", 1.0 / share) if share < 1.0 else ("second", share)
        over = f"averages loss and gradient over {ratio:.3g} times as many tokens, such as padding"
        causes.append(PairCause(f"the {log} log {over}", share, share, rank=-1))
    return [*causes, *_of_norms(first.norm, second.norm)]


def _of_counts(batch: int, tokens: int) -> Iterator[PairCause]:
    # Yield causes in which one log sums instead of averaging, or its norm depends on the number of ranks.
    ranks = {k for k in range(2, min(batch, 2**16) + 1) if batch % k == 0}
    ranks |= {2**k for k in range(1, _MOST_RANKS.bit_length())}
    for log, other, power in (("first", "second", 1), ("second", "first", -1)):
        for k in sorted(ranks):
            whole, root, of = float(k) ** power, float(k) ** (0.5 * power), f"{k} ranks or accumulation steps"
            either = f"instead of averaging them, or the {other} log divides them by {k} twice"
            yield PairCause(f"the {log} log sums the gradients of {of} {either}", 1.0, whole)
            yield PairCause(f"the {log} log sums loss and gradient of {of} {either}", whole, whole)
            alone = f"the {log} log gives the norm of one rank's gradient, before the mean over {k} ranks"
            yield PairCause(f"{alone}, or counts {k} times the parameters that {k} ranks share", 1.0, root)
        for number, what in ((tokens, "a sequence"), (batch * tokens, "the batch")):
            factor, of = float(number) ** power, f"the {number} tokens of {what} instead of averaging"
            yield PairCause(f"the {log} log sums loss and gradient over {of}", factor, factor)
            yield PairCause(f"the {log} log gives the gradient of a loss that sums over {of}", 1.0, factor)
        yield PairCause(f"the {log} log gives the loss in bits", (1.0 / math.log(2.0)) ** power, 1.0)


def _of_norms(first: float, second: float) -> Iterator[PairCause]:
    # Yield causes in which one log has squared norms, or norms after clipping.
    for log, norm, other, power in (("first", first, second, 1), ("second", second, first, -1)):
        yield PairCause(f"the {log} log gives squared norms", 1.0, other**power)
        for limit in THRESHOLDS:
            if abs(norm / limit - 1.0) < _ROUND and other > limit:
                words = f"the {log} log gives the norm after clipping at {limit:g}"
                yield PairCause(words, 1.0, (limit / other) ** power, rank=1)


def _nearest(causes: Sequence[PairCause], right: Sequence[str], loss: float | None, norm: float | None) -> pd.DataFrame:
    # Return the causes whose ratios are near the logs', with the larger of the two differences in logarithms.
    rows = []
    for cause in causes:
        pairs = ((loss, cause.loss), (norm, cause.norm))
        distance = max(abs(math.log(ratio / factor)) for ratio, factor in pairs if ratio is not None)
        # A log that is as predicted has no fault, unless a fault of the other log has the same effect.
        is_refuted = "or the " not in cause.words and any(cause.words.startswith(f"the {log} log") for log in right)
        if distance <= _NEAR and not is_refuted:
            rows.append((cause.words, cause.loss, cause.norm, distance, cause.rank))
    table = pd.DataFrame(rows, columns=["cause", "loss_ratio", "norm_ratio", "distance", "rank"])
    near = table.sort_values(["rank", "distance"], ascending=[False, True], kind="stable", ignore_index=True)
    return near.head(MOST_CAUSES)


def _agreement(ratios: dict[str, float | None]) -> str:
    # Return which numbers agree, and which are missing.
    missing = [name for name, ratio in ratios.items() if ratio is None]
    what = " and ".join(name for name in ratios if name not in missing)
    return f"The logs agree in {what} within {_NEAR:.0%}, as two seeds do." + "".join(
        f" The {name} is not compared: one log has none." for name in missing
    )


def _explained(near: pd.DataFrame, tried: int, right: Sequence[str]) -> list[str]:
    # Return the causes that give the ratios, and the number of tested ones.
    if near.empty:
        return [
            f"The logs differ. {'Both are as predicted. ' * (len(right) == 2)}None of {tried} tested causes gives "
            f"these ratios within {_NEAR:.0%}. "
            "Compare each log with theory."
        ]
    return [f"The logs differ. Causes that give these ratios within {_NEAR:.0%} ({tried} tested), nearest first:"] + [
        f"  {row.cause}: loss ratio {row.loss_ratio:.4g}, norm ratio {row.norm_ratio:.4g}" for row in near.itertuples()
    ]


def _of_parameters(table: pd.DataFrame, far: pd.DataFrame) -> list[str]:
    # Return the ratios by layer, and the parameters whose ratio differs from the median.
    if table.empty:
        return []
    lines = [f"Median ratio of {len(table)} parameters: {table['ratio'].median():.4g}."]
    layers = table[table["layer"] > 0].groupby("layer")[["first", "second"]].agg(np.linalg.norm)
    if len(layers) > 1:
        ratios = layers["first"] / layers["second"]
        lines += [
            f"Ratio by layer: {ratios.min():.4g} (layer {ratios.idxmin()}) to {ratios.max():.4g} "
            f"(layer {ratios.idxmax()}), {len(ratios)} layers."
        ]
    if far.empty:
        return [*lines, f"All ratios lie between 1/{_FAR:g} and {_FAR:g} times the median."]
    worst = far.iloc[0]
    return [
        *lines,
        f"Outside 1/{_FAR:g} to {_FAR:g} times the median: {names_line(far['name'])}.",
        f"Largest deviation: {worst['name']}, {worst['first']:.4g} and {worst['second']:.4g}, ratio "
        f"{worst['ratio']:.4g}.",
    ]
