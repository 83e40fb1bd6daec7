"""The exact large-width recursion for activations and gradients of a random network, forward and backward.

The state is a pair of kernels over tokens: Q_ij = x_i·x_j/d forward and G_ij = E⟨∂L/∂x_i, ∂L/∂x_j⟩ backward.
As d grows at fixed n and L the pair closes: each weight acts forward on Q and backward on G as an independent
Gaussian matrix. The rules of a sub-layer are in `theory.mean_field.sublayers` and
`theory.mean_field.attention.sampled`.

Assumes d → ∞ at fixed n, L and σ_e; V enters exactly. Relative corrections are O(1/d) in the last layer and
O(L/d) in the first (Post-LN).
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from theory.coverage import attends_randomly, has_experts, holds_words
from theory.mean_field.attention.cross import Memory, uniform_cross_attention
from theory.mean_field.attention.grouped import GroupedAttention
from theory.mean_field.attention.sampled import random_attention, random_cross_attention
from theory.mean_field.depth_mixing import MixedStream
from theory.mean_field.experts import experts
from theory.mean_field.group_members import MemberLayout, of_groups
from theory.mean_field.inputs import Inputs, loss_count
from theory.mean_field.kernels import Array, Kernel, KernelLayout, MatrixLayout, Number
from theory.mean_field.outputs import expected_loss, loss_variance, output_gradient, transformed, word_energy
from theory.mean_field.overlap_variance import averaged_units, propagate_overlap_variance
from theory.mean_field.passes import Backward, Forward
from theory.mean_field.sublayers import (
    Above,
    Branch,
    Passed,
    PlacedNorm,
    Pullback,
    SquaredNorms,
    SublayerState,
    TokenMoments,
    feed_forward,
    normed,
    of_stream,
    sublayer,
    uniform_attention,
)
from theory.mean_field.text_counts import WordWeights
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.tied.gradient import tied_backward
from theory.mean_field.tied.text_gradient import text_tied_backward
from theory.mean_field.token_groups import GroupLayout
from theory.mean_field.two_streams import as_one, as_two_streams, read_out, two_streams
from theory.stack import Stack
from theory.stack.depth_mixing import mixing_matrix
from theory.stack.plan import Kind, Step, plan
from theory.stack.quantities import QUANTITIES, STREAM
from theory.stack.weights import weight_shapes

Quantities = dict[str, Number | list[Number]]
"""The predicted quantities by name; quantities of every layer are lists."""


def recursion(
    stack: Stack, tokens: KernelLayout[Kernel], inputs: Inputs[Kernel], generator: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """Run the forward and the backward pass, and return every predicted quantity by name.

    The last axis of each quantity is the batch of the inputs.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        inputs: its inputs.
        generator: random generator of everything that is sampled.
    """
    return quantities_of(stack, tokens, inputs, forward_pass(stack, tokens, inputs, generator), generator)


def quantities_of(
    stack: Stack,
    tokens: KernelLayout[Kernel],
    inputs: Inputs[Kernel],
    forward: Forward[Kernel],
    generator: np.random.Generator,
    share: Kernel | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Run the backward pass after a given forward pass, and return every predicted quantity by name.

    One forward pass can serve several backward passes.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        inputs: its inputs.
        forward: the forward pass.
        generator: random generator of everything that is sampled.
        share: factor on the gradient kernel at the output, in which squared norms are linear; None for 1. If it is 1
            within the parts of a mini-batch and 0 between them, squared norms are sums over the parts. Tied
            embeddings do not allow it.
    """
    if not holds_words(stack):
        return _quantities(stack, tokens, inputs, forward, _backward(stack, tokens, forward, inputs, share))
    # Repeated words tell tokens apart, so that these are arrays.
    way_up, arrays = cast(Forward[Array], forward), cast(Inputs[Array], inputs)
    if isinstance(tokens, TextLayout):
        down = cast(Backward[Kernel], text_tied_backward(stack, tokens, arrays.same_label, way_up))
        return _quantities(stack, tokens, inputs, forward, down)
    layout = cast(MatrixLayout, tokens)

    def values(*, mean_labels: bool) -> dict[str, NDArray[np.float64]]:
        down = tied_backward(stack, layout, arrays, way_up, generator, mean_labels=mean_labels)
        return _quantities(stack, tokens, inputs, forward, cast(Backward[Kernel], down))

    sampled = values(mean_labels=False)
    if layout.apart and inputs.labels is None:
        # Labels of two sequences are independent, so that their sampling would bury what these share.
        of_two = values(mean_labels=True)
        sampled |= {
            name: np.stack([value[..., 0, :, :], of_two[name][..., 1, :, :]], axis=-3)
            for name, value in sampled.items() if "grad_sq_" in name or name.startswith("vector_sq_")
        }  # fmt: skip
    return sampled


def _quantities(
    stack: Stack,
    tokens: KernelLayout[Kernel],
    inputs: Inputs[Kernel],
    forward: Forward[Kernel],
    backward: Backward[Kernel],
) -> dict[str, NDArray[np.float64]]:
    """Return every predicted quantity from one forward and one backward pass."""
    # Own gradients: the loss averages over positions, so a position's own is P times its share.
    positions = float(loss_count(stack))
    through = backward.output * positions / (forward.total_scales if stack.normalized_output else 1.0)
    uncentred, jacobian = (
        tokens.diagonal_mean(lambda q: (q + stack.norm_epsilon) ** -0.5, kernel)
        for kernel in (forward.total.kernel, forward.total.centred().kernel)
    )
    units = stack.ffn_width * tokens.count
    values: Quantities = {
        "loss": backward.loss,
        "grad_sq_Wemb": stack.width * backward.embedding,
        "loss_gradient_sq": tokens.count * positions * tokens.diagonal(backward.output),
        "loss_through_norm_sq": tokens.count * tokens.diagonal(through),
        "norm_jacobian": jacobian * stack.norm_gain if stack.normalized_output else 1.0 + 0.0 * jacobian,
        "norm_jacobian_uncentred": uncentred,
        "chain_positions_sq": units * tokens.diagonal(forward.hidden * backward.total * positions),
        "chain_jacobian_sq": units * tokens.diagonal(forward.hidden * through),
        "input_gradient_sq": tokens.count * tokens.diagonal(backward.inputs),
    }
    if backward.loss_variance is not None:
        values["loss_variance"] = backward.loss_variance
    # The chain of the proof begins with the feed-forward units of all tokens.
    if stack.branches == "attention" or has_experts(stack):
        del values["chain_positions_sq"], values["chain_jacobian_sq"]
    values |= {f"grad_sq_{role}": stack.width * energy for role, energy in backward.transform.items()}
    values |= forward.layers | _weight_gradients(stack, backward.energies)
    if tokens.apart:
        values |= _vector_gradients(stack, tokens, inputs, backward)
    if stack.encoder is not None and forward.encoded is not None:
        values |= _of_encoder(stack.encoder, *forward.encoded)
    return {name: np.array(value) for name, value in values.items()}


def gradients_from(
    stack: Stack,
    tokens: KernelLayout[Kernel],
    inputs: Inputs[Kernel],
    generator: np.random.Generator,
    output: Callable[[Kernel], Kernel],
) -> Quantities:
    """Predict the squared gradient norm of every matrix for a loss other than the cross-entropy.

    A name is `grad_sq_` and the role of the matrix.

    Args:
        stack: the network, with untied embeddings.
        tokens: layout of its tokens.
        inputs: its inputs.
        generator: random generator of attention samples.
        output: function from the kernel of the output matrix's input to the kernel of the loss's gradient there. The
            result is linear in the latter.
    """
    forward = forward_pass(stack, tokens, inputs, generator)
    gradient = output(forward.output)
    below_transform, _ = forward.transform(gradient)
    _, energies = _pulled_back(forward, below_transform)
    squares = _weight_gradients(stack, energies)
    squares.pop(STREAM, None)
    if stack.encoder is not None and forward.encoded is not None:
        of_encoder = _of_encoder(stack.encoder, *forward.encoded)
        squares |= {name: value for name, value in of_encoder.items() if name.startswith("encoder_grad_sq_")}
    return squares | {"grad_sq_Wemb": stack.width * tokens.total(forward.output * gradient) / stack.output_scale**2}


def _weight_gradients(stack: Stack, energies: list[SquaredNorms]) -> Quantities:
    """Return E‖∂L/∂W‖² by role and layer, from the squared norms of every sub-layer, ordered from above."""
    roles = {role: [part[role] for part in reversed(energies) if role in part] for role in weight_shapes(stack)}
    if stack.has_scalars:  # one of a layer, for all its sub-layers
        slopes = [part["scalar"] for part in reversed(energies) if "scalar" in part]
        each = len(slopes) // stack.depth
        roles["scalar"] = [sum(slopes[start : start + each]) for start in range(0, len(slopes), each)]
    roles["stream"] = [part["stream"] for part in reversed(energies) if "stream" in part]
    return {
        STREAM if role == "stream" else f"grad_sq_{role}": _above_dense(
            stack, [stack.width * energy for energy in layers]
        )
        for role, layers in roles.items()
        if layers
    }


def _above_dense(stack: Stack, values: list[Number]) -> list[Number]:
    """Return one value per layer for a quantity of layers with experts: NaN in the dense layers below them."""
    return [values[0] * np.nan] * (stack.dense_layers if len(values) < stack.depth else 0) + values


def _vector_gradients(
    stack: Stack, tokens: KernelLayout[Any], inputs: Inputs[Any], backward: Backward[Any]
) -> Quantities:
    """Return E‖∂L/∂b‖² of biases, norm parameters and embedding tables, split within and between sequences.

    Biases are listed by layer, and gains and biases of norms by norm, or by sub-layer if it has two norms, from
    below.
    """
    every = list(reversed(backward.energies))
    names = sorted({name for part in every for name in part if name.startswith("bias_") or name in ("gain", "shift")})
    squares = {name: [stack.width * part[name] for part in every if name in part] for name in names}
    count = backward.inputs.shape[-1]
    # Of every row of a table what all its positions ask for adds up.
    tables = {"inputs": tokens.same_word(inputs.words)}
    if stack.positions in ("learned", "learned_segment"):
        tables["positions"] = np.tile(np.eye(count // stack.sequences), (stack.sequences,) * 2)
    if stack.positions == "learned_segment":
        tables["segment"] = np.ones((count, count))
    of_tables = {name: tokens.total(backward.inputs * alike) for name, alike in tables.items()}
    return {f"vector_sq_{name}": value for name, value in (squares | of_tables).items()}


def _of_encoder(encoder: Stack, forward: Forward[Kernel], memory: Memory[Kernel]) -> Quantities:
    """Return the encoder's quantities, after all layers that attend to it have passed their gradients back."""
    tokens, gradient, memory.gradient = memory.tokens, memory.gradient, None  # the next way down has its own
    assert gradient is not None, "a layer attends to it"
    inputs, energies = _pulled_back(forward, gradient)
    layers = forward.layers | _weight_gradients(encoder, energies)
    return {f"encoder_{name}": value for name, value in layers.items()} | {
        "memory_gradient_sq": tokens.count * tokens.diagonal(gradient),
        "encoder_input_gradient_sq": tokens.count * tokens.diagonal(inputs),
    }


def _branch(
    kind: Kind, step: Step, tokens: KernelLayout[Any], memory: Memory[Any] | None, generator: np.random.Generator,
    variance: Array | None, of_words: Array,
) -> Branch[Any]:  # fmt: skip
    """Return the forward and backward pass of one branch of a sub-layer.

    Args:
        kind: kind of the branch.
        step: the sub-layer.
        tokens: layout of its tokens.
        memory: the encoder's output; None without an encoder.
        generator: random generator of attention samples and experts.
        variance: ρ of `overlap_variance` for groups of tokens; None for all tokens.
        of_words: relative variance of token products over texts; 0 without a law of text.
    """
    stack = step.stack
    if kind == "units":
        if has_experts(stack):
            mixture = cast(Branch[Any], experts(stack, generator))
            if variance is None or not tokens.is_text:
                return mixture
            return averaged_units(stack, variance, of_words, mixture)
        return feed_forward(stack) if variance is None else averaged_units(stack, variance, of_words)
    sampled = attends_randomly(stack)
    if kind == "cross":
        assert memory is not None, "a source was read"
        return (
            random_cross_attention(stack, memory, generator, mirrored=tokens.mirrored)
            if sampled
            else uniform_cross_attention(stack, memory)
        )
    if variance is None:
        return random_attention(stack, tokens.attention, generator) if sampled else uniform_attention(stack)
    followed = isinstance(tokens, MemberLayout)
    if not sampled:
        return of_groups(uniform_attention(stack)) if followed else uniform_attention(stack)
    grouped = GroupedAttention(stack, variance, generator, step.layer)
    return cast(Branch[Any], grouped.of_members if followed else grouped)


@np.errstate(over="ignore")  # refused where it happens
def forward_pass(
    stack: Stack, tokens: KernelLayout[Kernel], inputs: Inputs[Kernel], generator: np.random.Generator
) -> Forward[Kernel]:
    """Run the forward pass of the recursion, and keep everything that the backward pass needs.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        inputs: its inputs.
        generator: random generator of attention samples and experts.

    Raises:
        ValueError: the squared activation of tokens overflows.
    """
    layers: dict[str, list[Number]] = {
        q.name: [] for q in QUANTITIES.values() if q.predicted and q.per_layer and "grad_sq_" not in q.name
    }
    encoded: tuple[Forward[Kernel], Memory[Kernel]] | None = None
    if stack.encoder is not None and (source := inputs.source) is not None:
        read = forward_pass(
            stack.encoder, source.tokens, replace(inputs, kernel=source.kernel, means=source.means), generator
        )
        encoded = read, Memory(source.tokens, read.output, source.attention)
    memory = encoded and encoded[1]
    stream, first = _embedded(stack, tokens, TokenMoments(inputs.kernel, inputs.means))
    pullbacks = [first]
    mixed = None if (matrix := mixing_matrix(stack)) is None else MixedStream(matrix, [stream])
    stream = stream if mixed is None else mixed.read()
    insides: list[tuple[SublayerState[Kernel], ...]] = []
    composition = stack.composition
    total, hidden = stream, inputs.kernel
    groups = tokens if isinstance(tokens, GroupLayout) else None
    variance = None if groups is None else np.ones(1)
    words, of_words = WordWeights(tokens) if isinstance(tokens, TextLayout) else None, np.zeros(())
    for step in plan(stack):
        if words is not None:
            of_words = words.variance(cast(Array, stream.kernel), normed=step.stack.composition.input_norm)
        branches = [_branch(kind, step, tokens, memory, generator, variance, of_words) for kind in step.kinds]
        passed = _passed(step, tokens, stream, branches)
        passed = passed if mixed is None else mixed.passed(passed)
        if words is not None:
            words = words.passed(step, passed)
        if groups is not None and variance is not None:
            variance = propagate_overlap_variance(variance, step, groups, passed)
        stream, total = passed.stream, passed.total
        pullbacks.append(_recording(step, tokens, passed.pullback) if step.ends_layer else passed.pullback)
        insides += [passed.insides] if passed.insides else []
        _record(layers, step, tokens, passed)
        hidden = passed.recorded.get("hidden", hidden)
    read, output_scales, pullback = _read_out(stack, tokens, stream)
    output, transform = transformed(stack, tokens, read)
    _, total_scales = normed(stack, tokens, total, composition.normalized_output)
    pullbacks.append(pullback if mixed is None else mixed.joined(pullback, len(mixed.outputs) - 1))
    layers = {name: _above_dense(stack, values) for name, values in layers.items() if values}
    return Forward(
        layers, pullbacks, insides, total, total_scales, hidden, stream, output, transform, output_scales, encoded
    )


def _recording(step: Step, tokens: KernelLayout[Any], pullback: Pullback[Any]) -> Pullback[Any]:
    """Return the backward pass of a layer's last sub-layer, which also records the residual stream's gradient."""
    if step.stack.composition.second_stream:
        return pullback

    def recorded(gradient: Any, above: Above[Any]) -> tuple[Any, SquaredNorms, Above[Any]]:
        below, energies, above = pullback(gradient, above)
        return below, energies | of_stream(tokens, gradient, step.stack.width), above

    return recorded


def _record(layers: dict[str, list[Number]], step: Step, tokens: KernelLayout[Kernel], passed: Passed[Kernel]) -> None:
    """Add the predicted quantities of a sub-layer to those of its layer.

    Raises:
        ValueError: the squared activation of tokens overflows.
    """
    energy = tokens.diagonal(passed.total.kernel)
    if not np.isfinite(energy).all():
        raise ValueError(
            f"depth must be less than {step.layer} for a prediction: the energy of tokens overflows there."
        )
    # The last residual sum of a layer is that of attention where there are no units.
    for name in {step.energy, "hidden_energy"} if step.ends_layer else (step.energy,):
        layers[name].append(energy)
    for statistic, value in passed.recorded.items():
        if statistic in layers:
            layers[statistic].append(value)
    if step.ends_layer:
        layers["token_correlation"].append(tokens.off_diagonal(passed.total.kernel))
    if "units" in step.kinds:
        layers["ffn_hidden_energy"].append(tokens.diagonal(passed.recorded["hidden"]))


def _passed(
    step: Step, tokens: KernelLayout[Any], stream: TokenMoments[Any], branches: list[Branch[Any]]
) -> Passed[Any]:
    """Apply one sub-layer to one residual stream, or to two, whose kernels are arrays."""
    if step.stack.composition.second_stream:
        return two_streams(step, tokens, stream, *branches)
    return sublayer(step, tokens, stream, branches)


def _embedded(stack: Stack, tokens: KernelLayout, inputs: TokenMoments) -> tuple[TokenMoments, Pullback[Any]]:
    """Apply the norm of the inputs, if there is one, and return the result and the norm's backward pass.

    With two streams both start at the inputs, and their gradients add up there.
    """
    norm = PlacedNorm.after(stack, tokens, inputs, stack.embedding_norm == "added")

    def pullback(gradient: Any, above: Above[Any]) -> tuple[Any, SquaredNorms, Above[Any]]:
        if stack.composition.second_stream:
            gradient = as_one(gradient, tokens.count)
        below, energies, _ = norm.pullback(gradient, None)
        return below, energies, above

    return as_two_streams(norm.made) if stack.composition.second_stream else norm.made, pullback


def _read_out(stack: Stack, tokens: KernelLayout[Any], stream: TokenMoments[Any]) -> tuple[Any, Number, Pullback[Any]]:
    """Return the kernel of the layers' output after the final norm, its divisors, and the backward rule.

    With two streams, the output is p + N(u), with the normalized stream p and the norm N of the stream u.
    """
    if stack.composition.second_stream:
        return read_out(stack, tokens, stream)
    norm = PlacedNorm.after(stack, tokens, stream, stack.composition.final_norm)
    return norm.made.kernel, norm.scales, lambda gradient, _: norm.pullback(gradient, None)


def _backward(
    stack: Stack, tokens: KernelLayout[Kernel], forward: Forward[Kernel], entered: Inputs[Kernel], share: Kernel | None
) -> Backward[Kernel]:
    given = output_gradient(stack, tokens, forward.output, entered.same_label)
    given = given if share is None else given * share
    output, of_transform = forward.transform(given)
    inputs, energies = _pulled_back(forward, output)
    embedding = tokens.total(forward.output * given) / stack.output_scale**2 + word_energy(
        stack, tokens, entered, inputs
    )
    variance = None
    if tokens.apart:
        variance = loss_variance(
            stack, cast(KernelLayout[Array], tokens), cast(Array, forward.output), cast(Array, entered.same_label)
        )
    return Backward(
        loss=expected_loss(stack, tokens, forward.output),
        output=output,
        # LayerNorm's projector is O(1/d), so ‖J_i‖‖g_i‖ and ‖J_i^T g_i‖ are one.
        total=output / forward.total_scales,
        inputs=inputs,
        embedding=embedding,
        energies=energies,
        transform=of_transform,
        loss_variance=variance,
    )


def _pulled_back(forward: Forward[Kernel], gradient: Kernel) -> tuple[Kernel, list[SquaredNorms]]:
    """Run the backward pass, and return the gradients at the inputs and the squared norms of every sub-layer."""
    above: Above[Kernel] = None
    collected: list[SquaredNorms] = []
    for pullback in reversed(forward.pullbacks):
        gradient, energies, above = pullback(gradient, above)
        collected.append(energies)
    return gradient, collected
