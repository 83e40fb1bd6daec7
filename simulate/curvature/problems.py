"""A model, its loss and its data, whose second derivatives are computed; a random network in this form.

Losses are sums over labels divided by the number of all labels, so they do not depend on how data are split.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

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
from theory.stack.weights import copies, gain, law, transform_gain, weight_shapes


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A model, a loss function and data; the total loss is the sum over all pieces of data.

    Attributes:
        model: module that maps the inputs of a piece, a dict, to predictions of its labels.
        loss: module that maps predictions and labels of a piece to their summed loss, divided by the number of all
            labels.
        data: the pieces of data, as pairs of inputs and labels.
    """

    model: nn.Module
    loss: nn.Module
    data: Sequence[tuple[dict[str, Any], Tensor]]

    def parameters(self, patterns: Sequence[str] = ("*",)) -> list[nn.Parameter]:
        """Return the trainable parameters whose names match at least one glob pattern, in the model's order.

        Raises:
            ValueError: no parameter matches.
        """
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        parameters = [p for name, p in named if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
        if not parameters:
            known = ", ".join(name for name, _ in named)
            raise ValueError(f"patterns must match a parameter of {known[:200]}, got {', '.join(patterns)}.")
        return parameters


class TokenLoss(nn.Module):
    """A cross-entropy that is summed over labels and divided by the number of labels in all pieces of data."""

    reduction = "sum"  # what curvlinops divides by the number of data where it is not

    def __init__(self, labels: int, smoothing: float) -> None:
        super().__init__()
        self.labels, self.smoothing = labels, smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of logits, summed over labels and divided by the number of all labels.

        The logits' shape is (labels, V).
        """
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing) / self.labels


@contextmanager
def plain_operations() -> Iterator[None]:
    """Run attention and LayerNorm as plain operations in a `with` block, so that second derivatives are right.

    Fused attention has no second derivative. Fused LayerNorm has a wrong one: the forward-mode derivative of its
    backward pass, which Hessian products require, is wrong for its weight (torch 2.13; the suite shows it).
    """
    plain = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with patch.object(F, "layer_norm", _layer_norm), plain:
        yield


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Compute `torch.nn.functional.layer_norm` from plain operations."""
    over = tuple(range(-len(shape), 0))
    centred = x - x.mean(over, keepdim=True)
    normed = centred * (centred.square().mean(over, keepdim=True) + eps).rsqrt()
    scaled = normed if weight is None else normed * weight
    return scaled if bias is None else scaled + bias


class StackModule(nn.Module):
    """A sampled random network as a PyTorch module, with its matrices as named parameters.

    The network is described by a Stack, and the parameters are named ROLE_LAYER.

    Args:
        stack: the network, without dropout.
        seed: random seed of the matrices.
        dtype: data type of all tensors.
        subject: the use, one of `theory.coverage.SUBJECTS`. For a first step, embeddings may be tied, the output matrix
            may follow a transformation, and only a share of the positions may count for the loss.

    Raises:
        NoRuleError: the Stack has a field that this use does not support.
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
                    for role, shape in weight_shapes(part.of_layer(layer)).items():
                        std = (gain(part.of_layer(layer), role) / shape[0]) ** 0.5
                        for expert in range(copies(part.of_layer(layer), role)):
                            end = f"_{layer}" + f"_{expert + 1}" * (expert > 0)
                            self._add(prefix + role, end, shape, std, dtype, law=law(part))
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
        """Return the logits at the positions that count in the loss.

        Their shape is (positions, V).
        """
        return self.read(self.output(inputs)) @ self.Wemb

    def output(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the tokens that the output matrix multiplies, for all sampled inputs.

        The shape is (draws * positions, d).
        """
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


def stack_problem(
    stack: Stack, *, seed: int, dtype: torch.dtype = torch.float64, device: str = "cpu", subject: str = "hessian"
) -> Problem:
    """Sample one network with inputs and labels, in the form that second derivatives need (`Problem`).

    Inputs and labels are sampled as in `simulate.sample`.

    The network is the same on any device. With tied embeddings, the inputs' token ids are the first columns of the
    output matrix.

    Raises:
        ValueError: the Stack has a field that `StackModule` does not support.
    """
    model = StackModule(stack, seed, dtype, subject)
    seed_of_inputs = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])  # far from the seeds of matrices
    given = GivenMatrices(RandomStreams([seed_of_inputs], 1), {"W": [next(model.parameters())]})
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
