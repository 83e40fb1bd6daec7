"""Public training runs: the law of the last norm by itself, and committed results beside settings and report."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.public_runs import CONSTANTS, RUNS, beside, by_the_last_norm, laws, predicted_lines

FOUND = json.loads((Path(__file__).parents[2] / "evidence" / "public-runs.json").read_text(encoding="utf-8"))["runs"]
REPORT = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")


def test_the_law_of_the_last_norm_beside_drawn_logits():
    """All positions see one logit of a label, as the bound has it: the mean of the loss, and its deviation.

    The bound leaves out what a label's logit and ln Σ e^z have in common, 1/V of each, which is below it in all.
    """
    run = {"batch": 4, "tokens": 8, "vocab": [200, 200], "text": "zipf"}
    middle = by_the_last_norm(run, 0.5)[1]
    generator, draws = np.random.default_rng(3), 20_000
    logits = generator.standard_normal((draws, 200)) * 0.5**0.5
    labels = generator.choice(200, size=(draws, 32), p=laws(run)[1].frequencies)
    losses = np.log(np.exp(logits).sum(1)) - np.take_along_axis(logits, labels, 1).mean(1)
    assert losses.mean() == pytest.approx(middle.loss, abs=4 * losses.std() / draws**0.5)
    exact = middle.deviation**2 + (np.expm1(0.5) - 2 * 0.5) / 200
    assert losses.std() == pytest.approx(exact**0.5, rel=0.02)
    assert losses.std() < middle.deviation


def test_committed_results_are_of_the_settings():
    assert list(FOUND) == [run["name"] for run in RUNS]
    for run in RUNS:
        row = FOUND[run["name"]]
        cells = REPORT.partition(f"\n| {run['name']} |")[2].partition("\n")[0]  # empty if only ln V + s²/2 is known
        for name, form, inside in (("loss", ".2f", "inside"), ("norm", ".3g", "norm inside"))[: 1 + ("norm" in run)]:
            (low, high), logged = row[f"{name} interval"], np.atleast_1d(run[name])
            assert row[inside] == (low <= logged.min() and logged.max() <= high)
            assert not cells or f" {row[name]:{form}}: {low:{form}} to {high:{form}} " in cells, run["name"]
    cheap = next(run for run in RUNS if run.get("head"))
    again = beside(cheap, predicted_lines(cheap))
    assert again["loss interval"] == pytest.approx(FOUND[cheap["name"]]["loss interval"], rel=1e-3)


def test_intervals_hold_what_is_open():
    """Every exponent, padding and the step in which a loss is printed make an interval wider, and so does one run."""
    run = {"vocab": [100, 110], "loss": [4.7, 4.7, 4.7], "norm": 1.0, "step": 0.1}
    lines = [
        {"loss": 4.6, "deviation": 0.01, "norm": 1.0, "norm_deviation": 0.1},
        {"loss": 4.6, "deviation": 0.1, "norm": 2.0, "norm_deviation": 0.2},
    ]
    found = beside(run, {"rule": "network", "lines": lines})
    alone = CONSTANTS["normal"] * 0.1
    off = alone + 0.05
    assert found["loss interval"] == pytest.approx([4.6 - off, 4.6 + off + np.log(1.1)])
    times = [np.exp(CONSTANTS["normal"] * off + CONSTANTS["norm_error"]) for off in (0.1, 0.2)]
    assert found["norm interval"] == pytest.approx([1.0 / times[0], 2.0 * times[1]])
    assert [found["loss by one law"], found["norm by one law"]] == pytest.approx([alone / 4.6, times[1] - 1.0])
    assert found["inside"]
    assert found["norm inside"]
