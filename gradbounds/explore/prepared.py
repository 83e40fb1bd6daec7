"""The answers and the first steps in public training logs that ship with the package, for the interactive page."""

import gzip
import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from gradbounds import __version__

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
