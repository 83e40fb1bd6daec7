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
from theory.stack import Stack

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


def layer_norm(x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
    """√d (x − mean(x)) / ‖x − mean(x)‖ of every token, without an epsilon, as in the paper."""
    return F.layer_norm(x, x.shape[-1:], eps=0.0)


def residual(x: Stream, branch: Stream) -> Stream:
    """The sum of a stream and what a branch adds to it."""
    return x + branch


def sublayer(stack: Stack, layer: int, x: Stream, branch: Branch) -> tuple[Stream, Stream]:
    """One sub-layer, and its residual sum: z = α x + τ N(f(κ N(x))), each norm where the placement has one."""
    placement = stack.composition
    into = layer_norm(x) if placement.input_norm else x
    made = branch(_scaled(into, placement.input_scale(layer)))
    made = layer_norm(made) if placement.output_norm else made
    total = residual(_scaled(x, placement.residual(stack.depth)), _scaled(made, placement.branch(stack.depth)))
    return (layer_norm(total) if placement.stream_norm else total), total


def _scaled(x: Stream, factor: float) -> Stream:
    # A pass over memory less where there is nothing to do, which is nearly everywhere.
    return x if factor == 1.0 else x * factor


def weight_std(stack: Stack) -> float:
    """Standard deviation of the entries of a square matrix: Xavier-normal, N(0, 1/d), times the placement's gain."""
    return stack.width**-0.5 * stack.composition.gain(stack.depth)


def uniform_attention(stack: Stack, engine: Engine, x: Stream) -> Stream:
    """Attention with W^Q = W^K = 0: every token receives the mean token times W^V."""
    # The mean over tokens commutes with W^V, so one row meets the matrix instead of n.
    mean = x.mean(1, keepdim=True)
    return apply_map(engine, "WV", mean, stack.width, weight_std(stack)).expand_as(x)


def feed_forward(stack: Stack, engine: Engine, record: Record, x: Stream) -> Stream:
    """ReLU(x W1) W2."""
    width = stack.width
    hidden = apply_map(engine, "W1", x, width, weight_std(stack)).relu_()
    record.hidden_sq = torch.linalg.vector_norm(hidden.detach(), dim=-1).square()
    record.layer("ffn_hidden_energy", record.hidden_sq.mean(1) / width)
    record.layer("ffn_hidden_max_sq", hidden.detach().amax((1, 2)).square())
    return apply_map(engine, "W2", hidden, width, weight_std(stack))


def sequence_loss(logits: Float[Tensor, "draws tokens vocab"], labels: Int[Tensor, "draws tokens"]) -> Tensor:
    """Cross-entropy in nats, averaged over the positions of each draw."""
    return F.cross_entropy(logits.mT, labels, reduction="none").mean(1)


def run(stack: Stack, engine: Engine, inputs: Stream, labels: Int[Tensor, "draws tokens"]) -> Record:
    """One forward and one backward pass of a batch of networks; every recorded quantity.

    Args:
        stack: the network.
        engine: where the weights come from; afterwards it holds the gradient norms too.
        inputs: x_0 of every draw.
        labels: class ids of every position.
    """
    record = Record()
    inputs = inputs.detach().requires_grad_()
    x = total = inputs
    for layer in range(1, stack.depth + 1):
        x, total = sublayer(stack, layer, x, lambda rows: uniform_attention(stack, engine, rows))
        record.layer("attention_energy", _energy(total))
        x, total = sublayer(stack, layer, x, lambda rows: feed_forward(stack, engine, record, rows))
        energy = _energy(total)
        record.layer("hidden_energy", energy)
        record.layer("token_correlation", _correlation(total, energy))
    output = layer_norm(x) if stack.composition.final_norm else x
    logits = apply_map(engine, "Wemb", output, stack.vocab, stack.output_scale * stack.width**-0.5)
    loss = sequence_loss(logits, labels)
    input_gradient, output_gradient, last_gradient = torch.autograd.grad(loss.sum(), (inputs, output, total))

    record.network("loss", loss.detach())
    record.network("input_gradient_sq", input_gradient.square().sum((1, 2)))
    normed = stack.composition.normalized_output
    _last_norm(record, total.detach(), output_gradient, last_gradient, normed=normed)
    for role in ("W1", "W2", "WV"):
        for value in engine.gradients.of(role).unbind(1):
            record.layer(f"grad_sq_{role}", value)
    record.network("grad_sq_Wemb", engine.gradients.of("Wemb")[:, 0])
    return record


def _last_norm(record: Record, total: Stream, output_gradient: Stream, last_gradient: Stream, *, normed: bool) -> None:
    """What Theorem 1's proof asks of the last LayerNorm, with input `total`, and of the loss above it."""
    tokens, width = total.shape[1:]
    scale, centred = total.norm(dim=-1), (total - total.mean(-1, keepdim=True)).norm(dim=-1)
    jacobian = width**0.5 / centred if normed else torch.ones_like(scale)
    record.network("norm_jacobian", jacobian.mean(1))
    record.network("norm_jacobian_uncentred", (width**0.5 / scale).mean(1))
    # The loss averages over n positions, so a position's own gradient is n times its share.
    loss_sq, pulled_sq = (tokens**2 * g.square().sum(-1) for g in (output_gradient, last_gradient))
    jacobian_sq, hidden_sq = jacobian.square(), record.hidden_sq
    record.network("loss_gradient_sq", loss_sq.mean(1))
    record.network("loss_through_norm_sq", (jacobian_sq * loss_sq).mean(1))
    record.network("chain_positions_sq", (hidden_sq * pulled_sq).mean(1))
    record.network("chain_jacobian_sq", (hidden_sq * jacobian_sq * loss_sq).mean(1))


def _energy(x: Stream) -> Float[Tensor, " draws"]:
    """‖x‖²/d averaged over tokens, in one pass over memory."""
    return torch.linalg.vector_norm(x.detach(), dim=(1, 2)).square() / (x.shape[1] * x.shape[2])


def _correlation(x: Stream, energy: Float[Tensor, " draws"]) -> Float[Tensor, " draws"]:
    x = x.detach()
    tokens, width = x.shape[-2:]
    if tokens == 1:
        return torch.full_like(x[:, 0, 0], torch.nan)
    whole = torch.linalg.vector_norm(x.sum(1), dim=1).square() / (tokens * width)
    return (whole - energy) / (tokens - 1)
