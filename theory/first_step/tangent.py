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

from theory.first_step.rules import MatrixUse, Rule, sign_remainder, sign_rule
from theory.first_step.samples import gaussian_samples
from theory.mean_field.activations import activation_of
from theory.mean_field.inputs import attention_pattern, gaussian_inputs
from theory.mean_field.kernels import Array, MatrixLayout
from theory.mean_field.recursion import forward_pass
from theory.mean_field.sublayers import SublayerState
from theory.stack import Stack
from theory.stack.weights import gain, weight_shapes


@dataclass(frozen=True, slots=True)
class TokenMotion:
    """How tokens move: c and E of this module, (..., N, N)."""

    coefficients: Array
    energy: Array


@dataclass(slots=True, eq=False)
class Attention:
    """Attention with fixed weights A: A x W^V W^O.

    Attributes:
        uses: its matrices, in the order in which a token meets them.
    """

    stack: Stack
    tokens: MatrixLayout
    given: Array
    uses: list[MatrixUse] = field(init=False)

    def __post_init__(self) -> None:
        shapes, mean = weight_shapes(self.stack), self.tokens.attend(self.given)
        seen = gaussian_samples(mean[0], np.random.default_rng(0))
        self.uses = [MatrixUse("WV", shapes["WV"], self.stack.width * mean, seen)]
        if "WO" in shapes:
            value_gain = gain(self.stack, "WV")
            self.uses.append(MatrixUse("WO", shapes["WO"], shapes["WO"][0] * mean * value_gain, seen * value_gain**0.5))

    def down(self, gradient: Array) -> tuple[Array, dict[str, Array]]:
        """From the Gram matrix of gradients at its output to that at its input, and those at its matrices."""
        gradients = {}
        for use in reversed(self.uses):
            gradients[use.role] = gradient
            gradient = gradient * gain(self.stack, use.role)
        return self.tokens.attend_back(gradient), gradients

    def up(self, moved: TokenMotion, gradients: dict[str, Array], steps: dict[str, Array]) -> TokenMotion:
        """How what it returns moves."""
        c, energy = self.tokens.attend(moved.coefficients), self.tokens.attend(moved.energy)
        for use in self.uses:
            c = c * gain(self.stack, use.role) + steps.get(use.role, 0.0)
            energy = energy * gain(self.stack, use.role) + c @ gradients[use.role] @ c.mT
            energy = energy + steps.get(f"{use.role} remainder", 0.0)
        return TokenMotion(c, energy)


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
    uses: list[MatrixUse] = field(init=False)
    factors: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        stack, shapes = self.stack, weight_shapes(self.stack)
        activation, lines = activation_of(stack.activation, stack.leaky_slope), self.given * gain(stack, "W1")
        before = self.given * gain(stack, "WG") if stack.ffn == "gated" else lines
        slope, active = activation.slope_kernel(self.tokens, before), activation.kernel(self.tokens, before)
        rows, generator = stack.width * self.given, np.random.default_rng(self.seed)
        u = gaussian_samples(before[0], generator)
        if stack.ffn == "gated":
            other = gaussian_samples(lines[0], generator)
            hidden, kernels = active * lines, {"WG": slope * lines, "W1": active}
            self.factors = {"WG": activation.slope(u) * other, "W1": activation.value(u)}
            units = activation.value(u) * other
        else:
            hidden, kernels = active, {"W1": slope}
            self.factors, units = {"W1": activation.slope(u)}, activation.value(u)
        seen = gaussian_samples(self.given[0], generator)
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

    def _turned(self, coefficients: dict[str, Array], gradient: Array) -> Array:
        """E of the part along gradients, behind φ: the mean over slopes of (f c f) K (f c f)ᵀ, of mean c and K."""
        c = {role: mean_kernel(coefficient) for role, coefficient in coefficients.items()}
        turned = sum((f[:, :, None] * c[role] * f[:, None, :] for role, f in self.factors.items()), np.zeros((1, 1, 1)))
        energy: Array = (turned @ mean_kernel(gradient) @ turned.mT).mean(0)
        return energy


def mean_kernel(kernel: Array) -> Array:
    """The mean over a leading axis, if there is one."""
    return np.asarray(kernel.reshape(-1, *kernel.shape[-2:]).mean(0))


@dataclass(slots=True, eq=False)
class TwoPassSolution:
    """A stack's way down and up.

    Attributes:
        stack: the network.
        output: kernel of the tokens that the output matrix is given, (N, N).
        places: sub-layers from below, each with its branch.
    """

    stack: Stack
    output: Array
    places: list[tuple[SublayerState[Array], Attention | FeedForward]]
    final_scales: Array

    @classmethod
    def of(cls, stack: Stack) -> "TwoPassSolution":
        """The forward pass of a stack of one stream with fixed attention."""
        tokens = MatrixLayout(stack.rows, attention_pattern(stack), stack.sequences)
        forward = forward_pass(stack, tokens, gaussian_inputs(stack), np.random.default_rng(0))
        places = list[tuple[SublayerState[Array], Attention | FeedForward]]()
        for k, (inside,) in enumerate(forward.insides):
            layer_stack = inside.step.stack
            units = inside.step.kinds == ("units",)
            given = layer_stack, tokens, inside.given
            branch = FeedForward(*given, k) if units else Attention(*given)
            places.append((inside, branch))
        return cls(stack, forward.output[0], places, np.asarray(forward.output_scales))

    def down(self, gradient: Array) -> list[dict[str, Array]]:
        """Gram matrices of gradients at every matrix and at the sum ("total") of every sub-layer, from below.

        Args:
            gradient: that at the output, (..., N, N); everything is linear in it.
        """
        gradients = list[dict[str, Array]]()
        gradient = gradient / self.final_scales
        for inside, branch in reversed(self.places):
            gradient, step = gradient / inside.after_scales, inside.step
            below, at_matrices = branch.down(gradient * step.branch**2 / inside.made_scales)
            gradients.append(at_matrices | {"total": gradient})
            gradient = gradient * step.residual**2 + below * step.input_scale**2 / inside.given_scales
        return gradients[::-1]

    def up(self, gradients: list[dict[str, Array]], steps: list[dict[str, Array]]) -> TokenMotion:
        """How the output moves.

        Args:
            gradients: of `down`.
            steps: C of the matrices that move, by role, of every sub-layer from below.
        """
        n = len(self.output)
        moved = TokenMotion(np.zeros((1, n, n)), np.zeros((1, n, n)))
        for k, (inside, branch) in enumerate(self.places):
            alpha_sq, into = inside.step.residual**2, inside.step.input_scale**2 / inside.given_scales
            branch_moved = branch.up(
                TokenMotion(moved.coefficients * into, moved.energy * into), gradients[k], steps[k]
            )
            out = inside.step.branch**2 / inside.made_scales
            kept, added = moved.coefficients * alpha_sq, branch_moved.coefficients * out
            # Both move along the gradients above.
            crossed = kept @ gradients[k]["total"] @ added.mT
            energy = moved.energy * alpha_sq + branch_moved.energy * out + crossed + crossed.mT
            moved = TokenMotion((kept + added) / inside.after_scales, energy / inside.after_scales)
        return TokenMotion(moved.coefficients / self.final_scales, moved.energy / self.final_scales)

    def steps(self, rule: Rule, gradients: list[dict[str, Array]], matrices: Collection[str]) -> list[dict[str, Array]]:
        """C of the matrices that move, by role, and "ROLE remainder" of signs."""
        steps = []
        for k, (_, branch) in enumerate(self.places):
            coefficients = {use.role: rule(use, gradients[k][use.role]) for use in branch.uses if use.role in matrices}
            if rule is sign_rule:
                coefficients |= {
                    f"{use.role} remainder": sign_remainder(use, gradients[k][use.role], coefficients[use.role])
                    for use in branch.uses if use.role in coefficients
                }  # fmt: skip
            steps.append(coefficients)
        return steps
