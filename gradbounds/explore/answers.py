"""The answers to the questions of the interactive page: the results of `gradbounds predict`, as data."""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from checks.stacks.gradients_by_layer import layer_table, matrices
from gradbounds.actions.batch import Asked, law_of, predict_batch, resolve_batch
from gradbounds.actions.first_line import cost_of_batch, quick_cost
from gradbounds.actions.predict import predict_stack
from gradbounds.budget import Budget, OverBudgetError, Way, by_estimates, way
from gradbounds.explore.questions import MOST_LAYERS, Question
from gradbounds.network_comparison import comparison_lines, comparison_words
from gradbounds.network_text import (
    ends_of_layers,
    matrix_name,
    with_cosines,
)
from gradbounds.plain_text import one_line
from theory import NoRuleError, Stack
from theory.coverage import holds_words, is_fluctuating
from theory.mean_field.cost import Cost, quick_patterns
from theory.paper.claims import printed_profile
from theory.stack import TITLES
from theory.stack.optimizers import Optimizer

SECONDS, STEP_SECONDS = 10.0, 30.0
"""The limits on theory's estimated time on one core, for an answer and for a first step."""

_STEPPED: tuple[Optimizer, ...] = ("sgd", "adam")

_MEMORY = "4GB"

_LONGEST_MESSAGE = 600

_LEAST_WIDTH, _MOST_WIDTH = 16, 2**20

SIZES = ("depth", "width")
"""The questions about several networks, by the field in which the networks differ."""

MOST_COMPARED = 4
"""The largest number of networks that are compared at once."""

# Of the reason why a size cannot be.
_LONGEST = 200

# Tables of networks that may be asked for again, as those that are pinned.
_KEPT = 16

# A ratio of norms below which the page calls them equal.
_EQUAL = 1.05

# Sampled patterns of one of several networks, over those of one alone.
_FEWER = 8


class NobodyWaitsError(Exception):
    """An error: the browser closed its connection while the server still computed the answer."""


@by_estimates()
def answer(kind: str, asked: Any, *, is_wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Return the answer to a question of the interactive page, as a dictionary.

    Args:
        kind: kind of the question: "predict", "lines", "batch", "first_step", "depth", "width" or "compare".
        asked: decoded JSON for `Question.read`; for "compare", an object with several of them as `networks` and their
            `names`.
        is_wanted: whether somebody still waits for it.

    Raises:
        ValueError: the question cannot be read, or theory has no rule for the network or no time.
        NobodyWaitsError: an answer of several predictions is not wanted any more.
    """
    if kind == "compare":
        return _comparison(asked, is_wanted)
    question = Question.read(asked)
    return _sizes(question, kind, is_wanted) if kind in SIZES else ANSWERS[kind](question)


@by_estimates()
def seconds_of_answer(kind: str, asked: Any) -> float:
    """Estimate how many seconds on one core the answer to a question takes.

    The result is 0 if the question is refused, or if the computation itself checks whether the answer is still wanted.

    Raises:
        ValueError: the question cannot be read.
    """
    if kind not in ("predict", "batch", "lines"):
        return 0.0
    question = Question.read(asked)
    stack, _ = question.network()
    try:
        if kind == "batch":
            return _cost_of_log(question, _log_asked(question, question.seconds or SECONDS)).seconds
        return way(stack, None, _budget(question)).cost.seconds
    except ValueError:
        return 0.0


def _limits(seconds: float) -> dict[str, Any]:
    return {"max_time": f"{seconds:g}s", "memory": _MEMORY}


def _budget(question: Question | None = None) -> Budget:
    seconds = None if question is None else question.seconds
    return Budget.of(f"{seconds or SECONDS:g}s", _MEMORY)


def _prediction(question: Question, *, further: bool = False) -> dict[str, Any]:
    """Return gradients and residual stream of every layer, the sentences about them, and how far to trust theory.

    With `further`, the answer also contains the change that evens out the layers, and all printed lines.
    """
    stack, _ = question.network()
    _way(question)  # what has no rule or takes too long is an error here, and not sampled
    result = predict_stack(
        question.given, question.of, compare=(), draws=None, seed=0, patterns=None, every_layer=True, further=further,
        **_limits(question.seconds or SECONDS),
    )  # fmt: skip
    shown = pd.DataFrame(with_cosines(result.columns()))
    _keep(stack, shown)
    sentences = dict(result.values["sentences"])
    of_further = {"evened": sentences.pop("evened"), "lines": [*result.lines, *result.below]}
    return sentences | (of_further if further else {}) | {
        "title": result.about,
        "name": TITLES[stack.placement],
        "stack": stack,
        "python": f"gb.predict(gb.{stack!r})",
        "series": (series := _series(shown)),
        "finding": _finding(series),
        "cosine": _cosine(series),
        "cheaper": result.values["cheaper"] or "",
        "paper": _of_the_paper(stack, shown),
        "taken_apart": _taken_apart(stack, shown),
    }  # fmt: skip


def _way(question: Question) -> Way:
    return way(question.network()[0], None, _budget(question))


def _series(table: pd.DataFrame) -> list[dict[str, Any]]:
    # Return every quantity as a series over the layers; layer 0 is the whole network.
    rows = table.sort_values("layer", kind="stable")
    layers, norms, errors = (rows[name].to_numpy() for name in ("layer", "predicted", "predicted_sem"))
    places = rows.groupby("quantity", sort=False).indices
    return [
        {
            "quantity": str(name),
            "head": matrix_name(str(name)),
            "matrix": "grad_" in str(name) and bool(layers[places[name]].max()),
            "layer": layers[places[name]].tolist(),
            "predicted": norms[places[name]].tolist(),
            "sem": errors[places[name]].tolist(),
        }
        for name in table["quantity"].unique()
    ]


def _finding(series: list[dict[str, Any]]) -> str:
    # Compare the first layer's gradients with the last layer's in one sentence: the title of the page.
    ends = {each["head"].replace("dL/d", ""): (each["predicted"][0], each["predicted"][-1])
            for each in series if each["matrix"] and len(each["layer"]) > 1}  # fmt: skip
    ratios = {name: first / last for name, (first, last) in ends.items() if first > 0 and last > 0}
    if not ratios:
        return "The network has one layer, which cannot be compared with another."
    least, most = min(ratios, key=lambda name: ratios[name]), max(ratios, key=lambda name: ratios[name])
    if max(ratios[most], 1 / ratios[least]) < _EQUAL:
        return "The gradients of the first and the last layer are equal within 5%."
    between = f"{ratios[least]:.3g} ({least}) to {ratios[most]:.3g} ({most})"
    if ratios[most] < ratios[least] * (_EQUAL):
        between = f"{ratios[most]:.3g}"
    return f"The first layer's gradients are {between} times as large as the last layer's."


def _cosine(series: list[dict[str, Any]]) -> str:
    # State the cosine of two tokens after the first and after the last layer; "" for one token.
    of_layers = next((each for each in series if each["quantity"] == "cosine"), None)
    if of_layers is None:
        return ""
    first, last = of_layers["predicted"][0], of_layers["predicted"][-1]
    return f"The cosine of two tokens is {first:.2f} after the first layer and {last:.2f} after the last."


def _of_the_paper(stack: Stack, table: pd.DataFrame) -> dict[str, Any] | None:
    # Return Theorem 1's bound for the last W2 and appendix F's law through its prediction; None outside the paper.
    if not stack.in_paper:
        return None
    from theory.paper.theorem1 import bound_value  # late, since it loads sympy

    last = ends_of_layers(table, "grad_W2", "predicted")
    law = printed_profile(stack.placement, stack.depth)
    return {
        "bound": float(bound_value(stack).value),
        "appendix_f": None if last is None or law is None else (last[2] * law).tolist(),
    }


def _taken_apart(stack: Stack, table: pd.DataFrame) -> list[dict[str, Any]]:
    # Return each step of Theorem 1's proof with its factor in the norm of the last W2; empty outside the paper.
    if not stack.in_paper:
        return []
    from theory.paper.proof_chain import STEPS, chain  # late, since it loads sympy

    whole = table[table["layer"] == 0].set_index("quantity")["predicted"]
    last = table[(table["quantity"] == "grad_W2") & (table["layer"] == stack.depth)]["predicted"].to_numpy()
    steps = chain(stack, whole.map(np.asarray).to_dict() | {"grad_sq_W2": last**2})
    return [
        {
            "name": step.name,
            "meaning": step.meaning,
            "sure": step.sure,
            "norm": float(norm),
            "factor": float(norm / before),
        }
        for step, before, norm in zip(STEPS, steps.tolist(), steps.tolist()[1:], strict=False)
    ]


def _batch(question: Question) -> dict[str, Any]:
    # Return the predicted first line of a training log, with the defaults of `predict --batch`.
    question.network()
    seconds = question.seconds or SECONDS
    asked = _log_asked(question, seconds)
    result = predict_batch(asked, question.batch, question.of, patterns=None, **_limits(seconds))
    values = {name: result.values[name] for name in (
        "batch", "loss", "loss_deviation", "gradient_norm", "gradient_norm_sem", "noise_scale",
    )}  # fmt: skip
    shares = result.tables["batch"].sort_values("share", ascending=False, kind="stable")
    values |= {"tokens": result.values["stack"].tokens, "text": asked.text}
    return values | {"shares": shares[["name", "share"]].to_dict("records"), "lines": list(result.lines)}


def _log_asked(question: Question, seconds: float) -> Asked:
    """Return a batch with the model's context and a text law, or as many tokens as are within the time.

    Raises:
        ValueError: the configuration or the law cannot be read.
    """
    return resolve_batch(question.given, question.of, text=question.text, patterns=None, **_limits(seconds))


def _cost_of_log(question: Question, asked: Asked) -> Cost:
    stack, _ = question.of.read(asked.given)
    law = law_of(stack, asked.text)
    return quick_cost(stack, law, None) if asked.is_quick else cost_of_batch(stack, law, None)[0]


def _first_step(question: Question) -> dict[str, Any]:
    # Return the critical learning rates of step 1, each with theory's remarks, or the reason why there is none.
    from gradbounds.actions.first_step import first_steps  # late, since it loads torch

    stack, notes = question.network()
    rates, lines = list[dict[str, Any]](), list[str]()
    names = ("critical_rate", "critical_rate_sem", "implied_error", "no_rule", "no_coefficient")
    limits = _limits(max(STEP_SECONDS, question.seconds or 0.0))
    for optimizer in _STEPPED:
        try:
            result = first_steps([stack], [optimizer], notes=notes, **limits)
        except (NoRuleError, OverBudgetError) as error:
            rates.append({"optimizer": optimizer, "no_rule": str(error)})
            continue
        row = result.tables["first_step"].iloc[0]
        rates.append({"optimizer": optimizer} | {name: row[name] for name in names})
        lines += [*([""] if lines else []), *result.lines]
    return {"rates": rates, "lines": lines}


def _sizes(question: Question, name: str, is_wanted: Callable[[], bool]) -> dict[str, Any]:
    """Return the gradients of the first and the last layer at several depths or widths.

    Raises:
        NobodyWaitsError: the answer is not wanted any more.
    """
    stack, _ = question.network()
    ways, left_out = _ways(question, stack, name)
    rows, paper = [], []
    for size, each in ways.items():
        if not is_wanted():
            raise NobodyWaitsError
        table = layer_table(each.predicted(), None)
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
    """Return the ways to predict networks of several sizes within the time, smallest first, and the omitted sizes.

    Raises:
        NoRuleError: theory has no rule for the network.
        OverBudgetError: not one of them is within the time.
    """
    patterns = max(2, quick_patterns(stack) // _FEWER) if is_fluctuating(stack) or holds_words(stack) else None
    ways: dict[int, Way] = {}
    spent, too_long, refused = Cost(), [], {}
    for size in _around(stack, name):
        try:
            network, _ = question.of.read({**question.given, name: size})
            chosen = way(network, patterns, _budget())
        except NoRuleError:
            raise
        except OverBudgetError:
            too_long.append(size)
        except ValueError as error:  # heads that do not divide a width, or a mask of so many rows
            refused[size] = str(error)
        else:
            if _budget().holds(spent + chosen.cost):
                spent, ways[size] = spent + chosen.cost, chosen
            else:
                too_long.append(size)
    if not ways:
        raise OverBudgetError(f"theory of one {name} would take more than {SECONDS:g} seconds.")
    words = []
    if name == "width" and stack.heads > 1:
        words.append(f"heads stay {stack.heads}, and are as wide as the network makes them.")
    if too_long:
        words.append(f"{_listed(too_long)} would take too long together.")
    if refused:
        words.append(f"{_listed(refused)} cannot be, as {one_line(next(iter(refused.values())))[:_LONGEST]}")
    return dict(sorted(ways.items())), " ".join(words)


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _around(stack: Stack, name: str) -> list[int]:
    """Return the network's own size and nearby sizes, the smallest first.

    Depths are powers of two; widths are halves and doubles of the network's, which its heads divide too.
    """
    own_size = getattr(stack, name)
    if name == "depth":
        sizes = [1 << k for k in range(MOST_LAYERS.bit_length()) if 1 << k <= min(max(64, 4 * own_size), MOST_LAYERS)]
    else:
        every = [Fraction(own_size) * Fraction(2) ** k for k in range(-4, 5)]
        sizes = [int(size) for size in every if size.denominator == 1 and _LEAST_WIDTH <= size <= _MOST_WIDTH]
    return [own_size, *(size for size in sizes if size != own_size)]


def _comparison(asked: Any, is_wanted: Callable[[], bool]) -> dict[str, Any]:
    """Compare the first of several networks with each of the others, in the words of `predict --compare`.

    Raises:
        ValueError: the question cannot be read, or a network not predicted.
        NobodyWaitsError: the answer is not wanted any more.
    """
    networks, names = (asked.get(each) for each in ("networks", "names")) if isinstance(asked, dict) else (None, None)
    if not (isinstance(networks, list) and isinstance(names, list) and 2 <= len(networks) <= MOST_COMPARED
            and len(names) == len(networks) and all(isinstance(name, str) for name in names)):  # fmt: skip
        raise ValueError(f"question must have 2 to {MOST_COMPARED} networks, and a name for each.")
    stacks, tables = [], []
    for each in networks:
        if not is_wanted():
            raise NobodyWaitsError
        question = Question.read(each)
        stack, _ = question.network()
        stacks.append(stack)
        if (table := _tables.get(stack)) is None:
            table = layer_table(_way(question).predicted(), None)
            _keep(stack, table)
        tables.append(table)
    others = list(zip(names, stacks, tables, strict=True))[1:]
    return {
        "words": [comparison_words(name, tables[0], table) for name, _, table in others],
        "lines": [
            line for name, stack, table in others
            for line in comparison_lines([name], (stacks[0].tokens, stack.tokens), tables[0], table)
        ],
    }  # fmt: skip


_tables: dict[Stack, pd.DataFrame] = {}


def _keep(stack: Stack, table: pd.DataFrame) -> None:
    # Keep a network's table, and forget the oldest of many.
    _tables[stack] = table
    while len(_tables) > _KEPT:
        _tables.pop(next(iter(_tables)), None)


def short(message: str) -> str:
    """Shorten an error message to one line that fits into the page."""
    line = one_line(message)
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]} ..."


ANSWERS: Mapping[str, Callable[[Question], dict[str, Any]]] = {
    "predict": _prediction, "batch": _batch, "first_step": _first_step, "lines": partial(_prediction, further=True),
}  # fmt: skip
"""The functions that answer the page's questions about one network, by the question's kind."""
