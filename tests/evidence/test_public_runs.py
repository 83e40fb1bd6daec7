"""First lines of public training logs, beside theory with settings that were fixed before."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.public_runs import RUNS, beside, predicted_lines, setting_of

pytestmark = pytest.mark.evidence

# Runs with a number outside of its interval, which docs/report.md names.
KNOWN = {
    "BigScience 52B, ZeRO off",
    "Megatron, GPT, tied",
    "Megatron, GPT of SwiGLU, tied",
    "Megatron, 8 experts, tied",
    "BigScience 52B, old",  # outside since its text is English alone, and no range of exponents
    "AuroraGPT 2B, torchtitan",
}


def found_runs(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for run in sorted(RUNS, key=lambda run: ("head" not in run, run["depth"] * run["tokens"])):
        predicted = kept_case(folder, setting_of(run), partial(predicted_lines, run))
        found[run["name"]] = beside(run, predicted)
    return {run["name"]: rounded(found[run["name"]]) for run in RUNS}


def test_first_lines_of_public_runs(kept_folder):
    """Every printed loss and norm is in its interval, and intervals of losses are within 2%; misses are kept."""
    found = found_runs(kept_folder)
    record("public-runs", {"runs": found}, short=True)
    misses = [name for name, run in found.items() if not (run["inside"] and run.get("norm inside", True))]
    wide = [
        run["name"]
        for run in RUNS
        if run["width"] >= 512 and np.ptp(found[run["name"]]["loss interval"]) > 0.04 * found[run["name"]]["loss"]
    ]
    assert {name for name, run in found.items() if not run["mean inside"]} <= KNOWN
    # The spread over English texts is most of an interval.
    assert all(run.get("norm by one law", 0.0) <= 0.5 for run in found.values())
    assert set(misses) <= KNOWN, "one that was inside before"
    if misses or wide:
        pytest.xfail(f"outside are {misses}; wider than 2% are {wide} (docs/report.md)")
