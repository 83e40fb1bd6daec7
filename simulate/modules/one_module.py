"""Measure one PyTorch module with its current weights, and leave the module unchanged."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from simulate.counts import check_count
from simulate.modules.boundaries import unseen_layers, with_boundaries
from simulate.modules.branch_ends import smaller_ends, unscaled_ends
from simulate.modules.exact_tests import ExactTests, exact_tests
from simulate.modules.factories import Loss, Made, ProbeError, arguments_of, moved, seeded, what_happened
from simulate.modules.kept_state import kept_state
from simulate.modules.layers import LayerList, layer_lists
from simulate.modules.predictions import logits_of
from simulate.modules.probe import ALONE, Probed, found_layers, frame_of, measured

_HALF = (torch.float16, torch.bfloat16)
_UNTESTED = ExactTests((), (), (), False, False, (), ())
PARTS = 3
"""The number of parts of the work, for progress reports.

The parts are a forward and a backward pass, exact tests, and other data types and branch ends.
"""


def one_module(
    module: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None = None, *, seed: int = 0,
    layers: Sequence[str] = (), on_part: Callable[[int, int], None] | None = None,
) -> Probed:  # fmt: skip
    """Measure one PyTorch module on one batch, on the module's own device, and leave it unchanged.

    Weights, buffers, gradients, training mode and random generators are restored at the end. The measurement takes the
    memory of two more copies of the weights, and about five passes.

    Args:
        module: any module, in the training or eval mode that is to be measured.
        batch: a tensor, a tuple or list of arguments, or a dict of keyword arguments; or a dict that is the only
            argument of `forward`.
        loss: function of the module's output that returns a scalar; the output's own `.loss` if left out.
        seed: random seed of module and loss.
        layers: glob patterns of the layers' names; layers are found automatically if left out.
        on_part: progress callback, called as on_part(done, total) after each part of the work.

    Raises:
        ValueError: an argument has the wrong type, the module has no parameters, or glob patterns match no layer.
        ProbeError: module or loss fails, or gives no gradient.
    """
    name = _checked(module, batch, loss, seed)
    lists = found_layers(module, layers, 0, needed=False)
    inputs, own_loss = batch_and_loss(module, batch, loss)
    built = Made(name, module, inputs, own_loss)
    done = (lambda number: None) if on_part is None else (lambda number: on_part(number, PARTS))
    dtype, why = next(module.parameters()).dtype, f"{name} has no list of layers: --layers 'blocks.*' names them"
    try:
        lists = with_boundaries(built, lists, seed)
        # Each begins with the module as it was given.
        with kept_state(module, seed):
            rows, notes = measured(built.fresh(), lists, asked=True)
        done(1)
        with kept_state(module, seed):
            tests, not_tested = _tests(built, lists, layers, seed)
        done(2)
        with kept_state(module, seed):
            change = _dtype_change(built, dtype)
            smaller = [(part, smaller_ends(built, part)) for part in lists[:1]]
        done(PARTS)
    except Exception as error:
        rows, notes = _of_unwatched(built, seed)
        why = f"{name} cannot be watched: {error.__cause__ or error}"
        lists, tests, not_tested, change, smaller = [], _UNTESTED, [], float("nan"), []
    unseen = unseen_layers(lists, rows) if lists else {"": why}
    for key, parameter in _matrices(module, lists):
        rows.append((*key, "shortest", float(min(parameter.shape))))
        if torch.equal(parameter, parameter[:1].expand_as(parameter)):
            rows.append((*key, "one_row", 1.0))
    rows += [(part.name, k, "", "energy_smaller_ends", value) for part, by in smaller for k, value in by.items()]
    return Probed(
        frame_of([(*ALONE, 0, *row) for row in rows]),
        (*_eval_note(module), *not_tested, *notes), tests, unseen, change, str(dtype).removeprefix("torch."),
        unscaled_ends(lists[0]) if lists else (),
        {(part.name, number): layer for part in lists for number, layer in enumerate(part.names, 1)},
        _config(module), _words(inputs),
    )  # fmt: skip


def _of_unwatched(built: Made, seed: int) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Measure loss and parameters of a module that fails under hooks but not without them.

    Raises:
        ProbeError: it also fails without them.
    """
    try:
        with kept_state(built.module, seed):
            return measured(built.fresh(), [], asked=False)
    except ProbeError as error:
        raise ProbeError(f"{str(error).rstrip('.')}.") from error.__cause__


def _checked(module: Any, batch: Any, loss: Any, seed: int) -> str:
    """Check the arguments of `one_module` and return the name of the module's class.

    Raises:
        ValueError: an argument has the wrong type, or the module has no weights.
    """
    name = type(module).__name__
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {name}.")
    if next(module.parameters(), None) is None:
        raise ValueError(f"module {name!r} must have parameters, and has none.")
    undrawn = [weight for weight, parameter in module.named_parameters() if parameter.is_meta]
    if undrawn:
        raise ValueError(
            f"module {name!r} must have weights, got {len(undrawn)} on the meta device, the first {undrawn[0]}: "
            "to_empty(device='cpu') gives them memory, and its own initialization numbers."
        )
    if not isinstance(batch, Tensor | tuple | list | Mapping) or not any(
        isinstance(value, Tensor) for value in tree_leaves(moved(batch, "cpu"))
    ):
        raise ValueError(
            "batch must be a tensor, a tuple of arguments or a dict of them, with a tensor in it, got "
            f"{type(batch).__name__}."
        )
    if loss is not None and not callable(loss):
        raise ValueError(f"loss must be a function of the output, which gives a scalar, got {loss!r}.")
    check_count("seed", seed, 0)
    return name


def _eval_note(module: nn.Module) -> list[str]:
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    is_eval = any(not norm.training for norm in norms)
    return ["batch norms are in eval mode: they use stored statistics, not the batch's"] * is_eval


def _config(module: nn.Module) -> Mapping[str, Any]:
    config: Any = getattr(module, "config", None)
    if callable(getattr(config, "to_dict", None)):
        config = config.to_dict()
    elif is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    return {str(name): value for name, value in config.items()} if isinstance(config, Mapping) else {}


def _words(inputs: Any) -> int:
    words = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and not x.is_floating_point() and x.ndim == 2]
    return words[0].shape[1] if words else 0


def batch_and_loss(module: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None) -> tuple[Any, Loss]:
    """Move a batch to a module's device, and return it with the loss function.

    A loss of None becomes the function that reads the output's own loss.
    """
    return moved(batch, next(module.parameters()).device), _own_loss if loss is None else loss


def is_module(subject: object) -> bool:
    """Return whether an object is a PyTorch module, not a factory of modules."""
    return isinstance(subject, nn.Module)


def _matrices(module: nn.Module, lists: Sequence[LayerList]) -> list[tuple[tuple[str, int, str], nn.Parameter]]:
    """Return the matrices in a module's layers, with list name, layer number and parameter name."""
    return [
        ((part.name, number, name), parameter)
        for part in lists
        for number, layer in enumerate(part.layers, 1)
        for name, parameter in layer.named_parameters()
        if parameter.ndim == 2
    ]


def _own_loss(output: Any) -> Tensor:
    """Return the loss that a module's output contains.

    Raises:
        ValueError: the output contains no loss.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        kind = type(output).__name__
        raise ValueError(
            f"the output, a {kind}, has no loss of its own: return (module, batch, loss) from the factory, or give "
            "loss=, a function of the output"
        )
    return loss


def _tests(built: Made, lists: Sequence[LayerList], layers: Sequence[str], seed: int) -> tuple[ExactTests, list[str]]:
    """Run the exact tests on a module, or on a single-precision copy of a half-precision module."""
    parameters = list(built.module.parameters())
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters if parameter.dtype in _HALF}
    if not dtypes:
        return exact_tests(built, lists), []
    try:
        # A copy of somebody else's module, or its code in another dtype, may fail in any way.
        module = deepcopy(built.module).float()
        single = Made(built.name, module, tree_map(_single, built.inputs), built.loss)
        with seeded(seed):
            copied = with_boundaries(single, layer_lists(module, layers, 0), seed) if lists else []
            return exact_tests(single, copied), []
    except Exception as error:
        names = " and ".join(sorted(dtypes))
        note = f"the loss and visible positions were not fully tested in {names}: a float32 copy {what_happened(error)}"
        return exact_tests(built, lists), [note]


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _dtype_change(built: Made, dtype: torch.dtype) -> float:
    """Return the relative difference between a module's output and its output with weights in single precision."""
    if dtype in (torch.float32, torch.float64):
        return 0.0

    module, outputs = built.module, []
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    for change in (lambda value: value, _single):
        # Code that names its own dtype cannot be run in another: that is not compared.
        with suppress(RuntimeError, ValueError, TypeError), torch.no_grad():
            inputs = tree_map(change, built.fresh().inputs)
            torch.manual_seed(0)
            output = torch.func.functional_call(
                module, {k: change(v) for k, v in state.items()}, *arguments_of(module, inputs)
            )
            outputs.append(logits_of(output))
    if len(outputs) < 2 or outputs[0] is None or outputs[1] is None:
        return float("nan")
    low, high = (output.double() for output in outputs if output is not None)
    return float((low - high).norm() / high.norm().clamp_min(1e-300))
