"""A model with a loss and data for second derivatives, and a Stack in this form.

Losses are sums over labels divided by the number of all labels, so that they do not depend on how data are cut into
pieces.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simulate.network.engines import EncoderEngine, GivenMatrices
from simulate.network.random_streams import RandomStreams
from simulate.network.record import Record
from simulate.network.transformer import layers, transformed
from simulate.runs.cell import Cell
from simulate.runs.inputs import network_inputs, source_inputs
from theory.coverage import is_tied, require
from theory.stack import Stack
from theory.stack.initializations import NORMAL, Law
from theory.stack.weights import gain, law, transform_gain, weight_shapes


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A model, its loss, and pieces of data.

    Attributes:
        model: from the inputs of a piece, a dict, to predictions of its labels.
        loss: from predictions and labels to a sum, over all data divided by the number of labels.
        data: pieces of inputs and labels.
    """

    model: nn.Module
    loss: nn.Module
    data: Sequence[tuple[dict[str, Any], Tensor]]

    def parameters(self, patterns: Sequence[str] = ("*",)) -> list[nn.Parameter]:
        """Return the parameters whose names match at least one glob, in the order of the model.

        Raises:
            ValueError: none does.
        """
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        parameters = [p for name, p in named if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
        if not parameters:
            known = ", ".join(name for name, _ in named)
            raise ValueError(f"patterns must match a parameter of {known[:200]}, got {', '.join(patterns)}.")
        return parameters


class TokenLoss(nn.Module):
    """Cross-entropy summed over labels, divided by the number of labels of all pieces."""

    reduction = "sum"  # what curvlinops divides by the number of data where it is not

    def __init__(self, labels: int, smoothing: float) -> None:
        super().__init__()
        self.labels, self.smoothing = labels, smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits of shape (labels, V)."""
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing) / self.labels


@contextmanager
def plain_operations() -> Iterator[None]:
    """Compute attention and LayerNorm with plain operations within this context, so that second derivatives are right.

    Fused attention has no second derivative. Fused LayerNorm has a wrong one: the forward-mode derivative of its
    backward pass, which products with a Hessian need, is wrong for its weight (torch 2.13; the test suite shows it).
    """
    fused = F.layer_norm
    F.layer_norm = _layer_norm  # type: ignore[assignment]
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        F.layer_norm = fused


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    over = tuple(range(-len(shape), 0))
    centred = x - x.mean(over, keepdim=True)
    normed = centred * (centred.square().mean(over, keepdim=True) + eps).rsqrt()
    scaled = normed if weight is None else normed * weight
    return scaled if bias is None else scaled + bias


class StackModule(nn.Module):
    """A random network of a Stack as a torch module, whose parameters are its matrices named ROLE_LAYER.

    Args:
        stack: without dropout.
        seed: of the matrices.
        dtype: of everything.
        subject: what it is for, of `theory.coverage.SUBJECTS`: for a first step embeddings may be tied, something may
            stand before the output matrix, and a share of the positions count, which are chosen with the inputs.

    Raises:
        NoRuleError: the stack has something that has no such thing.
    """

    Wemb: Tensor

    def __init__(self, stack: Stack, seed: int, dtype: torch.dtype, subject: str = "hessian") -> None:
        super().__init__()
        require(stack, subject)
        self.stack, self._streams = stack, RandomStreams([seed], 1)
        self.names: dict[str, list[str]] = {}
        self.read = nn.Identity()  # what it is given is the output, for hooks
        for prefix, part in (("encoder_", stack.encoder), ("", stack)):
            if part is not None:
                for layer in range(1, part.depth + 1):
                    for role, (d_in, d_out) in weight_shapes(part).items():
                        std = (gain(part.of_layer(layer), role) / d_in) ** 0.5
                        self._add(prefix + role, f"_{layer}", (d_in, d_out), std, dtype, law=law(part))
        self._add("Wemb", "", (stack.width, stack.vocab), stack.output_scale * stack.width**-0.5, dtype)
        if stack.output_transform == "added":
            std = (transform_gain(stack) / stack.width) ** 0.5
            self._add("WH", "", (stack.width, stack.width), std, dtype, law=law(stack))

    def _add(
        self, role: str, end: str, shape: tuple[int, int], std: float, dtype: torch.dtype, *, law: Law = NORMAL
    ) -> None:
        entries = self._streams.entries(*shape, std=1.0, law=law, dtype=dtype)[0]
        self.register_parameter(role + end, nn.Parameter(entries * std))
        self.names.setdefault(role, []).append(role + end)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of the positions that count in the loss, (positions, V)."""
        logits: Tensor = self.read(self.output(inputs)) @ self.Wemb
        return logits

    def output(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the input of the output matrix for every draw of the inputs, (draws * positions, d)."""
        matrices = {role: [getattr(self, name) for name in names] for role, names in self.names.items()}
        engine = GivenMatrices(self._streams, matrices)
        memory = None
        if self.stack.encoder is not None:
            memory, _ = layers(self.stack.encoder, EncoderEngine(engine), Record(), inputs["source"])
        x = inputs["x"]
        if is_tied(self.stack):  # to which the words' rows are yet to be added
            scale = self.stack.embedding_scale * self.stack.width**0.5 / self.stack.output_scale
            x = x + scale * self.Wemb[:, inputs["words"]].T
        output, _ = layers(self.stack, engine, Record(), x, memory)
        rows = transformed(self.stack, engine, output[:, self.stack.counted]).flatten(0, 1)
        return rows[inputs["places"]] if "places" in inputs else rows


def _seed_of_inputs(seed: int) -> int:
    """Below 2^32 and far from the seeds of matrices: of a larger one, the CPU's generator keeps the last 32 bits."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])


def stack_problem(
    stack: Stack, *, seed: int, dtype: torch.dtype = torch.float64, device: str = "cpu", subject: str = "hessian"
) -> Problem:
    """Return one random network of a Stack with inputs and labels as `simulate.sample` draws them, equal on any device.

    The words of tied embeddings are the first columns of the output matrix.

    Raises:
        ValueError: as `StackModule`.
    """
    model = StackModule(stack, seed, dtype, subject)
    given = GivenMatrices(RandomStreams([_seed_of_inputs(seed)], 1), {"W": [next(model.parameters())]})
    cell = Cell(stack, "dense", dtype="float64" if dtype == torch.float64 else "float32")
    x, labels, words = network_inputs(cell, given)
    if words is not None:
        x = x - words.rows.detach() * (stack.embedding_scale * stack.width**0.5 / stack.output_scale)
    inputs = {"x": x.to(device)} | ({} if words is None else {"words": words.ids[0].to(device)})
    if (source := source_inputs(stack, given)) is not None:
        inputs["source"] = source.to(device)
    counted = labels[0, stack.counted]
    if stack.loss_share < 1.0:
        order = np.random.default_rng([seed, 1]).permutation(len(counted))
        inputs["places"] = torch.as_tensor(np.sort(order[: max(1, round(stack.loss_share * len(counted)))])).to(device)
        counted = counted[inputs["places"].cpu()]
    return Problem(model.to(device), TokenLoss(len(counted), stack.label_smoothing), [(inputs, counted.to(device))])
