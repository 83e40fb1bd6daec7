"""A table that compares Definition 1 with samples: how often a token's squared norm is far above its mean.

It lists how often the squared norm of a token's activations exceeds (1 + ε) times its mean.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from checks.statistics import share
from checks.theory_and_samples import cell_fields
from simulate import Samples
from theory import predict
from theory.mean_field.concentration import excess_probability, gaussian_tail_bound

_EPSILON = np.linspace(0.02, 0.5, 25)


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
