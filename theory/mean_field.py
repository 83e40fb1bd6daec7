"""The exact large-width recursion, forward and backward, for the quantities of a random stack.

The state is a pair of kernels over tokens: Q_ij = x_i·x_j/d forward and G_ij = E⟨∂L/∂x_i, ∂L/∂x_j⟩ backward.
As d grows at fixed n and L the pair closes: each weight acts forward on Q and backward on G as an independent
Gaussian matrix. Every rule below returns its output kernel and its pullback, which maps the gradient kernel at
the output to the one at the input and gives E‖∂L/∂W‖_F² = d Σ_ij Q_ij G_ij of the weights it passes.

Assumes d → ∞ at fixed n, L and σ_e; V enters exactly. Relative corrections are O(1/d) in the last layer and
O(L/d) in the first (Post-LN).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theory.gaussian import SoftmaxOverlap, cross_entropy
from theory.inputs import (
    attention_pattern,
    exchangeable_inputs,
    gaussian_inputs,
    is_exchangeable,
    layer_tokens,
    loss_positions,
    position_means,
    word_inputs,
)
from theory.kernels import Kernel, Labelled, Number, Tokens
from theory.quantities import QUANTITIES
from theory.random_attention import random_attention
from theory.stack import Stack
from theory.sublayers import (
    Overlaps,
    Pullback,
    Stream,
    feed_forward,
    joined,
    normed,
    read_out,
    sublayer,
    two_streams,
    uniform_attention,
)
from theory.weights import weight_shapes

# Windows of text are predicted in chunks: a stack keeps about 12 kernels per layer for its backward pass.
_CHUNK_ENTRIES = 2_000_000

# Dropped attention weights do not average out at finite n: the recursion is averaged over so many patterns.
_PATTERNS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Prediction(Mapping[str, NDArray[np.float64]]):
    """Predicted means by quantity name: shape () or, per layer, (L,) with layer l at index l - 1."""

    stack: Stack
    arrays: dict[str, NDArray[np.float64]]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def predict(stack: Stack, windows: NDArray[np.integer] | None = None, *, finite_width: bool = False) -> Prediction:
    """Large-width means of every predicted quantity of a random stack.

    Args:
        stack: the network.
        windows: word ids of shape (windows, n + 1): inputs are the first n columns (equal ids share one
            Gaussian embedding), labels the last n. The prediction is the average over the windows. Without
            windows, inputs are independent N(0, I_d) tokens and labels are uniform and independent.
        finite_width: correct the gradients of W1, W2 and WV for a width that is not large beside the depth, to first
            order in 1/d at fixed L/d; for Post-LN, good to 5% up to L/d = 1/8 (docs/finite_width.md).

    Raises:
        ValueError: windows do not have n + 1 columns of integers, or `finite_width` without Post-LN.

    Source: derived in docs/theory.md; the paper's energies (Lemma 2) are its diagonal.

    >>> energy = predict(Stack(placement="post", depth=3))["hidden_energy"]
    >>> energy.round(12).tolist()  # Lemma 2: 3/2 in every layer
    [1.5, 1.5, 1.5]
    """
    if finite_width:
        from theory.finite_width import corrections  # sympy is as slow to load as the rest of the package

        factors = corrections(stack)
        large = predict(stack, windows)
        return Prediction(stack, {name: value * factors.get(name, 1.0) for name, value in large.items()})
    generator = np.random.default_rng(0)
    if windows is None and is_exchangeable(stack):
        return Prediction(stack, _recursion(stack, *exchangeable_inputs(stack), generator))
    kernel, same_label = gaussian_inputs(stack) if windows is None else word_inputs(stack, _checked(stack, windows))
    if stack.attention_dropout or stack.query_key_scale:
        repeats = -(-_PATTERNS // len(kernel))
        kernel, same_label = np.repeat(kernel, repeats, axis=0), np.repeat(same_label, repeats, axis=0)
    tokens = Labelled(stack.rows, attention_pattern(stack), stack.sequences)
    size = max(1, _CHUNK_ENTRIES // (stack.rows**2 * stack.depth * stack.heads))
    chunks = [slice(start, start + size) for start in range(0, len(kernel), size)]
    parts = [_recursion(stack, tokens, kernel[chunk], same_label[chunk], generator) for chunk in chunks]
    share = np.array([len(kernel[chunk]) for chunk in chunks]) / len(kernel)
    return Prediction(
        stack,
        {name: sum((w * part[name] for w, part in zip(share, parts, strict=True)), np.array(0.0)) for name in parts[0]},
    )


def _checked(stack: Stack, windows: NDArray[np.integer]) -> NDArray[np.integer]:
    """The windows that make whole batches of sequences.

    Raises:
        ValueError: they are not integers of n + 1 columns, or too few.
    """
    ids = np.asarray(windows)
    least = stack.sequences
    if ids.ndim != 2 or len(ids) < least or ids.shape[1] != stack.tokens + 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"windows must be integers of shape (windows, tokens + 1) = (windows, {stack.tokens + 1}), and at least "
            f"{least}, got {ids.dtype} of shape {ids.shape}."
        )
    return ids[: len(ids) // least * least]


def output_gradient(stack: Stack, tokens: Tokens, output: Kernel, same_label: Kernel) -> Kernel:
    """Gradient kernel at the stack's output, for the cross-entropy averaged over the P positions that count.

    G_ij = (σ_e²/P²) E⟨p_i − t_i, p_j − t_j⟩ with p the softmax of N(0, σ_e² Q) logits and t the targets, of which a
    share ε is spread over all classes. Labels are independent of W_emb, so E p_i·t_j = 1/V, and E t_i·t_j is
    (1 − ε)² times the probability that the labels agree, plus ε (2 − ε)/V.
    """
    vocab, smoothing = stack.vocab, stack.label_smoothing
    overlap = tokens.gaussian(SoftmaxOverlap(stack.output_scale, vocab), output)
    targets = same_label * (1.0 - smoothing) ** 2 + (smoothing * (2.0 - smoothing) / vocab)
    counted = loss_positions(stack)
    gradient = (overlap + targets + -2.0 / vocab) * (stack.output_scale / counted.sum()) ** 2
    return gradient if counted.all() else gradient * np.outer(counted, counted)


def _recursion(
    stack: Stack, tokens: Tokens, kernel: Kernel, same_label: Kernel, generator: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """Every predicted quantity; `same_label` holds the probabilities that two labels agree."""
    layers: dict[str, list[Number]] = {
        q.name: [] for q in QUANTITIES.values() if q.predicted and q.per_layer and not q.name.startswith("grad_sq_")
    }
    gradients: dict[str, list[Number]] = {role: [] for role in weight_shapes(stack)}
    pullbacks: list[Pullback] = []
    composition, batches = stack.composition, np.shape(kernel)[0] if isinstance(tokens, Labelled) else 1
    stream, means = Stream(kernel), position_means(stack)
    if means is not None:
        stream = Stream(kernel, means)
    if composition.second_stream:
        stream = Stream(np.tile(kernel, (2, 2)), None if means is None else np.tile(means, 2))
    total, hidden = stream, kernel
    attention = random_attention(stack, generator) if stack.query_key_scale else uniform_attention(stack)
    branches = (attention, "attention_energy"), (feed_forward(stack), "hidden_energy")
    for layer in range(1, stack.depth + 1):
        for branch, name in branches:
            here = layer_tokens(stack, tokens, batches, generator)
            if composition.second_stream:
                passed = two_streams(stack, here, stream, branch)
            else:
                passed = sublayer(stack, layer, here, stream, branch)
            stream, total = passed.stream, passed.total
            pullbacks.append(passed.pullback)
            layers[name].append(tokens.diagonal(total.kernel))
            for statistic, value in passed.recorded.items():
                if statistic in layers:
                    layers[statistic].append(value)
        hidden = passed.recorded["hidden"]
        layers["token_correlation"].append(tokens.off_diagonal(total.kernel))
        layers["ffn_hidden_energy"].append(tokens.diagonal(hidden))

    output, pullback = read_out(stack, tokens, stream)
    pullbacks.append(pullback)
    gradient = output_gradient(stack, tokens, output, same_label)
    normalized = composition.normalized_output
    _, last_scales = normed(stack, tokens, total, normalized)
    # Own gradients: the loss averages over positions, so a position's own is P times its share.
    positions = float(loss_positions(stack).sum())
    own, through = gradient * positions, gradient * positions / last_scales
    uncentred, jacobian = (
        tokens.diagonal_mean(lambda q: (q + stack.norm_epsilon) ** -0.5, one)
        for one in (total.kernel, total.centred() if stack.normalization == "layer" else total.kernel)
    )
    values: dict[str, Number] = {
        "loss": _loss(stack, tokens, output),
        "grad_sq_Wemb": stack.width / stack.output_scale**2 * tokens.total(output * gradient),
        "loss_gradient_sq": tokens.count * tokens.diagonal(own),
        # LayerNorm's projector is O(1/d), so ‖J_i‖‖g_i‖ and ‖J_i^T g_i‖ are one.
        "loss_through_norm_sq": tokens.count * tokens.diagonal(through),
        "norm_jacobian": jacobian if normalized else 1.0 + 0.0 * jacobian,
        "norm_jacobian_uncentred": uncentred,
    }
    for name in ("chain_positions_sq", "chain_jacobian_sq"):
        values[name] = stack.ffn_width * tokens.count * tokens.diagonal(hidden * through)
    overlaps: Overlaps = None
    for pullback in reversed(pullbacks):
        gradient, energies, overlaps = pullback(gradient, overlaps)
        for role, value in energies.items():
            gradients[role].append(stack.width * value)
    values["input_gradient_sq"] = tokens.count * tokens.diagonal(
        gradient if not composition.second_stream else joined(gradient, tokens.count)
    )
    layers |= {f"grad_sq_{role}": collected[::-1] for role, collected in gradients.items()}  # from the top down
    layers = {name: collected for name, collected in layers.items() if collected}
    batch_axis = -1 if isinstance(tokens, Labelled) else ()
    return {name: np.mean(np.array(value), axis=batch_axis) for name, value in (values | layers).items()}


def _loss(stack: Stack, tokens: Tokens, output: Kernel) -> Number:
    """E of the cross-entropy, averaged over the positions that count; smoothing does not change it."""

    def at(energies: Any) -> Any:
        if isinstance(energies, float):
            return cross_entropy(stack.output_scale * energies**0.5, stack.vocab)
        counted = energies[..., loss_positions(stack) > 0]
        distinct, where = np.unique(np.round(counted, 12), return_inverse=True)
        each = np.array([cross_entropy(stack.output_scale * float(q) ** 0.5, stack.vocab) for q in distinct])
        return each[where].reshape(counted.shape)

    return tokens.diagonal_mean(at, output)
