"""How tokens move when the matrices below them are stepped, and what a matrix and a norm make of that."""

from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array, Number


@dataclass(frozen=True, slots=True, eq=False)
class MatrixGradient:
    """Gradients Δ at what comes out of a matrix, y = x W.

    Attributes:
        gram: ΔΔᵀ, (..., N, N).
        part: P of Δ_i = Σ_p P_ip y_p/√d + what has no overlap with y.
        along: Δ_i·y_j/√d.
    """

    gram: Array
    part: Array
    along: Array

    @classmethod
    def without_overlaps(cls, gram: Array) -> "MatrixGradient":
        """Gradients that have no overlap with y."""
        none = np.zeros((1, *gram.shape[-2:]))
        return cls(gram, none, none)


Gradients = dict[str, MatrixGradient]
"""By the role of the matrix."""
Steps = dict[str, Array]
"""C of the matrices that move, by role, and "ROLE remainder" of signs."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenMotion:
    """ẋ of tokens x with gradients g at them, (..., N, N) each; overlaps are 0 where no gradient has one with a token.

    Attributes:
        coefficients: c of ẋ_i on the noise of g_j.
        overlaps: ẋ_i·x_j/√d.
        energy: ẋ_i·ẋ_j.
    """

    coefficients: Array
    overlaps: Array
    energy: Array

    def scaled(self, factor: Number) -> "TokenMotion":
        """The motion of tokens times a number, given its square."""
        return TokenMotion(self.coefficients * factor, self.overlaps * factor, self.energy * factor)

    def through(self, gain: float, widths: float, role: str, steps: Steps, gradients: Gradients) -> "TokenMotion":
        """Behind a matrix of that gain and d_out/d_in, which its step moves by H u = C Δ and a remainder across Δ.

        What is random to the matrix keeps its overlap with what the matrix makes of the tokens; what returns along Δ
        brings Δ's own.
        """
        at, fresh = gradients[role], gain * widths * self.overlaps
        c = gain * self.coefficients + steps.get(role, 0.0)
        crossed = fresh @ at.part.mT @ c.mT
        energy = gain * widths * self.energy + c @ at.gram @ c.mT + crossed + crossed.mT
        return TokenMotion(c, fresh + c @ at.along, energy + steps.get(f"{role} remainder", 0.0))

    def normed(self, kernel: Array, scales: Number) -> "TokenMotion":
        """The motion behind a norm that divides kernels by these scales, 1 if there is none."""
        if isinstance(scales, float):
            return self
        taken = self.taken_by_norm(scales)[..., :, None]
        energy = self.energy - taken * self.overlaps.mT - self.overlaps * taken.mT + taken * kernel * taken.mT
        return TokenMotion(self.coefficients / scales, (self.overlaps - taken * kernel) / scales, energy / scales)

    def taken_by_norm(self, scales: Number) -> Array:
        """The part of ẋ_i along x_i/√d, which a norm removes, (..., N)."""
        return np.asarray(np.linalg.diagonal(self.overlaps) / np.linalg.diagonal(scales))


def mean_kernel(kernel: Array) -> Array:
    """The mean over a leading axis, if there is one."""
    return np.asarray(kernel.reshape(-1, *kernel.shape[-2:]).mean(0))


def root(kernel: Array) -> Array:
    """F with F Fᵀ = K, also of gradients that are 0, or of fewer directions than tokens."""
    values, vectors = np.linalg.eigh(kernel)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])


def symmetric_products(plus: MatrixGradient, minus: MatrixGradient) -> MatrixGradient:
    """Symmetric products of Δ and Δ', and the part of Δ', from the gradients Δ + Δ' and Δ − Δ'."""
    return MatrixGradient(
        (plus.gram - minus.gram) / 4, (plus.part - minus.part) / 2, (plus.along - minus.along) / 2
    )  # fmt: skip


def inverse(kernel: Array) -> Array:
    """On its range: tokens that are equal, or nearly, have no inverse."""
    return np.asarray(np.linalg.pinv(kernel, rcond=1e-10, hermitian=True))


def sample_mean(left: Array, other: Array) -> Array:
    """The mean of left_i other_j over samples."""
    return np.asarray(left.mT @ other / left.shape[-2])
