"""Draw samples of Gaussian tokens, for means that have no closed form."""

import numpy as np

from theory.mean_field.kernels import Array, eigen_root

# So many samples, or as many as make arrays of so many numbers of n² a sample, but no fewer than these.
SAMPLES, _FEWEST, _ENTRIES = 4096, 256, 2**21


def gaussian_sample_count(n: int, most: int = SAMPLES) -> int:
    """Return the number of Gaussian samples that are drawn for vectors with n coordinates.

    `gaussian_samples` returns up to 2 n more.
    """
    return max(_FEWEST, n, min(most, _ENTRIES // n**2))


def gaussian_samples(kernel: Array, generator: np.random.Generator, most: int = SAMPLES) -> Array:
    """Return samples of Gaussian vectors, in pairs of opposite sign, with exactly the given covariance matrix.

    They are from N(0, K), of shape (samples, N).
    """
    n = len(kernel)
    half = gaussian_sample_count(n, most) // 2 + n
    z = generator.standard_normal((half, n))
    z = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / half)).T
    draws = z @ eigen_root(kernel)
    return np.concatenate([draws, -draws])
