"""How far samples are from their prediction."""

import numpy as np
from scipy import stats


def off(samples, prediction):
    """The largest deviation of any quantity, in units of 3% or 4 standard errors."""
    worst = {}
    for name in prediction:
        values = samples[name].astype(float)
        allowed = np.maximum(0.03 * np.abs(prediction[name]), 4 * stats.sem(values))
        beyond = np.abs(values.mean(0) - prediction[name])
        # Where nothing is predicted, as without a branch, nothing may be found.
        ratio = np.divide(beyond, allowed, out=np.where(beyond > 0, np.inf, 0.0), where=allowed > 0)
        worst[name] = float(np.nanmax(ratio, initial=0.0))
    return max(worst.values()), worst
