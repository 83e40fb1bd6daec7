"""Planted faults over seeds, and healthy modules over many."""

import numpy as np
import pytest

from checks.models.health import alarms
from checks.models.probe import probe_exponents
from simulate import probe
from simulate.modules.catalogue import BUILTINS
from tests.checks.test_health import covered
from tests.helpers.evidence_file import record
from tests.helpers.probed_modules import FAULTS, planted
from theory import predict

pytestmark = pytest.mark.evidence
SEEDS, HEALTHY, DEPTH = 20, 100, 6


def test_exponents_in_the_depth():
    """Of encoders of torch.nn: what samples have beside what the recursion has over the same depths."""
    found, depths = {}, [4, 8, 16, 32]
    for placement in ("post", "pre"):
        built = BUILTINS[f"encoder-{placement}"]
        table = probe_exponents(probe(built.factory, widths=[128], depths=depths, seeds=48).frame)
        for parameter, role in (("linear2.weight", "W2"), ("linear1.weight", "W1")):
            (row,) = table[(table["against"] == "depth") & (table["parameter"] == parameter)].itertuples()
            squares = [predict(built.stack(128, depth), patterns=1024)[f"grad_sq_{role}"][-1] for depth in depths]
            predicted = 0.5 * np.polyfit(np.log(depths), np.log(squares), 1)[0]
            numbers = {"measured": row.exponent, "95%": [row.low, row.high], "predicted": predicted}
            found[f"encoder-{placement}, {role}"] = numbers
            half = (row.high - row.low) / 2
            assert abs(row.exponent - predicted) < 0.01 + 2 * half, (placement, role, numbers)
    record("probing-exponents", {"d": 128, "L": depths, "seeds": 48, "exponents": found})


def test_alarms():
    """Every fault is named by its layer, 20 of 20; no alarm in 100 healthy modules of every kind."""
    named = {}
    for name in ("encoder-post", "encoder-pre"):
        for fault in FAULTS:
            found = []
            for seed in range(SEEDS):
                layer = 1 + seed % DEPTH
                frame = probe(planted(name, fault, layer), widths=[64], depths=[DEPTH], seeds=1, seed=seed).frame
                found.append(layer in [alarm.layer for alarm in alarms(frame)])
            named[f"{name}, {fault}"] = sum(found)
    raised = {}
    for name in ("encoder-post", "encoder-pre", "transformer-post", "transformer-pre"):
        frame = probe(BUILTINS[name].factory, widths=[64], depths=[DEPTH], seeds=HEALTHY).frame
        raised[name] = sum(bool(alarms(one)) for _, one in frame.groupby("seed"))
    record("probing", {f"named, of {SEEDS}": named, f"alarms of {HEALTHY} healthy modules": raised})
    assert set(named.values()) == {SEEDS}
    assert set(raised.values()) == {0}


def test_intervals_of_exponents_cover():
    """95% intervals of exponents in the depth of four seeds, of 400 synthetic experiments; outside with 1e-4."""
    share = covered(400)
    record("probing-coverage", {"experiments": 400, "seeds of each": 4, "covered by 95% intervals": share})
    assert 0.91 <= share <= 0.985
