"""What the page of the first step says."""

from pathlib import Path

import pytest

from theory import Stack
from theory.first_step.prediction import first_step

PAGE = (Path(__file__).parents[2] / "docs" / "first_step.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("title", "placement"), [("Post-LN", "post"), ("Pre-LN", "pre")])
def test_rates(title, placement):
    """The table's number at four layers, with the error of what is sampled."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {title} | ") and line.count("|") == 8)
    stated = float(line.split("|")[4])
    width = 2**18
    step = first_step(Stack(placement=placement, width=width, depth=4, tokens=8, vocab=16), seed=1)
    assert width * step.critical_rate == pytest.approx(stated, rel=0.02)


def test_many_classes():
    """At V/d = 1/2 and 4, with and without what V/d adds."""
    for vocab, whole, limit in ((128, 218, 162), (1024, 74, 19)):
        assert f"{whole} instead of the {limit}" in PAGE
        step = first_step(Stack(width=256, depth=2, tokens=8, vocab=vocab))
        assert step.curvature == pytest.approx(whole, rel=0.02)
        assert step.curvature * (1 - step.spread) == pytest.approx(limit, rel=0.04)
