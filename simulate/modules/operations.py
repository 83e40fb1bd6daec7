"""Record statistics of attention and activations in any module, when the module calls torch's own functions.

Attention weights are outputs of `softmax` that a matrix product then multiplies by values, or the weights that
`scaled_dot_product_attention` computes from its arguments. Code that computes attention in another way is not seen.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Place = tuple[str, int]

_PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum")
# What attention weights pass through on the way to the values.
_SAME = ("to", "type_as", "float", "half", "bfloat16", "type", "contiguous", "view", "reshape")
_CHANGED = ("mul", "__mul__", "masked_fill", "masked_fill_")
# The input at which an activation's derivative is as good as 0: below it, or beyond it to both sides.
_DEAD = {"relu": 0.0, "relu_": 0.0, "gelu": -4.0, "silu": -10.0}
_SATURATED = {"tanh": 4.0, "sigmoid": 8.0}
# A mask may add as little as -100. The weight of a logit this far below the largest is not a normal number.
_MASKED = math.log(torch.finfo(torch.float32).tiny)
_HIDDEN = -1e4
_FEWEST_TOKENS = 8


class OperationWatcher(TorchFunctionMode):
    """A context manager that records attention weights and activations while a module runs.

    `place` names the running layer.

    Attributes:
        place: list and number of the running layer; ("", 0) outside of layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place: Place = ("", 0)
        self._weights: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._seen: dict[tuple[Place, str], list[float]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a torch function and examine its inputs and its output."""
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            # Inside of it this mode is off.
            with self._inside():
                return func(*args, **kwargs)
        output = func(*args, **kwargs)
        self._look(getattr(func, "__name__", ""), args, kwargs, output)
        return output

    @contextmanager
    def _inside(self) -> Iterator[None]:
        def watched(owner: Any, name: str) -> Callable[..., Any]:
            plain = getattr(owner, name)

            def run(*args: Any, **kwargs: Any) -> Any:
                output = plain(*args, **kwargs)
                self._look(name, args, kwargs, output)
                return output

            return run

        names = ("softmax", "scaled_dot_product_attention", "dropout")
        with ExitStack() as stack:
            for owner, name in (*((functional, name) for name in names), (torch, "bmm")):
                stack.enter_context(patch.object(owner, name, watched(owner, name)))
            yield

    def rows(self) -> list[tuple[str, int, str, float]]:
        """Return statistics of attention and hidden units in each layer, as rows of a table.

        The columns are list, layer, quantity and value.

        If a layer has several calls, the most extreme one counts, because one of several may be broken. Quantities are
        logit_std (standard deviation of unmasked logits), attention_entropy (divided by the logarithm of the number of
        keys: 1 for uniform weights), attention_peak (a query's largest weight, averaged over queries), key_sum_low and
        key_sum_high (smallest and largest sum of a query's weights over its keys), dead_units and saturated_units
        (shares).
        """
        least = ("key_sum_low", "attention_entropy")
        return [(*place, name, (min if name in least else max)(values)) for (place, name), values in self._seen.items()]

    def _put(self, name: str, value: Tensor) -> None:
        self._seen.setdefault((self.place, name), []).append(float(value))

    def _look(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        first = args[0] if args else kwargs.get("input")
        if not isinstance(output, Tensor) or self.place == ("", 0):
            return
        if name in _PRODUCTS:
            self._multiplied(name, args)
        elif not isinstance(first, Tensor):
            return
        elif name == "scaled_dot_product_attention":
            with torch.no_grad():
                self._attention(*_weights_of(*args, **kwargs))
        elif name == "softmax" and output.ndim >= 3:
            self._weights[id(output)] = (output, first.detach(), output.detach())
        elif (known := self._weights.get(id(first))) is not None and first is known[0]:
            self._passed(name, output, known)
        elif output.ndim >= 2 and name in {**_DEAD, **_SATURATED}:
            # Units of an image have two axes of equal length after them.
            is_image = output.ndim == 4 and output.shape[-1] == output.shape[-2]
            units = first.detach().movedim(1, -1) if is_image else first.detach()
            if units.numel() >= _FEWEST_TOKENS * units.shape[-1]:
                self._activation(name, units)

    def _passed(self, name: str, output: Tensor, known: tuple[Tensor, Tensor, Tensor]) -> None:
        _, logits, weights = known
        alike = output.shape[-2:] == known[0].shape[-2:]
        if "dropout" in name and alike:
            # What is dropped is no fault of a sum.
            self._weights[id(output)] = (output, logits, weights)
        elif name in (*_SAME, *_CHANGED) and alike:
            self._weights[id(output)] = (output, logits.reshape(output.shape), output.detach())

    def _multiplied(self, name: str, args: tuple[Any, ...]) -> None:
        operands = [value for value in args if isinstance(value, Tensor)]
        if name == "einsum" and len(args) == 2 and isinstance(args[1], tuple | list):
            operands = list(args[1])
        for place, operand in enumerate(operands):
            known = self._weights.get(id(operand))
            if known is None or operand is not known[0]:
                continue
            axis: int | None = -1
            if name == "einsum":
                axis = contracted(str(args[0]), place)
            elif place:
                axis = -2
            # A learned matrix along another axis than the softmax's mixes heads: its other factor holds no values.
            if axis is not None and not (
                axis % operand.ndim != operand.ndim - 1
                and any(isinstance(factor, torch.nn.Parameter) for factor in operands)
            ):
                _, logits, weights = known
                with torch.no_grad():
                    self._attention(logits.movedim(axis, -1), weights.movedim(axis, -1))

    def _attention(self, logits: Tensor, weights: Tensor) -> None:
        """Record statistics of attention logits and weights, with keys in the last axis; blind queries are left out."""
        logits, weights = logits.float(), weights.float()
        visible = _visible(logits)
        keys = visible.sum(-1)
        # Weights with a sign are another attention than softmax's.
        if not bool(visible.any()) or bool((weights < 0).any()):
            return
        self._put("logit_std", logits[visible].std(correction=0))
        sums = weights.sum(-1)[keys > 0]
        self._put("key_sum_low", sums.min())
        self._put("key_sum_high", sums.max())
        entropies = torch.special.entr(weights).sum(-1)
        if bool((keys > 1).any()):
            self._put("attention_entropy", (entropies[keys > 1] / keys[keys > 1].float().log()).mean())
            self._put("attention_peak", weights.amax(-1)[keys > 1].mean())

    def _activation(self, name: str, x: Tensor) -> None:
        if name in _DEAD:
            limit = _DEAD[name]
            # In place, what was negative is 0.
            self._put("dead_units", (x.flatten(0, -2).amax(0) <= limit).float().mean())
        elif name in _SATURATED:
            # A gate of weight 0 has its bias at every token: that is where it is meant to begin.
            varies = (x != x.flatten(0, -2)[:1]).flatten(0, -2).any(0)
            self._put("saturated_units", ((x.abs() > _SATURATED[name]) & varies).float().mean())


def _visible(logits: Tensor) -> Tensor:
    """Return which keys are visible: masked logits are farther from the others than these are from one another."""
    visible = logits > _HIDDEN
    top = logits.amax(-1)
    near = visible & (logits > top[..., None] + _MASKED)
    far = visible & ~near
    least = logits.masked_fill(~near, torch.inf).amin(-1)
    gaps, spreads = least - logits.masked_fill(~far, -torch.inf).amax(-1), (top - least)[near.any(-1)]
    return near if far.any() and near.any() and gaps.min() > spreads.max() else visible


def _weights_of(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return logits (masked ones are -inf) and weights of torch's `scaled_dot_product_attention`.

    Source: https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    """
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = query.float() @ key.float().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
    return logits, logits.softmax(-1).nan_to_num(0.0)


def contracted(equation: str, place: int) -> int | None:
    """Return the axis of an einsum operand that the product sums over, from the end; None if it is not one axis."""
    terms, _, result = equation.replace(" ", "").partition("->")
    letters = terms.split(",")[place].replace("...", "")
    summed = [k - len(letters) for k, letter in enumerate(letters) if letter not in result]
    return summed[0] if len(summed) == 1 else None
