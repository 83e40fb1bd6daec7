"""Samples of Gaussian tokens, for means that have no closed form."""

import numpy as np

from theory.mean_field.kernels import Array

# So many samples, or as many as make arrays of so many numbers of n² a sample, but no fewer than these.
_SAMPLES, _FEWEST, _ENTRIES = 4096, 256, 2**21


def gaussian_samples(kernel: Array, generator: np.random.Generator, share: float = 1.0) -> Array:
    """Samples of N(0, K), (samples, N), in pairs of opposite sign and with exactly this covariance.

    Their number is the share of what is worth it, but no less than some hundreds.
    """
    n = len(kernel)
    half = max(_FEWEST, n, round(share * min(_SAMPLES, _ENTRIES // n**2))) // 2 + n
    z = generator.standard_normal((half, n))
    z = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / half)).T
    values, vectors = np.linalg.eigh(kernel)
    draws = z @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    return np.concatenate([draws, -draws])
