"""How tokens move where gradients have overlaps with them, and what a matrix and a norm make of that."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from theory.first_step.motion import mean_kernel
from theory.first_step.rules import STREAM_SAMPLES, MatrixUse, Rule, parts_of, sign_deviation, sign_remainder, sign_rule
from theory.first_step.samples import gaussian_samples
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


Gradients = dict[str, MatrixGradient]
"""By the role of the matrix."""
Steps = dict[str, Array]
"""C of the matrices that move, by role, and "ROLE remainder" of signs."""


@dataclass(frozen=True, slots=True, eq=False)
class OverlapMotion:
    """ẋ of tokens x with gradients g at them, (..., N, N) each.

    Attributes:
        coefficients: c of ẋ_i on the noise of g_j.
        overlaps: ẋ_i·x_j/√d.
        energy: ẋ_i·ẋ_j.
    """

    coefficients: Array
    overlaps: Array
    energy: Array

    def scaled(self, factor: Number) -> "OverlapMotion":
        """Of tokens times a number, by its square."""
        return OverlapMotion(self.coefficients * factor, self.overlaps * factor, self.energy * factor)

    def through(self, gain: float, widths: float, role: str, steps: Steps, gradients: Gradients) -> "OverlapMotion":
        """Behind a matrix of that gain and d_out/d_in, which its step moves by H u = C Δ and a remainder across Δ.

        What is random to the matrix keeps its overlap with what the matrix makes of the tokens; what returns along Δ
        brings Δ's own.
        """
        at, fresh = gradients[role], gain * widths * self.overlaps
        c = gain * self.coefficients + steps.get(role, 0.0)
        crossed = fresh @ at.part.mT @ c.mT
        energy = gain * widths * self.energy + c @ at.gram @ c.mT + crossed + crossed.mT
        return OverlapMotion(c, fresh + c @ at.along, energy + steps.get(f"{role} remainder", 0.0))

    def normed(self, kernel: Array, scales: Number) -> "OverlapMotion":
        """Behind a norm that divides kernels by these scales, 1 if there is none."""
        if isinstance(scales, float):
            return self
        taken = self.radial(scales)[..., :, None]
        energy = self.energy - taken * self.overlaps.mT - self.overlaps * taken.mT + taken * kernel * taken.mT
        return OverlapMotion(self.coefficients / scales, (self.overlaps - taken * kernel) / scales, energy / scales)

    def radial(self, scales: Number) -> Array:
        """What a norm removes of ẋ_i along x_i/√d, (..., N)."""
        return np.asarray(np.linalg.diagonal(self.overlaps) / np.linalg.diagonal(scales))


def steps_of(uses: Collection[MatrixUse], rule: Rule, gradients: dict[str, Array], matrices: Collection[str]) -> Steps:
    """C of the matrices that move, by role, and "ROLE remainder" of signs, from Gram matrices of their gradients.

    Gradients of networks may differ by orders of magnitude. Signs do not know their size, so that what takes their mean
    over networks is given them in one size.
    """
    steps = Steps()
    for use in (use for use in uses if use.role in matrices):
        if rule is not sign_rule:
            steps[use.role] = rule(use, gradients[use.role])
            continue
        size = sizes_of(gradients[use.role])
        gram = gradients[use.role] / size**2
        c = rule(use, gram)
        remainder = _squared_signs(use, mean_kernel(gram)) - c @ gram @ c.mT
        steps |= {use.role: c / size, f"{use.role} remainder": remainder}
    return steps


def _squared_signs(use: MatrixUse, gradient: Array) -> Array:
    """The Gram matrix of what signs make of the rows in all."""
    if use.has_tokens:
        return sign_remainder(use, gradient, 0.0 * gradient)
    deltas = gaussian_samples(gradient / use.shape[1], np.random.default_rng(1), STREAM_SAMPLES)
    moved = sign_deviation(use, deltas, 0.0 * gradient)
    return np.asarray(use.shape[1] * sample_mean(moved, moved))


def sizes_of(gram: Array) -> Array:
    """√ of the sum of squares of every network, 1 where it is 0, (..., 1, 1)."""
    squares = np.trace(gram, axis1=-2, axis2=-1)[..., None, None]
    return np.asarray(np.sqrt(np.where(squares > 0, squares, 1.0)))


class TiedBranch:
    """What branches have in common.

    Attributes:
        uses: their matrices, in the order in which a token meets them.
    """

    uses: list[MatrixUse]

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """C of the matrices that move, by role, and "ROLE remainder" of signs."""
        return steps_of(self.uses, rule, {role: at.gram for role, at in gradients.items()}, matrices)

    def summed(self, role: str, gradients: Gradients) -> Array:
        """The Gram matrix of gradients at what comes out of a whole matrix."""
        return gradients[role].gram

    def parts(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        """What every matrix that moves adds to the product of a step with gradients, which may be another loss's.

        Args:
            steps: the step.
            gradients: those that it was made of.
            others: products of gradients with those, as `crossed` gives them.
        """
        del gradients
        return parts_of(self.uses, steps, {role: at.gram for role, at in others.items()})


def crossed(plus: MatrixGradient, minus: MatrixGradient) -> MatrixGradient:
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
