"""Two runs of the same networks beside each other: by how many standard errors every quantity differs."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pandas as pd
from scipy import stats

from checks.statistics import Array, estimate
from checks.theory_and_samples import cell_fields
from simulate import Samples
from theory import Stack

RATE = 0.01
"""How often two runs of the same law have a number that differs, at most, over all numbers together."""


def set_apart(first: Sequence[Samples], second: Sequence[Samples]) -> dict[str, tuple[object, object]]:
    """Fields that have one value in each of two runs, and not the same one; by these networks are not matched."""
    apart = {}
    for field in fields(Stack):
        a, b = ({getattr(s.stack, field.name) for s in run} for run in (first, second))
        if len(a) == len(b) == 1 and a != b:
            apart[field.name] = (a.pop(), b.pop())
    return apart


def run_differences(first: Sequence[Samples], second: Sequence[Samples]) -> pd.DataFrame:
    """Means of every quantity and layer of the networks that both runs have, and Welch's test of their difference.

    Args:
        first: cells of one run, of at least two draws.
        second: of the other; a cell is the same whose Stack, but for `set_apart`, and text are, whatever engine, device
            or seed it has.

    Returns:
        One row for each network, quantity and layer (0 for the whole network): the fields of the first run's network,
        quantity, layer, first, first_sem, second, second_sem, errors (difference in standard errors; NaN where both
        have no spread and are equal), p_value, and differs: whether it is below `RATE` over the number of rows
        (Bonferroni). Draws with the same seeds are the same networks, whose differences are smaller than the test takes
        them for.
    """
    names = _names(first, second)
    others = {names[id(s)]: s for s in second}
    rows = []
    for samples in first:
        other = others.get(names[id(samples)])
        if other is None:
            continue
        for quantity in sorted(set(samples) & set(other)):
            a, b = (np.asarray(s[quantity], dtype=float) for s in (samples, other))
            if a.shape[1:] != b.shape[1:]:
                continue  # per layer, of another depth
            for layer in range(1, a.shape[1] + 1) if a.ndim == 2 else (0,):
                numbers = _compared(a[:, layer - 1] if layer else a, b[:, layer - 1] if layer else b)
                if numbers is not None:
                    rows.append(cell_fields(samples) | {"quantity": quantity, "layer": layer} | numbers)
    table = pd.DataFrame(rows)
    return table.assign(differs=table["p_value"] < RATE / len(table)) if rows else table


def only_in_one(first: Sequence[Samples], second: Sequence[Samples]) -> tuple[int, int]:
    """How many networks the first run has alone, and how many the second."""
    names = _names(first, second)
    a, b = ({names[id(s)] for s in run} for run in (first, second))
    return len(a - b), len(b - a)


def _names(first: Sequence[Samples], second: Sequence[Samples]) -> dict[int, tuple[object, ...]]:
    """What a cell is called in both runs, by its identity."""
    apart = set_apart(first, second)
    kept = [field.name for field in fields(Stack) if field.name not in apart]
    return {
        id(s): (*(getattr(s.stack, name) for name in kept), "" if s.cell.text is None else s.cell.text.digest)
        for s in (*first, *second)
    }


def _compared(a: Array, b: Array) -> dict[str, float] | None:
    """Means, errors and the test of one number; nothing where a quantity is not defined."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    of_first, other = estimate(a), estimate(b)
    first, second, error = float(of_first.mean), float(other.mean), float(np.hypot(of_first.sem, other.sem))
    # What does not vary, such as a norm that LayerNorm fixes, differs by rounding.
    if error <= 1e-6 * abs(first):
        same = abs(second - first) <= 1e-5 * abs(first)
        errors, p_value = (float("nan"), 1.0) if same else (float("inf"), 0.0)
    else:
        errors = (second - first) / error
        p_value = float(stats.ttest_ind(a, b, equal_var=False).pvalue)
    return {
        "first": first, "first_sem": float(of_first.sem), "second": second, "second_sem": float(other.sem),
        "errors": errors, "p_value": p_value,
    }  # fmt: skip
