"""Measure the scalars in a forward pass: multipliers of modules' outputs, and the factor of q·k in attention."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from simulate.modules.operations import contracted

_TIMES = ("mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__")
_OVER = ("div", "__truediv__", "true_divide", "divide", "div_", "__itruediv__")
_PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum")
# Shapes change, and numbers do not; "__get__" is that of .T and .mT.
_SHAPED = ("view", "reshape", "transpose", "permute", "unflatten", "flatten", "movedim", "contiguous", "swapaxes",
           "unsqueeze", "squeeze", "expand", "__get__", "to", "float", "type_as")  # fmt: skip
# Logits below this are masked.
_MASKED = -1e4
# How far logits may be from a multiple of q·k, over the largest, to be one.
_ROUNDING = 1e-3

Factor = tuple[Tensor, float, tuple[Hashable, ...]]
Place = Any
"""Any object that identifies where an operation runs."""


def unwatched() -> AbstractContextManager[Any]:
    """Return a context manager that hides operations outside of the watched module from a `ScalarWatcher`."""
    return torch._C.DisableTorchFunction()


class ScalarWatcher(TorchFunctionMode):
    """A watcher of a forward pass that records every multiplication of a tensor by a scalar.

    `place` names the running module.

    Attributes:
        place: the place of the running module; None if logits are not examined.
        multipliers: the product of all scalars that directly follow a marked output, by its key.
        logits: place, scale and size: softmax's input is scale times q·k, a sum of size products, plus a mask or a term
            that is equal in all samples, such as ALiBi's bias.
        unseen: places of logits with the shape of a matrix product that are not a multiple of one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place: Place = None
        self.multipliers: dict[Hashable, float] = {}
        self.logits: list[tuple[Place, float, int]] = []
        self.unseen: list[Place] = []
        # Tensors are kept, or their ids would be used again.
        self._factors: dict[int, Factor] = {}
        self._marked: dict[int, tuple[Tensor, tuple[Hashable, ...]]] = {}
        self._products: dict[tuple[int, ...], tuple[Callable[..., Tensor], tuple[Any, ...]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a torch function and examine its inputs and its output."""
        kwargs = kwargs or {}
        # What is computed in place of its input is looked at before.
        first = args[0] if args else kwargs.get("input")
        output = func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            size = int(args[3]) // int(args[4])
            self._put(size**-0.5, size)
        elif isinstance(output, Tensor):
            self._look(getattr(func, "__name__", ""), func, first, args, kwargs, output)
        return output

    def mark(self, key: Hashable, output: Tensor) -> None:
        """Mark a module's output with a key, so that multiplications of this output by scalars are recorded.

        Several modules may share one output.
        """
        self._marked[id(output)] = (output, (*self._marked.get(id(output), (output, ()))[1], key))

    def factor_of(self, tensor: Tensor) -> tuple[float, tuple[Hashable, ...]]:
        """Return the factor by which a tensor was multiplied, and the keys of the outputs that it comes from."""
        _, factor, keys = self._factors.get(id(tensor), (tensor, 1.0, ()))
        return factor, keys

    def release(self, keys: Iterable[Hashable]) -> None:
        """Drop the recorded multipliers of some outputs, which belong to the module that receives the outputs."""
        for key in keys:
            self.multipliers.pop(key, None)

    def _put(self, scale: float, size: int) -> None:
        if self.place is not None:
            self.logits.append((self.place, scale, size))

    def _look(
        self, name: str, func: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any],
        output: Tensor,
    ) -> None:  # fmt: skip
        if name in _TIMES or name in _OVER:
            self._scaled(args, output, over=name in _OVER)
        elif name in _SHAPED and isinstance(first, Tensor) and id(first) in self._factors:
            _, factor, keys = self._factors[id(first)]
            self._factors[id(output)] = (output, factor, keys)
        elif name in _PRODUCTS and output.ndim >= 3:
            self._products[tuple(output.shape)] = (func, args)
        elif name == "softmax" and isinstance(first, Tensor):
            self._softmax(first.detach())
        elif name == "scaled_dot_product_attention":
            query, key = args[:2] if len(args) > 1 else (kwargs["query"], kwargs["key"])
            scale = kwargs.get("scale")
            self._attended((query, key), query.shape[-1] ** -0.5 if scale is None else float(scale), query.shape[-1])

    def _scaled(self, args: tuple[Any, ...], output: Tensor, *, over: bool) -> None:
        if len(args) < 2:
            return
        pair = [args[:2]] if over else [args[:2], args[1::-1]]
        for tensor, scalar in pair:
            if not isinstance(tensor, Tensor) or not _is_scalar(scalar) or _is_scalar(tensor):
                continue
            value = float(scalar.detach() if isinstance(scalar, Tensor) else scalar)
            if over and value == 0:
                return
            factor, keys = self.factor_of(tensor)
            keys = keys or self._marked.get(id(tensor), (tensor, ()))[1]
            factor *= 1 / value if over else value
            self._factors[id(output)] = (output, factor, keys)
            self.multipliers |= dict.fromkeys(keys, factor)
            return

    def _softmax(self, logits: Tensor) -> None:
        kept = self._products.get(tuple(logits.shape))
        if kept is None or self.place is None:
            return
        func, args = kept
        operands = [value for value in args if isinstance(value, Tensor)]
        if len(operands) != 2:
            operands = list(args[1]) if len(args) == 2 and isinstance(args[1], tuple | list) else operands
        size = _contracted_size(args, operands)
        with torch.no_grad():
            product, logits = func(*args).detach().float(), logits.float()
            visible = (logits > _MASKED) & torch.isfinite(logits)
            scale = _multiple(product, logits, visible) if size is not None else None
            if scale is None and len(logits) > 1:
                # What is added to all samples alike is not in their differences.
                scale = _multiple(product[1:] - product[:1], logits[1:] - logits[:1], visible[1:] & visible[:1])
            if scale is None or size is None:
                self.unseen.append(self.place)
            else:
                self._attended(operands, scale, size)

    def _attended(self, operands: Iterable[Tensor], scale: float, size: int) -> None:
        """Keep the factor of q·k; not for vectors of length 1, whose factor is a temperature and no 1/sqrt(d_k)."""
        cosines = True
        for operand in operands:
            factor, keys = self.factor_of(operand)
            scale *= factor
            self.release(keys)
            cosines = cosines and _has_length(operand.detach(), size, factor)
        if not cosines:
            self._put(scale, size)


def _multiple(product: Tensor, logits: Tensor, visible: Tensor) -> float | None:
    """Return the factor between product and logits, or None if the logits are not a multiple of the product."""
    product, logits = product[visible], logits[visible]
    square = product.square().sum()
    if not logits.numel() or not float(square) > 0:
        return None
    scale = (logits * product).sum() / square
    return float(scale) if (logits - scale * product).abs().max() <= _ROUNDING * logits.abs().max() else None


def _has_length(x: Tensor, size: int, length: float) -> bool:
    """Return whether all vectors of a size in a tensor, along one of the last two axes, have a length."""
    lengths = [x.norm(dim=axis) / length for axis in (-1, -2) if x.shape[axis] == size]
    return any(bool(((of - 1).abs() < _ROUNDING).all()) for of in lengths)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.ndim <= 1
    return isinstance(value, int | float) and not isinstance(value, bool)


def _contracted_size(args: tuple[Any, ...], operands: list[Tensor]) -> int | None:
    axis = contracted(args[0], 0) if isinstance(args[0], str) else -1
    return int(operands[0].shape[axis]) if axis is not None and len(operands) == 2 else None
