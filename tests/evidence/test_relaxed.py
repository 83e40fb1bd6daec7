"""Random queries and keys on a grid, beside sampled networks."""

from functools import partial
from itertools import product
from typing import Any

import pytest

from simulate import sample
from tests.helpers.agreement import deviations
from tests.helpers.evidence_file import kept_case, record
from theory import Stack, predict

pytestmark = pytest.mark.evidence

DRAWS = 128
PLACEMENTS = ("post", "pre", "peri", "deepnorm")


def queries_case(stack: Stack) -> list[dict[str, Any]]:
    return deviations(sample(stack, draws=DRAWS, seed=5), predict(stack, patterns=2048))


def test_the_grid(kept_folder):
    """Within 3% or 4 standard errors of samples and patterns together; s = 2 beside it, with what it deviates."""
    found: dict[str, Any] = {}
    beyond, numbers = [], 0
    grid = product((0.5, 1.0, 1.5, 2.0), (1, 4), (4, 16), (2, 6), PLACEMENTS, ("none", "causal"))
    for scale, heads, tokens, depth, placement, mask in grid:
        stack = Stack(
            placement=placement, width=1024, depth=depth, tokens=tokens, vocab=64, query_key_scale=scale, heads=heads,
            mask=mask,
        )  # fmt: skip
        label = f"s = {scale:g}, h = {heads}, n = {tokens}, L = {depth}, {placement}, mask {mask}"
        table = kept_case(kept_folder, label, partial(queries_case, stack))
        found[label] = max(table, key=lambda row: row["of what is allowed"])
        if scale < 2:
            numbers += len(table)
            beyond += [{"case": label} | row for row in table if row["of what is allowed"] > 1]
    record("queries", {"draws": DRAWS, "numbers": numbers, "beyond": beyond, "widest of each case": found})
    assert len(beyond) <= 0.001 * numbers, beyond
