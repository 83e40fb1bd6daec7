"""The network of the paper, written once over an engine of random linear maps.

Tokens are rows, x W; LayerNorm has scale 1 and bias 0; every draw in the batch is an independent network.
Source: Xiong et al. (2020), arXiv:2002.04745v2, Table 1 and section 3.3.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from simulate.engines import Engine, apply_map
from simulate.tied import Words
from theory.initializations import INITIALIZATIONS
from theory.stack import Stack
from theory.weights import gain, rows_met, weight_shapes

Stream = Float[Tensor, "draws tokens width"]
Branch = Callable[[Stream], Stream]


@dataclass(slots=True)
class Record:
    """Values of named quantities, one tensor of shape (draws,) per network or per layer, detached.

    Attributes:
        per_network: by name.
        per_layer: by name, in the order of the layers.
        hidden_sq: ‖h_i‖² of the latest feed-forward branch, (draws, tokens): an ingredient, not a quantity.
    """

    per_network: dict[str, Tensor] = field(default_factory=dict)
    per_layer: dict[str, list[Tensor]] = field(default_factory=dict)
    hidden_sq: Tensor = field(default_factory=lambda: torch.empty(0))

    def layer(self, name: str, value: Tensor) -> None:
        """Append the next layer's value."""
        self.per_layer.setdefault(name, []).append(value)

    def network(self, name: str, value: Tensor) -> None:
        """Set the network's value."""
        self.per_network[name] = value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "identity": lambda x: x,
}
"""By the value of `Stack.activation`, with torch's own defaults; an activation may work in place."""


def layer_norm(x: Float[Tensor, "*tokens width"], epsilon: float = 0.0) -> Float[Tensor, "*tokens width"]:
    """(x − mean(x)) / √(var(x) + ε) of every token; the paper has no ε."""
    return F.layer_norm(x, x.shape[-1:], eps=epsilon)


def normalize(stack: Stack, x: Stream) -> Stream:
    """The norm of the stack: LayerNorm, or RMSNorm, which does not centre."""
    if stack.normalization == "rms":
        return F.rms_norm(x, x.shape[-1:], eps=stack.norm_epsilon)
    return layer_norm(x, stack.norm_epsilon)


def residual(x: Stream, branch: Stream) -> Stream:
    """The sum of a stream and what a branch adds to it."""
    return x + branch


def sublayer(stack: Stack, layer: int, engine: Engine, x: Stream, branch: Branch) -> tuple[Stream, Stream, Stream]:
    """One sub-layer: z = α x + τ D(N(f(κ N(x)))), D the dropout; each norm where the placement has one.

    Returns:
        The stream after it, the residual sum z, and what was added to α x.
    """
    placement = stack.composition
    into = normalize(stack, x) if placement.input_norm else x
    made = branch(_scaled(into, placement.input_scale(layer)))
    made = normalize(stack, made) if placement.output_norm else made
    added = _scaled(_dropped(engine, made, stack.dropout), placement.branch(stack.depth))
    total = residual(_scaled(x, placement.residual(stack.depth)), added)
    return (normalize(stack, total) if placement.stream_norm else total), total, added


def _scaled(x: Stream, factor: float) -> Stream:
    # A pass over memory less where there is nothing to do, which is nearly everywhere.
    return x if factor == 1.0 else x * factor


def _dropped(engine: Engine, x: Tensor, share: float) -> Tensor:
    """Inverted dropout, with the engine's random numbers; of rows that are views of one, each by itself."""
    if share == 0.0:
        return x
    # A draw may have several entries of the first axis, its sequences.
    kept = engine.streams.uniform(x.numel() // engine.streams.draws, dtype=engine.dtype).view(x.shape) >= share
    return x * kept / (1.0 - share)


def apply_weight(
    stack: Stack, engine: Engine, role: str, rows: Float[Tensor, "draws rows d_in"]
) -> Float[Tensor, "draws rows d_out"]:
    """The product with a fresh matrix of a layer, as the stack initializes it."""
    d_in, d_out = weight_shapes(stack)[role]
    std = d_in**-0.5 * gain(stack, role) ** 0.5
    return apply_map(engine, role, rows, d_out, std, uniform=INITIALIZATIONS[stack.initialization].uniform)


def attention(stack: Stack, engine: Engine, record: Record, x: Stream) -> Stream:
    """Softmax attention; with W^Q = W^K = 0 a token receives the mean of those that it attends to, times W^V W^O."""
    draws, _, width = x.shape
    sequences = draws, stack.sequences, stack.tokens, width
    if rows_met(stack)["WV"] == stack.sequences:
        # The mean over tokens commutes with W^V, so one row of each sequence meets the matrix instead of n.
        values = _projected(stack, engine, apply_weight(stack, engine, "WV", x.reshape(sequences).mean(2)))
        return values[:, :, None].expand(sequences).reshape(x.shape)
    split = draws * stack.sequences, stack.tokens, stack.heads, width // stack.heads
    weights = _dropped(engine, _attention_weights(stack, engine, record, x, split), stack.attention_dropout)
    values = apply_weight(stack, engine, "WV", x).reshape(split).transpose(1, 2)
    return _projected(stack, engine, (weights @ values).transpose(1, 2).reshape(x.shape))


def _attention_weights(
    stack: Stack, engine: Engine, record: Record, x: Stream, split: tuple[int, int, int, int]
) -> Float[Tensor, "batch heads queries keys"]:
    """Softmax of masked logits, which are 0 without queries and keys; `split` is (sequences, tokens, heads, d_k)."""
    sequences, tokens, heads, head_width = split
    if not stack.query_key_scale:
        return _masked(stack, x.new_zeros(sequences, heads, tokens, tokens)).softmax(-1)
    queries = apply_weight(stack, engine, "WQ", x)
    keys = queries if stack.query_key == "tied" else apply_weight(stack, engine, "WK", x)
    q, k = (one.reshape(split).transpose(1, 2) for one in (queries, keys))
    weights = _masked(stack, q @ k.mT / head_width ** (0.5 if stack.attention_scale == "sqrt" else 1.0)).softmax(-1)
    for name, value in (("attention_entropy", torch.special.entr), ("attention_squares", torch.square)):
        record.layer(name, value(weights.detach()).sum(-1).view(len(x), -1).mean(1))
    return weights


def _projected(stack: Stack, engine: Engine, values: Stream) -> Stream:
    return values if stack.output_projection == "identity" else apply_weight(stack, engine, "WO", values)


def _masked(stack: Stack, logits: Float[Tensor, "... tokens tokens"]) -> Float[Tensor, "... tokens tokens"]:
    """Logits, of minus infinity where the stack's mask looks away."""
    if stack.mask == "none":
        return logits
    ahead = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(ahead, -torch.inf)


def feed_forward(stack: Stack, engine: Engine, record: Record, x: Stream) -> Stream:
    """φ(x W1) W2 or, gated, (φ(x WG) ∘ x W1) W2."""
    activation = ACTIVATIONS[stack.activation]
    if stack.ffn == "gated":
        gate = activation(apply_weight(stack, engine, "WG", x))
        hidden = gate * apply_weight(stack, engine, "W1", x)
    else:
        hidden = activation(apply_weight(stack, engine, "W1", x))
    record.hidden_sq = torch.linalg.vector_norm(hidden.detach(), dim=-1).square()
    record.layer("ffn_hidden_energy", record.hidden_sq.mean(1) / stack.ffn_width)
    record.layer("ffn_hidden_max_sq", hidden.detach().abs().amax((1, 2)).square())
    return apply_weight(stack, engine, "W2", hidden)


def sequence_loss(
    logits: Float[Tensor, "draws tokens vocab"], labels: Int[Tensor, "draws tokens"], smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy in nats, averaged over the positions of each draw; the target is spread by `smoothing`."""
    return F.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=smoothing).mean(1)


def run(
    stack: Stack, engine: Engine, inputs: Stream, labels: Int[Tensor, "draws tokens"], words: Words | None = None
) -> Record:
    """One forward and one backward pass of a batch of networks; every recorded quantity.

    Args:
        stack: the network.
        engine: where the weights come from; afterwards it holds the gradient norms too.
        inputs: x_0 of every draw.
        labels: class ids of every position.
        words: the inputs as rows of the output matrix, if embeddings are tied.
    """
    record = Record()
    inputs = inputs.detach().requires_grad_()
    composition = stack.composition
    x = total = second = inputs
    for layer in range(1, stack.depth + 1):
        x, total, added = sublayer(stack, layer, engine, x, lambda rows: attention(stack, engine, record, rows))
        second = second + added if composition.second_stream else second
        record.layer("attention_energy", _energy(total))
        x, total, added = sublayer(stack, layer, engine, x, lambda rows: feed_forward(stack, engine, record, rows))
        second = second + added if composition.second_stream else second
        energy = _energy(total)
        record.layer("hidden_energy", energy)
        record.layer("token_correlation", _correlation(total, energy, stack.sequences))
    if composition.second_stream:
        output = x + (normalize(stack, second) if composition.final_norm else second)
    else:
        output = normalize(stack, x) if composition.final_norm else x
    counted = slice(stack.tokens - 1, None, stack.tokens) if stack.loss_on == "last" else slice(None)
    logits = apply_map(engine, "Wemb", output[:, counted], stack.vocab, stack.output_scale * stack.width**-0.5)
    logits = logits if words is None else words.put_in(logits, output[:, counted])
    loss = sequence_loss(logits, labels[:, counted], stack.label_smoothing)
    leaves = inputs, output, total, *(() if words is None else (words.rows,))
    input_gradient, output_gradient, last_gradient, *of_rows = torch.autograd.grad(loss.sum(), leaves)

    record.network("loss", loss.detach())
    record.network("input_gradient_sq", input_gradient.square().sum((1, 2)))
    _last_norm(stack, record, total.detach(), output_gradient, last_gradient, positions=labels[0, counted].numel())
    for role in weight_shapes(stack):
        for value in engine.gradients.of(role).unbind(1):
            record.layer(f"grad_sq_{role}", value)
    of_words = 0.0 if words is None else words.gradient_sq(stack, input_gradient, *of_rows)
    record.network("grad_sq_Wemb", engine.gradients.of("Wemb")[:, 0] + of_words)
    return record


def _last_norm(
    stack: Stack, record: Record, total: Stream, output_gradient: Stream, last_gradient: Stream, *, positions: int
) -> None:
    """What Theorem 1's proof asks of the last LayerNorm, with input `total`, and of the loss above it."""
    width = total.shape[2]
    scale, centred = total.norm(dim=-1), (total - total.mean(-1, keepdim=True)).norm(dim=-1)
    centred = scale if stack.normalization == "rms" else centred
    smoothed = [(norm.square() + stack.norm_epsilon * width).sqrt() for norm in (centred, scale)]
    centred, scale = smoothed if stack.norm_epsilon else (centred, scale)
    jacobian = width**0.5 / centred if stack.composition.normalized_output else torch.ones_like(scale)
    record.network("norm_jacobian", jacobian.mean(1))
    record.network("norm_jacobian_uncentred", (width**0.5 / scale).mean(1))
    # The loss averages over its positions, so a position's own gradient is so many times its share.
    loss_sq, pulled_sq = (positions**2 * g.square().sum(-1) for g in (output_gradient, last_gradient))
    jacobian_sq, hidden_sq = jacobian.square(), record.hidden_sq
    record.network("loss_gradient_sq", loss_sq.sum(1) / positions)
    record.network("loss_through_norm_sq", (jacobian_sq * loss_sq).sum(1) / positions)
    record.network("chain_positions_sq", (hidden_sq * pulled_sq).sum(1) / positions)
    record.network("chain_jacobian_sq", (hidden_sq * jacobian_sq * loss_sq).sum(1) / positions)


def _energy(x: Stream) -> Float[Tensor, " draws"]:
    """‖x‖²/d averaged over tokens, in one pass over memory."""
    return torch.linalg.vector_norm(x.detach(), dim=(1, 2)).square() / (x.shape[1] * x.shape[2])


def _correlation(x: Stream, energy: Float[Tensor, " draws"], sequences: int) -> Float[Tensor, " draws"]:
    x = x.detach()
    rows, width = x.shape[-2:]
    tokens = rows // sequences
    if tokens == 1:
        return torch.full_like(x[:, 0, 0], torch.nan)
    sums = x.view(len(x), sequences, tokens, width).sum(2)
    whole = torch.linalg.vector_norm(sums, dim=(1, 2)).square() / (rows * width)
    return (whole - energy) / (tokens - 1)
