"""Hooks on a module's layers that record statistics of inputs, outputs and gradients."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from simulate.modules.boundaries import boundary_hooks
from simulate.modules.layers import LayerList, tensor_of

# A stream of zeros has nothing in it, and no coefficient that is not a number.
_TINY = torch.finfo(torch.float32).tiny


class ModuleRecorder:
    """A set of hooks that record statistics of the layers' inputs, outputs and gradients while a module runs.

    The numbers stay on the module's device. With `respond`, the response of each output's energy to the scale of its
    input is measured too, which takes one more backward pass through each layer.
    """

    def __init__(self, lists: Sequence[LayerList], axis: int, *, respond: bool = False) -> None:
        self._lists, self._axis, self._respond = lists, axis, respond
        self._asking = False
        self._values: dict[tuple[str, int, str], Tensor] = {}
        self._calls: dict[tuple[str, int], int] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> "ModuleRecorder":
        for part in self._lists:
            if part.takers:
                self._handles += self._between(part)
            for number, layer in enumerate(() if part.takers else part.layers, 1):
                hook = partial(self._called, part.name, number)
                self._handles.append(layer.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _called(self, part: str, number: int, _: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        self._record(part, number, tensor_of([*args, *kwargs.values()]), tensor_of(output))

    def _between(self, part: LayerList) -> list[Any]:
        inputs: dict[int, Tensor] = {}

        def end(number: int, y: Tensor | None) -> None:
            self._record(part.name, number, inputs.pop(number), y)

        return boundary_hooks(part, inputs.__setitem__, end)

    def _record(self, part: str, number: int, x: Tensor | None, y: Tensor | None) -> None:
        self._calls[part, number] = self._calls.get((part, number), 0) + 1
        if y is None:
            return
        statistics = _statistics(x, y)
        if number == 1 and x is not None and x.shape == y.shape:
            statistics["input_energy"] = x.detach().float().square().mean()
            counts = {
                "input_tokens": x.numel() / x.shape[-1],
                "input_positions": x.shape[self._axis] if x.ndim > 1 else 1,
            }
            statistics |= {name: torch.tensor(float(count), device=y.device) for name, count in counts.items()}
        self._values |= {(part, number, name): value for name, value in statistics.items()}
        if y.requires_grad:
            if self._respond and x is not None:
                self._ask(part, number, x, y)
            # It stays 0 where no gradient arrives.
            self._values[part, number, "gradient_sq"] = y.new_zeros(()).float()
            y.register_hook(lambda gradient: self._put(part, number, gradient))

    def _put(self, part: str, number: int, gradient: Tensor) -> None:
        if not self._asking:
            self._values[part, number, "gradient_sq"] = gradient.detach().float().square().sum()

    def _ask(self, part: str, number: int, x: Tensor, y: Tensor) -> None:
        """Measure the response of |y|^2 to the scale of x: <x, J^T y>/|y|^2, with the layer's derivative J."""
        self._asking = True
        try:
            (pulled,) = torch.autograd.grad(y, x, y.detach(), retain_graph=True, allow_unused=True)
        except RuntimeError:
            # Such as of checkpointed layers, or of inputs that need no gradient: there is no answer.
            return
        finally:
            self._asking = False
        if pulled is not None:
            energy = y.detach().float().square().sum().clamp_min(_TINY)
            self._values[part, number, "scale_response"] = (x.detach().float() * pulled.float()).sum() / energy

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all recorded statistics as rows: list of layers, layer number, "", quantity and value."""
        return [(part, number, "", name, value) for (part, number, name), value in self._values.items()]

    def notes(self) -> list[str]:
        """Return notes on layers that never ran, ran more than once, or could not be measured.

        If a layer ran more than once, its last run counts.
        """
        notes = []
        for part in self._lists:
            if part.takers and not part.last_seen:
                notes.append(f"the last layer of {part.name} was not measured: no module after it takes its output")
            notes += [
                f"the output of layer {number} of {part.name} was not measured: {name} runs after it"
                for number, name, _ in part.apart
            ]
            for number, layer in enumerate(part.layers, start=1):
                count = self._calls.get((part.name, number), 0)
                # A container has no pass of its own, though its modules run.
                if count != 1 and (count or type(layer).forward is not nn.Module.forward):
                    what = "never ran" if not count else f"ran {count} times; the last run is recorded"
                    notes.append(f"layer {number} of {part.name} {what}")
        return notes


def first_not_finite(module: nn.Module, run: Callable[[], object]) -> tuple[str, bool] | None:
    """Find the first innermost module with an output that is not finite, and whether its input was not finite either.

    Minus infinity does not count, because it is used as a mask. The result is None if all outputs are finite.

    Args:
        module: the module, including its submodules.
        run: function that runs the module.
    """
    broken: list[tuple[str, bool]] = []

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not broken and _broken(tensor_of(output)):
                broken.append((name, _broken(tensor_of([*args, *kwargs.values()]))))

        return hook

    handles = [part.register_forward_hook(hook_of(name), with_kwargs=True) for name, part in module.named_modules()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return broken[0] if broken else None


def _broken(x: Tensor | None) -> bool:
    return x is not None and bool((x.detach().isnan() | x.detach().isposinf()).any())


def _statistics(x: Tensor | None, y: Tensor) -> dict[str, Tensor]:
    """Return energies and residual coefficient from a layer's input and output, (..., width)."""
    after = y.detach().float()
    of_tokens = after.square().mean(-1)
    statistics = {"hidden_energy": after.square().mean()}
    if of_tokens.numel() > 1:
        statistics["energy_spread"] = of_tokens.std() / of_tokens.mean().clamp_min(_TINY)
    if x is not None and x.shape == y.shape:
        before = x.detach().float()
        statistics["stream_cosine"] = nn.functional.cosine_similarity(before, after, dim=-1).mean()
        statistics["stream_coefficient"], statistics["coefficient_error"] = _projection(before, after)
    return statistics


def _projection(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coefficient of the input in the output, c = <x, y>/<x, x> over all tokens, and its error.

    The means over coordinates are subtracted, because after ReLU every stream has them, with or without a residual
    connection. The rest r = y - c x is the layer's addition. If r is rotated by a random rotation O of the width, <x, O
    r> has mean 0 and variance |X^T R|_F^2/d. The rows of X and R are tokens, and E O_ab O_cd = (a = c)(b = d)/d.
    """
    x, y = (rows.flatten(0, -2) - rows.mean(-1, keepdim=True).flatten(0, -2) for rows in (x, y))
    energy = x.square().sum().clamp_min(_TINY)
    coefficient = (x * y).sum() / energy
    rest = y - coefficient * x
    tokens, width = x.shape
    # |X^T R|_F^2 = sum of (X X^T) * (R R^T): the smaller of both shapes.
    square = (x.T @ rest).square().sum() if width <= tokens else ((x @ x.T) * (rest @ rest.T)).sum()
    return coefficient, (square.clamp_min(0.0) / width).sqrt() / energy
