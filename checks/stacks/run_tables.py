"""The tables of a run from which its figures are drawn, by name."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from checks.series import longest_series
from checks.stacks.profiles import profile_cells
from checks.stacks.theorem1 import chain_table, last_layer_table
from checks.statistics import share
from checks.theory_and_samples import cell_fields, comparison
from simulate import Samples
from theory import predict
from theory.mean_field.concentration import excess_probability, gaussian_tail_bound

_EPSILON = np.linspace(0.02, 0.5, 25)


def _series(cells: Sequence[Samples], against: str) -> pd.DataFrame:
    return longest_series(last_layer_table(cells), against)


def excess_table(cells: Sequence[Samples]) -> pd.DataFrame:
    """Compare the sampled and predicted probability δ(ε) that a token's squared norm exceeds (1 + ε) times its mean.

    The squared norm is that before the last LayerNorm, in networks with one token per sequence. Each draw is one token.

    Args:
        cells: sampled networks, some with one token.

    Returns:
        One row per network and ε: the network's fields, draws, epsilon, share with its exact 95% interval (low, high),
        predicted, and example, which is exp(−d ε²/8).

    Raises:
        ValueError: no sampled network has one token.
    """
    single = [s for s in cells if s.stack.tokens == 1 and s.stack.in_paper and s.cell.text is None]
    if not single:
        raise ValueError("cells must include tokens = 1; sweep with --tokens 1 first.")
    parts = []
    for s in single:
        energy = s["hidden_energy"][:, -1].astype(float) / float(predict(s.stack)["hidden_energy"][-1])
        shares = [share(energy > 1 + epsilon) for epsilon in _EPSILON]
        values = {
            "epsilon": _EPSILON,
            "share": [of for of, _ in shares],
            "low": [low for _, (low, _) in shares],
            "high": [high for _, (_, high) in shares],
            "predicted": excess_probability(s.stack, _EPSILON),
            "example": gaussian_tail_bound(s.stack.width, _EPSILON),
        }
        parts.append(pd.DataFrame(values).assign(draws=s.draws, **cell_fields(s)))
    return pd.concat(parts, ignore_index=True)


RUN_TABLES: dict[str, Callable[[Sequence[Samples]], pd.DataFrame]] = {
    "width_series": lambda cells: _series(cells, "width"),
    "depth_series": lambda cells: _series(cells, "depth"),
    "layer_profiles": lambda cells: comparison(profile_cells(cells)),
    "excess": excess_table,
    "proof_chain": chain_table,
}
"""Functions that make a run's tables from its samples, by name, in the order of the figures.

Theory must have a rule for the samples. A `ValueError` says which samples are missing.
"""
