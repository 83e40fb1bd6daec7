"""The effect of one sub-layer on inner products of two tokens' vectors, and of their gradients.

Every rule returns its output kernel and its pullback. The pullback maps the gradient kernel at the output to the one
at the input, and gives E‖∂L/∂W‖_F²/d = (d_in/d) Σ_ij Q_ij G_ij of its weights, with Q the kernel of their inputs.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from typing import Any, Generic

import numpy as np

from theory.coverage import has_experts
from theory.mean_field.activations import activation_of
from theory.mean_field.kernels import Array, Kernel, KernelLayout, MatrixLayout, Number
from theory.stack import Stack
from theory.stack.plan import Step
from theory.stack.weights import gain, inner_ratio, weight_shapes

SquaredNorms = dict[str, Number]

_TANH = activation_of("tanh", 0.0)


@dataclass(slots=True, eq=False)
class NormOverlaps(Generic[Kernel]):
    """The component of the gradient along the residual stream that the norms above removed.

    Attributes:
        first: E1_ik = G_ik/q_i.
        second: E2_ik = G_ik Q_ik/(q_i q_k).
    """

    first: Kernel
    second: Kernel


@dataclass(slots=True, eq=False)
class LastNorm:
    """The products of tokens in the second of two residual streams, before the last norm.

    The sub-layers of two streams need them.

    Attributes:
        kernel: the kernel, (..., N, N).
    """

    kernel: Array


@dataclass(frozen=True, slots=True, eq=False)
class PathGradients(Generic[Kernel]):
    """The gradients at the inputs of all sub-layers above and of the final norm.

    They are used with a depth-mixing matrix, where each sub-layer reads a weighted sum of all earlier outputs.

    Attributes:
        gradients: their kernels, the lowest first.
        removed: the parts that their norms removed.
    """

    gradients: tuple[Kernel, ...] = ()
    removed: tuple[NormOverlaps[Kernel] | None, ...] = ()


Overlaps = NormOverlaps[Kernel] | None
"""The part that norms removed, for a branch; None if nothing needs it."""
Above = NormOverlaps[Kernel] | LastNorm | PathGradients[Kernel] | None
"""The information that a sub-layer passes to the one below it in the backward pass, in addition to the gradient."""
Recorded = dict[str, Any]
"""Statistics of the inside of a branch, by name.

"hidden" is the kernel of the MLP's hidden units; "attended" has the sampled attention weights and those after
dropout.
"""
Pullback = Callable[[Kernel, Above[Kernel]], tuple[Kernel, SquaredNorms, Above[Kernel]]]
BranchPullback = Callable[[Kernel, Overlaps[Kernel]], tuple[Kernel, SquaredNorms]]
Branch = Callable[[KernelLayout[Kernel], Kernel], tuple[Kernel, BranchPullback[Kernel], Recorded]]
"""A function from a branch's layout and input kernel to its output kernel, its pullback, and recorded statistics."""


def bias_gradients(stack: Stack, tokens: KernelLayout[Any], **gradients: Any) -> SquaredNorms:
    """Return the squared gradient norms of bias vectors, divided by the width.

    A squared norm is Σ_ij G_ij for the gradient kernel G at the output of the bias's matrix. The result is empty unless
    the layout tells sequences apart: only a batch's gradient norm uses it.
    """
    if not tokens.apart:
        return {}
    return {f"bias_{role}": tokens.total(gradient) / stack.width for role, gradient in gradients.items()}


def norm_parameter_gradients(stack: Stack, tokens: KernelLayout[Any], gradient: Any, made: Any) -> SquaredNorms:
    """Return the squared gradient norms of the gains and the biases of a norm, divided by the width.

    With the kernels G of gradients and Q of tokens at the norm's output, the squared norms are Σ_ij G_ij Q_ij/γ² for
    the gains γ and Σ_ij G_ij for the biases. For the gains, ∂L/∂γ is Σ_i g_i ∘ x_i/γ, and its d coordinates have one
    law. The result is empty unless the layout tells sequences apart.
    """
    if not tokens.apart:
        return {}
    gains = tokens.total(gradient * made) / stack.norm_gain**2
    return {"gain": gains / stack.width, "shift": tokens.total(gradient) / stack.width}


def of_stream(tokens: KernelLayout[Any], gradient: Any, width: int) -> SquaredNorms:
    """Return the squared norm of the gradient with respect to the residual stream after a layer, divided by d.

    Args:
        tokens: layout of the tokens.
        gradient: gradient kernel of the stream.
        width: d.
    """
    return {"stream": tokens.count * tokens.diagonal(gradient) / width}


def add_energies(energies: SquaredNorms, more: SquaredNorms) -> SquaredNorms:
    """Add two tables of squared gradient norms, name by name; a missing name counts as 0."""
    return energies | {name: energies.get(name, 0.0) + value for name, value in more.items()}


def uniform_attention(stack: Stack) -> Branch[Kernel]:
    """Return the forward and backward pass of attention with fixed weights A: the branch A x W^V W^O.

    Queries and keys are zero. Without a mask, A x is the mean token.
    """
    projected = "WO" in weight_shapes(stack)
    value_gain, projection_gain = gain(stack, "WV"), gain(stack, "WO") if projected else 1.0

    def branch(tokens: KernelLayout[Kernel], kernel: Kernel) -> tuple[Kernel, BranchPullback[Kernel], Recorded]:
        def values(attended: Kernel) -> Kernel:
            images = attended * value_gain
            return tokens.images(images, stack.heads * stack.key_width) if projected else images

        mean = tokens.attend(kernel)
        given = values(mean)

        def pullback(gradient: Kernel, _: Overlaps[Kernel]) -> tuple[Kernel, SquaredNorms]:
            below = gradient * projection_gain
            met = tokens.attended_at_ends(kernel, mean)
            at_output = given if met is mean else values(met)
            energies = {"WO": tokens.total(at_output * gradient) * inner_ratio(stack)} if projected else {}
            energies["WV"] = tokens.total(met * below)
            at_values = tokens.attend_back(below)
            biases = {"WV": at_values} | ({"WO": gradient} if projected else {})
            return at_values * value_gain, energies | bias_gradients(stack, tokens, **biases)

        return given * projection_gain, pullback, {}

    return branch


def feed_forward(stack: Stack, kind: str = "W", *, often: bool = False) -> Branch[Kernel]:
    """Return the forward and backward pass of the MLP φ(x W1) W2 or, with a gate, (φ(x WG) ∘ x W1) W2.

    Args:
        stack: the network.
        kind: "W" for the layer's MLP, "S" for that of the shared expert.
        often: whether the backward pass is run several times, so that its slopes are kept.
    """
    units, _ = weight_shapes(stack)[kind + "2"]
    activation, ratio, gated = (
        activation_of(stack.activation, stack.leaky_slope),
        units / stack.width,
        stack.ffn == "gated",
    )
    first, second = gain(stack, kind + "1"), gain(stack, kind + "2")
    gate = gain(stack, kind + "G") if gated else first

    def of_inputs(u: Array, *linear: Array) -> Array:
        return np.asarray(activation.value(u) * linear[0] if gated else activation.value(u))

    def branch(tokens: KernelLayout[Kernel], kernel: Kernel) -> tuple[Kernel, BranchPullback[Kernel], Recorded]:
        before, lines = kernel * gate, kernel * first
        active = activation.kernel(tokens, before)
        hidden = active * lines if gated else active
        hidden = tokens.features(hidden, of_inputs, (before, lines) if gated else (before,), units)
        slopes = lru_cache(maxsize=int(often))(lambda: activation.slope_kernel(tokens, before))

        def pullback(gradient: Kernel, _: Overlaps[Kernel]) -> tuple[Kernel, SquaredNorms]:
            above, slope = gradient * second, slopes()
            energies = {kind + "2": tokens.total(hidden * gradient) * ratio}
            below = above * (active if gated else slope)
            energies[kind + "1"] = tokens.total(kernel * below)
            energies |= bias_gradients(stack, tokens, **{kind + "1": below, kind + "2": gradient})
            below = below * first
            if gated:
                to_gate = above * slope * lines
                energies[kind + "G"] = tokens.total(kernel * to_gate)
                energies |= bias_gradients(stack, tokens, **{kind + "G": to_gate})
                below = below + to_gate * gate
            return below, energies

        return hidden * second, pullback, {"hidden": hidden}

    return branch


@dataclass(slots=True, eq=False)
class TokenMoments(Generic[Kernel]):
    """The second moments of the tokens between two sub-layers, and the means of their coordinates.

    Attributes:
        kernel: x_i·x_j/d. With two streams it has 2N tokens, of which the first N belong to the normalized stream.
        means: mean of each token's coordinates, (N,) or (2N,), if a LayerNorm removes a mean that does not vanish, as
            with sinusoidal positions. None if it vanishes like d^(−1/2), as after every random matrix, or nothing
            removes it.
    """

    kernel: Kernel
    means: Array | None = None

    def centred(self, part: slice = slice(None)) -> TokenMoments[Kernel]:
        """Return the moments after the mean over coordinates has been subtracted from some tokens.

        Args:
            part: slice of these tokens.
        """
        if self.means is None:
            return self
        kept = self.means.copy()
        kept[part] = 0.0
        return TokenMoments(self.kernel + -np.outer(self.means, self.means) + np.outer(kept, kept), kept)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedNorm(Generic[Kernel]):
    """A norm at one place of a network, or no norm there, with its backward pass.

    Attributes:
        stack: the network.
        tokens: layout of the tokens.
        is_there: whether there is a norm.
        given: moments of its input.
        made: moments of its output.
        scales: divisors of the gradient kernel in the backward pass.
    """

    stack: Stack
    tokens: KernelLayout[Kernel]
    is_there: bool
    given: TokenMoments[Kernel]
    made: TokenMoments[Kernel]
    scales: Any

    @classmethod
    def after(
        cls, stack: Stack, tokens: KernelLayout[Kernel], given: TokenMoments[Kernel], is_there: bool
    ) -> PlacedNorm[Kernel]:
        """Apply a norm to tokens, if there is one, as `normed` does."""
        return cls(stack, tokens, is_there, given, *normed(stack, tokens, given, is_there))

    def pullback(self, gradient: Kernel, overlaps: Overlaps[Kernel]) -> tuple[Kernel, SquaredNorms, Overlaps[Kernel]]:
        """Return the gradient kernel at the norm's input, and the squared gradients of its gains and biases.

        The third result is the component that the norm removes, or the given one if no norm is there or none is kept.

        Args:
            gradient: gradient kernel at the norm's output.
            overlaps: the component that norms above removed.
        """
        below = gradient / self.scales
        if not self.is_there:
            return below, {}, overlaps
        if tracks_norm_overlaps(self.stack, self.tokens):
            overlaps = removed(self.stack, self.tokens, below, self.given)
        return below, norm_parameter_gradients(self.stack, self.tokens, gradient, self.made.kernel), overlaps


@dataclass(frozen=True, slots=True, eq=False)
class Passed(Generic[Kernel]):
    """The results of one sub-layer's forward pass, with the function for its backward pass.

    Attributes:
        stream: residual stream after it.
        total: the residual sum before its norm; with two streams, that of the normalized one.
        pullback: map from the gradient kernel of the stream after it to that before it.
        recorded: statistics of the inside of its branches.
        insides: kernels inside the sub-layer, one record for every branch; empty with two streams.
    """

    stream: TokenMoments[Kernel]
    total: TokenMoments[Kernel]
    pullback: Pullback[Kernel]
    recorded: Recorded
    insides: tuple[SublayerState[Kernel], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SublayerState(Generic[Kernel]):
    """The token products at every point inside a sub-layer, for one of its branches.

    The sub-layer has one residual stream.

    Parallel branches share all kernels except their own.

    Attributes:
        step: the step of this branch only.
        stream: residual stream x before it.
        given: kernel of the branch's input, κ N(x).
        given_scales: divisors of the input's norm.
        made: kernel of the branch's output.
        made_scales: divisors of the output's norm.
        added: kernel of the output after its norm.
        total: the residual sum.
        after_scales: divisors of the norm of the residual sum.
        pullback: backward rule of the branch.
        attended: sampled attention weights, if attention is random; else None.
    """

    step: Step
    stream: TokenMoments[Kernel]
    given: Kernel
    given_scales: Number
    made: Kernel
    made_scales: Number
    added: Kernel
    total: TokenMoments[Kernel]
    after_scales: Number
    pullback: BranchPullback[Kernel]
    attended: Any = None


def sublayer(
    step: Step, tokens: KernelLayout[Kernel], stream: TokenMoments[Kernel], branches: Sequence[Branch[Kernel]]
) -> Passed[Kernel]:
    """Apply a sub-layer to a single residual stream: one branch, or several parallel branches with the same input.

    A norm divides a kernel, and the gradient kernel in the backward pass, by the scales of its input; α, τ and κ
    enter squared. Cross terms of the residual sum vanish, since a branch ends in a matrix whose sign is symmetric.
    Dropout divides the squared activation of each token's branch by 1 − p, forward and backward, and does not change
    products of two tokens.

    Args:
        step: the sub-layer.
        tokens: layout of the tokens.
        stream: residual stream before the sub-layer.
        branches: rules of the branches.
    """
    stack, composition = step.stack, step.stack.composition
    alpha, kappa_sq, kept = step.residual, step.input_scale**2, 1.0 - step.stack.dropout
    before = PlacedNorm.after(stack, tokens, stream, composition.input_norm)
    given, summed, recorded = before.made.kernel * kappa_sq, stream.kernel * alpha**2, Recorded()
    means = None if stream.means is None else stream.means * alpha
    outputs, attended = [], []
    for branch, tau_sq in zip(branches, np.square(step.branches).tolist(), strict=True):
        kernel, branch_pullback, statistics = branch(tokens, given)
        norm = PlacedNorm.after(stack, tokens, TokenMoments(kernel), composition.output_norm)
        summed = tokens.plus(summed, tokens.scale_diagonal(norm.made.kernel, 1.0 / kept) * tau_sq, stack.width, means)
        outputs.append((norm, branch_pullback, tau_sq))
        attended.append(statistics.get("attended"))
        recorded |= statistics
    total = TokenMoments(summed, means)
    after = PlacedNorm.after(stack, tokens, total, composition.stream_norm)

    def pullback(gradient: Kernel, above: Above[Kernel]) -> tuple[Kernel, SquaredNorms, Above[Kernel]]:
        gradient, norms, overlaps = after.pullback(gradient, above if isinstance(above, NormOverlaps) else None)
        parts, energies = [], SquaredNorms()
        for norm, branch_pullback, tau_sq in outputs:
            arriving = tokens.scale_diagonal(gradient, 1.0 / kept) * tau_sq
            of_branch = dropped_overlaps(tokens, scaled_overlaps(overlaps, tau_sq**2), kept)
            arriving, of_norm, of_branch = norm.pullback(arriving, of_branch)
            below_branch, branch_energies = branch_pullback(arriving, of_branch)
            parts.append(below_branch)
            energies |= branch_energies
            norms = add_energies(norms, of_norm)
        if step.learned:
            energies["scalar"] = slope_sq(tokens, gradient, [norm.made.kernel for norm, *_ in outputs], stack)
        below = reduce(add, parts) * kappa_sq
        below, of_norm, of_input = before.pullback(below, None)
        overlaps = summed_overlaps(scaled_overlaps(overlaps, alpha**4), of_input)
        return gradient * alpha**2 + below, energies | add_energies(norms, of_norm), overlaps

    insides = tuple(
        SublayerState(
            alone, stream, given, before.scales, norm.given.kernel, norm.scales, norm.made.kernel, total, after.scales,
            back, sampled,
        )
        for alone, (norm, back, _), sampled in zip(step.alone, outputs, attended, strict=True)
    )  # fmt: skip
    return Passed(after.made, total, pullback, recorded, insides)


def slope_sq(tokens: KernelLayout[Kernel], gradient: Kernel, branches: Sequence[Kernel], stack: Stack) -> Number:
    """Return the mean squared gradient of a learned scalar τ that starts at 0 and multiplies the branches.

    The result is E (∂L/∂τ)²/d.

    ∂L/∂τ is Σ_i g_i·f_i over tokens and branches. While τ is 0, no layer above depends on a branch's last matrix, so
    that f is orthogonal to g in the mean, with E (g_i·f_i)(g_j·f_j) = G_ij F_ij. Products of two branches vanish in
    the same way.

    Args:
        tokens: layout of the tokens.
        gradient: gradient kernel at the residual sum, G.
        branches: kernels of the branches' outputs, F.
        stack: the network.
    """
    kept = 1.0 - stack.dropout
    slopes = [tokens.total(tokens.scale_diagonal(kernel, 1.0 / kept) * gradient) for kernel in branches]
    return reduce(add, slopes) / stack.width


def tracks_norm_overlaps(stack: Stack, tokens: KernelLayout[Kernel]) -> bool:
    """Return whether the recursion keeps the gradient components along the residual stream that norms remove.

    Only networks with random queries or with experts need them, and kernels must be arrays.
    """
    asked = stack.query_key_scale > 0.0 or has_experts(stack)
    return asked and stack.normalization != "tanh" and isinstance(tokens, MatrixLayout)


def removed(
    stack: Stack, tokens: KernelLayout[Kernel], gradient: Kernel, stream: TokenMoments[Kernel]
) -> NormOverlaps[Kernel]:
    """Return the gradient component along the residual stream that the network's norm removes.

    It follows from the gradient below the norm.

    Args:
        stack: the network.
        tokens: layout of the tokens.
        gradient: gradient kernel below the norm.
        stream: moments of the norm's input.
    """
    return removed_at(gradient, stream, tokens.scales(stream.centred().kernel, stack.norm_epsilon))


def removed_at(gradient: Kernel, stream: TokenMoments[Kernel], scales: Number) -> NormOverlaps[Kernel]:
    """Return the gradient component along the residual stream that a norm with given divisors removes.

    Args:
        gradient: gradient kernel below the norm.
        stream: moments of the norm's input.
        scales: divisors of the norm.
    """
    first = gradient / np.linalg.diagonal(scales)[..., :, None]
    return NormOverlaps(first, gradient * stream.centred().kernel / scales**2)


def scaled_overlaps(overlaps: Overlaps[Kernel], factor: float) -> Overlaps[Kernel]:
    """Multiply the gradient component that norms removed by a factor.

    The result is None if no component is given.
    """
    return None if overlaps is None else NormOverlaps(overlaps.first * factor, overlaps.second * factor)


def dropped_overlaps(tokens: KernelLayout[Kernel], overlaps: Overlaps[Kernel], kept: float) -> Overlaps[Kernel]:
    """Apply dropout to the gradient component that norms removed.

    Dropout acts on the gradient, and on the branch in the residual stream.

    Args:
        tokens: layout of the tokens.
        overlaps: the component above the dropout.
        kept: probability that a coordinate is kept.
    """
    if overlaps is None or kept == 1.0:
        return overlaps
    return NormOverlaps(tokens.scale_diagonal(overlaps.first, 1.0 / kept) / kept, overlaps.second / kept**2)


def summed_overlaps(one: Overlaps[Kernel], other: Overlaps[Kernel]) -> Overlaps[Kernel]:
    """Add the gradient components along the residual stream that two norms removed."""
    if one is None or other is None:
        return one if other is None else other
    return NormOverlaps(one.first + other.first, one.second + other.second)


def normed(
    stack: Stack, tokens: KernelLayout[Kernel], stream: TokenMoments[Kernel], norm: bool
) -> tuple[TokenMoments[Kernel], Any]:
    """Apply a norm to tokens, and return them with the divisor of the gradient kernel in the backward pass.

    Without a norm, the result is the stream and 1. For tanh instead of a norm, the divisor is a kernel.

    Args:
        stack: the network.
        tokens: layout of the tokens.
        stream: the stream.
        norm: whether there is a norm.
    """
    if not norm:
        return stream, 1.0
    energy_gain = stack.norm_gain**2
    if stack.normalization == "tanh":
        # Coordinates of the stream are Gaussian as long as nothing but matrices adds to it.
        before = stream.kernel * stack.tanh_scale**2
        slopes = tokens.entrywise(lambda slope: 1.0 / slope, _TANH.slope_kernel(tokens, before))
        return TokenMoments(_TANH.kernel(tokens, before) * energy_gain), slopes / (energy_gain * stack.tanh_scale**2)
    kernel = stream.centred().kernel
    scales = tokens.scales(kernel, stack.norm_epsilon) / energy_gain
    return TokenMoments(kernel / scales), scales
