"""The comparison of two runs on the same networks: which of their numbers differ by more than chance explains."""

from collections.abc import Sequence
from dataclasses import fields
from math import comb

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from checks.statistics import Array, estimate
from checks.theory_and_samples import cell_fields
from simulate import Samples
from theory import Stack

RATE = 0.01
"""The largest probability that two runs of the same law have any number that differs."""

PERMUTATIONS = 999
"""The number of random assignments of draws to the two runs; with the runs themselves there are 1000, and 10 of them
are 1%.
"""


def set_apart(first: Sequence[Samples], second: Sequence[Samples]) -> dict[str, tuple[object, object]]:
    """Return the fields that are constant within each of two runs but differ between them, with both values.

    Networks of the two runs are matched without these fields.
    """
    apart = {}
    for field in fields(Stack):
        a, b = ({getattr(s.stack, field.name) for s in run} for run in (first, second))
        if len(a) == len(b) == 1 and a != b:
            apart[field.name] = (a.pop(), b.pop())
    return apart


def can_differ(first: int, second: int) -> bool:
    """Return whether two numbers of draws suffice to show any significant difference; 4 and 4 do not.

    The smallest p-value of a permutation test is the share of permutations that give the two runs themselves or, with
    equally many draws, the runs exchanged.
    """
    few, many = min(first, 100), min(second, 100)  # of more there are deals enough, and their number takes long
    return (1 + (first == second)) / comb(few + many, few) <= RATE


def run_differences(first: Sequence[Samples], second: Sequence[Samples]) -> pd.DataFrame:
    """Compare every quantity and layer of the networks that two runs share, and mark the significant differences.

    The draws of a network are reassigned to the two runs at random, `PERMUTATIONS` times. A number differs if its
    difference is among the largest 1% of the largest difference over all numbers in these permutations (the max-T test
    of Westfall and Young 1993). If both runs have the same law, every permutation is as likely as the runs themselves.
    The false-alarm rate `RATE` therefore holds for any law, any numbers of draws and any dependence between numbers.

    A difference is Welch's t, of logarithms if all draws are positive: squared gradients are skewed, and a few draws
    dominate the difference of their means. It is converted to a normal deviate with the same tail probability, so that
    networks with few draws do not dominate the largest difference (Wallace 1959).

    Args:
        first: samples of one run, at least two draws per network.
        second: samples of the other run. Networks match if their Stack, except for the fields of `set_apart`, and their
            text are equal; engine, device and seed may differ.

    Returns:
        One row for each network, quantity and layer (0 for the whole network): the fields of the first run's network,
        quantity, layer, first_draws, first (the mean), first_sem, second_draws, second, second_sem, errors (the
        difference in standard errors; if neither run varies, NaN for equal and infinite for different values), p_value
        (adjusted: how often some number differs as much in two runs with the same law), and differs: whether p_value is
        at most `RATE`. Draws with the same seeds are the same networks, so their differences are smaller than the test
        assumes. The same arguments give the same table.
    """
    names = _names(first, second)
    others = {names[id(s)]: s for s in second}
    rng = np.random.default_rng(0)
    rows: list[dict[str, object]] = []
    largest = np.zeros(1 + PERMUTATIONS)
    for samples in first:
        other = others.get(names[id(samples)])
        if other is None:
            continue
        varying: list[dict[str, object]] = []
        pairs: list[tuple[Array, Array]] = []
        for quantity in sorted(set(samples) & set(other)):
            a, b = (np.asarray(s[quantity], dtype=float) for s in (samples, other))
            if a.shape[1:] != b.shape[1:]:
                continue  # per layer, of another depth
            for layer in range(1, a.shape[1] + 1) if a.ndim == 2 else (0,):
                pair = (a[:, layer - 1], b[:, layer - 1]) if layer else (a, b)
                if (numbers := _means(*pair)) is not None:
                    rows.append(cell_fields(samples) | {"quantity": quantity, "layer": layer} | numbers)
                    if "errors" not in numbers:
                        varying.append(rows[-1])
                        pairs.append(pair)
        if pairs:
            a, b = (np.column_stack(columns) for columns in zip(*pairs, strict=True))
            dealt = _differences(a, b, rng)
            largest = np.maximum(largest, np.abs(dealt).max(1))
            for row, errors in zip(varying, dealt[0], strict=True):
                row["errors"] = float(errors)
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    # Deals that give the runs themselves are as large up to rounding.
    beyond = len(largest) - np.searchsorted(np.sort(largest), np.abs(table["errors"]) * (1 - 1e-9))
    table["p_value"] = np.where(table["errors"].isna(), 1.0, beyond / len(largest))
    return table.assign(differs=table["p_value"] <= RATE)


def only_in_one(first: Sequence[Samples], second: Sequence[Samples]) -> tuple[int, int]:
    """Return how many networks only the first run contains, and how many only the second run contains."""
    names = _names(first, second)
    a, b = ({names[id(s)] for s in run} for run in (first, second))
    return len(a - b), len(b - a)


def _names(first: Sequence[Samples], second: Sequence[Samples]) -> dict[int, tuple[object, ...]]:
    """Return an identifying tuple for the network of every `Samples` in both runs, by `id(samples)`."""
    apart = set_apart(first, second)
    kept = [field.name for field in fields(Stack) if field.name not in apart]
    return {
        id(s): (*(getattr(s.stack, name) for name in kept), "" if s.cell.text is None else s.cell.text.digest)
        for s in (*first, *second)
    }


def _means(a: Array, b: Array) -> dict[str, object] | None:
    """Return means, standard errors and draws of one number in two runs; None if a value is not finite.

    If the number does not vary, the difference `errors` is included: NaN for equal and infinite for different means.
    """
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    of_first, other = estimate(a), estimate(b)
    first, second, error = float(of_first.mean), float(other.mean), float(np.hypot(of_first.sem, other.sem))
    means: dict[str, object] = {
        "first_draws": len(a), "first": first, "first_sem": float(of_first.sem),
        "second_draws": len(b), "second": second, "second_sem": float(other.sem),
    }  # fmt: skip
    # What does not vary, such as a norm that LayerNorm fixes, differs by rounding.
    if error <= 1e-6 * abs(first):
        same = abs(second - first) <= 1e-5 * abs(first)
        means["errors"] = float("nan") if same else float("inf") * np.sign(second - first)
    return means


def _differences(first: Array, second: Array, rng: np.random.Generator) -> Array:
    """Return the differences of two runs' columns, as they are and in `PERMUTATIONS` random permutations of draws.

    Args:
        first: draws of the first run, (draws, numbers).
        second: draws of the second run, (draws, numbers).
        rng: the generator of the permutations.

    Returns:
        Normal deviates of Welch's t, (1 + PERMUTATIONS, numbers), positive where the second run is larger.
    """
    sign = 1.0 if len(first) <= len(second) else -1.0
    few, many = (first, second) if sign > 0 else (second, first)
    pooled = np.concatenate([few, many])
    positive = (pooled > 0).all(0)
    pooled[:, positive] = np.log(pooled[:, positive])
    pooled = (pooled - pooled.mean(0)) / pooled.std(0)
    draws, n = len(pooled), len(few)
    # The smaller run is dealt; the other has the rest.
    dealt = [np.arange(n), *(rng.choice(draws, n, replace=False, shuffle=False) for _ in range(PERMUTATIONS))]
    taken = csr_array((np.ones(n * len(dealt)), np.concatenate(dealt), np.arange(0, n * len(dealt) + 1, n)))
    taken.resize((len(dealt), draws))
    sums, squares = taken @ pooled, taken @ pooled**2
    means, parts = [], []
    for count, total, square in ((n, sums, squares), (draws - n, -sums, draws - squares)):
        variance = np.maximum(square / count - (total / count) ** 2, 1e-12)  # 0 up to rounding where draws are equal
        parts.append((variance / (count - 1), count - 1))
        means.append(total / count)
    errors = parts[0][0] + parts[1][0]
    t_square = (means[1] - means[0]) ** 2 / errors
    freedom = errors**2 / sum(part**2 / count for part, count in parts)
    normal = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t_square / freedom))
    return sign * np.sign(means[1] - means[0]) * normal
