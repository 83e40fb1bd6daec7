"""The way down and up of one step with tied embeddings, where gradients have overlaps of order one with the stream.

At a token x_i the gradient is g_i = Σ_p M_ip x_p/√d + Σ_p C_ip w_p/√d + n_i (`theory.mean_field.tied.gradient`), with w
the words. On the way up ẋ_i is known by

    c_ij, its coefficients on the noise n_j,    X_ij = ẋ_i·x_j/√d,    W_ip = ẋ_i·w_p/√d,    E_ij = ẋ_i·ẋ_j.

A matrix W, of inputs x and outputs y with gradients Δ, whose step u has H u = C Δ, takes c to gain c + C =: c', X to
gain (d_out/d_in) X + c' Δ·y/√d, and E likewise. A norm takes x_i (ẋ_i·x_i)/|x_i|² away. A branch f at the sum αx + τf
moves by ḟ = c_f n_f and what is along f alone, with n_f = τ (g − τ M f/√d) the noise to it, which f's own matrices have
not made; and n_j below the sum holds ατ Σ_p M_jp f_p/√d. The inputs move by both uses of the output matrix, so that ẋ_0
has a part along x_L, of which every sub-layer adds some.

Assumes what the gradient's way down does, and that words differ.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from theory.first_step.rules import Rule
from theory.first_step.samples import SAMPLES
from theory.first_step.tied.attention import TiedAttention, TiedRandomAttention
from theory.first_step.tied.motion import Gradients, OverlapMotion, Steps
from theory.first_step.tied.units import TiedUnits
from theory.mean_field.inputs import attention_pattern, gaussian_inputs
from theory.mean_field.kernels import Array, MatrixLayout, Number
from theory.mean_field.passes import Forward
from theory.mean_field.recursion import forward_pass
from theory.mean_field.sublayers import SublayerState, TokenMoments
from theory.mean_field.tied.gradient import Gradient, Place
from theory.stack import Stack

AnyBranch = TiedAttention | TiedRandomAttention | TiedUnits


@dataclass(frozen=True, slots=True, eq=False)
class SublayerGradient:
    """Gradients of one sub-layer.

    Attributes:
        total: at the residual sum.
        ahead: overlaps x_L,k·g_i/√d, [i, k], of its noise with what is added to the stream above.
        matrices: at its matrices.
    """

    total: Gradient
    ahead: Array
    matrices: Gradients


@dataclass(frozen=True, slots=True, eq=False)
class Down:
    """The way down.

    Attributes:
        sublayers: from below.
        bottom: the gradient at x_0.
        across: x_L,k·g_i/√d, [i, k], of that gradient.
    """

    sublayers: list[SublayerGradient]
    bottom: Gradient
    across: Array


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """How the stream moves somewhere.

    Attributes:
        motion: its noise coefficients, overlaps and energy.
        words: ẋ_i·w_p/√d.
        ahead: coefficients of ẋ_i on the output tokens, for what of these is yet to be added to the stream, times √d.
    """

    motion: OverlapMotion
    words: Array
    ahead: Array

    def normed(self, place: Place, scales: Number) -> "Moved":
        """Behind a norm."""
        if isinstance(scales, float):
            return self
        rows, taken = roots(scales)[..., :, None], self.motion.radial(scales)[..., :, None]
        words = (self.words - taken * np.eye(rows.shape[-2]) * place.held[..., None, :]) / rows
        return Moved(self.motion.normed(place.kernel, scales), words, self.ahead / rows)


@dataclass(slots=True, eq=False)
class TiedSolution:
    """A stack's way down and up.

    Attributes:
        stack: the network.
        forward: the way up of kernels.
        branches: of every sub-layer, from below.
        held: how much of its word every token holds: of the stream before every sub-layer, and after the last.
        remains: how much of the stream there is left in the output, likewise.
    """

    stack: Stack
    forward: Forward[Array]
    branches: list[tuple[AnyBranch, ...]]
    held: list[Array]
    remains: list[Array]

    @classmethod
    def of(cls, stack: Stack, seed: int = 0, samples: int = SAMPLES) -> "TiedSolution":
        """The forward pass."""
        tokens = MatrixLayout(stack.rows, attention_pattern(stack), stack.sequences)
        forward = forward_pass(stack, tokens, gaussian_inputs(stack), np.random.default_rng(seed))
        branches, factors = list[tuple[AnyBranch, ...]](), [np.full((1, stack.rows), stack.embedding_scale)]
        for k, insides in enumerate(forward.insides):
            branches.append(
                tuple(_branch(inside, tokens, k + seed * len(forward.insides), samples) for inside in insides)
            )
            factors.append(insides[0].step.residual / roots(insides[0].after_scales) * np.ones((1, stack.rows)))
        factors.append(1.0 / roots(forward.output_scales) * np.ones((1, stack.rows)))
        passed = np.cumprod(factors, axis=0), np.cumprod(factors[:0:-1], axis=0)[::-1]
        return cls(stack, forward, branches, *(list(part) for part in passed))

    @property
    def first(self) -> Place:
        """Where inputs are."""
        return self._place(self.forward.insides[0][0].stream, self.held[0])

    def _place(self, tokens: TokenMoments[Array], of_words: Array) -> Place:
        """Without means of coordinates, which norms take off both ways where there are any."""
        return Place(tokens.centred().kernel, 0.0, np.eye(self.stack.rows), of_words)

    def down(self, own: Array, others: Array) -> Down:
        """From gradients at the logits of the batch's words, (..., N, N), and ΣΣ' of those at all others."""
        forward, scale = self.forward, self.stack.output_scale
        none, last = 0.0 * own, self._place(forward.stream, self.held[-2])
        gradient = Gradient(scale**2 * others, none, scale * own, none[..., 0])
        gradient = gradient.below_norm(last, forward.output_scales)
        across, sublayers, below = none / roots(forward.output_scales)[..., :, None], list[SublayerGradient](), last
        for k in range(len(self.branches))[::-1]:
            insides = forward.insides[k]
            step = insides[0].step
            total = self._place(insides[0].total, self.held[k] * step.residual)
            gradient = gradient.below_norm(total, insides[0].after_scales)
            rows = roots(insides[0].after_scales)
            across = across / rows[..., :, None]
            below = self._place(insides[0].stream, self.held[k])
            remains = self.remains[k] / step.residual  # of the sum
            arrived, ahead, matrices = gradient, across, Gradients()
            arriving, direct = gradient.kernel(total), gradient.noise
            noises, parts, across = np.zeros(1), np.zeros(1), step.residual * across
            for inside, branch in zip(insides, self.branches[k], strict=True):
                tau = inside.step.branch
                own_part = tau * gradient.stream @ inside.added
                own_kernel = tau * own_part @ gradient.stream.mT
                into = Gradient(tau**2 * (arriving - own_kernel), tau**2 * gradient.stream, none, none[..., 0])
                into = into.below_norm(self._place(TokenMoments(inside.made), 0.0 * self.held[k]), inside.made_scales)
                noise, part, at_branch = branch.down(into.noise, into.stream)
                noises, parts, matrices = noises + noise, parts + part, matrices | at_branch
                direct = direct + own_kernel
                across = across + step.residual * tau * own_part * remains[..., None, :]
            kappa_sq = step.input_scale**2
            given = Gradient(kappa_sq * noises, kappa_sq * parts, none, none[..., 0])
            given = given.below_norm(below, insides[0].given_scales)
            sublayers.append(SublayerGradient(arrived, ahead, matrices))
            gradient = Gradient(
                step.residual**2 * direct + given.noise,
                step.residual**2 * gradient.stream + given.stream,
                step.residual * gradient.words,
                none[..., 0],
            )
        across = across + gradient.along(below) * self.remains[0][..., None, :]
        return Down(sublayers[::-1], gradient, across)

    def steps(self, rule: Rule, down: Down, matrices: Collection[str]) -> list[Steps]:
        """C of the matrices that move, by role, of every sub-layer."""
        return [
            {role: c for branch in branches for role, c in branch.steps(rule, at.matrices, matrices).items()}
            for branches, at in zip(self.branches, down.sublayers, strict=True)
        ]

    def bottom(self, down: Down, of_outputs: Array, of_inputs: Array) -> Moved:
        """How inputs move: by Σ_k of_outputs_ik x_L,k/√d + Σ_k of_inputs_ik g_0,k, (..., N, N) each."""
        forward, first = self.forward, self.first
        crossed = of_outputs @ down.across.mT @ of_inputs.mT
        return Moved(
            OverlapMotion(
                of_inputs,
                of_outputs @ (self.remains[0][..., :, None] * first.kernel) + of_inputs @ down.bottom.along(first),
                of_outputs @ forward.output @ of_outputs.mT + crossed + crossed.mT
                + of_inputs @ down.bottom.kernel(first) @ of_inputs.mT,
            ),
            of_outputs * self.held[-1][..., None, :]
            + of_inputs @ (down.bottom.stream * first.held[..., None, :] + down.bottom.words),
            of_outputs,
        )  # fmt: skip

    def up(self, moved: Moved, down: Down, steps: list[Steps]) -> Moved:
        """From how inputs move to how the output does."""
        for k, at in enumerate(down.sublayers):
            moved = self._above(k, moved, at, steps[k])
        return moved.normed(self._place(self.forward.stream, self.held[-2]), self.forward.output_scales)

    def _above(self, k: int, moved: Moved, at: SublayerGradient, steps: Steps) -> Moved:
        """After a sub-layer."""
        insides, gradient = self.forward.insides[k], at.total
        step, stream, ahead = insides[0].step, moved.motion, moved.ahead
        alpha, remains = step.residual, self.remains[k] / step.residual
        below = self._place(insides[0].stream, self.held[k])
        total = self._place(insides[0].total, self.held[k] * alpha)
        given = stream.normed(below.kernel, insides[0].given_scales).scaled(step.input_scale**2)
        arriving, along = gradient.kernel(total), gradient.along(total)
        of_words = gradient.stream * total.held[..., None, :] + gradient.words
        branches = []
        for inside, branch in zip(insides, self.branches[k], strict=True):
            tau = inside.step.branch
            returned = branch.up(given, at.matrices, steps).normed(inside.made, inside.made_scales)
            # What of the stream's motion is along what the branch adds, over √d.
            follows = tau * (ahead * remains[..., None, :] + alpha * stream.coefficients @ gradient.stream)
            branches.append((tau, inside.added, returned, follows))
        c, words = alpha**2 * stream.coefficients, alpha * moved.words
        overlaps, energy = alpha**2 * stream.overlaps, alpha**2 * stream.energy
        # ẋ·(αx + Σ τ f) and ẋ·g at the sum.
        by_total = alpha * stream.overlaps + sum(tau * follows @ added for tau, added, _, follows in branches)
        by_gradient = by_total @ gradient.stream.mT + moved.words @ gradient.words.mT
        by_gradient = by_gradient + alpha * stream.coefficients @ gradient.noise + ahead @ at.ahead.mT
        overlaps = alpha * by_total
        for j, (tau, added, returned, follows) in enumerate(branches):
            along_branch = tau**2 * gradient.stream @ added
            c, words = c + tau**2 * returned.coefficients, words + tau**2 * returned.coefficients @ of_words
            overlaps = overlaps + tau**2 * (returned.coefficients @ (along - along_branch) + returned.overlaps)
            by_noise = tau * (by_gradient - tau * follows @ added @ gradient.stream.mT)
            crossed = alpha * tau * (by_noise @ returned.coefficients.mT + follows @ returned.overlaps.mT)
            energy = energy + tau**2 * returned.energy + crossed + crossed.mT
            for other_tau, other_added, other, _ in branches[:j]:
                both = arriving - (along_branch + other_tau**2 * gradient.stream @ other_added) @ gradient.stream.mT
                crossed = returned.coefficients @ both @ other.coefficients.mT
                crossed = crossed + returned.coefficients @ gradient.stream @ other.overlaps.mT
                crossed = (tau * other_tau) ** 2 * (
                    crossed + (other.coefficients @ gradient.stream @ returned.overlaps.mT).mT
                )
                energy = energy + crossed + crossed.mT
        after = Moved(OverlapMotion(c, overlaps, energy), words, alpha * ahead)
        return after.normed(total, insides[0].after_scales)


def roots(scales: Number) -> Array:
    """What a norm divides each token by; 1 if there is none."""
    return np.ones((1, 1)) if isinstance(scales, float) else np.asarray(np.sqrt(np.linalg.diagonal(scales)))


def _branch(inside: SublayerState[Array], tokens: MatrixLayout, seed: int, samples: int) -> AnyBranch:
    given = inside.step.stack, tokens, inside.given
    if inside.step.kinds == ("units",):
        return TiedUnits(*given, seed, samples)
    if inside.attended is None:
        return TiedAttention(*given)
    return TiedRandomAttention(inside.step.stack, inside.given, inside.attended[0], seed)
