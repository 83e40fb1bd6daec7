"""`gradbounds predict`: one network's gradients, layer by layer, in theory and in samples."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from checks.large_width import why_not_judged
from checks.stacks.gradients_by_layer import exponents, layer_table
from gradbounds.described_network import apply_changes, read_network, variants
from gradbounds.network_text import comparison_lines, matrix_name, network_lines, note_lines, standing_out, title
from gradbounds.progress import working
from gradbounds.result import Result
from gradbounds.units import duration, seconds_of
from simulate.counts import check_count
from theory import NoRuleError, Prediction, Stack, predict
from theory.coverage import holds_words, is_fluctuating
from theory.mean_field.prediction import quick_patterns
from theory.stack import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulate import Samples

_DRAWS = 16

# Patterns that are predicted so fast that exponents, two more predictions, may follow.
_ENOUGH = 64

# Seconds beyond which it is said beforehand how long a step takes.
_LONG = 2.0


def predict_stack(
    given: Mapping[str, Any], *, config: Path | None, like: str | None, ignore: Sequence[str] = (),
    compare: Sequence[str], draws: int | None, seed: int, patterns: int | None, max_time: str,
) -> Result:  # fmt: skip
    """One network's gradients layer by layer, in theory and in samples, and other networks beside it.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
    """
    stack, notes = read_network(given, config, like, ignore)
    others = {changes: apply_changes(stack, changes) for changes in variants(compare)}
    if draws is not None:
        check_count("draws", draws, 2)  # one draw has no error
    check_count("seed", seed, 0)
    if patterns is not None:
        check_count("patterns", patterns, 2)
    prediction, slopes, reason = _theory(stack, patterns or quick_patterns(stack), seconds_of(max_time))
    draws = _DRAWS if draws is None and prediction is None else draws
    samples = None if draws is None else _sampled(stack, draws, seed)
    table = layer_table(prediction, samples)
    beside = {
        changes: layer_table(predict(other, patterns=patterns or quick_patterns(other)), None)
        for changes, other in others.items()
    }
    values: dict[str, Any] = {
        "stack": stack,
        "no_rule": reason or None,
        "not_judged": why_not_judged(stack) or None,
        "notes": notes,
    }
    values["exponents"] = slopes
    values["compared"] = [{"stack": others[changes], "prediction": beside[changes]} for changes in others]

    def drawn() -> "Figure":
        from figures.layer_profile import layer_profile  # late: it loads matplotlib

        return layer_profile(_profile(stack, table))

    return Result(
        about=title(stack),
        tables={"prediction": table},
        values=values,
        lines=[
            *network_lines(stack, table, reason), *_exponent_lines(slopes, reason), _bound_line(stack, table),
            *standing_out(stack, table),
            *(line for changes in beside for line in comparison_lines(changes, table, beside[changes])),
            *note_lines(notes),
        ],
        figures={"gradient_over_layers": drawn},
    )  # fmt: skip


def _theory(stack: Stack, patterns: int, limit: float) -> tuple[Prediction | None, pd.DataFrame | None, str]:
    """The prediction, the exponents around it where they are to be had within seconds, and why there is none."""
    try:
        seconds = _tied_seconds(stack, patterns)
        if seconds > limit:
            takes = f"with tied embeddings it would take about {duration(seconds)} for {stack.tokens} tokens"
            return None, None, f"{takes}, more than max_time; --max-time {2 * seconds / 60:.0f}m waits for it."
        with _shown("predicting", seconds):
            prediction = predict(stack, patterns=patterns)
            if prediction.errors and (holds_words(stack) or patterns < _ENOUGH):
                return prediction, None, ""
            return prediction, exponents(prediction, lambda other: predict(other, patterns=max(2, patterns // 4))), ""
    except NoRuleError as error:
        return None, None, str(error)


def _tied_seconds(stack: Stack, patterns: int) -> float:
    """What tied embeddings take, from a quarter of the tokens. Other rules are over soon.

    n^4 averages for all samples of the logits, or some n^2 for each where it has attention patterns of its own.
    """
    if not holds_words(stack) or stack.tokens < 24 or stack.mask == "given":
        return 0.0
    start = time.perf_counter()
    predict(replace(stack, tokens=stack.tokens // 4), patterns=2)
    times = 4**2 * patterns / 2 if is_fluctuating(stack) else 4**4
    return times * (time.perf_counter() - start)


def _sampled(stack: Stack, draws: int, seed: int) -> "Samples":
    # Late: torch takes longer to load than a prediction takes.
    from simulate import Cell, sample
    from simulate.runs.cost import block_work

    cell = Cell(stack)
    with _shown(f"sampling {draws} networks", block_work(cell).cost * cell.blocks(draws)):
        return sample(stack, draws=draws, seed=seed)


@contextmanager
def _shown(what: str, seconds: float) -> Iterator[None]:
    """Say what runs: on a terminal while it does, elsewhere if it takes long."""
    about = f"{what}, about {seconds:.0f} s" if seconds > _LONG else what
    if seconds > _LONG and not sys.stderr.isatty():
        print(about, file=sys.stderr, flush=True)
    with working(about):
        yield


def _exponent_lines(slopes: pd.DataFrame | None, reason: str) -> list[str]:
    if slopes is None:
        return [] if reason else ["Exponents are left out, since they would take theory several times as long again."]
    lines = []
    for field, symbol in (("width", "d"), ("depth", "L")):
        rows = slopes[slopes["field"] == field]
        numbers = [
            f"{matrix_name(name)} {value:.3f}" + (f" +- {sem:.3f}" if sem > 0 else "")
            for name, value, sem in rows[["quantity", "exponent", "sem"]].itertuples(index=False)
        ]
        lines += (
            [f"Exponents in {symbol} of the last layer's norms, from here to twice the {field}: {', '.join(numbers)}."]
            if numbers
            else []
        )
    return lines


def _bound_line(stack: Stack, table: pd.DataFrame) -> str:
    """Theorem 1 for this network, or why it has none."""
    if not stack.in_paper:
        named = [] if stack.placement in PAPER else [f"placement {stack.placement}"]
        named += list(stack.relaxed)
        return f"No bound: Theorem 1 is about the paper's setting, which this network leaves by {', '.join(named)}."
    from theory.paper.theorem1 import bound_value  # late, since it loads sympy

    bound = float(bound_value(stack).value)
    last = table[(table["quantity"] == "grad_W2") & (table["layer"] == stack.depth)]["predicted"].iloc[0]
    return f"Theorem 1 allows the last dL/dW2 a norm of {bound:.4g}, {bound / last:.3g} times the prediction."


def _profile(stack: Stack, table: pd.DataFrame) -> pd.DataFrame:
    """The table as the figure takes it: squares again, whose root it draws."""
    shown = table[table["quantity"].str.startswith("grad_") & (table["layer"] > 0)].copy()
    shown["quantity"] = shown["quantity"].str.replace("grad_", "grad_sq_", regex=False)
    shown["sem"] = 2 * shown["mean"] * shown["sem"]
    shown[["mean", "predicted"]] = shown[["mean", "predicted"]] ** 2
    return shown.assign(placement=stack.placement, width=stack.width, depth=stack.depth, tokens=stack.tokens)
