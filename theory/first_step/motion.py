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
