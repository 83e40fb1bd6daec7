"""The part of a network above its layers: the transform before the output matrix, the loss, and its gradient."""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from theory.mean_field.activations import Activation, activation_of
from theory.mean_field.gaussian import LARGEST_SCALE, SoftmaxOverlap, cross_entropy
from theory.mean_field.gaussian_interpolation import values_at
from theory.mean_field.inputs import Inputs, loss_count, loss_positions, of_counted
from theory.mean_field.kernels import Array, Kernel, KernelLayout, MatrixLayout, Number, Pair
from theory.mean_field.sublayers import SquaredNorms, TokenMoments, normed
from theory.stack import Stack
from theory.stack.weights import transform_gain

OutputPullback = Callable[[Kernel], tuple[Kernel, SquaredNorms]]
"""A function from the gradient kernel at the output matrix's input to that at the layers' output.

It also returns E‖∂L/∂W^H‖²/d by role.
"""


def transformed(stack: Stack, tokens: KernelLayout[Kernel], output: Kernel) -> tuple[Kernel, OutputPullback[Kernel]]:
    """Return the kernel of the output matrix's input, and the backward pass from there to the layers' output.

    For the layers' output x, the input is x, or N(φ(x W^H)) with an output transform.

    N centres φ's coordinates, whose mean E φ does not vanish. The component of the gradient along φ that it removes
    is O(1/d).

    Args:
        stack: the network.
        tokens: layout of the tokens.
        output: kernel of the layers' output.
    """
    if stack.output_transform == "none":
        return output, lambda gradient: (gradient, {})
    activation, energy_gain = activation_of(stack.activation, stack.leaky_slope), transform_gain(stack)
    before = output * energy_gain
    after, scales = normed(stack, tokens, TokenMoments(units_to_be_normed(stack, tokens, before)), norm=True)

    def pullback(gradient: Kernel) -> tuple[Kernel, SquaredNorms]:
        below = gradient / scales * activation.slope_kernel(tokens, before)
        return below * energy_gain, {"WH": tokens.total(output * below)}

    return after.kernel, pullback


def units_to_be_normed(stack: Stack, tokens: KernelLayout[Kernel], before: Kernel) -> Kernel:
    """Return the kernel of the output transform's hidden units, without their mean if a norm centres them.

    The kernel is E φ(u_i) φ(u_j) for u ~ N(0, K).
    """
    activation = activation_of(stack.activation, stack.leaky_slope)
    units = activation.kernel(tokens, before)
    return units if stack.normalization == "rms" else units + _products_of_means(tokens, activation, before) * -1.0


def _products_of_means(tokens: KernelLayout[Kernel], activation: Activation, kernel: Kernel) -> Kernel:
    """Return E φ(u_i) E φ(u_j) for u ~ N(0, K), the activation's kernel between tokens and independent copies."""
    if isinstance(kernel, Pair):
        independent = activation.kernel(tokens, cast(Any, Pair(kernel.diagonal, 0.0)))
        return cast(Any, Pair(independent.off, independent.off))
    n = cast(Any, kernel).shape[-1]
    variances = np.tile(np.linalg.diagonal(cast(Any, kernel)), 2)
    return cast(Any, activation.kernel(MatrixLayout(2 * n), variances[..., None] * np.eye(2 * n))[..., :n, n:])


def word_energy(stack: Stack, tokens: KernelLayout[Any], inputs: Inputs[Any], gradient: Any) -> Number:
    """Return the part of the squared gradient of tied embeddings that comes from their use as input embeddings.

    It is a part of E‖∂L/∂W_emb‖²/d. After a transform, the output has no overlap of order √d with the embeddings, and
    the gradients of the two uses of W_emb have none with each other.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        inputs: inputs, with the token ids of every row; None if all differ.
        gradient: gradient kernel at the inputs x_0.
    """
    if stack.embeddings == "untied":
        return 0.0
    return tokens.total(tokens.same_word(inputs.words) * gradient) * (stack.embedding_scale / stack.output_scale) ** 2


def output_gradient(stack: Stack, tokens: KernelLayout[Kernel], output: Kernel, same_label: Kernel) -> Kernel:
    """Return the inner products of the cross-entropy's gradients with respect to the output matrix's input.

    The cross-entropy is averaged over the P positions that count.

    G_ij = (σ_e²/P²) E⟨p_i − t_i, p_j − t_j⟩ with p the softmax of N(0, σ_e² Q) logits and t the targets, of which a
    share ε is spread over all classes. Labels are independent of W_emb, so E p_i·t_j = 1/V, and E t_i·t_j is
    (1 − ε)² times the probability that the labels agree, plus ε (2 − ε)/V.

    Args:
        stack: the network.
        tokens: layout of the tokens.
        output: Q, kernel of the output matrix's input.
        same_label: probability that two labels agree.

    Raises:
        ValueError: tokens have grown so large that their logits are beyond every quadrature.
    """
    vocab, smoothing = stack.vocab, stack.label_smoothing
    size = float(np.max(tokens.diagonal(output))) ** 0.5
    if stack.output_scale <= LARGEST_SCALE < size * stack.output_scale:
        raise ValueError(
            f"logits are too large for a prediction: without a final norm the last tokens have norm {size:.3g} sqrt(d),"
            f" and the scale of logits must be at most {LARGEST_SCALE:g}. Use final_norm 'added', fewer layers or "
            "smaller gains."
        )
    overlap = tokens.gaussian(SoftmaxOverlap(stack.output_scale, vocab), output)
    targets = same_label * (1.0 - smoothing) ** 2 + (smoothing * (2.0 - smoothing) / vocab)
    return of_counted(stack, tokens, (overlap + targets + -2.0 / vocab) * (stack.output_scale / loss_count(stack)) ** 2)


def expected_loss(stack: Stack, tokens: KernelLayout[Kernel], output: Kernel) -> Number:
    """Return the expected cross-entropy in nats, averaged over the positions that count in the loss.

    Label smoothing does not change it.
    """

    def at(energies: Any) -> Any:
        if isinstance(energies, float):
            return cross_entropy(stack.output_scale * energies**0.5, stack.vocab)
        every = energies.shape[-1] != stack.rows or loss_positions(stack).all()
        counted = energies if every else energies[..., loss_positions(stack) > 0]
        return values_at(lambda q: cross_entropy(stack.output_scale * q**0.5, stack.vocab), counted)

    return tokens.diagonal_mean(at, output)


def loss_variance(stack: Stack, tokens: KernelLayout[Array], output: Array, same_label: Array) -> Number:
    """Return the variance of the mean cross-entropy of a batch, over random networks, labels and texts.

    The result holds for many classes. The logits of two labels have the covariance σ_e² Q_ik if the labels agree. A
    label's logit and ln Σ_v e^z_v have 1/V of this covariance. Two such logarithms have the covariance (e^(σ_e² Q_ik) −
    1)/V.

    Args:
        stack: the network.
        tokens: layout of the tokens.
        output: Q, kernel of the output matrix's input.
        same_label: probability that two labels agree.
    """
    variance = output * stack.output_scale**2
    smoothing, vocab = stack.label_smoothing, stack.vocab
    targets = same_label * (1.0 - smoothing) ** 2 + (smoothing * (2.0 - smoothing) - 2.0) / vocab
    return tokens.total(of_counted(stack, tokens, targets * variance + np.expm1(variance) / vocab)) / stack.rows**2
