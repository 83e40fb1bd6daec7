"""How the tokens of some place move when the matrices below it are stepped."""

from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array, cholesky


@dataclass(frozen=True, slots=True)
class TokenMotion:
    """c and E of `theory.first_step.tangent`, (..., N, N) each."""

    coefficients: Array
    energy: Array


def mean_kernel(kernel: Array) -> Array:
    """The mean over a leading axis, if there is one."""
    return np.asarray(kernel.reshape(-1, *kernel.shape[-2:]).mean(0))


def root(kernel: Array) -> Array:
    """A factor, also of gradients that are 0, as where a branch adds nothing."""
    return cholesky(kernel + np.finfo(float).tiny ** 0.5 * np.eye(kernel.shape[-1]))
