"""The backward pass of gradients, and the forward pass of changes: how one optimizer step moves every token.

Let g_j (d,) be the gradients of the loss at the tokens x_j at one point of the stack, and ẋ_i the derivative of x_i
when all matrices below move along the step. The upward pass computes

    ẋ_i = Σ_j c_ij g_j + ξ_i,      E_ij = ẋ_i·ẋ_j,

with ξ a random vector independent of these directions. A matrix W whose step is u, with H u = C Δ
(`theory.first_step.rules`), takes c to gain c + C: the part of ẋ along gradients g = Δ Wᵀ returns as Δ Wᵀ W = gain Δ,
and the rest leaves as a fresh Gaussian of kernel gain E d_out/d_in. An elementwise φ multiplies c_ij by E φ'_i φ'_j,
and its fluctuations join ξ: their part of E is a mean of four slopes, which is sampled. A norm divides c and E by the
same scales as kernels. Where gradients add up, those from above times α and those of the branch, the part of ẋ along
the latter joins ξ. The effect of signs beyond C Δ is a function of each coordinate's gradients, which go down the
stream together: its sum over branches is sampled with them.

With tied embeddings gradients have overlaps of order one with the stream: g_i = Σ_p M_ip x_p/√d + Σ_p C_ip w_p/√d + n_i
(`theory.mean_field.tied.gradient`), with w the token embeddings. In the upward pass ẋ_i is described by

    c_ij, its coefficients on the noise n_j,    X_ij = ẋ_i·x_j/√d,    W_ip = ẋ_i·w_p/√d,    E_ij = ẋ_i·ẋ_j.

A matrix of outputs y takes X to gain (d_out/d_in) X + (gain c + C) Δ·y/√d, and E likewise. A norm removes
x_i (ẋ_i·x_i)/|x_i|². A branch f at the sum αx + τf moves by ḟ = c_f n_f plus a part that is only along f, with n_f = τ
(g − τ M f/√d) the noise to it, which does not depend on f's own matrices; and n_j below the sum contains
ατ Σ_p M_jp f_p/√d. The inputs move by both uses of the output matrix, so that ẋ_0 has a part along x_L, and every
sub-layer adds some of x_L to the stream. With untied embeddings M, C, X and W are 0, and g is its noise.

At the output of untied embeddings g_j = W_emb r_j with r (N, V) the gradients at the logits, so that logits move by
Σ_j (C^emb_ij + σ_e² c_ij) r_j, and in addition by independent N(0, σ_e² E_ii/d), which matter to the softmax unless V
is small compared with d. For u = g this is the tangent kernel Θ_ij = C^emb_ij + σ_e² c_ij.

Assumes d → ∞ at fixed L, N and V/d, and that words differ if embeddings are tied; corrections are O(L/d).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from theory.coverage import has_experts, holds_words
from theory.first_step.attention import FixedAttention, RandomAttention
from theory.first_step.experts import Experts
from theory.first_step.motion import Gradients, MatrixGradient, Steps, TokenMotion, mean_kernel
from theory.first_step.output_matrix import Embeddings, WordSteps, table_shapes
from theory.first_step.rules import STREAM_SAMPLES, Rule, sign_rule
from theory.first_step.samples import SAMPLES, gaussian_samples
from theory.first_step.tied_attention import TiedRandomAttention
from theory.first_step.units import FeedForward, OutputTransform, TiedFeedForward
from theory.mean_field.inputs import Inputs, attention_pattern, gaussian_inputs
from theory.mean_field.kernels import Array, MatrixLayout, Number
from theory.mean_field.passes import Forward
from theory.mean_field.recursion import forward_pass
from theory.mean_field.sublayers import SublayerState, TokenMoments, normed
from theory.mean_field.tied.gradient import Gradient, Place
from theory.stack import Stack
from theory.stack.optimizers import Optimizer

AnyBranch = FixedAttention | RandomAttention | FeedForward | Experts


@dataclass(frozen=True, slots=True, eq=False)
class SublayerGradient:
    """The loss gradients in one sub-layer: at its residual sum and at its matrices.

    Attributes:
        total: gradient at the residual sum.
        ahead: overlaps x_L,k·g_i/√d, [i, k], of its noise with the part that layers above add to the stream.
        matrices: gradients at its matrices.
    """

    total: Gradient
    ahead: Array
    matrices: Gradients


@dataclass(frozen=True, slots=True, eq=False)
class Down:
    """The result of the backward pass: the loss gradients at all matrices, embedding tables and inputs.

    Attributes:
        tables: gradients at the embedding tables.
        sublayers: gradients in every sub-layer, from below.
        transform: gradients at the matrix of the output transform, if there is one.
        bottom: gradient at x_0.
        across: x_L,k·g_i/√d, [i, k], for the gradient at x_0.
    """

    tables: Gradients
    sublayers: list[SublayerGradient]
    transform: list[Gradients]
    bottom: Gradient
    across: Array

    @property
    def matrices(self) -> list[Gradients]:
        """The loss gradients at the matrices of every place, from the embedding tables to the output."""
        return [self.tables, *(at.matrices for at in self.sublayers), *self.transform]


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """The change of the residual stream at one place, when all matrices below it take an optimizer step.

    Attributes:
        motion: noise coefficients, overlaps and energy of the motion.
        words: ẋ_i·w_p/√d.
        ahead: coefficients of ẋ_i on the output tokens, for the part of these that layers above add, times √d.
        beyond: samples of the effect of signs on the stream beyond C Δ, by coordinate, (samples, N).
    """

    motion: TokenMotion
    words: Array
    ahead: Array
    beyond: Array

    def normed(self, place: Place, scales: Number) -> "Moved":
        """Return the change of the residual stream after a norm; unchanged without a norm.

        Args:
            place: place of the stream before the norm.
            scales: divisors of the kernel; 1 without a norm.
        """
        if isinstance(scales, float):
            return self
        rows, taken = roots(scales)[..., :, None], self.motion.taken_by_norm(scales)[..., :, None]
        words = (self.words - taken * np.eye(rows.shape[-2]) * place.held[..., None, :]) / rows
        motion, beyond = self.motion.normed(place.kernel, scales), self.beyond / roots(scales)[0]
        return Moved(motion, words, self.ahead / rows, beyond)


@dataclass(slots=True, eq=False)
class TwoPassSolution:
    """A network prepared for the gradients and the token changes of one step, with one attention sample per head.

    Attributes:
        stack: the network.
        inputs: inputs of the network, one batch.
        seed: random seed of samples.
        forward: the forward pass of kernels.
        embeddings: the embedding tables.
        branches: branches of every sub-layer, from below.
        transform: the transform between the layers' output and the output matrix, if there is one.
        held: coefficient of every token on its own word, before every sub-layer and after the last.
        remains: coefficient of the output on the stream at the same places.
    """

    stack: Stack
    inputs: Inputs[Array]
    seed: int
    forward: Forward[Array]
    embeddings: Embeddings
    branches: list[tuple[AnyBranch, ...]]
    transform: OutputTransform | None
    held: list[Array]
    remains: list[Array]

    @classmethod
    def of(
        cls, stack: Stack, seed: int = 0, samples: int = SAMPLES, inputs: Inputs[Array] | None = None,
        attention: Array | None = None,
    ) -> "TwoPassSolution":  # fmt: skip
        """Run the forward pass of a network with one residual stream, and prepare its branches for an optimizer step.

        Args:
            stack: the network.
            seed: random seed of attention samples and of samples of tokens.
            samples: largest number of samples of tokens.
            inputs: inputs, one batch; None for Gaussian inputs of words that all differ.
            attention: attention weights with zero queries and keys, (N, N); None for those of the network's mask.
        """
        tokens = MatrixLayout(stack.rows, attention_pattern(stack) if attention is None else attention, stack.sequences)
        inputs = gaussian_inputs(stack) if inputs is None else inputs
        forward = forward_pass(stack, tokens, inputs, np.random.default_rng(seed))
        _, scales = normed(stack, tokens, TokenMoments(inputs.kernel, inputs.means), stack.embedding_norm == "added")
        branches, ones = list[tuple[AnyBranch, ...]](), np.ones((1, stack.rows))
        factors = [stack.embedding_scale * ones]
        for k, insides in enumerate(forward.insides, seed * len(forward.insides)):
            branches.append(tuple(_branch(inside, tokens, k, samples) for inside in insides))
            factors.append(insides[0].step.residual / roots(insides[0].after_scales) * ones)
        factors.append(ones / roots(forward.output_scales))
        embeddings, transform = Embeddings(stack, scales, MatrixLayout(stack.rows).same_word(inputs.words)), None
        if stack.output_transform == "added":
            read, _ = normed(stack, tokens, forward.stream, stack.composition.final_norm)
            transform = OutputTransform(stack, tokens, read.kernel, (seed + 1) * len(forward.insides) + 2**20, samples)
        passed = np.cumprod(factors, axis=0), np.cumprod(factors[:0:-1], axis=0)[::-1]
        return cls(stack, inputs, seed, forward, embeddings, branches, transform, *(list(part) for part in passed))

    @property
    def output(self) -> Array:
        """The inner products of all tokens that the output matrix multiplies, divided by the width.

        They are the kernel, (N, N).
        """
        return np.asarray(self.forward.output[0])

    @property
    def first(self) -> Place:
        """The network's input x_0 as a place of the residual stream, with its kernel.

        The place also has the coefficients of the inputs on the words.
        """
        return self._place(self.forward.insides[0][0].stream, self.held[0])

    def _place(self, tokens: TokenMoments[Array], of_words: Array) -> Place:
        """Return a place without coordinate means, which norms remove in both directions where there are any."""
        return Place(tokens.centred().kernel, 0.0, np.eye(self.stack.rows), of_words)

    def down(self, noise: Array, words: Array | None = None) -> Down:
        """Run the backward pass: compute all loss gradients from the gradient at the network's output.

        The pass is a linear map if `words` is None.

        Args:
            noise: Gram matrix of the noise, (..., N, N).
            words: coefficients C on words, (..., N, N); None for 0.
        """
        words = np.zeros((1, *noise.shape[-2:])) if words is None else words
        forward, none, transform = self.forward, 0.0 * words, list[Gradients]()
        if self.transform is not None:
            noise, _, at_transform = self.transform.down(noise, none)
            transform.append(at_transform)
        below = self._place(forward.stream, self.held[-2])
        gradient = Gradient(noise, none, words, none[..., 0]).below_norm(below, forward.output_scales)
        across, sublayers = none / roots(forward.output_scales)[..., :, None], list[SublayerGradient]()
        for k in range(len(self.branches))[::-1]:
            gradient, across, at = self._down_sublayer(k, gradient, across)
            sublayers.append(at)
        across = across + gradient.along(self.first) * self.remains[0][..., None, :]
        at_table = MatrixGradient.without_overlaps(gradient.noise / self.embeddings.scales)
        return Down(dict.fromkeys(table_shapes(self.stack), at_table), sublayers[::-1], transform, gradient, across)

    def _down_sublayer(self, k: int, gradient: Gradient, across: Array) -> tuple[Gradient, Array, SublayerGradient]:
        """Return the gradient and `across` below a sub-layer, and the gradients in it.

        Args:
            k: index of the sub-layer.
            gradient: gradient after the sub-layer.
            across: overlaps with the output tokens after the sub-layer.
        """
        insides = self.forward.insides[k]
        step = insides[0].step
        total = self._place(insides[0].total, self.held[k] * step.residual)
        below = self._place(insides[0].stream, self.held[k])
        gradient = gradient.below_norm(total, insides[0].after_scales)
        across = across / roots(insides[0].after_scales)[..., :, None]
        arrived, ahead, matrices = gradient, across, Gradients()
        arriving, direct = gradient.kernel(total), gradient.noise
        noises, parts, across = np.zeros(1), np.zeros(1), step.residual * across
        for inside, branch in zip(insides, self.branches[k], strict=True):
            tau, none = inside.step.branch, 0.0 * gradient.words
            own_part = tau * gradient.stream @ inside.added
            own_kernel = tau * own_part @ gradient.stream.mT
            into = Gradient(tau**2 * (arriving - own_kernel), tau**2 * gradient.stream, none, none[..., 0])
            into = into.below_norm(self._place(TokenMoments(inside.made), 0.0 * self.held[k]), inside.made_scales)
            noise, part, at_branch = branch.down(into.noise, into.stream)
            noises, parts, matrices = noises + noise, parts + part, matrices | at_branch
            direct = direct + own_kernel
            across = across + step.residual * tau * own_part * self._share_in_output(k)
        kappa_sq = step.input_scale**2
        given = Gradient(kappa_sq * noises, kappa_sq * parts, 0.0 * gradient.words, 0.0 * gradient.mean)
        given = given.below_norm(below, insides[0].given_scales)
        gradient = Gradient(
            step.residual**2 * direct + given.noise,
            step.residual**2 * gradient.stream + given.stream,
            step.residual * gradient.words,
            given.mean,
        )
        return gradient, across, SublayerGradient(arrived, ahead, matrices)

    def _share_in_output(self, k: int) -> Array:
        """Return the coefficient of the output on a sub-layer's residual sum, (1, 1, N)."""
        return np.asarray(self.remains[k + 1] / roots(self.forward.insides[k][0].after_scales))[..., None, :]

    def steps(self, rule: Rule, down: Down, matrices: Collection[str], words: WordSteps | None = None) -> list[Steps]:
        """Return the change of every matrix's outputs in one optimizer step, as a weighted sum of output gradients.

        The weights are C by role for all matrices and tables; sign steps also have "ROLE remainder" and "ROLE beyond".

        Args:
            rule: the optimizer's rule.
            down: gradients of the backward pass.
            matrices: roles of the matrices that are stepped.
            words: motion of the inputs by the output matrix, if inputs are its rows after a transform.
        """
        steps = [
            {role: c for branch in branches for role, c in branch.steps(rule, at_matrices, matrices).items()}
            for branches, at_matrices in zip(self._places_with_parameters, down.matrices, strict=True)
        ]
        if words is not None:
            steps[0] |= {"inputs": words.coefficients, "words": words.energy}
        if rule is sign_rule and not holds_words(self.stack):
            self._add_sign_deviations(steps, down, matrices, words)
        return steps

    def _add_sign_deviations(
        self, steps: list[Steps], down: Down, matrices: Collection[str], words: WordSteps | None
    ) -> None:  # fmt: skip
        """Add samples of sign steps less C Δ, (samples, N), for all matrices and tables that add to the stream.

        Gradients of one coordinate go down the stream together, so that their signs are correlated.
        """
        above, deltas = np.zeros_like(self.output), np.zeros(1)

        def arrived(kernel: Array, k: int) -> Array:
            """Return samples of the gradients at a place from their kernel there; the part from above is known."""
            generator = np.random.default_rng([1, k + self.seed * (len(self.branches) + 1)])
            return np.asarray(deltas + gaussian_samples(kernel - above, generator, STREAM_SAMPLES))

        for k in reversed(range(1, len(self.branches) + 1)):
            insides, branches = self.forward.insides[k - 1], self.branches[k - 1]
            after, alpha = insides[0].after_scales, insides[0].step.residual
            total = mean_kernel(down.sublayers[k - 1].total.noise) / self.stack.width
            deltas = arrived(mean_kernel(total * after), k) / roots(after)[0]
            for inside, branch in zip(insides, branches, strict=True):
                if branch.last is not None and branch.last.role in matrices:
                    at_branch = deltas * inside.step.branch / roots(inside.made_scales)[0]
                    steps[k][f"{branch.last.role} beyond"] = branch.deviation(at_branch, steps[k])
            deltas, above = deltas * alpha, total * alpha**2
        scales, bottom = self.embeddings.scales, mean_kernel(down.tables["inputs"].gram) / self.stack.width
        deltas = arrived(mean_kernel(bottom * scales), 0) / roots(scales)[0]
        steps[0] |= self.embeddings.sign_deviations(deltas, steps[0], words)

    def bottom(self, down: Down, of_outputs: Array, of_inputs: Array) -> Moved:
        """Return the change of the network's inputs as a weighted sum of output tokens and input gradients.

        The change is Σ_k of_outputs_ik x_L,k/√d + Σ_k of_inputs_ik g_0,k.

        Args:
            down: gradients of the backward pass.
            of_outputs: coefficients on the output tokens, (..., N, N).
            of_inputs: coefficients on the gradients at the inputs, (..., N, N).
        """
        forward, first = self.forward, self.first
        crossed = of_outputs @ down.across.mT @ of_inputs.mT
        return Moved(
            TokenMotion(
                of_inputs,
                of_outputs @ (self.remains[0][..., :, None] * first.kernel) + of_inputs @ down.bottom.along(first),
                of_outputs @ forward.output @ of_outputs.mT + crossed + crossed.mT
                + of_inputs @ down.bottom.kernel(first) @ of_inputs.mT,
            ),
            of_outputs * self.held[-1][..., None, :]
            + of_inputs @ (down.bottom.stream * first.held[..., None, :] + down.bottom.words),
            of_outputs,
            np.zeros((1, self.stack.rows)),
        )  # fmt: skip

    def up(self, down: Down, steps: list[Steps], moved: Moved | None = None) -> Moved:
        """Return the change of the output tokens when the inputs and all chosen matrices take an optimizer step.

        Args:
            down: gradients of the backward pass.
            steps: steps of all places.
            moved: motion of the inputs; None for that of their tables.
        """
        if moved is None:
            none, beyond = np.zeros((1, self.stack.rows, self.stack.rows)), np.zeros((1, self.stack.rows))
            beyond = steps[0].get("beyond", beyond) / roots(self.embeddings.scales)[0]
            moved = Moved(self.embeddings.up(down.tables, steps[0]), none, none, beyond)
        for k, at in enumerate(down.sublayers):
            moved = self._above(k, moved, at, steps[k + 1])
        motion = replace(moved.motion, energy=moved.motion.energy + self._energy(moved.beyond))
        moved = replace(moved, motion=motion)
        moved = moved.normed(self._place(self.forward.stream, self.held[-2]), self.forward.output_scales)
        if self.transform is None:
            return moved
        return replace(moved, motion=self.transform.up(moved.motion, down.transform[0], steps[-1]))

    def _energy(self, beyond: Array) -> Array:
        """Return the Gram matrix of tokens from samples of a coordinate, (N, N)."""
        return np.asarray(self.stack.width * beyond.T @ beyond / len(beyond))

    def _above(self, k: int, moved: Moved, at: SublayerGradient, steps: Steps) -> Moved:
        """Return the motion after a sub-layer.

        Args:
            k: index of the sub-layer.
            moved: motion before it.
            at: gradients in it.
            steps: steps of its matrices.
        """
        insides, gradient = self.forward.insides[k], at.total
        step, stream, ahead = insides[0].step, moved.motion, moved.ahead
        alpha, kept = step.residual, step.residual * moved.beyond
        below = self._place(insides[0].stream, self.held[k])
        total = self._place(insides[0].total, self.held[k] * alpha)
        given = replace(stream, energy=stream.energy + self._energy(moved.beyond))
        given = given.normed(below.kernel, insides[0].given_scales).scaled(step.input_scale**2)
        arriving, along = gradient.kernel(total), gradient.along(total)
        of_words = gradient.stream * total.held[..., None, :] + gradient.words
        branches = []
        for inside, branch in zip(insides, self.branches[k], strict=True):
            tau = inside.step.branch
            returned = branch.up(given, at.matrices, steps).normed(inside.made, inside.made_scales)
            # What of the stream's motion is along what the branch adds, over √d.
            follows = tau * (ahead * self._share_in_output(k) + alpha * stream.coefficients @ gradient.stream)
            branches.append((tau, inside.added, returned, follows))
            if branch.last is not None:
                kept = kept + tau * steps.get(f"{branch.last.role} beyond", np.zeros(1)) / roots(inside.made_scales)[0]
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
        after = Moved(TokenMotion(c, overlaps, energy), words, alpha * ahead, kept)
        return after.normed(total, insides[0].after_scales)

    def inner_products_by_matrix(
        self, steps: list[Steps], gradients: list[Gradients], others: list[Gradients]
    ) -> dict[str, Array]:
        """Return every matrix's and table's term of the inner product between a step and a gradient.

        The shape is (places, M), and (M,) for "WH".

        Args:
            steps: the step.
            gradients: gradients from which the step was made.
            others: gradients of the product, as in `Branch.inner_products_by_matrix`.
        """
        products = dict[str, list[Array]]()
        for branches, moves, at, other in zip(self._places_with_parameters, steps, gradients, others, strict=True):
            for branch in branches:
                for role, product in branch.inner_products_by_matrix(moves, at, other).items():
                    products.setdefault(role, []).append(product)
        return _arrays_by_role(products)

    def squared_updates(
        self, optimizer: Optimizer, steps: list[Steps], down: Down
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the mean squared norms of the step and of the weights, for every matrix.

        They are E|u_W|² and |W|² by role, (places,).

        For "WH" the shape is (). For a normalized step, E|u_W|² is still to be divided by |g|².

        Args:
            optimizer: name of the optimizer.
            steps: steps of all places.
            down: gradients of the backward pass.
        """
        updates, weights = dict[str, list[float]](), dict[str, list[float]]()
        for branches, moves, at in zip(self._places_with_parameters[1:], steps[1:], down.matrices[1:], strict=True):
            for branch in branches:
                for role, (square, size) in branch.squared_sizes(optimizer, moves, at).items():
                    updates.setdefault(role, []).append(float(square))
                    weights.setdefault(role, []).append(float(size))
        return _arrays_by_role(updates), _arrays_by_role(weights)

    @property
    def _places_with_parameters(self) -> list[tuple[Embeddings | OutputTransform | AnyBranch, ...]]:
        """The places with parameters, from below: embeddings, branches, and the output transform."""
        return [(self.embeddings,), *self.branches, *([] if self.transform is None else [(self.transform,)])]


def roots(scales: Number) -> Array:
    """Return the number by which a norm divides each token; 1 without a norm."""
    return np.ones((1, 1)) if isinstance(scales, float) else np.asarray(np.sqrt(np.linalg.diagonal(scales)))


def _arrays_by_role(values: Mapping[str, Sequence[Array | float]]) -> dict[str, Array]:
    """Return arrays with one number for every place, or a single number for a matrix that is in no layer."""
    return {role: np.array(of_places[0] if role == "WH" else of_places) for role, of_places in values.items()}


def _branch(inside: SublayerState[Array], tokens: MatrixLayout, seed: int, samples: int) -> AnyBranch:
    """Return the branch of one sub-layer, with samples of a seed."""
    stack, tied = inside.step.stack, holds_words(inside.step.stack)
    if inside.step.kinds == ("units",) and has_experts(stack):
        return Experts(stack, inside.given, inside.attended[0].route.weights[0], seed, samples)
    if inside.step.kinds == ("units",):
        return (TiedFeedForward if tied else FeedForward)(stack, tokens, inside.given, seed, samples)
    if inside.attended is None:
        return FixedAttention(stack, tokens, inside.given)
    patterns, _ = inside.attended
    return (TiedRandomAttention if tied else RandomAttention)(stack, inside.given, patterns, seed)
