"""The motion of tokens when the matrices below them are stepped, and its change by a matrix or a norm."""

from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array, Number


@dataclass(frozen=True, slots=True, eq=False)
class MatrixGradient:
    """The gradients Δ at the output y = x W of a matrix.

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
        """Create gradients that have no overlap with the output y.

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
    """The motion ẋ of tokens x along an optimizer step, in terms of the gradients g at them, each (..., N, N).

    Attributes:
        coefficients: coefficients c of ẋ_i on the noise of g_j.
        overlaps: ẋ_i·x_j/√d.
        energy: ẋ_i·ẋ_j.
    """

    coefficients: Array
    overlaps: Array
    energy: Array

    def scaled(self, factor: Number) -> "TokenMotion":
        """Return the motion of the tokens multiplied by a number, given the square of that number."""
        return TokenMotion(self.coefficients * factor, self.overlaps * factor, self.energy * factor)

    def through(self, gain: float, widths: float, role: str, steps: Steps, gradients: Gradients) -> "TokenMotion":
        """Return the motion after a matrix whose step moves its output by H u = C Δ plus a remainder orthogonal to Δ.

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
        """Return the motion after a norm; unchanged without a norm.

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
        """Return the part of ẋ_i along x_i/√d, which a norm removes, (..., N)."""
        return np.asarray(np.linalg.diagonal(self.overlaps) / np.linalg.diagonal(scales))


def mean_kernel(kernel: Array) -> Array:
    """Return the mean of kernels over leading axes, (N, N)."""
    return np.asarray(kernel.reshape(-1, *kernel.shape[-2:]).mean(0))


def root(kernel: Array) -> Array:
    """Return F with F Fᵀ = K for a kernel K, also if gradients are 0 or span fewer directions than tokens."""
    values, vectors = np.linalg.eigh(kernel)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])


def symmetric_products(plus: MatrixGradient, minus: MatrixGradient) -> MatrixGradient:
    """Return the symmetric products of Δ and Δ', and the part of Δ', from the gradients Δ + Δ' and Δ − Δ'."""
    return MatrixGradient(
        (plus.gram - minus.gram) / 4, (plus.part - minus.part) / 2, (plus.along - minus.along) / 2
    )  # fmt: skip


def inverse(kernel: Array) -> Array:
    """Return the pseudo-inverse of a kernel on its range, because nearly equal tokens have no inverse."""
    return np.asarray(np.linalg.pinv(kernel, rcond=1e-10, hermitian=True))


def sample_mean(left: Array, other: Array) -> Array:
    """Return the mean of left_i other_j over samples."""
    return np.asarray(left.mT @ other / left.shape[-2])
