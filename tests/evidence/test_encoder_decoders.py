"""Layers that attend to an encoder, theory against samples in number: d = 1024, conditioned, and as d grows."""

from typing import Any

import numpy as np
import pytest

from simulate import sample
from tests.helpers.agreement import deviations
from tests.helpers.evidence_file import record
from theory import Stack, predict

pytestmark = pytest.mark.evidence

DRAWS = 256
RELAXED: dict[str, dict[str, Any]] = {
    "uniform attention": {},
    "random queries and keys, causal": {"query_key_scale": 1.0, "heads": 4, "mask": "causal",
                                        "output_projection": "random"},
}  # fmt: skip


# Gradients of these feel the width most, quadratic forms in differences of nearly equal tokens: by themselves.
QUERIES = ("WQ", "WK", "XQ", "XK")


def queries() -> dict[str, Any]:
    """Of W^Q and W^K, and those of the attention to the source, the largest relative deviation as d grows."""
    found = {}
    for width in (1024, 4096):
        stack = Stack(width=width, depth=6, tokens=32, source_tokens=32, **RELAXED["random queries and keys, causal"])
        rows = deviations(sample(stack, draws=DRAWS, seed=8), predict(stack, patterns=512))
        found[f"d = {width}"] = max(row["relative"] for row in rows if row["quantity"].endswith(QUERIES))
    return found


def test_cross_attention():
    """Every number at d = 1024 but those of queries and keys within 5%, or 4 standard errors; and growth per layer."""
    found: dict[str, Any] = {}
    beyond = []
    for name, relaxed in RELAXED.items():
        for placement in ("post", "pre"):
            for depth in (2, 6, 12):
                for tokens in (8, 32):
                    if relaxed and (depth, tokens) == (12, 32):
                        continue  # a minute of patterns
                    stack = Stack(
                        placement=placement, width=1024, depth=depth, tokens=tokens, source_tokens=tokens, **relaxed
                    )
                    samples = sample(stack, draws=DRAWS, seed=7, engine="conditioned")
                    prediction = predict(stack, patterns=512)
                    rows = deviations(samples, prediction)
                    table = [row for row in rows if "grad_sq" in row["quantity"]]
                    beyond += [row | {"case": f"{name}, {placement}, L = {depth}, n = {tokens}"} for row in rows
                               if row["of what is allowed"] > 1 and row["relative"] > 0.05
                               and not row["quantity"].endswith(QUERIES)]  # fmt: skip
                    growth = [float((one[-1] / one[0]) ** (0.5 / (depth - 1))) for one in
                              (samples["grad_sq_W2"].mean(0), prediction["grad_sq_W2"])]  # fmt: skip
                    found[f"{name}, {placement}, L = {depth}, n = {tokens}"] = {
                        "numbers": len(rows),
                        "widest gradient": max(table, key=lambda row: row["relative"]),
                        "median": round(float(np.median([row["relative"] for row in rows])), 5),
                        "growth of W2 a layer": {"samples": round(growth[0], 4), "theory": round(growth[1], 4)},
                    }
    record("encoder-decoders", {"draws": DRAWS, "cases": found, "beyond": beyond, "queries and keys": queries()})
    assert not beyond
