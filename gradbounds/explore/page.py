"""The interactive page as one HTML text with its styles and scripts, and the data that ship with the package."""

import base64
import gzip
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from html import escape
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from figures.looks import looks
from gradbounds import __version__
from gradbounds.explore.answers import MOST_COMPARED
from gradbounds.grid import said
from theory.configurations.configuration_file import PUBLISHED
from theory.configurations.training_codes import NAMES
from theory.stack.groups import GROUPS
from theory.stack.stack import OWN

_STATIC = Path(__file__).parent / "static"

SCRIPTS = (
    "base", "address", "questions", "controls", "charts", "layers", "tabs", "samples", "tour", "save", "start",
)  # fmt: skip
"""Parts of the page's one script, in order."""

START = "llama-3-8b"
"""Model that the page opens with."""

# The last choice of a field for which users can register more names.
_OF_A_TABLE = "NAME"


def page(answers: Mapping[str, Any] | None = None, *, run: dict[str, Any] | None = None, links: bool = False) -> str:
    """Return the HTML text of the interactive page.

    Args:
        answers: answers of a page without a server; None for a served page, which contains the shipped answers.
        run: description of a run folder, `RunSamples.about`; None without one.
        links: whether the page is part of the documentation site and links to its pages.
    """
    known = prepared() if answers is None else answers
    data = {
        "version": __version__,
        "live": answers is None,
        "start": f"like={START}",
        "groups": list(_groups()),
        "models": list(PUBLISHED),
        "drawers": list(NAMES),
        "public_runs": [
            run | {"question": run["question"] | {"config": one_text(run["question"].get("config", ""))}}
            for run in public_runs()
        ],
        "curves": [look["color"] for look in islice(looks(), MOST_COMPARED)],
        "tour": json.loads(_static("tour.json")),
        "answers": known,
        "run": run,
    }
    styles = _static("uPlot.min.css") + _static("page.css")
    parts_of_script = "".join(_static(f"{name}.js") for name in SCRIPTS)
    library, script = _static("uPlot.iife.min.js"), f'"use strict";\n(() => {{\n{parts_of_script}}})();\n'
    asks = "'self'" if answers is None else "'none'"
    policy = (
        f"default-src 'none'; script-src {_hashed(library)} {_hashed(script)}; style-src {_hashed(styles)}; "
        f"connect-src {asks}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    sentence, picture = _still(known["given"].get(f"predict?like={START}"))
    # What is data cannot end the element that it stands in.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "POLICY": policy, "STYLES": styles, "LIBRARY": library, "DATA": content, "SCRIPT": script,
        "SENTENCE": sentence, "PICTURE": picture, "LINKS": _LINKS if links else "",
    }  # fmt: skip
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda name: parts[name[1]], _static("page.html"))


_LINKS = '<a href="index.html">Documentation</a><a href="docs/setting.html#glossary">Glossary</a>'


def _still(content: Mapping[str, Any] | None) -> tuple[str, str]:
    # Return the first sentence and the first chart, for readers without scripts or before the scripts have run.
    if content is None:
        return "Computing the first network …", ""
    curves = {each["head"].replace("dL/d", ""): each["predicted"] for each in content["series"] if each["matrix"]}
    logs = {name: [math.log10(norm) for norm in norms] for name, norms in curves.items()}
    low, high = min(map(min, logs.values())), max(map(max, logs.values()))
    drawn = []
    for name, values in logs.items():
        heights = [220 - 200 * (value - low) / (high - low) for value in values]
        places = [f"{60 + 560 * k / max(1, len(values) - 1):.0f},{height:.0f}" for k, height in enumerate(heights)]
        drawn.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="#5a4fcf" stroke-width="2"/>')
        if not any(abs(values[-1] - logs[other][-1]) < 0.03 for other in list(logs)[: list(logs).index(name)]):
            drawn.append(f'<text x="628" y="{heights[-1] + 4:.0f}" fill="currentColor">{name}</text>')
    for value in (low, high):
        height = 220 - 200 * (value - low) / (high - low)
        drawn.append(f'<text x="52" y="{height + 4:.0f}" text-anchor="end" fill="currentColor">{10**value:.2g}</text>')
    layers = f'<text x="340" y="250" text-anchor="middle" fill="currentColor">layer 1 to {len(values)}</text>'
    label = f"Gradient norms of {START} over its layers"
    picture = (
        f'<svg viewBox="0 0 700 260" role="img" aria-label="{label}" font-size="13">{"".join(drawn)}{layers}</svg>'
    )
    sentence = content["finding"]
    return escape(f"{START}: {sentence[0].lower()}{sentence[1:]}"), picture


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _hashed(content: str) -> str:
    # Return a script's or a style's hash as a content security policy writes it.
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _groups() -> Iterator[dict[str, Any]]:
    # Yield the groups of fields with a control for each field, from the fields' metadata.
    for group in GROUPS:
        controls = [
            {
                "name": each.name,
                "help": each.metadata["help"],
                "kind": "text" if isinstance(each.default, str) else "number",
                "choices": [word for word in each.metadata.get("choices", ()) if word != _OF_A_TABLE],
                "own": each.name in OWN,
                "default": str(said(each.name, each.default)),
            }
            for each in fields(group)
        ]
        yield {"name": group.__name__, "about": (group.__doc__ or "").splitlines()[0], "fields": controls}


FILE = Path(__file__).parent / "static" / "prepared.json.gz"
"""The answers that `python -m tools.prepared_answers` wrote."""

_NONE: Mapping[str, Any] = {"about": "nothing: its answers are of another version. ", "given": {}}


@cache
def prepared() -> Mapping[str, Any]:
    """Return the answers that ship with the package, or none if another version of the package computed them."""
    kept = json.loads(gzip.decompress(FILE.read_bytes()))
    return kept if kept.pop("version") == __version__ else _NONE


def public_runs() -> Iterator[dict[str, Any]]:
    """Yield the printed first line of each public training log, and the page's question about its network.

    Yields:
        name, source, date, note, loss (the mean of its logs), norm (None where none was printed), and `question`, which
        `Question.read` reads, with every value as text.
    """
    for run in tomllib.loads(files("checks").joinpath("data/public_runs.toml").read_text(encoding="utf-8"))["run"]:
        if run["text"] == "mock" or "fields" in run or not ("like" in run or "config" in run):
            continue
        question = {name: run[name] for name in ("like", "config") if name in run} | {
            "drawn_by": run["drawn_by"],
            "batch": str(run["batch"]),
        } | ({"zipf": run["text"]} if run["text"] == "mock_digits" else {}) | {
            "fields": {
                "tokens": str(run["tokens"]), "vocab": str(run["vocab"][0]), "embeddings": run["embeddings"],
            },
        }  # fmt: skip
        printed = {name: run[name] for name in ("name", "source", "date", "note")}
        yield printed | {"loss": run["loss"][1], "norm": run.get("norm"), "question": question}


def one_text(config: Any) -> str:
    """Return a model's configuration as JSON text for the interactive page."""
    return json.dumps(config, separators=(",", ":"))
