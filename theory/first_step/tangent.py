"""The way down and the way up of one step: gradients at every matrix, and how tokens move with all matrices.

Let g_j (d,) be the gradients of the loss at the tokens x_j of some place of the stack, and ẋ_i the derivative of x_i
when all matrices below move along the step. The way up keeps

    ẋ_i = Σ_j c_ij g_j + ξ_i,      E_ij = ẋ_i·ẋ_j,

with ξ in no known direction. A matrix W whose step is u, with H u = C Δ (`theory.first_step.rules`), takes c to
gain c + C: of the part of ẋ along gradients g = Δ Wᵀ comes back Δ Wᵀ W = gain Δ, and the rest leaves as a fresh
Gaussian of kernel gain E d_out/d_in. An elementwise φ multiplies c_ij by E φ'_i φ'_j, and what fluctuates joins ξ: its
part of E is a mean of four slopes, which is sampled. A norm divides c and E by the same scales as kernels. Where
gradients add up, those from above times α and those of the branch, the part of ẋ along the latter joins ξ.

At the output g_j = W_emb r_j with r (N, V) the gradients at the logits, so that logits move by
Σ_j (C^emb_ij + σ_e² c_ij) r_j, and by independent N(0, σ_e² E_ii/d) besides, which the softmax sees where V is not
small beside d. For u = g this is the tangent kernel Θ_ij = C^emb_ij + σ_e² c_ij.

Assumes d → ∞ at fixed L, N and V/d; corrections are O(L/d).
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from theory.first_step.attention import FixedAttention, RandomAttention
from theory.first_step.embeddings import Embeddings, table_shapes
from theory.first_step.motion import TokenMotion, mean_kernel
from theory.first_step.rules import MatrixUse, Rule, parts_of, steps_of
from theory.first_step.samples import gaussian_samples
from theory.mean_field.activations import activation_of
from theory.mean_field.inputs import attention_pattern, gaussian_inputs
from theory.mean_field.kernels import Array, MatrixLayout
from theory.mean_field.recursion import forward_pass
from theory.mean_field.sublayers import SublayerState, TokenMoments, normed
from theory.stack import Stack
from theory.stack.weights import gain, weight_shapes


@dataclass(slots=True, eq=False)
class FeedForward:
    """φ(x W1) W2 or, gated, (φ(x WG) ∘ x W1) W2.

    Attributes:
        uses: its matrices; the last is W2.
        factors: samples of the factors of the others, (samples, N).
    """

    stack: Stack
    tokens: MatrixLayout
    given: Array
    seed: int
    share: float = 1.0
    uses: list[MatrixUse] = field(init=False)
    factors: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        stack, shapes = self.stack, weight_shapes(self.stack)
        activation, lines = activation_of(stack.activation, stack.leaky_slope), self.given * gain(stack, "W1")
        before = self.given * gain(stack, "WG") if stack.ffn == "gated" else lines
        slope, active = activation.slope_kernel(self.tokens, before), activation.kernel(self.tokens, before)
        rows, generator = stack.width * self.given, np.random.default_rng(self.seed)
        u = gaussian_samples(before[0], generator, self.share)
        if stack.ffn == "gated":
            other = gaussian_samples(lines[0], generator, self.share)
            hidden, kernels = active * lines, {"WG": slope * lines, "W1": active}
            self.factors = {"WG": activation.slope(u) * other, "W1": activation.value(u)}
            units = activation.value(u) * other
        else:
            hidden, kernels = active, {"W1": slope}
            self.factors, units = {"W1": activation.slope(u)}, activation.value(u)
        seen = gaussian_samples(self.given[0], generator, self.share)
        self.uses = [
            MatrixUse(role, shapes[role], rows, seen, kernel, self.factors[role]) for role, kernel in kernels.items()
        ]
        self.uses.append(MatrixUse("W2", shapes["W2"], stack.ffn_width * hidden, units))

    def down(self, gradient: Array) -> tuple[Array, dict[str, Array]]:
        """As `Attention.down`."""
        *first, second = self.uses
        above = gradient * gain(self.stack, "W2")
        gradients = {use.role: use.below(above) for use in first} | {second.role: gradient}
        return sum((gradients[use.role] * gain(self.stack, use.role) for use in first), np.zeros(1)), gradients

    def up(self, moved: TokenMotion, gradients: dict[str, Array], steps: dict[str, Array]) -> TokenMotion:
        """As `Attention.up`."""
        *first, second = self.uses
        widths = self.stack.ffn_width / self.stack.width
        above = gradients["W2"] * gain(self.stack, "W2")
        c, energy, before = np.zeros(1), np.zeros(1), {}
        for use in first:
            assert use.factor is not None
            role_gain = gain(self.stack, use.role)
            before[use.role] = moved.coefficients * role_gain + steps.get(use.role, 0.0)
            c = c + before[use.role] * use.factor
            energy = energy + moved.energy * role_gain * widths * use.factor + steps.get(f"{use.role} remainder", 0.0)
        energy = energy + self._turned(before, above)
        role_gain = gain(self.stack, "W2")
        c = c * role_gain + steps.get("W2", 0.0)
        energy = energy * role_gain / widths + c @ gradients["W2"] @ c.mT
        return TokenMotion(c, energy + steps.get("W2 remainder", 0.0))

    def steps(self, rule: Rule, gradients: dict[str, Array], matrices: Collection[str]) -> dict[str, Array]:
        """As `FixedAttention.steps`."""
        return steps_of(self.uses, rule, gradients, matrices)

    def parts(self, steps: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
        """As `FixedAttention.parts`."""
        return parts_of(self.uses, steps, gradients)

    def _turned(self, coefficients: dict[str, Array], gradient: Array) -> Array:
        """E of the part along gradients, behind φ: the mean over slopes of (f c f) K (f c f)ᵀ, of mean c and K."""
        c = {role: mean_kernel(coefficient) for role, coefficient in coefficients.items()}
        turned = sum((f[:, :, None] * c[role] * f[:, None, :] for role, f in self.factors.items()), np.zeros((1, 1, 1)))
        energy: Array = (turned @ mean_kernel(gradient) @ turned.mT).mean(0)
        return energy


AnyBranch = FixedAttention | RandomAttention | FeedForward


@dataclass(slots=True, eq=False)
class TwoPassSolution:
    """A stack's way down and up, given one pattern of every head where attention is random.

    Attributes:
        stack: the network.
        output: kernel of the tokens that the output matrix is given, (N, N).
        embeddings: the tables of inputs.
        places: sub-layers from below, each with its branches.
    """

    stack: Stack
    output: Array
    embeddings: Embeddings
    places: list[tuple[tuple[SublayerState[Array], ...], tuple[AnyBranch, ...]]]
    final_scales: Array

    @classmethod
    def of(cls, stack: Stack, seed: int = 0, share: float = 1.0) -> "TwoPassSolution":
        """The forward pass of a stack of one stream.

        Args:
            stack: the network.
            seed: of patterns, and of samples of tokens.
            share: of the samples of tokens that are worth it, where several solutions share them.
        """
        tokens = MatrixLayout(stack.rows, attention_pattern(stack), stack.sequences)
        inputs = gaussian_inputs(stack)
        forward = forward_pass(stack, tokens, inputs, np.random.default_rng(seed))
        _, scales = normed(stack, tokens, TokenMoments(inputs.kernel, inputs.means), stack.embedding_norm == "added")
        places = list[tuple[tuple[SublayerState[Array], ...], tuple[AnyBranch, ...]]]()
        for k, insides in enumerate(forward.insides):
            places.append(
                (insides, tuple(_branch(inside, tokens, k + seed * len(forward.insides), share) for inside in insides))
            )
        return cls(
            stack, forward.output[0], Embeddings(stack, np.asarray(scales)), places, np.asarray(forward.output_scales)
        )

    def down(self, gradient: Array) -> list[dict[str, Array]]:
        """Gram matrices of gradients at tables of inputs, then at every sub-layer's matrices and at its sum ("total").

        Args:
            gradient: that at the output, (..., N, N); everything is linear in it.
        """
        gradients = list[dict[str, Array]]()
        gradient = gradient / self.final_scales
        for insides, branches in reversed(self.places):
            gradient, at_matrices = gradient / insides[0].after_scales, dict[str, Array]()
            below = gradient * insides[0].step.residual ** 2
            at_matrices["total"] = gradient
            for inside, branch in zip(insides, branches, strict=True):
                from_branch, at_branch = branch.down(gradient * inside.step.branch**2 / inside.made_scales)
                at_matrices |= at_branch
                below = below + from_branch * inside.step.input_scale**2 / inside.given_scales
            gradients.append(at_matrices)
            gradient = below
        gradients.append(dict.fromkeys(table_shapes(self.stack), gradient / self.embeddings.scales))
        return gradients[::-1]

    def up(self, gradients: list[dict[str, Array]], steps: list[dict[str, Array]]) -> TokenMotion:
        """How the output moves.

        Args:
            gradients: of `down`.
            steps: C of the tables and matrices that move, by role, of inputs and of every sub-layer from below.
        """
        moved = self.embeddings.up(gradients[0], steps[0])
        for k, (insides, branches) in enumerate(self.places, 1):
            alpha_sq, total = insides[0].step.residual ** 2, gradients[k]["total"]
            c, energy = moved.coefficients * alpha_sq, moved.energy * alpha_sq
            for inside, branch in zip(insides, branches, strict=True):
                into = inside.step.input_scale**2 / inside.given_scales
                given = TokenMotion(moved.coefficients * into, moved.energy * into)
                branch_moved, out = branch.up(given, gradients[k], steps[k]), inside.step.branch**2 / inside.made_scales
                added = branch_moved.coefficients * out
                # All of them move along the gradients above.
                crossed = c @ total @ added.mT
                c, energy = c + added, energy + branch_moved.energy * out + crossed + crossed.mT
            moved = TokenMotion(c / insides[0].after_scales, energy / insides[0].after_scales)
        return TokenMotion(moved.coefficients / self.final_scales, moved.energy / self.final_scales)

    def steps(self, rule: Rule, gradients: list[dict[str, Array]], matrices: Collection[str]) -> list[dict[str, Array]]:
        """C of the tables and matrices that move, by role, and "ROLE remainder" of signs."""
        return [
            {role: c for branch in branches for role, c in branch.steps(rule, at_matrices, matrices).items()}
            for branches, at_matrices in zip(self._moving, gradients, strict=True)
        ]

    def parts(self, steps: list[dict[str, Array]], gradients: list[dict[str, Array]]) -> list[dict[str, Array]]:
        """What every table or matrix adds to the product of a step with gradients, by role."""
        return [
            {role: part for branch in branches for role, part in branch.parts(moves, above).items()}
            for branches, moves, above in zip(self._moving, steps, gradients, strict=True)
        ]

    @property
    def _moving(self) -> list[tuple[Embeddings | AnyBranch, ...]]:
        """What has parameters, from below."""
        return [(self.embeddings,), *(branches for _, branches in self.places)]


def _branch(inside: SublayerState[Array], tokens: MatrixLayout, seed: int, share: float) -> AnyBranch:
    """The branch of one sub-layer, with samples of a seed."""
    given = inside.step.stack, tokens, inside.given
    if inside.step.kinds == ("units",):
        return FeedForward(*given, seed, share)
    if inside.attended is None:
        return FixedAttention(*given)
    patterns, _ = inside.attended
    return RandomAttention(*given, patterns, seed)
