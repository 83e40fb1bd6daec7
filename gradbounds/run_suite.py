"""The tests that `pytest --gradbounds-run RUN` runs on the samples of one run.

Claims that the run cannot decide are skipped, with the reason.
"""

from functools import cache
from typing import Any

import pandas as pd
import pytest

from checks.results import committed_results, common
from checks.stacks.judge import verdicts
from checks.statistics import agreement_text
from checks.theory_and_samples import comparison
from checks.verdict import Verdict
from gradbounds.actions.runs import judged_samples
from simulate import Run


@cache
def compared_with_theory(folder: str) -> dict[str, dict[str, Any]]:
    """Return the verdicts and predictions that the tests of a run compare, by name and test id.

    Raises:
        ValueError: the folder is no run, or holds no draws.
    """
    sampled = judged_samples(Run.open(folder))
    rows = verdicts(sampled)
    committed = [v for results in committed_results() for v in results.verdicts]
    cells = {
        f"{s.stack.placement}-d{s.stack.width}-L{s.stack.depth}-{s.cell.name[:6]}": comparison([s]) for s in sampled
    }
    return {
        "exponent": {f"{v.claim}: {v.part}": v for v in rows if v.subject.kind == "exponent"},
        "pair": {f"{now.claim}: {now.part}": (now, before) for now, before in common(rows, committed)},
        "cell": cells,
    }


def test_exponent_is_the_predicted_one(exponent: Verdict) -> None:
    """Test that a measured exponent is within 0.02 or 4 standard errors of the predicted exponent."""
    low, high = exponent.interval
    numbers = f"samples {exponent.measured:.4g} [{low:.4g}, {high:.4g}], theory {exponent.predicted:.4g}"
    assert exponent.agreement != "differs", numbers
    if exponent.agreement != "agrees":
        pytest.skip(f"{agreement_text(exponent.agreement)}: {numbers}")


def test_means_are_the_predicted_ones(cell: pd.DataFrame) -> None:
    """Test that every quantity in every layer is within 3% or 4 standard errors of its prediction."""
    differing = cell[cell["agreement"] == "differs"]
    columns = ["quantity", "layer", "mean", "sem", "predicted"]
    assert differing.empty, "\n" + differing[columns].to_string(index=False)
    if not (cell["agreement"] == "agrees").any():
        pytest.skip("no number agrees within 3%: the networks are too narrow for the large-width theory, or too few")


def test_verdict_is_the_committed_one(pair: tuple[Verdict, Verdict]) -> None:
    """Test that each verdict of a run equals the verdict in `paper_checks.md`."""
    now, before = pair
    if now.verdict != before.verdict and "undecided" in (now.verdict, before.verdict):
        pytest.skip(f"undecided: {now.note}")
    assert now.verdict == before.verdict, str(now.note)
