"""The loss of networks with tied embeddings, by sampling logits that depend on the batch's own token ids."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from theory.mean_field.inputs import Inputs, label_law, loss_positions, sampled_labels
from theory.mean_field.kernels import Array, KernelLayout, Number, cholesky
from theory.stack import Stack

# Numbers in a table of logits.
LARGEST_TABLE = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Samples of the loss and of its gradient with respect to the logits.

    Attributes:
        loss: cross-entropy in nats, (entries, samples).
        own: (p − t)/P in the columns of an entry's own words, (entries, samples, N, N); 0 for repetitions of a word.
        others: Σ_v (p − t)_iv (p − t)_jv/P² over all other columns, (entries, samples, N, N).
    """

    loss: Array
    own: Array
    others: Array


def sampled_output(
    stack: Stack, inputs: Inputs[Array], kernel: Array, stream: Array, generator: np.random.Generator, *,
    mean_labels: bool = False,
) -> Output:  # fmt: skip
    """Sample the loss and its gradient with respect to the logits, for every entry of the batch.

    Args:
        stack: the network.
        inputs: inputs with token ids and, if they are given, labels, (entries, 1, N).
        kernel: Q, kernel of the output matrix's input, (entries, 1, N, N).
        stream: coefficient of every token on its own word, (entries, 1, N).
        generator: random generator of logits and labels.
        mean_labels: whether missing labels are replaced by their law in the mean, which is exact where only products
            of two positions matter.
    """

    def every_sample(array: Any) -> Any:
        return None if array is None else np.repeat(array, inputs.samples, axis=1).reshape(-1, *array.shape[2:])

    words, labels, kernels, streams = map(every_sample, (inputs.words, inputs.labels, kernel, stream))
    size = max(1, LARGEST_TABLE // (kernel.shape[-1] * stack.vocab))
    parts = []
    for start in range(0, len(words), size):
        part = slice(start, start + size)
        part_labels = None if labels is None else labels[part]
        parts.append(
            _sampled(stack, words[part], part_labels, kernels[part], streams[part], generator, mean_labels=mean_labels)
        )
    arrays = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Output(*(array.reshape(len(kernel), inputs.samples, *array.shape[1:]) for array in arrays))


def _sampled(
    stack: Stack, words: Any, labels: Any, kernel: Array, stream: Array, generator: np.random.Generator, *,
    mean_labels: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    batch, n = words.shape
    same = words[..., :, None] == words[..., None, :]
    first = np.argmax(same, axis=-1) == np.arange(n)
    logits = stack.output_scale * cholesky(kernel) @ generator.standard_normal((batch, n, stack.vocab))
    word_logits = stack.output_scale * stack.width**0.5 * stream[..., :, None] * same
    entry, place = np.nonzero(first)
    logits[entry, :, words[entry, place]] += word_logits[entry, :, place]
    smoothing, counted = stack.label_smoothing, loss_positions(stack)
    errors = softmax(logits, axis=-1)
    normalizer = logits.max(-1) - np.log(errors.max(-1))
    errors -= smoothing / stack.vocab
    if labels is None and mean_labels:
        law = label_law(stack)
        target = logits @ law
        errors -= (1.0 - smoothing) * law
    else:
        labels = sampled_labels(stack, batch, generator) if labels is None else labels
        target = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        entries = np.arange(batch)[:, None], np.arange(n)
        errors[(*entries, labels)] -= 1.0 - smoothing
    target = (1.0 - smoothing) * target + smoothing * logits.mean(-1)
    errors *= counted[:, None] / counted.sum()
    own_errors = np.zeros_like(kernel)
    own_errors[entry, :, place] = errors[entry, :, words[entry, place]]
    others = errors @ errors.mT - own_errors @ own_errors.mT
    return ((normalizer - target) * counted).sum(-1) / counted.sum(), own_errors, others


def embedding_energy(
    stack: Stack,
    tokens: KernelLayout[Array],
    inputs: Inputs[Array],
    kernel: Array,
    output: Output,
    gradient: Array,
    across: Array,
) -> Number:
    """Return the squared gradient norm of tied embeddings, from their uses as inputs and as output matrix.

    The result is E‖∂L/∂W_emb‖²/d, with the product of the two uses' gradients.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        inputs: inputs with token ids.
        kernel: Q, kernel of the output matrix's input.
        output: the sampled loss.
        gradient: gradient kernel at x_0.
        across: x_L,i·g_j/√d for the output matrix's input x_L and the gradient at x_0.
    """
    same = inputs.words[..., :, None] == inputs.words[..., None, :]
    everywhere = output.others + output.own @ output.own.mT
    # A repeated word's column is that of its first occurrence.
    errors = output.own @ same
    energy = tokens.total(kernel * everywhere)
    into = stack.embedding_scale / stack.output_scale
    energy = energy + tokens.total(same * gradient) * into**2
    return energy + 2.0 * into * tokens.total(errors * across)
