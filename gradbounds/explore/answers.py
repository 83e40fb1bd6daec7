"""What the page is answered: what `gradbounds predict` finds and says, by its own functions, as data."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from checks.stacks.gradients_by_layer import layer_table, matrices
from gradbounds.actions.batch import predict_batch
from gradbounds.actions.predict import predict_stack
from gradbounds.budget import Budget, OverBudgetError, Way, way
from gradbounds.explore.questions import MOST_LAYERS, Question
from gradbounds.network_text import (
    drawn_lines,
    ends_of_layers,
    matrix_name,
    note_lines,
    sampled_lines,
    standing_out,
    trust_lines,
    with_cosines,
)
from theory import NoRuleError, Stack
from theory.coverage import holds_words, is_fluctuating
from theory.mean_field.cost import Cost, quick_patterns
from theory.paper.claims import printed_profile
from theory.stack import TITLES

SECONDS, STEP_SECONDS = 10.0, 30.0
"""What theory of an answer may take on one core, by the estimate of `predict`; and of a first step."""

_MEMORY = "2GB"

_LEAST_WIDTH, _MOST_WIDTH = 16, 2**20

SIZES = ("depth", "width")
"""What it asks of several, by the field in which they differ."""

# Sampled patterns of one of several networks, over those of one alone.
_FEWER = 8


class NobodyWaitsError(Exception):
    """Who asked has hung up."""


def answer(kind: str, asked: Any, *, is_wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """The answer to a question.

    Args:
        kind: what is asked: "predict", "batch", "first_step", "depth" or "width".
        asked: `Question.read` reads it.
        is_wanted: whether somebody still waits for it.

    Raises:
        ValueError: the question cannot be read, or theory has no rule for the network or no time.
        NobodyWaitsError: an answer of several predictions is not wanted any more.
    """
    question = Question.read(asked)
    if kind in SIZES:
        return _sizes(question, kind, is_wanted)
    return ANSWERS[kind](question)


def _limits(seconds: float) -> dict[str, Any]:
    return {"max_time": f"{seconds:g}s", "memory": _MEMORY}


def _budget() -> Budget:
    return Budget.of(f"{SECONDS:g}s", _MEMORY)


def _prediction(question: Question) -> dict[str, Any]:
    """Every layer's gradients and stream, what stands out of them, and how far theory is to be trusted."""
    stack, notes = question.network()
    way(stack, None, _budget())  # what has no rule or takes too long is an error here, and not sampled
    result = predict_stack(
        question.given, question.of, compare=(), draws=None, seed=0, patterns=None, every_layer=True, **_limits(SECONDS)
    )
    table, values = with_cosines(result.tables["prediction"]), result.values
    return {
        "title": result.about,
        "name": TITLES[stack.placement],
        "stack": stack,
        "python": f"gb.predict(gb.{stack!r})",
        "series": [_series(name, rows) for name, rows in table.groupby("quantity", sort=False)],
        "drawn": drawn_lines(notes),
        "stands_out": standing_out(stack, result.tables["prediction"]),
        "trust": [line for line in trust_lines(stack, values["compared_with_code"] or "") if line],
        "sampled": [line for line in sampled_lines(stack, table) if line],
        "cheaper": values["cheaper"],
        "notes": [line for line in note_lines(notes) if line],
        "lines": list(result.lines),
        "paper": _of_the_paper(stack, table),
    }


def _series(name: Any, rows: pd.DataFrame) -> dict[str, Any]:
    """A quantity over the layers; layer 0 is of the whole network."""
    rows = rows.sort_values("layer")
    return {
        "quantity": str(name),
        "head": matrix_name(str(name)),
        "matrix": "grad_" in str(name) and bool(rows["layer"].max()),
        "layer": rows["layer"].tolist(),
        "predicted": rows["predicted"].tolist(),
        "sem": rows["predicted_sem"].tolist(),
    }


def _of_the_paper(stack: Stack, table: pd.DataFrame) -> dict[str, Any] | None:
    """Theorem 1's bound of the last W2, and appendix F's law through its prediction; None outside the paper."""
    if not stack.in_paper:
        return None
    from theory.paper.theorem1 import bound_value  # late, since it loads sympy

    last = ends_of_layers(table, "grad_W2", "predicted")
    law = printed_profile(stack.placement, stack.depth)
    return {
        "bound": float(bound_value(stack).value),
        "appendix_f": None if last is None or law is None else (last[2] * law).tolist(),
    }


def _batch(question: Question) -> dict[str, Any]:
    """The first line of a training log."""
    question.network()
    result = predict_batch(question.given, question.batch, question.of, patterns=None, **_limits(SECONDS))
    values = {name: result.values[name] for name in (
        "batch", "loss", "loss_deviation", "gradient_norm", "gradient_norm_sem", "noise_scale",
    )}  # fmt: skip
    shares = result.tables["batch"].sort_values("share", ascending=False, kind="stable")
    return values | {"shares": shares[["name", "share"]].to_dict("records"), "lines": list(result.lines)}


def _first_step(question: Question) -> dict[str, Any]:
    """The critical rate of SGD's first step."""
    from gradbounds.actions.first_step import first_steps  # late, since it loads torch

    stack, notes = question.network()
    result = first_steps([stack], ["sgd"], notes=notes, **_limits(STEP_SECONDS))
    row = result.tables["first_step"].iloc[0]
    names = ("critical_rate", "critical_rate_sem", "implied_error", "no_rule", "no_coefficient", "noise_scale")
    return {name: row[name] for name in names} | {"lines": list(result.lines)}


def _sizes(question: Question, name: str, is_wanted: Callable[[], bool]) -> dict[str, Any]:
    """First and last layer against a size.

    Raises:
        NobodyWaitsError: the answer is not wanted any more.
    """
    stack, _ = question.network()
    ways, left_out = _ways(question, stack, name)
    rows, paper = [], []
    for size, each in ways.items():
        if not is_wanted():
            raise NobodyWaitsError
        table = with_cosines(layer_table(each.predicted(), None))
        for quantity in matrices(table):
            if (ends := ends_of_layers(table, quantity, "predicted")) is not None:
                ratio, _, last, _ = ends
                rows.append((quantity, matrix_name(quantity), size, ratio * last, last))
        if (of_paper := _of_the_paper(each.stack, table)) is not None:
            law = of_paper["appendix_f"]
            paper.append({"size": size, "bound": of_paper["bound"], "appendix_f": law and law[0]})
    columns = ["quantity", "head", "size", "first", "last"]
    return {
        "along": name, "own": getattr(stack, name), "paper": paper, "left_out": left_out,
        "rows": pd.DataFrame(rows, columns=columns).to_dict("list"),
    }  # fmt: skip


def _ways(question: Question, stack: Stack, name: str) -> tuple[dict[int, Way], str]:
    """The ways to predict networks of several sizes within the time, the smallest first, and what is left out.

    Raises:
        NoRuleError: there is none.
        OverBudgetError: not one of them is within the time.
    """
    patterns = max(2, quick_patterns(stack) // _FEWER) if is_fluctuating(stack) or holds_words(stack) else None
    ways: dict[int, Way] = {}
    spent, refused = Cost(), 0
    for size in _around(stack, name):
        try:
            network, _ = question.of.read({**question.given, name: size})
            chosen = way(network, patterns, _budget())
        except NoRuleError:
            raise
        except ValueError:  # heads that do not divide a width, a mask of so many rows, or one that takes too long
            refused += 1
            continue
        if _budget().holds(spent + chosen.cost):
            spent, ways[size] = spent + chosen.cost, chosen
        else:
            refused += 1
    if not ways:
        raise OverBudgetError(f"theory of one {name} would take more than {SECONDS:g} seconds.")
    reason = f"{refused} sizes are left out: together they take too long, or the network does not allow them."
    return dict(sorted(ways.items())), reason if refused else ""


def _around(stack: Stack, name: str) -> list[int]:
    """The network's own size, and powers of two around it, the smallest first."""
    own_size = getattr(stack, name)
    low, high = (1, max(64, 4 * own_size)) if name == "depth" else (own_size / 16, 16 * own_size)
    low, high = (low, min(high, MOST_LAYERS)) if name == "depth" else (max(low, _LEAST_WIDTH), min(high, _MOST_WIDTH))
    powers = [1 << k for k in range(math.ceil(math.log2(high)) + 1) if low <= 1 << k <= high and 1 << k != own_size]
    return [own_size, *powers]


ANSWERS: Mapping[str, Callable[[Question], dict[str, Any]]] = {
    "predict": _prediction, "batch": _batch, "first_step": _first_step,
}  # fmt: skip
"""What the page asks of one network, by name."""
