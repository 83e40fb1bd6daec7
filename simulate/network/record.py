"""Record named quantities in a network's forward and backward pass, such as gradient norms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from simulate.network.engines import GradientNorms
from theory.stack import Stack
from theory.stack.plan import plan
from theory.stack.quantities import STREAM
from theory.stack.weights import copies, weight_shapes

Stream = Float[Tensor, "draws tokens width"]


@dataclass(slots=True)
class Record:
    """The recorded quantities of a batch of networks, one number for each network or for each layer.

    They are detached tensors of shape (draws,).

    Attributes:
        per_network: values by quantity name.
        per_layer: values by quantity name, in the order of the layers.
        hidden_norm: ‖h_i‖ of the latest feed-forward branch, (draws, tokens), an intermediate result.
        streams: the last residual sum of every layer and the logits, if they are to be kept; otherwise None.
        with_streams: whether a backward pass by autograd follows, which records the gradient of the stream.
    """

    per_network: dict[str, Tensor] = field(default_factory=dict)
    per_layer: dict[str, list[Tensor]] = field(default_factory=dict)
    hidden_norm: Tensor = field(default_factory=lambda: torch.empty(0))
    streams: list[Tensor] | None = None
    with_streams: bool = False
    _later: dict[str, tuple[Callable[..., Tensor], list[tuple[Tensor, ...]]]] = field(default_factory=dict)

    def keep(self, stream: Tensor) -> None:
        """Store a tensor of the forward pass, if the residual streams are to be kept."""
        if self.streams is not None:
            self.streams.append(stream.detach())

    def watch_gradient(self, stream: Stream) -> None:
        """Let the backward pass record the squared gradient of the residual stream after the next layer.

        It does so only if this gradient is wanted.
        """
        if not self.with_streams:
            return
        layers = self.per_layer.setdefault(STREAM, [])
        layer = len(layers)
        layers.append(torch.empty(0))

        def take(gradient: Tensor) -> None:
            layers[layer] = norm(gradient).square()

        stream.register_hook(take)

    def layer(self, name: str, value: Tensor) -> None:
        """Append the value of a quantity for the next layer, with one number for each random network."""
        self.per_layer.setdefault(name, []).append(value)

    def layer_later(self, name: str, function: Callable[..., Tensor], *values: Tensor) -> None:
        """Append the value of a quantity for the next layer as a function, to be evaluated for all layers at once.

        `settle` evaluates it.

        Args:
            name: the quantity's name.
            function: function of tensors of shape (draws, layers, ...), the same for every layer.
            values: the function's arguments for this layer, (draws, ...).
        """
        self._later.setdefault(name, (function, []))[1].append(values)

    def settle(self) -> None:
        """Evaluate all postponed quantities for all layers at once, and store their values.

        They are the functions of `layer_later`, and their values are placed before known ones.
        """
        for name, (function, layers) in self._later.items():
            columns = [torch.stack(column, 1) for column in zip(*layers, strict=True)]
            self.per_layer[name] = [*function(*columns).unbind(1), *self.per_layer.get(name, [])]
        self._later.clear()

    def hidden(self, width: int, norms: Float[Tensor, "draws tokens"], largest: Tensor, least: Tensor) -> None:
        """Record the mean square and the largest square of the next layer's hidden units.

        Given are their norms ‖h_i‖, and the largest and the least one of every random network.
        """
        self.hidden_norm = norms
        self.layer_later("ffn_hidden_energy", lambda norms: norms.square().mean(2) / width, norms)
        self.layer_later("ffn_hidden_max_sq", lambda most, least: torch.maximum(most, -least).square(), largest, least)

    def network(self, name: str, value: Tensor) -> None:
        """Set the value of a quantity for the whole network, with one number for each random network."""
        self.per_network[name] = value

    def gradients(self, stack: Stack, norms: GradientNorms, prefix: str = "") -> None:
        """Append the squared gradient norms of every weight matrix of every layer.

        They are ‖∂L/∂W‖_F².

        The engine's role names have a prefix. For experts, the value is the sum over a layer's experts. Quantities that
        dense layers below the experts do not have are NaN there.
        """
        for role in weight_shapes(stack):
            values, experts = norms.of(prefix + role), copies(stack, role)
            if experts > 1:
                dense = values[:, : stack.dense_layers]
                values = torch.cat([dense, values[:, stack.dense_layers :].unflatten(1, (-1, experts)).sum(2)], 1)
            for value in values.unbind(1):
                self.layer(f"grad_sq_{role}", value)
        if stack.dense_layers:
            for name, of_layers in self.per_layer.items():
                missing = [torch.full_like(of_layers[0], torch.nan)] * (stack.depth - len(of_layers))
                self.per_layer[name] = missing + of_layers


def record_last_norm(
    stack: Stack, record: Record, total: Stream, output_gradient: Stream, last_gradient: Stream, *, positions: int
) -> None:
    """Record the quantities that Theorem 1's proof bounds, at the last LayerNorm and at the loss.

    The input of the LayerNorm is `total`.
    """
    width = stack.width
    # The first of fewer coordinates than d is the one along the mean.
    rest = total[..., 1:] if total.shape[2] < width else total - total.mean(-1, keepdim=True)
    scale, centred = total.norm(dim=-1), rest.norm(dim=-1)
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
    hidden_sq = record.hidden_norm.square()
    record.network("chain_positions_sq", (hidden_sq * pulled_sq).sum(1) / positions)
    record.network("chain_jacobian_sq", (hidden_sq * jacobian_sq * loss_sq).sum(1) / positions)


def norm(x: Stream) -> Float[Tensor, " draws"]:
    """Return the Euclidean norm over all tokens of each random network, in one pass over memory.

    It is ‖x‖, (draws,).
    """
    return torch.linalg.vector_norm(x.detach(), dim=(1, 2))


def norm_of_sums(x: Stream, sequences: int) -> Float[Tensor, " draws"]:
    """Return the Euclidean norm of the sums of tokens over each sequence, for each random network.

    It is over all sequences, (draws,).
    """
    return norm(x.detach().view(len(x), sequences, -1, x.shape[2]).sum(2))


def record_energies(stack: Stack, record: Record, norms: list[Tensor], sums: list[Tensor]) -> None:
    """Record the mean squared activations and the correlations of tokens, for all layers at once.

    A mean squared activation is ‖x‖²/d, averaged over tokens.

    Args:
        stack: the network.
        record: the record to which they are added.
        norms: norms of every residual sum, (draws,) each.
        sums: norms of the sums over tokens of the last residual sum of every layer, (draws,) each.
    """
    size = stack.rows * stack.width
    energies, of_sums = torch.stack(norms, 1).square() / size, torch.stack(sums, 1).square() / size
    for step, energy in zip(plan(stack), energies.unbind(1), strict=True):
        record.layer(step.energy, energy)
    # The last residual sum of a layer is its hidden state, and every layer has as many.
    each = len(norms) // len(sums)
    hidden = energies[:, each - 1 :: each]
    record.per_layer["hidden_energy"] = [*hidden.unbind(1)]
    # x_i·x_j/d averaged over pairs of tokens of one sequence; there is none of one token.
    pairs = (of_sums - hidden) / (stack.tokens - 1) if stack.tokens > 1 else torch.full_like(hidden, torch.nan)
    record.per_layer["token_correlation"] = [*pairs.unbind(1)]


def on_host(values: dict[str, Tensor]) -> dict[str, NDArray]:
    """Convert tensors with one row for each random network to NumPy arrays; copy GPU tensors together."""
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
