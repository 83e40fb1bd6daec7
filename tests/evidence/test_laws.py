"""The conditioned engine in number: the dense engine's law with 20000 draws and more, and a thousand layers."""

import pytest

from tests.helpers.evidence_file import record
from tests.helpers.same_law import FALSE_ALARM, differences, numbers
from theory import Stack

pytestmark = pytest.mark.evidence

DRAWS = 20_000
LAWS = [
    (8, 3, 8, False), (8, 8, 2, False), (8, 12, 2, False), (16, 5, 8, True), (16, 16, 2, False), (16, 24, 2, False),
    (16, 4, 32, False), (64, 8, 4, False), (64, 64, 1, False),
]  # fmt: skip


def test_laws():
    """Both placements, n below, at and above d, equal rows, L to 32."""
    found = {}
    for placement in ("post", "pre"):
        for d, n, depth, repeat in LAWS:
            stack = Stack(placement=placement, width=d, depth=depth, tokens=n, vocab=6)
            dense, other = (numbers(stack, engine, DRAWS, 11, repeat=repeat) for engine in ("dense", "conditioned"))
            case = f"{placement}, d = {d}, n = {n}, L = {depth}{', equal rows' if repeat else ''}"
            found[case] = differences(dense, other)
    record("laws", {"draws of each engine": DRAWS, "false alarm per case": FALSE_ALARM, "differences": found})
    assert not any(found.values())
