"""The picture of what `python -m bench engines` printed."""

import json
from pathlib import Path

import pandas as pd

from figures import engine_cost, style


def cost_table(report: dict) -> pd.DataFrame:
    """One row per width and way of sampling, around L = 12, n = 16."""
    base = next(case for case in report["cases"] if case["width"] == 1024)
    rows = []
    for case in report["cases"]:
        if (case["depth"], case["tokens"]) == (base["depth"], base["tokens"]):
            limit = case["conditioned, limit on one core"]
            parts = {"limit": limit["normals, seconds"] + limit["products, seconds"]}
            each = {what: ways["1"] for what, ways in case["seconds per draw, by cores"].items()}
            rows += [(case["width"], what, s) for what, s in (each | parts).items()]
    wide = report["conditioned, d = 2^12 to 2^18"]
    for width, seconds in wide["seconds per draw"].items():
        if int(width) > max(case["width"] for case in report["cases"]):
            limit = seconds * wide["share of the limit on one core"][width]
            rows += [(int(width), "conditioned", seconds), (int(width), "limit", limit)]
    table = pd.DataFrame(rows, columns=["width", "what", "seconds"])
    return table.assign(depth=base["depth"], tokens=base["tokens"])


def draw(results: Path, picture: Path) -> None:
    """Draw a results file into a picture file."""
    with style():
        engine_cost(cost_table(json.loads(results.read_text(encoding="utf-8")))).savefig(picture)
