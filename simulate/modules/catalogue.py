"""Modules of `torch.nn` that users can probe by name, and import of users' own functions.

Named modules have the loss of the paper's setting: Gaussian inputs, an output matrix of N(0, 1/d) entries, and
cross-entropy with independent uniform labels.
"""

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from simulate.modules.factories import Batch, Factory, ProbeError, module_seed, name_of, seeded, stage, what_happened
from simulate.modules.one_module import batch_and_loss
from simulate.runs.cell import check_device
from theory.stack import Stack
from theory.stack.registry import nearest

_TOKENS, _VOCAB, _HEAD = 16, 512, 64


@dataclass(frozen=True, slots=True)
class Builtin:
    """A module that users can probe by name, with the network description that predicts its gradients.

    Attributes:
        factory: the function of a width and a depth that makes the module.
        stack: the network of the same width and depth that large-width theory predicts, or None.
        roles: the matrices in that network of a layer's parameters, by parameter name, if names differ from those of
            `torch.nn`.
    """

    factory: Factory
    stack: Callable[[int, int], Stack] | None = None
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _heads(width: int) -> int:
    return max(1, width // _HEAD)


class _Headed(nn.Module):
    """A module of `torch.nn` followed by an output matrix with N(0, 1/d) entries."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, _VOCAB, bias=False)
        nn.init.normal_(self.head.weight, std=width**-0.5)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits, (batch, positions, classes)."""
        return self.head(self.body(*inputs))


def _cross_entropy(labels: Tensor) -> Callable[[Any], Tensor]:
    def loss(output: Any) -> Tensor:
        logits = output if isinstance(output, Tensor) else output.logits
        return nn.functional.cross_entropy(logits.flatten(0, -2), labels.to(logits.device).flatten())

    return loss


def _labels() -> Tensor:
    return torch.randint(_VOCAB, (1, _TOKENS))


def _encoder(width: int, depth: int, *, pre: bool) -> tuple[nn.Module, Batch]:
    def layer() -> nn.TransformerEncoderLayer:
        return nn.TransformerEncoderLayer(
            width, _heads(width), 4 * width, dropout=0.0, batch_first=True, norm_first=pre
        )  # fmt: skip

    body = nn.TransformerEncoder(layer(), depth, norm=nn.LayerNorm(width) if pre else None, enable_nested_tensor=False)
    # The encoder's layers are copies of one: each is drawn anew.
    body.layers = nn.ModuleList(layer() for _ in range(depth))

    def batch(_: int) -> tuple[Tensor, Callable[[Any], Tensor]]:
        return torch.randn(1, _TOKENS, width), _cross_entropy(_labels())

    return _Headed(body, width), batch


def _encoder_decoder(width: int, depth: int, *, pre: bool) -> tuple[nn.Module, Batch]:
    sizes = (width, _heads(width), depth, depth, 4 * width, 0.0)
    # It draws its matrices anew after the layers were copied; and it ends with a norm, also after Post-LN layers.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor")
        body = nn.Transformer(*sizes, batch_first=True, norm_first=pre)

    def batch(_: int) -> tuple[tuple[Tensor, Tensor], Callable[[Any], Tensor]]:
        return (torch.randn(1, _TOKENS, width), torch.randn(1, _TOKENS, width)), _cross_entropy(_labels())

    return _Headed(body, width), batch


def _stack(placement: str) -> Callable[[int, int], Stack]:
    def stack(width: int, depth: int) -> Stack:
        # The matrix of queries, keys and values is drawn as one of shape (3d, d): entries of variance 1/(2d).
        return Stack(
            placement=placement, width=width, depth=depth, tokens=_TOKENS, vocab=_VOCAB, ffn_ratio=4.0,
            heads=_heads(width), query_key_scale=0.5**0.5, output_projection="random", initialization="pytorch",
            norm_epsilon=1e-5,
        )  # fmt: skip

    return stack


BUILTINS: dict[str, Builtin] = {
    "encoder-post": Builtin(partial(_encoder, pre=False), _stack("post")),
    "encoder-pre": Builtin(partial(_encoder, pre=True), _stack("pre")),
    "transformer-post": Builtin(partial(_encoder_decoder, pre=False)),
    "transformer-pre": Builtin(partial(_encoder_decoder, pre=True)),
}
"""The built-in modules by the name that `gradbounds probe` takes."""


def known(factory: Any) -> Builtin:
    """Return the entry for a built-in module's name, or make an entry from a user's factory function.

    A user's factory may have the attributes `stack` and `roles`.

    A factory of a width alone gives the same module for every depth.

    Args:
        factory: a function of a width and a depth, or of a width alone, or its name.

    Raises:
        ValueError: the name is unknown.
    """
    if isinstance(factory, str) and factory in BUILTINS:
        return BUILTINS[factory]
    function: Any = load_factory(factory) if isinstance(factory, str) else factory
    maker: Any = function
    if takes_width_alone(function):
        maker = wraps(function)(lambda width, _: function(width))
    return Builtin(maker, getattr(function, "stack", None), getattr(function, "roles", {}))


def takes_width_alone(factory: Any) -> bool:
    """Return whether a factory function takes only a width, instead of a width and a depth."""
    return callable(factory) and _takes(factory, 1) and not _takes(factory, 2)


def _takes(function: Any, count: int) -> bool:
    """Return whether a function can be called with so many numbers; true if its signature is unknown."""
    try:
        inspect.signature(function).bind(*[1] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def makes_one(factory: Any) -> bool:
    """Return whether a factory function makes its module without a width or a depth as arguments.

    Args:
        factory: a function or its name.

    Raises:
        ValueError: the name is unknown.
    """
    if isinstance(factory, str):
        if factory in BUILTINS:
            return False
        factory = load_factory(factory)
    return not _takes(factory, 2) and (_takes(factory, 0) or not _takes(factory, 1))


def made_one(factory: Any, seed: int, device: str) -> tuple[nn.Module, Any, Any]:
    """Call a function without arguments, and return its module, batch and loss on a given device.

    Args:
        factory: a function without arguments, or its name.
        seed: random seed; torch's global generators are set from it, and restored.
        device: the module's device.

    Returns:
        Module, batch and loss; the loss is None if the module returns its own.

    Raises:
        ProbeError: the function fails, or returns something else.
    """
    check_device(device)
    name = name_of(factory)
    make: Any = load_factory(factory) if isinstance(factory, str) else factory
    with seeded(seed), stage(f"factory {name!r}"):
        parts = make()
    if not (isinstance(parts, tuple) and len(parts) in (2, 3) and isinstance(parts[0], nn.Module)):
        kinds = (
            f"({', '.join(type(part).__name__ for part in parts)})"
            if isinstance(parts, tuple)
            else type(parts).__name__
        )
        raise ProbeError(
            f"factory {name!r} must return (module, batch) or (module, batch, loss), or take a width and a depth, got "
            f"{kinds}."
        )
    with stage(f"module of {name!r} on {device!r}"):
        return parts[0].to(device), parts[1], parts[2] if len(parts) == 3 else None


def drawn_anew(factory: Any, seed: int, device: str) -> Factory:
    """Turn a function without arguments into a factory whose module has new random weights at each call.

    Args:
        factory: a function without arguments, or its name.
        seed: root seed of the weights.
        device: the modules' device.

    Returns:
        A function of a width and a depth, which are ignored.
    """
    numbers = count()

    def make(_: int, __: int) -> tuple[nn.Module, Batch]:
        module, inputs, loss = made_one(factory, module_seed(seed, 0, 0, next(numbers)), device)
        return module, lambda _: batch_and_loss(module, inputs, loss)

    return make


def load_factory(name: str, kind: str = "factory") -> Factory:
    """Import a user's function by its name, MODULE:FUNCTION or FILE.py:FUNCTION.

    The current folder is searched too.

    Args:
        name: the name to find.
        kind: the word for the function in errors: "factory" or "optimizer".

    Raises:
        ValueError: the function cannot be imported, or is not callable.
    """
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise ValueError(
            f"factory must be MODULE:FACTORY, FILE.py:FACTORY or one of {', '.join(BUILTINS)}, got {name!r}."
            f"{nearest(name, BUILTINS)}"
        )
    file = Path(module).resolve() if module.endswith(".py") else None
    if file and not file.exists():
        raise ValueError(f"{kind} must be importable, but there is no file {file.name} in {file.parent}.")
    for folder in (Path.cwd(), *([file.parent] if file else [])):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        # As pytest has it: a file is the module of its name in its folder.
        imported = importlib.import_module(file.stem if file else module)
        factory: Any = getattr(imported, attribute, None)
    except BaseException as error:  # a user's module may fail in any way, and end Python too
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ValueError(f"{kind} must be importable, but {name!r} {what_happened(error).rstrip('.')}.") from error
    if file and Path(getattr(imported, "__file__", None) or "").resolve() != file:
        raise ValueError(
            f"{kind} must be in a file whose name is free, but {file.stem!r} of {name!r} is another module."
        )
    if factory is None:
        known = [key for key, value in vars(imported).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{kind} must be importable, but {module} has no {attribute!r}.{nearest(attribute, known)}")
    if not callable(factory):
        takes = "width and depth" if kind == "factory" else "a module"
        raise ValueError(f"{kind} must be a function of {takes}, but {name!r} is a {type(factory).__name__}.")
    return factory
