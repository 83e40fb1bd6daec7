"""The exact large-width recursion, forward and backward, for the quantities of a random stack.

The state is a pair of kernels over tokens: Q_ij = x_i·x_j/d forward and G_ij = E⟨∂L/∂x_i, ∂L/∂x_j⟩ backward.
As d grows at fixed n and L the pair closes: each weight acts forward on Q and backward on G as an independent
Gaussian matrix. Every rule below returns its output kernel and its pullback, which maps the gradient kernel at
the output to the one at the input and gives E‖∂L/∂W‖_F² = d Σ_ij Q_ij G_ij of the weights it passes.

Assumes d → ∞ at fixed n, L and σ_e; V enters exactly. Relative corrections are O(1/d) in the last layer and
O(L/d) in the first (Post-LN).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theory.gaussian import cross_entropy, relu_kernel, relu_slope_kernel, softmax_overlap, softmax_overlap_curve
from theory.kernels import Exchangeable, Kernel, Labelled, Number, Pair, Tokens
from theory.quantities import QUANTITIES
from theory.stack import Stack

Energies = dict[str, Number]
Pullback = Callable[[Kernel], tuple[Kernel, Energies]]
Branch = Callable[[Tokens, Kernel, float], tuple[Kernel, Pullback, Energies]]

# Windows of text are predicted in chunks: a stack keeps about 12 kernels per layer for its backward pass.
_CHUNK_ENTRIES = 2_000_000


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
    if windows is None:
        return Prediction(stack, _recursion(stack, Exchangeable(stack.tokens), Pair(1.0, 0.0), None))
    ids = np.asarray(windows)
    if ids.ndim != 2 or ids.shape[0] < 1 or ids.shape[1] != stack.tokens + 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"windows must be integers of shape (windows, tokens + 1) = (windows, {stack.tokens + 1}), "
            f"got {ids.dtype} of shape {ids.shape}."
        )
    size = max(1, _CHUNK_ENTRIES // (stack.tokens**2 * stack.depth))
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    parts = [_recursion(stack, Labelled(stack.tokens), *_word_kernels(chunk)) for chunk in chunks]
    share = np.array([len(chunk) for chunk in chunks]) / len(ids)
    return Prediction(
        stack,
        {name: sum((w * part[name] for w, part in zip(share, parts, strict=True)), np.array(0.0)) for name in parts[0]},
    )


def _word_kernels(ids: NDArray[np.integer]) -> tuple[Kernel, Kernel]:
    """Input kernel of the words, and which pairs of positions share a label."""
    words, labels = ids[:, :-1], ids[:, 1:]
    return (words[:, :, None] == words[:, None, :]) * 1.0, (labels[:, :, None] == labels[:, None, :]) * 1.0


def uniform_attention(tokens: Tokens, kernel: Kernel, gain: float) -> tuple[Kernel, Pullback, Energies]:
    """Attention with zero queries and keys: every token receives the mean token times W^V."""
    mean, power = tokens.mean(kernel), gain**2

    def pullback(gradient: Kernel) -> tuple[Kernel, Energies]:
        return tokens.mean(gradient) * power, {"grad_sq_WV": tokens.total(mean * gradient)}

    return mean * power, pullback, {}


def relu_feed_forward(tokens: Tokens, kernel: Kernel, gain: float) -> tuple[Kernel, Pullback, Energies]:
    """ReLU(x W1) W2 with square matrices of N(0, gain²/d) entries."""
    correlation, power = tokens.correlation(kernel), gain**2
    hidden = tokens.entrywise(relu_kernel, correlation) * tokens.scales(kernel) * power

    def pullback(gradient: Kernel) -> tuple[Kernel, Energies]:
        below = gradient * tokens.entrywise(relu_slope_kernel, correlation) * power
        energies = {"grad_sq_W2": tokens.total(hidden * gradient), "grad_sq_W1": tokens.total(kernel * below)}
        return below * power, energies

    return hidden * power, pullback, {"ffn_hidden_energy": tokens.diagonal(hidden)}


def sublayer(
    stack: Stack, layer: int, tokens: Tokens, kernel: Kernel, branch: Branch
) -> tuple[Kernel, Kernel, Pullback, Energies]:
    """One sub-layer: its output kernel, the kernel of the residual sum, its pullback, and what the branch records.

    A norm divides a kernel, and the gradient kernel on its way back, by the scales of its input; α, τ and κ enter
    squared. Cross terms of the residual sum vanish, since a branch ends in a matrix whose sign is symmetric.
    """
    composition = stack.composition
    alpha_sq, tau_sq = composition.residual(stack.depth) ** 2, composition.branch(stack.depth) ** 2
    kappa_sq = composition.input_scale(layer) ** 2
    into, into_scales = _normed(tokens, kernel, composition.input_norm)
    made, branch_pullback, recorded = branch(tokens, into * kappa_sq, composition.gain(stack.depth))
    out, out_scales = _normed(tokens, made, composition.output_norm)
    total = kernel * alpha_sq + out * tau_sq
    stream, stream_scales = _normed(tokens, total, composition.stream_norm)

    def pullback(gradient: Kernel) -> tuple[Kernel, Energies]:
        gradient = gradient / stream_scales
        below, energies = branch_pullback(gradient * tau_sq / out_scales)
        return gradient * alpha_sq + below * kappa_sq / into_scales, energies

    return stream, total, pullback, recorded


def _normed(tokens: Tokens, kernel: Kernel, norm: bool) -> tuple[Kernel, Number]:
    """A kernel after a norm, or after none, and what its gradient is divided by."""
    scales = tokens.scales(kernel) if norm else 1.0
    return kernel / scales, scales


def output_gradient(
    stack: Stack, tokens: Tokens, correlation: Kernel, same_label: Kernel | None, root_energy: float
) -> Kernel:
    """Gradient kernel at the stack's output, for the cross-entropy averaged over the n positions.

    G_ij = (σ_e²/n²) E⟨p_i − e_{y_i}, p_j − e_{y_j}⟩ with p the softmax of N(0, σ_e² q) logits of the tokens'
    correlation, q their energy; the labels are independent of W_emb, so E p_i[y_j] = 1/V, and two labels agree with
    probability 1/V (uniform) or as the text has it.
    """
    scale, vocab = stack.output_scale * root_energy, stack.vocab
    if same_label is None:
        overlap = tokens.entrywise(lambda rho: softmax_overlap(rho, scale, vocab), correlation)
        same_label = Pair(1.0, 1.0 / vocab)
    else:
        overlap = softmax_overlap_curve(scale, vocab)(correlation)
    return (overlap + same_label + -2.0 / vocab) * (stack.output_scale / tokens.count) ** 2


def _recursion(
    stack: Stack, tokens: Tokens, kernel: Kernel, same_label: Kernel | None
) -> dict[str, NDArray[np.float64]]:
    """Every predicted quantity; `same_label` None stands for uniform independent labels of exchangeable tokens."""
    composition = stack.composition
    layers: dict[str, list[Number]] = {q.name: [] for q in QUANTITIES.values() if q.predicted and q.per_layer}
    pullbacks: list[Pullback] = []
    residual = kernel
    for layer in range(1, stack.depth + 1):
        kernel, residual, pullback, _ = sublayer(stack, layer, tokens, kernel, uniform_attention)
        pullbacks.append(pullback)
        layers["attention_energy"].append(tokens.diagonal(residual))
        kernel, residual, pullback, recorded = sublayer(stack, layer, tokens, kernel, relu_feed_forward)
        pullbacks.append(pullback)
        layers["hidden_energy"].append(tokens.diagonal(residual))
        layers["token_correlation"].append(tokens.off_diagonal(residual))
        layers["ffn_hidden_energy"].append(recorded["ffn_hidden_energy"])

    output = tokens.correlation(residual)
    # Where no norm stands before the output matrix, all tokens have one energy still: every branch keeps it so.
    normed = composition.normalized_output
    energy = 1.0 if normed else float(np.ravel(tokens.diagonal(residual))[0])
    gradient = output_gradient(stack, tokens, output, same_label, energy**0.5)
    last_scales = tokens.scales(residual) if normed else 1.0
    values: dict[str, Number] = {
        "loss": cross_entropy(stack.output_scale * energy**0.5, stack.vocab) + 0.0 * tokens.diagonal(output),
        "grad_sq_Wemb": stack.width / stack.output_scale**2 * energy * tokens.total(output * gradient),
        "loss_gradient_sq": stack.tokens**2 * tokens.diagonal(gradient),
        # LayerNorm's projector is O(1/d), so ‖J_i‖‖g_i‖ and ‖J_i^T g_i‖ are one.
        "loss_through_norm_sq": stack.tokens**2 * tokens.diagonal(gradient / last_scales),
        "norm_jacobian": tokens.inverse_root_diagonal(residual) if normed else 1.0 + 0.0 * tokens.diagonal(output),
        "norm_jacobian_uncentred": tokens.inverse_root_diagonal(residual),
    }
    if composition.final_norm:  # a normalized stream ends with one
        gradient = gradient / last_scales
    for pullback in reversed(pullbacks):
        gradient, energies = pullback(gradient)
        for name, value in energies.items():
            layers[name].append(stack.width * value)
    for name in ("grad_sq_W1", "grad_sq_W2", "grad_sq_WV"):  # collected from the top down
        layers[name].reverse()
    values["input_gradient_sq"] = stack.tokens * tokens.diagonal(gradient)
    for name in ("chain_positions_sq", "chain_jacobian_sq"):
        values[name] = stack.width * layers["ffn_hidden_energy"][-1] * values["loss_through_norm_sq"]
    batch_axis = -1 if isinstance(tokens, Labelled) else ()
    return {name: np.mean(np.array(value), axis=batch_axis) for name, value in (values | layers).items()}
