"""The comparison of the first steps of two training logs of one model (`gradbounds predict --logged A B`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradbounds.actions.batch import law_of, line_text, quick_batch, resolve_batch
from gradbounds.actions.first_line import FirstLine
from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.actions.logged_as import LoggedAs, Reading, has_line, reading
from gradbounds.actions.logged_causes import (
    BEYOND,
    TRAINED,
    Cause,
    logging_causes,
    off_words,
    separating_tests,
)
from gradbounds.actions.logged_layers import matrix_of, names_line
from gradbounds.actions.logged_theory import at_repeats, doubts_of, text_causes
from gradbounds.described_network import Description
from gradbounds.network_text import loss_of_head, other_codes
from gradbounds.result import Result
from theory import Stack
from theory.configurations.encoder_decoders import shares_ends
from theory.mean_field.text_law import TextLaw

# The largest relative difference of two logs that count as equal if theory does not judge them.
#
# Public logs of GPT-2 differ by 0.2% to 6% in the norm and by less than 1% in the loss.
_NEAR = 0.05
# The factor by which a parameter's ratio may differ from the median ratio.
#
# Five seeds of four networks with 128 or 256 hidden units differ by up to 1.61, and their matrices by up to 1.44.
_FAR = 1.7
_MOST_CAUSES = 3  # that are printed
_BOTH = (
    "Each log alone is as predicted, because the range of one log also includes usual texts and theory's own error. "
    "A likely cause of the difference is another text."
)


@dataclass(frozen=True, slots=True)
class Judged:
    """Theory's verdict on two logs, and the deviations of one run on a given text.

    Attributes:
        lines: verdicts as text.
        right: "first" and "second" for the logs that are as predicted.
        loss: relative standard deviation of the loss over weights and batches.
        norm: relative standard deviation of the gradient norm over weights and batches.
        shared: share of the squared norm that two sequences have in common.
        is_derived: whether the deviations are theory's; else two runs may differ by 5%.
    """

    lines: Sequence[str] = ()
    right: Sequence[str] = ()
    loss: float = _NEAR / BEYOND / 2.0**0.5
    norm: float = math.log1p(_NEAR) / BEYOND / 2.0**0.5
    shared: float = 0.0
    is_derived: bool = False

    def line_of(self, other: LogLine) -> FirstLine:
        """Predict loss and norm of a run from another run of one configuration on one text.

        The law of the text is the same, so it adds no deviation. Weights and batches are drawn in each run.
        """
        loss, norm = other.loss or 1.0, other.norm or 1.0
        return FirstLine(loss, 2.0**0.5 * self.loss * loss, norm, 2.0**0.5 * self.norm * norm, self.shared)

    def limits(self, names: Sequence[str]) -> str:
        """Describe in words by how much two runs differ at most."""
        line = self.line_of(LogLine(None))
        most = {"loss": BEYOND * line.loss_deviation, "gradient norm": math.expm1(BEYOND * line.norm_deviation)}
        each = " and ".join(f"{most[name]:.1%} in the {name}" for name in names)
        return (
            f"two runs of one text differ by at most {each}, each in 99 of 100 pairs" if self.is_derived
            else f"{_NEAR:.0%} is the limit, because theory does not judge them"
        )  # fmt: skip


def compare_logs(
    files: Sequence[Path], batch: int, stack: Stack, *, logged_as: Sequence[str] = (),
    judge: Callable[[Mapping[Path, LogLine]], Judged] | None = None,
) -> Result:  # fmt: skip
    """Compare loss and gradient norm of the first steps of two logs, and list the usual causes of such a difference.

    A step has `batch` sequences of the network's tokens. `logged_as` states how the numbers of both logs were computed.
    `judge` compares each log with theory, as `judged_quickly` does.

    Raises:
        ValueError: there are more than two logs, one cannot be read, or they have no number in common.
    """
    if len(files) != 2:
        raise ValueError(f"logged must be one log or two, got {len(files)}.")
    reads = [reading(read_log(file), LoggedAs.of(logged_as), batch * stack.tokens) for file in files]
    table = _table(reads[0].line.parameters, reads[1].line.parameters)
    # A log without a norm has the norm of the parameters that both logs have.
    first, second = (
        read.line if read.line.norm or table.empty else replace(read.line, norm=float(np.linalg.norm(table[column])))
        for read, column in zip(reads, ("first", "second"), strict=True)
    )
    pairs = {"loss": (first.loss, second.loss), "gradient norm": (first.norm, second.norm)}
    ratios = {name: None if None in pair else pair[0] / pair[1] for name, pair in pairs.items()}  # type: ignore[operator]
    known = [name for name, ratio in ratios.items() if ratio is not None]
    if not known:
        raise ValueError(
            f"logged must be two logs that both have a loss, or both a norm, got {files[0]} and {files[1]}."
        )
    # The furthest first.
    times = np.log(table["ratio"] / table["ratio"].median()).abs()
    far = table.loc[times[times > math.log(_FAR)].sort_values(ascending=False, kind="stable").index]
    judged = Judged() if judge is None else judge(dict(zip(files, (first, second), strict=True)))
    lines = [  # with the numbers that both logs have
        replace(line, loss=other.loss and line.loss, norm=other.norm and line.norm)
        for line, other in ((first, second), (second, first))
    ]
    agree = far.empty and Cause("", judged.line_of(lines[1])).explains(lines[0])
    few = far if 2 * len(far) < len(table) else far.head(0)
    tested = [] if agree else _causes(lines, reads, judged, few, batch, stack)
    rows = [(cause.words, *ratios, cause.distance(line)) for cause, line, ratios in tested if cause.explains(line)]
    near = pd.DataFrame(rows[:_MOST_CAUSES], columns=["cause", "loss_ratio", "norm_ratio", "distance"])
    tried = sum(cause.tried for cause, _, _ in tested)
    return Result(
        about=f"step 1 of {files[0]} and {files[1]}",
        tables={"causes": near, "parameters": table},
        values={
            "loss_ratio": ratios["loss"], "norm_ratio": ratios["gradient norm"], "agree": agree, "tried": tried,
            "loss_deviation": judged.loss, "norm_deviation": judged.norm, "read_as": [read.lines for read in reads],
        },
        lines=[
            *_verdict(judged, known, agree), "", *(
                f"{file}: {has_line({'loss': read.line.loss, 'gradient norm': read.line.norm})}, {read.line.facts()}."
                for file, read in zip(files, reads, strict=True)
            ),
            *dict.fromkeys(line for read in reads for line in read.lines),
            f"Ratio, first divided by second: {has_line(ratios)}.",
            *judged.lines, "", *_of_causes(tried, near), *_of_parameters(table, far),
        ],
        alarm=not agree,
    )  # fmt: skip


def judged_quickly(
    given: Mapping[str, Any], batch: int, of: Description, logs: Mapping[Path, LogLine], seconds: float = 10.0
) -> Judged:
    """Compare each of two logs with a quick prediction of step 1.

    The initialization is that of the known codes whose loss is nearest to the loss of one of the logs.

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
        trained = "their losses are below half of ln V, of trained weights" * (
            max(losses, default=math.inf) < TRAINED * math.log(stack.vocab)
        )
        if reason := trained or "it lacks their loss" * shares_ends(notes):
            return Judged([f"Theory does not judge the two logs: {reason}."])
        values = quick_batch(asked, batch, codes[name], patterns=None, max_time=f"{seconds}s").values
    except ValueError as error:  # no rule, or it takes longer
        return Judged([f"Theory does not judge the two logs here: {error}", each])
    healthy = Cause("", line := values["line"])
    verdicts = {
        file: "as predicted" if healthy.explains(log) else _off_verdict(healthy, log, stack, batch, law)
        for file, log in logs.items()
    }
    right = [
        log for log, verdict in zip(("first", "second"), verdicts.values(), strict=True) if verdict == "as predicted"
    ]
    lines = [
        "", f"Theory, a quick estimate for {stack.tokens} tokens, weights drawn by {name}: {line_text(healthy.line)}.",
        *(f"  {file}: {verdict}" for file, verdict in verdicts.items()),
        f"{each}{f' Add --drawn-by {name} for these weights.' * (name != of.drawn_by)}",
    ]  # fmt: skip
    return Judged(lines, right, line.loss_deviation / line.loss, line.drawn / line.norm, line.shared, is_derived=True)


def _off_verdict(healthy: Cause, log: LogLine, stack: Stack, batch: int, law: TextLaw | None) -> str:
    # State what is off, by the rule of a single log with estimates instead of predictions of other texts.
    def estimated(other: TextLaw) -> FirstLine:
        return at_repeats(stack, healthy.line, other.across / law.across) if law else healthy.line

    texts = text_causes(stack, (law.across, healthy.line), estimated, log, batch) if law else []
    off, doubts = "; ".join(off_words(healthy, log)), doubts_of(healthy, texts, log)
    return f"undecided: {off}. To decide, {'; and '.join(doubts)}" if doubts else f"not as predicted: {off}"


def _table(first: Mapping[str, float], second: Mapping[str, float]) -> pd.DataFrame:
    # Return the norms of parameters that both logs have. The layer is 0 for a parameter outside the layers.
    return pd.DataFrame(
        [
            (name, 1 + (matrix_of(name) or (-1, ()))[0], norm, second[name], norm / second[name])
            for name, norm in first.items()
            if norm > 0 and second.get(name, 0.0) > 0
        ],
        columns=["name", "layer", "first", "second", "ratio"],
    )


def _causes(
    lines: Sequence[LogLine], reads: Sequence[Reading], judged: Judged, far: pd.DataFrame, batch: int, stack: Stack
) -> list[tuple[Cause, LogLine, tuple[float, float]]]:
    # Return the causes in one of two logs, its first step, and the ratios first / second that the cause gives.
    #
    # They are the causes of a single log, with the other log instead of a prediction. A log that is as predicted has
    # no fault.
    matches: list[tuple[Cause, LogLine, tuple[float, float]]] = []
    for k, log in enumerate(("first", "second")):
        line, other = lines[k], judged.line_of(lines[1 - k])
        causes = [] if log in judged.right else [*logging_causes(other, replace(reads[k], line=line), stack, batch)]
        square = other.norm**2 + float((far["first"] ** 2 - far["second"] ** 2).sum())
        if k == 0 and not far.empty and square > 0 and line.norm is not None:
            causes.append(
                Cause(
                    f"the gradients of single matrices differ ({names_line(far['name'])})",
                    replace(other, norm=square**0.5),
                )
            )
        matches += [
            (
                replace(cause, words=f"in the {log} log, {cause.words}"), line,
                ((cause.line.loss / other.loss) ** (1 - 2 * k), (cause.line.norm / other.norm) ** (1 - 2 * k)),
            )
            for cause in causes
        ]  # fmt: skip
    # Ratios of single matrices show their cause.
    return sorted(
        matches, key=lambda row: ("single matrices" not in row[0].words, row[0].is_fitted, row[0].distance(row[1]))
    )


def _verdict(judged: Judged, known: Sequence[str], agree: bool) -> list[str]:
    # Say whether the two logs agree, by which limit, and why the verdicts on each alone may be others.
    return [
        f"The logs {'agree in ' + ' and '.join(known) if agree else 'differ'}: {judged.limits(known)}.",
        *(f"The {name} is not compared: one log has none." for name in ("loss", "gradient norm") if name not in known),
        *[_BOTH] * (not agree and len(judged.right) == 2),
        *(
            f"Only the {log} log is as predicted: "
            + (
                "the other is outside the range of one log, and the two are close."
                if agree
                else "if both logs have the same text, the other one is off."
            )
            for log in judged.right
            if len(judged.right) == 1
        ),
    ]  # fmt: skip


def _of_causes(tried: int, near: pd.DataFrame) -> list[str]:
    # Return the causes that explain the ratios, and the number of tested ones.
    if near.empty:
        return [f"None of {tried} tested causes explains these ratios."] * (tried > 0)
    shown_by = separating_tests(near["cause"])
    return [
        f"Causes that may explain these ratios ({tried} tested), nearest first:",
        *(
            f"  {row.cause}: loss ratio {row.loss_ratio:.4g}, norm ratio {row.norm_ratio:.4g}"
            for row in near.itertuples()
        ),
        *[f"To tell them apart, repeat step 1 with the same batch and one change: {shown_by}."]
        * (len(near) > 1 and bool(shown_by)),
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
