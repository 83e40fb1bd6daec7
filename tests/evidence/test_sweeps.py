"""Sweeps that are killed, exponents judged by them, and sweeps to a precision."""

import signal
import time

import numpy as np
import pytest
from scipy import stats

from gradbounds.cli import main
from studies.kept_rows import read_rows
from tests.helpers.evidence_file import record
from tests.helpers.experiments import coverage, exponent_alarms, power
from tests.helpers.interruption import Forked, landed, repeated_draws, short_blocks, stop_at_random, table_digest
from tests.helpers.parallel_text import write

pytestmark = pytest.mark.evidence

# Four runs of 600 updates, with two moments and dropout, that have six checkpoints each.
_GRID = """
updates = 600
batch_tokens = 60
every = 100
start = 20
[model]
width = 16
depth = 1
heads = 2
ffn_width = 16
vocab = 40
dropout = 0.1
[text]
units = "words"
validation_pairs = 10
seed = 0
[paper]
adam = [[0.005, 0.01]]
fixed = [0.001]
sgd = [0.1]
[[runs]]
optimizer = ["adam"]
warmup = [1]
peak = [0.01]
reading = ["b"]
seeds = 2
"""

# Synthetic sweeps to a precision.
EXPERIMENTS = 2000
SPREADS = [0.9, 0.7, 0.5, 0.4]


def test_fifty_kills(tmp_path):
    """Every sweep is killed one to three times, by one worker or two, and then finished."""
    whole = tmp_path / "whole"
    line, blocks = short_blocks(1536), 240
    assert main([*line, "--out", str(whole)]) == 0
    digest, rng = table_digest(whole), np.random.default_rng(0)
    equal, repeated, kills, left = 0, 0, 0, []
    for trial in range(50):
        out = tmp_path / str(trial)
        for _ in range(1 + trial % 3):
            if landed(out) < blocks:
                ended = stop_at_random(out, rng, signal.SIGKILL, 1 + trial % 2, line, last=1.2)
                kills += ended.returncode == -signal.SIGKILL
                left.append(landed(out))
        assert main([*line, "--out", str(out)]) == 0
        equal += table_digest(out) == digest
        repeated += repeated_draws(out)
    found = {"sweeps": 50, "blocks of each": blocks, "kills": kills, "byte-equal tables": equal}
    found |= {"draws of landed blocks sampled again": repeated}
    found |= {"blocks landed at a kill, quartiles": np.percentile(left, [0, 25, 50, 75, 100]).tolist()}
    record("kills", found)
    assert (equal, repeated) == (50, 0)
    assert kills >= 50


def test_twenty_kills_of_training(tmp_path):
    """A grid of four training runs, five times over, each killed four times at random moments and then finished."""
    texts, grid, rng = write(tmp_path, count=60), tmp_path / "grid.toml", np.random.default_rng(0)
    grid.write_text(_GRID, encoding="utf-8")
    line = ["reproduce", "warmup", "--source", str(texts[0]), "--target", str(texts[1]), "--preset", str(grid)]
    start = time.monotonic()
    assert Forked("gradbounds.__main__", [*line, "--out", str(tmp_path / "whole")], tmp_path / "said").communicate()
    takes = time.monotonic() - start
    rows = read_rows(tmp_path / "whole" / "rows.json")
    kills, equal, finished, begun = 0, 0, [], 0
    for trial in range(5):
        out = tmp_path / str(trial)
        for _ in range(4):
            process = Forked("gradbounds.__main__", [*line, "--out", str(out)], tmp_path / f"{trial}.said")
            time.sleep(rng.uniform(0.0, takes / 2))
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            kills += process.returncode == -signal.SIGKILL
            finished.append(len(list((out / "models").glob("*.parquet"))))
            begun += bool(list((out / "checkpoints").glob("*.pt")))
        assert main([*line, "--out", str(out)]) == 0
        equal += read_rows(out / "rows.json") == rows
    found = {"grids": 5, "runs of each": len(rows), "kills": kills, "equal tables": equal}
    record("training-kills", found | {"runs finished at a kill": finished, "kills with a checkpoint": begun})
    assert (equal, kills) == (5, 20)
    assert begun > 5


def test_coverage_of_exponents():
    """2000 experiments: a correct 95% interval leaves 93 to 97% with probability below 1e-4."""
    found = {
        f"{draws} draws": coverage(experiments=2000, draws=draws, seed=draws, resamples=2000) for draws in (100, 128)
    }
    record("coverage", {"experiments": 2000, "level": 0.95} | found)
    assert all(0.93 <= rate <= 0.97 for rates in found.values() for rate in rates.values())


def test_alarm_and_power_of_exponents():
    """20000 null experiments at 128 draws; an alarm 1.2 times too frequent at 5%, or 1.5 times at 1%, is seen."""
    rates = {
        level: exponent_alarms(experiments=20_000, draws=128, seed=3, level=level) / 20_000 for level in (0.05, 0.01)
    }
    powers = {shift: power(experiments=2000, draws=128, seed=4, shift=shift) for shift in (0.02, 0.03, 0.05)}
    record(
        "alarms",
        {
            "draws": 128,
            "false alarms": {str(level): rate for level, rate in rates.items()},
            "power against a shift": {
                str(shift): {"stated": stated, "measured": measured} for shift, (stated, measured) in powers.items()
            },
        },
    )
    for level, rate in rates.items():
        assert stats.binom(20_000, 1.1 * level).sf(int(20_000 * rate) - 1) > 1e-5
        assert stats.binom(20_000, 0.9 * level).cdf(int(20_000 * rate)) > 1e-5
    stated, measured = powers[0.05]
    assert stated > 0.99
    assert measured == pytest.approx(stated, abs=0.01)
