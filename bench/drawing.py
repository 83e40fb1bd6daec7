"""The pictures of committed results: of what `python -m bench engines` printed, and of growth over the layers."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bench.engine_cost import engine_cost
from bench.layer_growth import layer_growth
from figures.style import style
from theory import Stack
from theory.paper.layer_growth import layer_factor


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


def growth_tables(results: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What `layer_growth` draws, from files of `gradbounds check --accept`: samples, and closed forms."""
    rows = []
    for file in results:
        content = json.loads(file.read_text(encoding="utf-8"))
        stacks = {cell["name"]: Stack(**cell["stack"]) for cell in content["cells"]}
        for v in content["verdicts"]:
            if v["claim"] != "G1":
                continue
            stack, growth = stacks[v["cells"][0]], np.exp(-v["measured"])
            sem = growth * (v["interval"][1] - v["interval"][0]) / (2 * 1.96)
            fields = ("activation", "ffn", "initialization", "ffn_ratio", "width", "depth", "tokens")
            numbers = {"growth": growth, "sem": sem, "limit": 1 / layer_factor(stack)}
            rows.append({name: getattr(stack, name) for name in fields} | numbers)
    table = pd.DataFrame(rows)
    curves = [
        (initialization, ratio, 1 / layer_factor(_gated(initialization, ratio)))
        for initialization in ("xavier_normal", "fan_in", "he")
        for ratio in np.geomspace(table["ffn_ratio"].min(), table["ffn_ratio"].max(), 25)
    ]
    return table, pd.DataFrame(curves, columns=["initialization", "ffn_ratio", "limit"])


def _gated(initialization: str, ratio: float) -> Stack:
    width = 1000
    rounded = round(ratio * width) / width
    return Stack(width=width, ffn="gated", activation="silu", initialization=initialization, ffn_ratio=rounded)


def draw_growth(results: Sequence[Path], picture: Path) -> None:
    """Draw results files into a picture file."""
    with style():
        layer_growth(*growth_tables(results)).savefig(picture)
