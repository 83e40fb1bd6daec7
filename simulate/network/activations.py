"""Activation functions of torch tensors, built-in and registered by users."""

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor

from theory.stack.activations import ACTIVATIONS as NAMES, CHECKED_AT, LEAK, RegisteredActivation

TorchFunction = Callable[[Tensor], Tensor]

# In float64; a form by the error function and one by its series differ in the last digits.
_CLOSE = 1e-9

ACTIVATIONS: dict[str, TorchFunction] = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "relu_squared": lambda x: torch.relu_(x) * x,
    "identity": lambda x: x,
}
"""Functions of tensors by the value of `Stack.activation`, with torch's defaults; they may work in place."""


def activation_of(name: str, leak: float = LEAK) -> TorchFunction:
    """Return a built-in or a registered activation as a function of torch tensors.

    Args:
        name: a value of `Stack.activation`.
        leak: the slope of leaky ReLU left of 0.

    Raises:
        ValueError: the activation is registered without a function of tensors, or with a different function.
    """
    activation = NAMES[name]
    if name == "leaky_relu":
        return partial(F.leaky_relu, negative_slope=leak)
    return ACTIVATIONS[name] if activation is None else _registered(name, activation)


@cache
def _registered(name: str, activation: RegisteredActivation) -> TorchFunction:
    """Return a registered activation's function of tensors, after comparing values and slopes with theory's function.

    Raises:
        ValueError: there is no function of tensors, or its values or slopes differ from theory's.
    """
    if activation.torch is None:
        raise ValueError(
            f"activation {name!r} must be registered with a function of tensors to be sampled: "
            "register_activation(..., torch=...)."
        )
    function = _imported(name, activation.torch) if isinstance(activation.torch, str) else activation.torch
    try:
        with torch.enable_grad():
            points = torch.tensor(CHECKED_AT, requires_grad=True)
            values = function(points * 1)  # which it may change in place
            (slopes,) = torch.autograd.grad(values.sum(), points)
    except Exception as error:
        raise ValueError(
            f"torch of activation {name!r} must be a function of tensors that autograd differentiates, but raises "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    for what, actual, expected in (("value", values, activation.function), ("slope", slopes, activation.derivative)):
        theirs = torch.as_tensor(expected(CHECKED_AT))
        if actual.shape != theirs.shape or not torch.allclose(actual.detach(), theirs, rtol=_CLOSE, atol=_CLOSE):
            raise ValueError(
                f"torch of activation {name!r} must be its function, but its {what}s at {CHECKED_AT.ravel().tolist()} "
                "are others."
            )
    return function


def _imported(name: str, path: str) -> TorchFunction:
    """Import an activation's function of tensors from a dotted path.

    Raises:
        ValueError: the path cannot be imported.
    """
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"torch of activation {name!r} must be importable, got {path!r}: {error}.") from error
