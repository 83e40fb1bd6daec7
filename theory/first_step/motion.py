"""The change of every token's residual stream in one optimizer step, and the effect of a matrix or a norm on it."""

from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array, Number


@dataclass(frozen=True, slots=True, eq=False)
class MatrixGradient:
    """The loss gradients Δ at the output y = x W of a weight matrix W, as inner products between tokens.

    Attributes:
        gram: ΔΔᵀ, (..., N, N).
        part: P in Δ_i = Σ_p P_ip y_p/√d + (a part without overlap with y).
        along: Δ_i·y_j/√d.
    """

    gram: Array
    part: Array
    along: Array

    @classmethod
    def without_overlaps(cls, gram: Array) -> "MatrixGradient":
        """Create gradients at a matrix's output that have no overlap with the output vectors themselves.

        Args:
            gram: ΔΔᵀ, (..., N, N).
        """
        none = np.zeros((1, *gram.shape[-2:]))
        return cls(gram, none, none)


Gradients = dict[str, MatrixGradient]
"""The gradients at the outputs of matrices, by role of the matrix."""
Steps = dict[str, Array]
"""The coefficients C of the matrices' steps in H u = C Δ, by role, and for signs "ROLE remainder"."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenMotion:
    """The change of the tokens in one optimizer step, given by its inner products with gradients and tokens.

    The change ẋ of tokens x is given in terms of the gradients g at them; each array has shape (..., N, N).

    Attributes:
        coefficients: coefficients c of ẋ_i on the noise of g_j.
        overlaps: ẋ_i·x_j/√d.
        energy: ẋ_i·ẋ_j.
    """

    coefficients: Array
    overlaps: Array
    energy: Array

    def scaled(self, factor: Number) -> "TokenMotion":
        """Return the change of all tokens multiplied by a number, which is given by its square."""
        return TokenMotion(self.coefficients * factor, self.overlaps * factor, self.energy * factor)

    def through(self, gain: float, widths: float, role: str, steps: Steps, gradients: Gradients) -> "TokenMotion":
        """Return the change of a matrix's outputs in one step, from the change of its inputs and the matrix's own step.

        The matrix's step moves its output by H u = C Δ plus a remainder orthogonal to Δ.

        The part that is random to the matrix keeps its overlap with the matrix's output. The part that returns along
        Δ has the overlaps of Δ.

        Args:
            gain: gain of the matrix.
            widths: d_out/d_in.
            role: role of the matrix.
            steps: steps of the matrices, by role.
            gradients: gradients at the matrices, by role.
        """
        at, fresh = gradients[role], gain * widths * self.overlaps
        c = gain * self.coefficients + steps.get(role, 0.0)
        crossed = fresh @ at.part.mT @ c.mT
        energy = gain * widths * self.energy + c @ at.gram @ c.mT + crossed + crossed.mT
        return TokenMotion(c, fresh + c @ at.along, energy + steps.get(f"{role} remainder", 0.0))

    def normed(self, kernel: Array, scales: Number) -> "TokenMotion":
        """Return the change of the tokens after a norm; unchanged without a norm.

        Args:
            kernel: kernel before the norm.
            scales: divisors of the kernel; 1 without a norm.
        """
        if isinstance(scales, float):
            return self
        taken = self.taken_by_norm(scales)[..., :, None]
        energy = self.energy - taken * self.overlaps.mT - self.overlaps * taken.mT + taken * kernel * taken.mT
        return TokenMotion(self.coefficients / scales, (self.overlaps - taken * kernel) / scales, energy / scales)

    def taken_by_norm(self, scales: Number) -> Array:
        """Return the part of each token's change that is parallel to the token, which a norm removes.

        It is the coefficient of ẋ_i on x_i/√d, (..., N).
        """
        return np.asarray(np.linalg.diagonal(self.overlaps) / np.linalg.diagonal(scales))


def mean_kernel(kernel: Array) -> Array:
    """Return the mean of square matrices over all leading axes of an array.

    The shape is (N, N).
    """
    return np.asarray(kernel.reshape(-1, *kernel.shape[-2:]).mean(0))


def symmetric_products(plus: MatrixGradient, minus: MatrixGradient) -> MatrixGradient:
    """Return the symmetrized inner products of two gradients, from the products of their sum and their difference.

    The gradients are Δ and Δ'; the arguments describe Δ + Δ' and Δ − Δ', and the result also has the part of Δ'.
    """
    return MatrixGradient(
        (plus.gram - minus.gram) / 4, (plus.part - minus.part) / 2, (plus.along - minus.along) / 2
    )  # fmt: skip


def inverse(kernel: Array) -> Array:
    """Return the pseudo-inverse of a kernel, which is nearly singular if two tokens are nearly equal."""
    return np.asarray(np.linalg.pinv(kernel, rcond=1e-10, hermitian=True))


def sample_mean(left: Array, other: Array) -> Array:
    """Return the mean products of two arrays' columns over samples, where each row is one sample."""
    return np.asarray(left.mT @ other / left.shape[-2])
