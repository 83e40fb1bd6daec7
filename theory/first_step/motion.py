"""How the tokens of some place move when the matrices below it are stepped."""

from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array


@dataclass(frozen=True, slots=True)
class TokenMotion:
    """c and E of `theory.first_step.tangent`, (..., N, N) each."""

    coefficients: Array
    energy: Array


def mean_kernel(kernel: Array) -> Array:
    """The mean over a leading axis, if there is one."""
    return np.asarray(kernel.reshape(-1, *kernel.shape[-2:]).mean(0))


def root(kernel: Array) -> Array:
    """F with F Fᵀ = K, also of gradients that are 0, or of fewer directions than tokens."""
    values, vectors = np.linalg.eigh(kernel)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])
