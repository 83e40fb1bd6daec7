"""The precomputed answers of a page without a server.

They cover published models, networks near the paper's, and single changed fields. Numbers of tables have five digits,
which is within 0.1%; what has no answer has the message that says why.
"""

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from itertools import product
from typing import Any

import numpy as np

from checks.results import rounded
from gradbounds.budget import each_once
from gradbounds.explore.answers import SECONDS, answer, seconds_of_answer, short
from gradbounds.explore.page import START, one_text, public_runs
from gradbounds.grid import FIELDS, said
from gradbounds.json_output import json_text
from gradbounds.progress import counted, quietly
from gradbounds.units import duration
from simulate.threads import one_numpy_thread
from theory.configurations.configuration_file import PUBLISHED
from theory.configurations.training_codes import HUGGING_FACE
from theory.stack import TITLES
from theory.stack.placements import COMPOSITIONS

BATCH = "512"
"""The number of sequences in the batch of every network."""

_DIGITS = 5

_PAPER = ("post", "pre")

GATED = (*_PAPER, "peri")
"""Placements with additional gated networks, whose gradients grow over layers where others are flat."""

_GATES = ("relu", "silu")
# What the controls of the first screen change of the model with which the page opens.
_FIRST: Mapping[str, Sequence[str]] = {
    "placement": tuple(COMPOSITIONS),
    "depth": ("16", "64"),
    "width": ("2048", "8192"),
}

# The command's own words for what evens the layers out.
_CHANGE = re.compile(r"\((\w+)=([^,)]+)\)")

# Models in words that are named, and not counted.
_NAMED = 3

# Seconds of an answer beside its estimate: tables, words and small networks.
_EACH = 0.05

DEPTHS, WIDTHS = (2, 6, 12, 24), (128, 512, 2048)
"""The depths and widths of the networks near the paper's."""


def answers(
    models: Sequence[str] = tuple(PUBLISHED), depths: Sequence[int] = DEPTHS, widths: Sequence[int] = WIDTHS,
    placements: Sequence[str] = tuple(COMPOSITIONS), *, gated: Sequence[str] = GATED, choices: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Compute all answers of a page without a server, as a dictionary by the page's names of the questions.

    Args:
        models: published ones.
        depths: depths of the networks of every placement.
        widths: widths of the networks of every placement.
        placements: placements of these networks.
        gated: placements with additional gated networks of every depth and the paper's width.
        choices: whether every choice of a field is changed, one at a time, for the paper's two placements, and the
            controls of the first screen for the model with which the page opens.
    """
    asked = list(_questions(models, depths, widths, placements, gated, choices))
    given = {}
    spent = np.cumsum(_seconds(asked))
    print(f"{len(asked)} answers take about {duration(spent[-1])} of one core.", file=sys.stderr, flush=True)
    with counted("answers", lines=True) as done, one_numpy_thread(), quietly(), each_once():
        for k, (kind, question) in enumerate(asked):
            # Where no bar is drawn, the lines of single answers would hide those that count.
            with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
                given[name_of(kind, question)] = content = _answer(kind, question)
                # The network that the button Apply makes of a published model.
                if set(question) == {"like"} and (change := _CHANGE.search(content.get("evened", ""))):
                    evened = question | {"fields": {change[1]: change[2]}}
                    given[name_of(kind, evened)] = _answer(kind, evened)
            done(k + 1, len(asked), spent[k] / spent[-1])
    sizes = f"at depths {', '.join(map(str, depths))} and widths {', '.join(map(str, widths))}"
    parts = [
        *(models if len(models) <= _NAMED else [f"{len(models)} published models"]),
        f"{len(placements)} placements {sizes}",
        *([f"{', '.join(TITLES[name] for name in gated)} with gated units of {' or '.join(_GATES)}"] if gated else []),
        *(["and every choice of a field, one at a time, for Post-LN and Pre-LN"] if choices else []),
    ]
    return {"about": f"{', '.join(parts)}. ", "given": given}


def _seconds(asked: Sequence[tuple[str, Mapping[str, Any]]]) -> list[float]:
    """Estimate the seconds of each answer; a prediction counts twice because it predicts further networks.

    An answer that would take longer than its limit is refused at once.
    """
    of_each = [(kind, _estimate(kind, question)) for kind, question in asked]
    return [_EACH + (2 if kind == "predict" else 1) * seconds * (seconds <= SECONDS) for kind, seconds in of_each]


def _estimate(kind: str, question: Mapping[str, Any]) -> float:
    try:
        return seconds_of_answer(kind, question)
    except ValueError:  # no such network: the answer says why
        return 0.0


def name_of(kind: str, question: Mapping[str, Any]) -> str:
    """Return the name that the page gives a question: its values that differ from the defaults, in a fixed order."""
    params = {name: question[name] for name in ("like", "batch", "zipf") if name in question}
    if "config" in question:
        params["config"] = one_text(question["config"])
    if question.get("drawn_by", HUGGING_FACE) != HUGGING_FACE:
        params["drawn_by"] = question["drawn_by"]
    params |= {
        name: value
        for name, value in question.get("fields", {}).items()
        if "like" in question or value != str(said(name, FIELDS[name].default))
    }
    return f"{kind}?{'&'.join(sorted(f'{name}={value}' for name, value in params.items()))}"


def _questions(
    models: Sequence[str],
    depths: Sequence[int],
    widths: Sequence[int],
    placements: Sequence[str],
    gated: Sequence[str],
    choices: bool,
) -> Iterator[tuple[str, dict[str, Any]]]:
    # Yield the questions to answer beforehand; models keep their sizes, because other sizes take long.
    for model in models:
        yield "predict", {"like": model}
        yield "batch", {"like": model, "batch": BATCH}
    for run in public_runs():
        if run["norm"] is not None and run["question"].get("like") in models:
            yield "predict", {name: run["question"][name] for name in ("like", "drawn_by", "fields")}
            yield "batch", run["question"]
    for placement, depth, width in product(placements, depths, widths):
        yield from _of_network({"placement": placement, "depth": str(depth), "width": str(width)})
    for placement, depth, gate in product(gated, depths, _GATES):
        yield from _of_network({"placement": placement, "depth": str(depth), "ffn": "gated", "activation": gate})
    firsts = [{name: value} for name, values in _FIRST.items() for value in values] if choices else []
    yield from (("predict", {"like": START, "fields": first}) for first in firsts)
    for name, value in _changes() if choices else ():
        for placement in _PAPER:
            changed = {"fields": {"placement": placement, name: value}}
            yield "predict", changed
            yield "batch", changed | {"batch": BATCH}


def _of_network(fields: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    # Yield all questions that the page asks about one network.
    network = {"fields": dict(fields)}
    yield "predict", network
    yield "batch", network | {"batch": BATCH}
    yield "depth", network
    yield "width", network


def _changes() -> list[tuple[str, str]]:
    others = {name: each for name, each in FIELDS.items() if name != "placement"}
    return [
        (name, word)
        for name, each in others.items()
        for word in each.metadata.get("choices", ())
        if word not in ("NAME", each.default)
    ]


def _answer(kind: str, question: Mapping[str, Any]) -> Any:
    try:
        content = answer("lines" if kind == "predict" else kind, question)
    except ValueError as error:
        return {"error": short(str(error))}
    if "stack" in content:
        content = content | {
            "stack": {name: said(name, value) for name, value in content["stack"].non_default().items()}
        }
    plain = json.loads(json_text(content, indent=None))
    del plain["schema"]
    # The page rounds the loss and the norm itself, to the digits of the command's sentence beside them.
    return rounded(plain, _DIGITS) | {name: plain[name] for name in ("loss", "gradient_norm") if name in plain}
