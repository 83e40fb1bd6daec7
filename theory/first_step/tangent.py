"""The way down and the way up of one step: gradients at every matrix, and how tokens move with all matrices.

Let g_j (d,) be the gradients of the loss at the tokens x_j of some place of the stack, and ẋ_i the derivative of x_i
when all matrices below move along the step. The way up keeps

    ẋ_i = Σ_j c_ij g_j + ξ_i,      E_ij = ẋ_i·ẋ_j,

with ξ in no known direction. A matrix W whose step is u, with H u = C Δ (`theory.first_step.rules`), takes c to
gain c + C: of the part of ẋ along gradients g = Δ Wᵀ comes back Δ Wᵀ W = gain Δ, and the rest leaves as a fresh
Gaussian of kernel gain E d_out/d_in. An elementwise φ multiplies c_ij by E φ'_i φ'_j, and what fluctuates joins ξ: its
part of E is a mean of four slopes, which is sampled. A norm divides c and E by the same scales as kernels. Where
gradients add up, those from above times α and those of the branch, the part of ẋ along the latter joins ξ. What signs
make beyond C Δ is a function of each coordinate's gradients, which go down the stream together: its sum over branches
is sampled with them.

At the output g_j = W_emb r_j with r (N, V) the gradients at the logits, so that logits move by
Σ_j (C^emb_ij + σ_e² c_ij) r_j, and by independent N(0, σ_e² E_ii/d) besides, which the softmax sees where V is not
small beside d. For u = g this is the tangent kernel Θ_ij = C^emb_ij + σ_e² c_ij.

Assumes d → ∞ at fixed L, N and V/d; corrections are O(L/d).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.first_step.attention import FixedAttention, RandomAttention
from theory.first_step.embeddings import Embeddings, table_shapes
from theory.first_step.motion import TokenMotion, mean_kernel
from theory.first_step.output_matrix import WordSteps
from theory.first_step.rules import STREAM_SAMPLES, MatrixUse, Rule, sign_deviation, sign_rule
from theory.first_step.samples import SAMPLES, gaussian_samples
from theory.first_step.units import FeedForward, OutputTransform
from theory.mean_field.inputs import Inputs, attention_pattern, gaussian_inputs, same_word
from theory.mean_field.kernels import Array, MatrixLayout
from theory.mean_field.recursion import forward_pass
from theory.mean_field.sublayers import SublayerState, TokenMoments, normed
from theory.stack import Stack
from theory.stack.weights import gain, transform_gain

AnyBranch = FixedAttention | RandomAttention | FeedForward


@dataclass(slots=True, eq=False)
class TwoPassSolution:
    """A stack's way down and up, given one pattern of every head where attention is random.

    Attributes:
        stack: the network.
        inputs: what enters, one batch.
        output: kernel of the tokens that the output matrix is given, (N, N).
        seed: of samples.
        embeddings: the tables of inputs.
        places: sub-layers from below, each with its branches.
        final_scales: what the final norm divides a kernel by; 1 if there is none.
        transform: what stands between the layers' output and the output matrix, if anything does.
    """

    stack: Stack
    inputs: Inputs[Array]
    output: Array
    seed: int
    embeddings: Embeddings
    places: list[tuple[tuple[SublayerState[Array], ...], tuple[AnyBranch, ...]]]
    final_scales: Array
    transform: OutputTransform | None

    @classmethod
    def of(
        cls, stack: Stack, seed: int = 0, samples: int = SAMPLES, inputs: Inputs[Array] | None = None
    ) -> "TwoPassSolution":
        """The forward pass of a stack of one stream.

        Args:
            stack: the network.
            seed: of patterns, and of samples of tokens.
            samples: of tokens, at most.
            inputs: one batch; Gaussian ones of words that all differ, if None.
        """
        tokens = MatrixLayout(stack.rows, attention_pattern(stack), stack.sequences)
        inputs = gaussian_inputs(stack) if inputs is None else inputs
        forward = forward_pass(stack, tokens, inputs, np.random.default_rng(seed))
        _, scales = normed(stack, tokens, TokenMoments(inputs.kernel, inputs.means), stack.embedding_norm == "added")
        places = list[tuple[tuple[SublayerState[Array], ...], tuple[AnyBranch, ...]]]()
        for k, insides in enumerate(forward.insides, seed * len(forward.insides)):
            places.append((insides, tuple(_branch(inside, tokens, k, samples) for inside in insides)))
        embeddings, transform = Embeddings(stack, np.asarray(scales), same_word(inputs, stack.rows)), None
        if stack.output_transform == "added":
            read, _ = normed(stack, tokens, forward.stream, stack.composition.final_norm)
            transform = OutputTransform(stack, tokens, read.kernel, (seed + 1) * len(forward.insides) + 2**20, samples)
        scales = np.asarray(forward.output_scales)
        return cls(stack, inputs, forward.output[0], seed, embeddings, places, scales, transform)

    def down(self, gradient: Array) -> list[dict[str, Array]]:
        """Gram matrices of gradients at tables of inputs, then at every sub-layer's matrices and at its sum ("total").

        Last of all those of a transform before the output matrix, if there is one.

        Args:
            gradient: that at the output, (..., N, N); everything is linear in it.
        """
        gradients = list[dict[str, Array]]()
        if self.transform is not None:
            gradient, at_matrices = self.transform.down(gradient)
            gradients.append(at_matrices)
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
        # What signs make of the stream's gradients beyond C Δ, coordinate by coordinate.
        beyond = steps[0].get("beyond", np.zeros((1, len(self.output)))) / _sizes(self.embeddings.scales)
        for k, (insides, branches) in enumerate(self.places, 1):
            alpha, total = insides[0].step.residual, gradients[k]["total"]
            c, energy, kept = moved.coefficients * alpha**2, moved.energy * alpha**2, beyond * alpha
            for inside, branch in zip(insides, branches, strict=True):
                into = inside.step.input_scale**2 / inside.given_scales
                given = TokenMotion(moved.coefficients * into, (moved.energy + self._energy(beyond)) * into)
                branch_moved, out = branch.up(given, gradients[k], steps[k]), inside.step.branch**2 / inside.made_scales
                added = branch_moved.coefficients * out
                # All of them move along the gradients above.
                crossed = c @ total @ added.mT
                c, energy = c + added, energy + branch_moved.energy * out + crossed + crossed.mT
                if branch.last is not None:
                    of_signs = steps[k].get(f"{branch.last.role} beyond", np.zeros(1))
                    kept = kept + of_signs * inside.step.branch / _sizes(inside.made_scales)
            after = insides[0].after_scales
            moved, beyond = TokenMotion(c / after, energy / after), kept / _sizes(after)
        energy = moved.energy + self._energy(beyond)
        moved = TokenMotion(moved.coefficients / self.final_scales, energy / self.final_scales)
        return moved if self.transform is None else self.transform.up(moved, gradients[-1], steps[-1])

    def _energy(self, beyond: Array) -> Array:
        """The Gram matrix of tokens from samples of a coordinate, (N, N)."""
        return np.asarray(self.stack.width * beyond.T @ beyond / len(beyond))

    def steps(
        self, rule: Rule, gradients: list[dict[str, Array]], matrices: Collection[str], words: WordSteps | None = None
    ) -> list[dict[str, Array]]:
        """C of the tables and matrices that move, by role, and of signs "ROLE remainder" and "ROLE beyond".

        Where inputs are rows of the output matrix, `words` has how that moves them.
        """
        steps = [
            {role: c for branch in branches for role, c in branch.steps(rule, at_matrices, matrices).items()}
            for branches, at_matrices in zip(self._moving, gradients, strict=True)
        ]
        if words is not None:
            steps[0] |= {"inputs": words.coefficients, "words": words.energy}
        if rule is sign_rule:
            self._add_beyond(steps, gradients, words)
        return steps

    def _add_beyond(
        self, steps: list[dict[str, Array]], gradients: list[dict[str, Array]], words: WordSteps | None
    ) -> None:
        """What signs of matrices and tables that add to the stream make beyond C Δ, (samples, N).

        Gradients of one coordinate go down the stream together: signs of all of them have to do with each other.
        """
        above, deltas = np.zeros_like(self.output), np.zeros(1)

        def arrived(kernel: Array, k: int) -> Array:
            """Samples where the gradients have this kernel, of which those from above are known."""
            generator = np.random.default_rng([1, k + self.seed * (len(self.places) + 1)])
            return np.asarray(deltas + gaussian_samples(kernel - above, generator, STREAM_SAMPLES))

        for k in reversed(range(1, len(self.places) + 1)):
            insides, branches = self.places[k - 1]
            after, alpha = insides[0].after_scales, insides[0].step.residual
            total = mean_kernel(gradients[k]["total"]) / self.stack.width
            deltas = arrived(mean_kernel(total * after), k) / _sizes(after)
            for inside, branch in zip(insides, branches, strict=True):
                if branch.last is not None and branch.last.role in steps[k]:
                    at_branch = deltas * inside.step.branch / _sizes(inside.made_scales)
                    steps[k][f"{branch.last.role} beyond"] = sign_deviation(
                        branch.last, at_branch, steps[k][branch.last.role]
                    )
            deltas, above = deltas * alpha, total * alpha**2
        scales, bottom = self.embeddings.scales, mean_kernel(gradients[0]["inputs"]) / self.stack.width
        deltas = arrived(mean_kernel(bottom * scales), 0) / _sizes(scales)
        steps[0] |= self.embeddings.beyond(deltas, steps[0], words)

    def parts(self, steps: list[dict[str, Array]], gradients: list[dict[str, Array]]) -> list[dict[str, Array]]:
        """What every table or matrix adds to the product of a step with gradients, by role."""
        return [
            {role: part for branch in branches for role, part in branch.parts(moves, above).items()}
            for branches, moves, above in zip(self._moving, steps, gradients, strict=True)
        ]

    @property
    def uses(self) -> list[list[tuple[float, MatrixUse]]]:
        """The matrices of every sub-layer from below and of the transform, each with its gain."""
        uses = [
            [
                (gain(inside.step.stack, use.role), use)
                for inside, branch in zip(*place, strict=True) for use in branch.uses
            ]
            for place in self.places
        ]  # fmt: skip
        of_transform = [] if self.transform is None else self.transform.uses
        return uses + [[(transform_gain(self.stack), use)] for use in of_transform]

    @property
    def _moving(self) -> list[tuple[Embeddings | OutputTransform | AnyBranch, ...]]:
        """What has parameters, from below."""
        last = [] if self.transform is None else [(self.transform,)]
        return [(self.embeddings,), *(branches for _, branches in self.places), *last]


def _sizes(scales: Any) -> Array:
    """By what tokens are divided whose kernel is divided by these scales, (N,), or 1."""
    return np.ones(1) if np.ndim(scales) == 0 else np.sqrt(np.diagonal(mean_kernel(scales)))


def _branch(inside: SublayerState[Array], tokens: MatrixLayout, seed: int, samples: int) -> AnyBranch:
    """The branch of one sub-layer, with samples of a seed."""
    given = inside.step.stack, tokens, inside.given
    if inside.step.kinds == ("units",):
        return FeedForward(*given, seed, samples)
    if inside.attended is None:
        return FixedAttention(*given)
    patterns, _ = inside.attended
    return RandomAttention(inside.step.stack, inside.given, patterns, seed)
