"""How far samples are from their prediction."""

from typing import Any

import numpy as np
from scipy import stats

from checks.statistics import estimate


def deviations(samples: Any, prediction: Any, *, common: bool = False) -> list[dict[str, Any]]:
    """Per quantity and layer the relative deviation of the mean, in units of 3% or 4 standard errors as well.

    Of every predicted quantity, or, for a prediction of another network, of those that both have.
    """
    rows = []
    for name in prediction:
        if common and name not in samples.arrays:
            continue
        values, predicted = samples[name].astype(float), np.atleast_1d(prediction[name])
        values = values.reshape(len(values), -1)
        error = np.atleast_1d(prediction.errors.get(name, 0.0))
        allowed = np.maximum(0.03 * np.abs(predicted), 4 * np.hypot(stats.sem(values), error))
        beyond = np.abs(values.mean(0) - predicted)
        # Where nothing is predicted, as without a branch, nothing may be found.
        ratio = np.divide(beyond, allowed, out=np.where(beyond > 0, np.inf, 0.0), where=allowed > 0)
        for layer in np.flatnonzero(~np.isnan(predicted)):
            off = float(beyond[layer] / abs(predicted[layer])) if predicted[layer] else 0.0
            rows.append(
                {
                    "quantity": name,
                    "layer": int(layer) + 1 if prediction[name].ndim else 0,
                    "relative": round(off, 5),
                    "of what is allowed": round(float(ratio[layer]), 4),
                }
            )
    return rows


def off(samples: Any, prediction: Any, *, common: bool = False) -> tuple[float, list[dict[str, Any]]]:
    """The widest deviation of what is allowed, and all that are beyond it."""
    rows = deviations(samples, prediction, common=common)
    widest = max(row["of what is allowed"] for row in rows)
    return widest, [row for row in rows if row["of what is allowed"] > 1]


def same(values: Any, expected: float, margin: float) -> bool:
    """Within the margin or 4 standard errors: about one false alarm in 10^3 numbers with 12 networks."""
    found = estimate(values)
    return abs(found.mean - expected) < max(margin * expected, 4 * found.sem)
