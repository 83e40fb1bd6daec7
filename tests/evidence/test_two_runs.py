"""How often `diff` says of two runs of one law that they differ, and what it finds with 64 draws of each."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from checks.stacks.two_runs import RATE, run_differences
from simulate import Samples, sample
from tests.helpers.evidence_file import record
from theory import Stack

pytestmark = pytest.mark.evidence

PAIRS, LARGE = 300, 16_384
LIMIT = int(stats.binom(PAIRS, RATE).isf(1e-4))
"""Pairs with a difference that runs of one law exceed with probability below 1e-4 in each setting."""

STACKS = {
    "pre d=16 L=8 n=2": (Stack(placement="pre", width=16, depth=8, tokens=2, vocab=4), (16, 32, 64)),
    "post d=32 L=12 n=4": (Stack(placement="post", width=32, depth=12, tokens=4, vocab=8), (16, 64)),
}
RATIOS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
FOUND = ("hidden_energy", "loss_gradient_sq", "grad_sq_WV")


def cut(samples: Samples, first: int, draws: int) -> Samples:
    kept = slice(first, first + draws)
    return replace(
        samples, seeds=samples.seeds[kept], arrays={name: values[kept] for name, values in samples.arrays.items()}
    )


def columns(samples: Samples) -> np.ndarray:
    return np.column_stack([values.reshape(samples.draws, -1) for values in samples.values()])


def rates(pairs: Callable[[int], Sequence[Samples]]) -> dict[str, int]:
    """Of 300 pairs, those with a difference: by `diff`, and by Welch's test of means at RATE over their number."""
    ours = welch = 0
    for k in range(PAIRS):
        a, b = pairs(k)
        ours += bool(run_differences([a], [b])["differs"].any())
        p_values = stats.ttest_ind(columns(a), columns(b), equal_var=False).pvalue
        welch += bool(np.nanmin(p_values) < RATE / p_values.size)
    return {"pairs with a difference": ours, "by Welch's test of means": welch}


def log_normal(samples: Samples, draws: int, rng: np.random.Generator) -> Samples:
    """Draws of 40 independent numbers of mean 1, whose logarithms have variances from 0.04 to 1.1."""
    spread = np.geomspace(0.04, 1.1, 40) ** 0.5
    values = np.exp(rng.normal(size=(draws, 40)) * spread - spread**2 / 2)
    return replace(samples, seeds=np.zeros(draws, dtype=int), arrays={"grad_sq_W1": values})


def power(small: Samples, large: Samples) -> dict[str, dict[str, float]]:
    """How often a factor in one quantity of every layer is found, in 100 pairs of 64 draws."""
    found = {}
    for name in FOUND:
        counts = dict.fromkeys(RATIOS, 0)
        for k in range(100):
            a, b = (cut(samples, 64 * k, 64) for samples in (small, large))
            for ratio in RATIOS:
                table = run_differences([a], [replace(b, arrays=b.arrays | {name: b[name] * ratio})])
                counts[ratio] += bool(table.loc[table["quantity"] == name, "differs"].any())
        spread = np.log(large[name].astype(float)).var(axis=0, ddof=1)
        found[f"{name}, log-variance {np.min(spread):.2g} to {np.max(spread):.2g}"] = {
            str(ratio): count / 100 for ratio, count in counts.items()
        }
    return found


def test_two_runs_of_one_law():
    """300 pairs in each of six settings. Small runs are independent; those of one network share the large one."""
    alarms: dict[str, dict[str, int]] = {}
    powers = {}
    for name, (stack, sizes) in STACKS.items():
        large, small = sample(stack, draws=LARGE, seed=10**6), sample(stack, draws=PAIRS * max(sizes), seed=1)
        for draws in sizes:
            alarms[f"{name}, {draws} draws against {LARGE}"] = rates(
                lambda k, draws=draws, small=small, large=large: (cut(small, k * draws, draws), large)
            )
        powers[name] = power(small, large)
    rng, any_stack = np.random.default_rng(0), sample(Stack(width=8, depth=40, tokens=2, vocab=4), draws=2, seed=0)
    alarms["log-normal, log-variance 0.04 to 1.1, 64 draws against 2048"] = rates(
        lambda _: (log_normal(any_stack, 64, rng), log_normal(any_stack, 2048, rng))
    )
    record(
        "two-runs",
        {
            "pairs of each setting": PAIRS,
            "stated rate": RATE,
            "one law": alarms,
            "share of pairs in which a factor in a quantity is found, 64 draws against 64": powers,
        },
    )
    assert all(found["pairs with a difference"] <= LIMIT for found in alarms.values())
    # Of real networks the test of means, which is not of this law, would have been seen.
    assert all(found["by Welch's test of means"] > LIMIT for name, found in alarms.items() if "d=" in name)
    assert all(found[name]["3.0"] > 0.9 for found in powers.values() for name in found)
