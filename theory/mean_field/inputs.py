"""The second moments of a network's inputs: embeddings, positions and labels; and which tokens attend to which."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from theory.mean_field.kernels import Array, Kernel, KernelLayout, MatrixLayout, Pair, PairLayout
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.text_law import TextLaw
from theory.mean_field.token_groups import GroupLayout
from theory.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Source(Generic[Kernel]):
    """The inputs of an encoder, and the weights with which the tokens of a decoder attend to them.

    Attributes:
        tokens: layout of the encoder's tokens.
        kernel: x_i·x_j/d.
        means: mean of each token's coordinates, as in `Inputs`.
        attention: attention weights of every token of the stack on the encoder's tokens with zero queries and keys,
            (N, M); None for exchangeable tokens.
    """

    tokens: KernelLayout[Kernel]
    kernel: Kernel
    means: Array | None = None
    attention: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Inputs(Generic[Kernel]):
    """The second moments of a network's inputs and labels, for each entry of a batch.

    Attributes:
        kernel: x_i·x_j/d.
        same_label: the probability that two labels agree.
        words: token ids, integers (batch, N), which only tied embeddings need.
        labels: labels of a text, integers (batch, N), or None if they are independent of the token ids.
        samples: number of samples of the logits for every entry, with tied embeddings.
        means: mean of each token's coordinates, (N,), if a LayerNorm removes a mean that does not vanish.
        source: inputs of the encoder, if there is one.
    """

    kernel: Kernel
    same_label: Kernel
    words: Any = None
    labels: Any = None
    samples: int = 1
    means: Array | None = None
    source: Source[Kernel] | None = None

    def repeated(self, times: int) -> "Inputs[Kernel]":
        """Repeat every entry of the batch a number of times, with its copies one after another.

        Args:
            times: number of copies.
        """
        return self._each(lambda array: np.repeat(array, times, axis=0))

    def part(self, entries: slice) -> "Inputs[Kernel]":
        """Return some entries of the batch."""
        return self._each(lambda array: array[entries])

    def sampled(self, samples: int) -> "Inputs[Kernel]":
        """Add an axis to the batch, for several samples of the logits of every entry.

        Args:
            samples: number of samples.
        """
        return self._each(lambda array: array[:, None], samples)

    def _each(self, change: Callable[[Any], Any], samples: int = 1) -> "Inputs[Kernel]":
        words, labels = (ids if ids is None else change(ids) for ids in (self.words, self.labels))
        source = self.source and replace(self.source, kernel=change(self.source.kernel))
        return Inputs(change(self.kernel), change(self.same_label), words, labels, samples, self.means, source)


def exchangeable_inputs(stack: Stack) -> tuple[KernelLayout[Pair], Inputs[Pair]]:
    """Return the inputs of a network whose tokens are all alike, and the operations on their products."""
    kernel = Pair(1.0, stack.input_correlation) * stack.embedding_scale**2
    source = Source(PairLayout(stack.source_tokens), kernel) if stack.source_tokens else None
    return PairLayout(stack.tokens), Inputs(kernel, Pair(1.0, label_coincidence(stack)), source=source)


def gaussian_inputs(stack: Stack) -> Inputs[Array]:
    """Return Gaussian inputs in which all token ids differ and labels are independent.

    The batch has one entry, with the rows of all sequences.
    """
    same = np.full((stack.rows, stack.rows), label_coincidence(stack))
    groups = np.arange(stack.rows) if not stack.label_groups else label_groups(stack)
    same[groups[:, None] == groups] = 1.0
    words = np.arange(stack.rows)[None]
    return Inputs(
        _gaussian_kernel(stack)[None], same[None], words, means=position_means(stack), source=_source(stack, 1)
    )


def grouped_inputs(stack: Stack, tokens: GroupLayout) -> Inputs[Array]:
    """Return Gaussian inputs for tokens that represent groups of tokens, as a batch with one entry.

    Args:
        stack: the network.
        tokens: layout of the representatives.
    """
    alike, sequences = np.eye(len(tokens.sizes)), tokens.sequences
    of_one = np.kron(np.eye(sequences), np.ones((len(alike) // sequences,) * 2))
    kernel = (stack.input_correlation * of_one + (1.0 - stack.input_correlation) * alike) * stack.embedding_scale**2
    coincidence = label_coincidence(stack)
    same = coincidence + (1.0 - coincidence) * alike
    if stack.positions != "none":  # learned
        places = np.kron(np.ones((sequences, sequences)), np.eye(len(alike) // sequences))
        kernel = kernel + (places + (stack.positions == "learned_segment")) * stack.embedding_scale**2
    return Inputs(kernel[None], same[None])


def text_inputs(stack: Stack, tokens: TextLayout, law: TextLaw) -> Inputs[Array]:
    """Return the inputs of random text for tokens that represent groups of tokens, as a batch with one entry.

    Every word has a Gaussian embedding, embeddings of different words are independent, and labels follow the law.

    Args:
        stack: the network.
        tokens: layout of the representatives.
        law: law of the text.
    """
    one_word = tokens.one_word
    kernel = one_word * stack.embedding_scale**2
    if stack.positions != "none":  # learned
        places = np.equal.outer(tokens.places, tokens.places) * 1.0
        kernel = kernel + (places + (stack.positions == "learned_segment")) * stack.embedding_scale**2
    same = np.where(one_word, law.same_word_labels, law.other_word_labels)
    if law.labels_within:
        sequence = np.arange(len(same)) * tokens.sequences // len(same)
        same = np.where(np.equal.outer(sequence, sequence), np.where(one_word, *law.labels_within), same)
    return Inputs(kernel[None], np.maximum(same, np.eye(len(same)))[None])


def _source(stack: Stack, batch: int) -> Source[Array] | None:
    """Return the Gaussian inputs of the encoder, the same for every entry of a batch; None without an encoder."""
    encoder = stack.encoder
    if encoder is None:
        return None
    kernel = _gaussian_kernel(encoder)
    weights = np.full((stack.tokens, stack.source_tokens), 1.0 / stack.source_tokens)
    return Source(
        tokens=MatrixLayout(encoder.rows, attention_pattern(encoder), encoder.sequences),
        kernel=np.broadcast_to(kernel, (batch, *kernel.shape)),
        means=position_means(encoder),
        attention=np.kron(np.eye(stack.sequences), weights),
    )


def _gaussian_kernel(stack: Stack) -> Array:
    covariance = stack.input_covariance * stack.embedding_scale**2
    return np.asarray(np.kron(np.eye(stack.sequences), covariance) + position_kernel(stack))


def checked_windows(stack: Stack, windows: NDArray[np.integer]) -> NDArray[np.integer]:
    """Check windows of token ids, and return those that fill whole batches of sequences.

    Args:
        stack: the network.
        windows: token ids, (windows, n + 1).

    Raises:
        ValueError: the windows are not integers of at least 0 with n + 1 columns, or are too few.
    """
    ids = np.asarray(windows)
    least = stack.sequences
    if ids.ndim != 2 or len(ids) < least or ids.shape[1] != stack.tokens + 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"windows must be integers of shape (windows, tokens + 1) = (windows, {stack.tokens + 1}), and at least "
            f"{least}, got {ids.dtype} of shape {ids.shape}."
        )
    if ids.min() < 0:
        raise ValueError(f"windows must hold token ids of at least 0, got {ids.min()}.")
    return ids[: len(ids) // least * least]


def word_inputs(stack: Stack, ids: NDArray[np.integer]) -> Inputs[Array]:
    """Return the inputs for windows of token ids, where equal ids share one Gaussian embedding.

    Args:
        stack: the network; B = sequences consecutive windows make a batch.
        ids: word ids of shape (windows, n + 1), windows a multiple of B.
    """
    words, labels = (part.reshape(-1, stack.rows) for part in (ids[:, :-1], ids[:, 1:]))
    equal_words, equal_labels = ((part[:, :, None] == part[:, None, :]) * 1.0 for part in (words, labels))
    means, source = position_means(stack), _source(stack, len(words))
    kernel = equal_words * stack.embedding_scale**2 + position_kernel(stack)
    return Inputs(kernel, equal_labels, words, labels, means=means, source=source)


def position_kernel(stack: Stack) -> Any:
    """Return the products p_i·p_j/d of the position vectors, (N, N); 0 for a network without positions.

    All sequences share the vectors.

    Sinusoidal positions have sin and cos of i ω_k with ω_k = 10000^(−2k/d), k < d/2, so that p_i·p_j is the sum of
    cos((i − j) ω_k). Learned ones are independent N(0, I_d), times the embeddings' scale; a segment's vector is one
    more, the same for all tokens.

    Source: Vaswani et al. (2017), section 3.5.
    """
    n = stack.tokens
    if stack.positions == "none":
        return 0.0
    if stack.positions in ("learned", "learned_segment"):
        kernel = (np.eye(n) + (stack.positions == "learned_segment")) * stack.embedding_scale**2
    else:
        kernel = np.cos((np.arange(n)[:, None] - np.arange(n))[..., None] * _frequencies(stack)).sum(-1) / stack.width
    return np.tile(kernel, (stack.sequences, stack.sequences))


def position_means(stack: Stack) -> Array | None:
    """Return the mean over the coordinates of every position vector, (N,).

    The result is None if positions have no mean or no LayerNorm removes it.

    Sinusoidal positions have a mean that does not vanish with the width: most frequencies are low, so that most
    cosines are near 1, and positions point along (1, ..., 1).
    """
    added = "added" in (stack.final_norm, stack.embedding_norm)
    centres = stack.normalization == "layer" or (stack.normalization == "none" and added)
    if stack.positions != "sinusoidal" or not centres:
        return None
    angles = np.arange(stack.tokens)[:, None] * _frequencies(stack)
    return np.tile((np.sin(angles) + np.cos(angles)).sum(-1) / stack.width, stack.sequences)


def _frequencies(stack: Stack) -> Array:
    return np.asarray(10000.0 ** (-np.arange(0, stack.width, 2) / stack.width))


def label_coincidence(stack: Stack) -> float:
    """Return the probability Σ_k p_k² that two independent labels agree, for label probabilities p_k."""
    return 1.0 / stack.vocab if stack.labels == "uniform" else float((label_law(stack) ** 2).sum())


def label_groups(stack: Stack) -> NDArray[np.integer]:
    """Return a group number for every position, (N,); positions of one group have equal labels.

    With k groups in a sequence, position i is in group i k // n.
    """
    groups = np.arange(stack.tokens) * stack.label_groups // stack.tokens
    return np.concatenate([groups + sequence * stack.label_groups for sequence in range(stack.sequences)])


def sampled_labels(stack: Stack, batch: int, generator: np.random.Generator) -> NDArray[np.integer]:
    """Sample independent random labels, (batch, N)."""
    law = None if stack.labels == "uniform" else label_law(stack)
    return generator.choice(stack.vocab, size=(batch, stack.rows), p=law)


def label_law(stack: Stack) -> Array:
    """Return the probability of each of the V token ids to be a label, (V,)."""
    if stack.labels == "uniform":
        return np.full(stack.vocab, 1.0 / stack.vocab)
    weights = 1.0 / np.arange(1, stack.vocab + 1)
    return np.asarray(weights / weights.sum())


def loss_positions(stack: Stack) -> Array:
    """Return 1 for every position whose cross-entropy can count in the loss, and 0 for the others, (N,)."""
    counted = np.zeros(stack.rows)
    counted[stack.counted] = 1.0
    return counted


def loss_count(stack: Stack) -> int:
    """Return the number P of positions whose cross-entropies are averaged in the loss."""
    return max(1, round(stack.loss_share * float(loss_positions(stack).sum())))


def of_counted(stack: Stack, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
    """Multiply each entry K_ij of a kernel by the probability that positions i and j both count in the loss.

    A fixed number of positions counts. If the layout is `apart`, every position counts independently, so that the
    probability does not depend on the size of the batch.

    Args:
        stack: the network.
        tokens: layout of the tokens.
        kernel: K, gradient kernel of the positions' own losses.
    """
    if tokens.is_text:
        kernel = cast(Any, tokens).of_counted(kernel)
    counted, count, rows = loss_positions(stack), loss_count(stack), stack.rows
    if stack.loss_share == 1.0:
        return kernel if counted.all() else kernel * np.outer(counted, counted)
    others = tokens.scale_diagonal(kernel, 0.0)
    together = count * (count - 1) / (rows * max(1, rows - 1))
    if tokens.apart:
        together = (count / rows) ** 2
    return others * together + (kernel + others * -1.0) * (count / rows)


def attention_pattern(stack: Stack) -> Array | None:
    """Return the attention weights of a network with zero queries and keys, (N, N).

    Token i attends equally to the tokens of its sequence that it sees. The result is None if all tokens attend to all.
    """
    if stack.mask == "none" and stack.sequences == 1:
        return None
    return np.asarray(np.kron(np.eye(stack.sequences), equal_weights(stack, stack.tokens)))


def equal_weights(stack: Stack, length: int) -> Array:
    """Return attention weights that are equal for all tokens that a token attends to, (length, length).

    Token i sees all tokens; under a causal mask the first i, of which a window keeps the last; or those of a given
    mask.

    Args:
        stack: the network.
        length: number of tokens of the sequence.
    """
    seen = np.ones((length, length)) if stack.mask != "given" else stack.given_mask
    if stack.mask == "causal":
        seen = np.tril(seen)
    if stack.window:
        seen = np.triu(seen, 1 - stack.window)
    return np.asarray(seen / seen.sum(-1, keepdims=True))
