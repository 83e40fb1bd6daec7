"""The pages about clusters and scale: their numbers are the committed ones."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_costs_of_scale_are_the_committed_ones():
    page = " ".join((ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split())
    report = json.loads((ROOT / "bench" / "results" / "scale-xeon-2cores.json").read_text(encoding="utf-8"))
    one, many, dask = report["one cell"], report["a cell per block"], report["Dask, ms per block"]
    assert (one["blocks of each"], many["cells"]) == (10**6, 10**6)
    memory = [found["along the way"][-1]["MiB"] for found in (one, many)]
    for words in (
        f"| {many['cells made, ms each']:.2f} ms | {1000 * many['cells made, ms each']:.0f} s, before",
        f"| {one['ms per block']:.3f} ms | {1000 * one['ms per block']:.0f} s |",
        f"| {many['ms per block']:.3f} ms | {1000 * many['ms per block']:.0f} s |",
        f"| {many['bytes per block']} bytes and what its numbers take | {many['bytes per block']} MB |",
        f"| {many['files']} files in one folder |",
        f"| {memory[0]} MiB with one cell, {memory[1] / 1024:.1f} GiB with",
        f"| {one['resume scan, seconds']} s with one cell, {many['resume scan, seconds']:.0f} s with $10^6$ |",
        f"| {dask['tasks of 0.0 s']:.1f} ms a block | {dask['tasks of 0.0 s'] / 3.6:.1f} hours |",
        f"| {dask['tasks of 0.2 s']:.1f} ms a block | {dask['tasks of 0.2 s'] * 1000 / 60:.0f} minutes |",
    ):
        assert words in page, words
    # Memory does not grow from the first 10^5 blocks to the last.
    for found in (one, many):
        assert found["along the way"][-1]["MiB"] <= 1.01 * found["along the way"][1]["MiB"]
