"""Everything that has a device on a pretended GPU: more kinds of networks than the suite has, and planted errors."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from tests.helpers.evidence_file import kept_case, record
from tests.helpers.own_process import CASES, cases_on_a_pretended_gpu
from tests.mutants import ROOT, judged, read_mutants

pytestmark = pytest.mark.evidence

QUIET_RUNS = 20


def test_more_networks_and_commands_stay_on_the_device():
    """All placements, today's attention, training, probes, the first step, Gauss-Newton and fig3; and every count."""
    done = cases_on_a_pretended_gpu(ROOT, "evidence")
    assert done.returncode == 0, done.stdout[-3000:]
    counts = subprocess.run(
        [sys.executable, "-m", "tests.helpers.device_counts"], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    cases = done.stdout.strip().splitlines()[-1].partition(" in ")[0]
    record("pretended-gpu", {"torch": torch.__version__, "cases": cases, "counts": json.loads(counts.stdout)})


def caught_by(plant):
    """The first of the cases that fails; None if all pass."""
    options = ["--noconftest", "-p", "no:unraisableexception"] if plant.tests == (CASES,) else []
    verdict = judged(plant, [*options, *plant.tests], "first", 600.0)
    assert not verdict.trouble, verdict
    return verdict.caught_by


def alarmed():
    """What a run of the suite's cases without a planted error says, if it fails."""
    done = cases_on_a_pretended_gpu(ROOT, "not evidence")
    return done.stdout[-3000:] if done.returncode else None


def test_planted_errors_are_seen(kept_folder, monkeypatch):
    """One line each by which a tensor, a loop or a wait goes astray: which of the suite's cases sees it first.

    And no alarm in runs without one.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plants = read_mutants(ROOT / "tests" / "device_errors.toml")
    found = {
        plant.name: {"file": plant.file, "caught by": kept_case(kept_folder, plant.name, partial(caught_by, plant))}
        for plant in plants
    }
    missed = [name for name, one in found.items() if one["caught by"] is None]
    alarms = [said for k in range(QUIET_RUNS) if (said := kept_case(kept_folder, f"quiet-{k}", alarmed)) is not None]
    record(
        "pretended-gpu-plants",
        {
            "torch": torch.__version__, "planted": len(found), "missed": missed,
            "runs without a planted error": QUIET_RUNS, "alarms in them": len(alarms), "plants": found,
        },
    )  # fmt: skip
    assert not missed
    assert not alarms, alarms[0]
