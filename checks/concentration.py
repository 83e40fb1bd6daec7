"""Definition 1 held against samples: how often the energy of one token exceeds (1 + ε) times its mean."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from checks.comparison import cell_fields
from simulate import Samples
from theory import predict
from theory.concentration import excess_probability, gaussian_tail_bound
from theory.stack import PAPER

_EPSILON = np.linspace(0.02, 0.5, 25)


def excess_table(cells: Sequence[Samples]) -> pd.DataFrame:
    """δ(ε) before the last LayerNorm, of samples and by theory, for cells with one token, where a draw is a token.

    Returns:
        One row per cell and ε: its fields, draws, epsilon, share with its exact 95% interval (low, high), predicted,
        and example, exp(−d ε²/8).

    Raises:
        ValueError: no cell has one token.
    """
    single = [s for s in cells if s.stack.tokens == 1 and s.stack.placement in PAPER and s.cell.text is None]
    if not single:
        raise ValueError("cells must have some with tokens = 1; sweep with --tokens 1 first.")
    parts = []
    for s in single:
        energy = s["hidden_energy"][:, -1].astype(float) / float(predict(s.stack)["hidden_energy"][-1])
        count = (energy[:, None] > 1 + _EPSILON).sum(0)
        # Clopper and Pearson.
        values = {
            "epsilon": _EPSILON,
            "share": count / s.draws,
            "low": np.nan_to_num(stats.beta.ppf(0.025, count, s.draws - count + 1)),
            "high": np.nan_to_num(stats.beta.ppf(0.975, count + 1, s.draws - count), nan=1.0),
            "predicted": excess_probability(s.stack, _EPSILON),
            "example": gaussian_tail_bound(s.stack.width, _EPSILON),
        }
        parts.append(pd.DataFrame(values).assign(draws=s.draws, **cell_fields(s)))
    return pd.concat(parts, ignore_index=True)
