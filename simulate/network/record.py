"""What is recorded of a network's passes: values of named quantities, and how they are read from tensors."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from simulate.network.engines import GradientNorms
from theory.stack import Stack
from theory.stack.weights import copies, weight_shapes

Stream = Float[Tensor, "draws tokens width"]


@dataclass(slots=True)
class Record:
    """Values of named quantities, one tensor of shape (draws,) per network or per layer, detached.

    Attributes:
        per_network: by name.
        per_layer: by name, in the order of the layers.
        hidden_sq: ‖h_i‖² of the latest feed-forward branch, (draws, tokens): an ingredient, not a quantity.
        streams: the last residual sum of every layer and the logits, where they are kept; or None.
    """

    per_network: dict[str, Tensor] = field(default_factory=dict)
    per_layer: dict[str, list[Tensor]] = field(default_factory=dict)
    hidden_sq: Tensor = field(default_factory=lambda: torch.empty(0))
    streams: list[Tensor] | None = None

    def keep(self, stream: Tensor) -> None:
        """Keep a tensor of the forward pass, where such are kept."""
        if self.streams is not None:
            self.streams.append(stream.detach())

    def layer(self, name: str, value: Tensor) -> None:
        """Append the next layer's value."""
        self.per_layer.setdefault(name, []).append(value)

    def network(self, name: str, value: Tensor) -> None:
        """Set the network's value."""
        self.per_network[name] = value

    def gradients(self, stack: Stack, norms: GradientNorms, prefix: str = "") -> None:
        """Append ‖∂L/∂W‖_F² of every matrix of every layer; the engine's names of roles have a prefix.

        Of experts it is the sum over all of a layer. What dense layers below those with experts do not have is NaN.
        """
        for role in weight_shapes(stack):
            values, experts = norms.of(prefix + role), copies(stack, role)
            if experts > 1:
                dense = values[:, : stack.dense_layers]
                summed = values[:, stack.dense_layers :].unflatten(1, (-1, experts)).sum(2)
                values = torch.cat([dense, summed], 1)
            for value in values.unbind(1):
                self.layer(f"grad_sq_{role}", value)
        if stack.dense_layers:
            for name, of_layers in self.per_layer.items():
                missing = [torch.full_like(of_layers[0], torch.nan)] * (stack.depth - len(of_layers))
                self.per_layer[name] = missing + of_layers


def record_last_norm(
    stack: Stack, record: Record, total: Stream, output_gradient: Stream, last_gradient: Stream, *, positions: int
) -> None:
    """What Theorem 1's proof asks of the last LayerNorm, with input `total`, and of the loss above it."""
    width = total.shape[2]
    scale, centred = total.norm(dim=-1), (total - total.mean(-1, keepdim=True)).norm(dim=-1)
    centred = scale if stack.normalization == "rms" else centred
    smoothed = [(norm.square() + stack.norm_epsilon * width).sqrt() for norm in (centred, scale)]
    centred, scale = smoothed if stack.norm_epsilon else (centred, scale)
    jacobian = stack.norm_gain * width**0.5 / centred if stack.normalized_output else torch.ones_like(scale)
    record.network("norm_jacobian", jacobian.mean(1))
    record.network("norm_jacobian_uncentred", (width**0.5 / scale).mean(1))
    # The loss averages over its positions, so a position's own gradient is so many times its share.
    loss_sq, pulled_sq = (positions**2 * g.square().sum(-1) for g in (output_gradient, last_gradient))
    jacobian_sq = jacobian.square()
    record.network("loss_gradient_sq", loss_sq.sum(1) / positions)
    record.network("loss_through_norm_sq", (jacobian_sq * loss_sq).sum(1) / positions)
    if stack.branches == "attention" or stack.experts:
        return  # the chain of the proof begins with the feed-forward units of all tokens
    hidden_sq = record.hidden_sq
    record.network("chain_positions_sq", (hidden_sq * pulled_sq).sum(1) / positions)
    record.network("chain_jacobian_sq", (hidden_sq * jacobian_sq * loss_sq).sum(1) / positions)


def energy(x: Stream) -> Float[Tensor, " draws"]:
    """‖x‖²/d averaged over tokens, in one pass over memory."""
    return torch.linalg.vector_norm(x.detach(), dim=(1, 2)).square() / (x.shape[1] * x.shape[2])


def correlation(x: Stream, own: Float[Tensor, " draws"], sequences: int) -> Float[Tensor, " draws"]:
    """x_i·x_j/d averaged over pairs of tokens of one sequence, from their own energy; NaN for one token."""
    x = x.detach()
    rows, width = x.shape[-2:]
    tokens = rows // sequences
    if tokens == 1:
        return torch.full_like(x[:, 0, 0], torch.nan)
    sums = x.view(len(x), sequences, tokens, width).sum(2)
    whole = torch.linalg.vector_norm(sums, dim=(1, 2)).square() / (rows * width)
    return (whole - own) / (tokens - 1)


def on_host(values: dict[str, Tensor]) -> dict[str, NDArray]:
    """Tensors of shape (draws, ...) as arrays; those of a GPU in one copy, for which the host waits once."""
    if all(value.device.type == "cpu" for value in values.values()):
        return {name: value.numpy() for name, value in values.items()}
    arrays: dict[str, NDArray] = {}
    for dtype in {value.dtype for value in values.values()}:
        names = [name for name, value in values.items() if value.dtype == dtype]
        columns = [values[name].reshape(len(values[name]), -1) for name in names]
        ends = np.cumsum([column.shape[1] for column in columns])[:-1]
        parts = np.split(torch.cat(columns, 1).cpu().numpy(), ends, axis=1)
        arrays |= {name: part.reshape(values[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: arrays[name] for name in values}
