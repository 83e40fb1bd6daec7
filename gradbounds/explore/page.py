"""The page as one text, with its styles, scripts and data inside: nothing else is asked for, wherever it is opened."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from figures.looks import WEIGHTS, looks
from gradbounds import __version__
from gradbounds.explore.answers import MOST_COMPARED
from gradbounds.explore.public_runs import one_text, public_runs
from gradbounds.grid import said
from theory.configurations.published import PUBLISHED
from theory.configurations.training_codes import NAMES
from theory.stack.groups import GROUPS
from theory.stack.stack import OWN

_STATIC = Path(__file__).parent / "static"

_OF_A_TABLE = "NAME"
"""What choices of a field end with where users may register more."""


def page(answers: dict[str, Any] | None = None, *, run: dict[str, Any] | None = None) -> str:
    """The page.

    Args:
        answers: what a page without a server knows; None for one that asks.
        run: what `RunSamples` says of a run folder; None without one.
    """
    data = {
        "version": __version__,
        "groups": list(_groups()),
        "models": list(PUBLISHED),
        "drawers": list(NAMES),
        "public_runs": [
            run | {"question": run["question"] | {"config": one_text(run["question"].get("config", ""))}}
            for run in public_runs()
        ],
        "colors": {name.replace("grad_sq_", "grad_"): look["color"] for name, look in WEIGHTS.items()},
        "curves": [look["color"] for look in islice(looks(), MOST_COMPARED)],
        "answers": answers,
        "run": run,
    }
    styles = _static("uPlot.min.css") + _static("page.css")
    library, script = _static("uPlot.iife.min.js"), _static("page.js")
    asks = "'self'" if answers is None else "'none'"
    policy = (
        f"default-src 'none'; script-src {_hashed(library)} {_hashed(script)}; style-src {_hashed(styles)}; "
        f"connect-src {asks}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    # What is data cannot end the element that it stands in.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"POLICY": policy, "STYLES": styles, "LIBRARY": library, "DATA": content, "SCRIPT": script}
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda name: parts[name[1]], _static("page.html"))


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _hashed(content: str) -> str:
    """A script or a style as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _groups() -> Iterator[dict[str, Any]]:
    """The groups of fields, as their own metadata has them: a control for each."""
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
