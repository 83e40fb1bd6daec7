"""Hooks on the layers of a module: what they are given and give, forward and backward."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from simulate.modules.layers import LayerList, tensor_of


class Recorder:
    """Hooks on layers while a module runs; the numbers stay on its device, and `tokens` is how many there are."""

    def __init__(self, lists: Sequence[LayerList], axis: int) -> None:
        self._lists, self._axis = lists, axis
        self._values: dict[tuple[str, int, str], Tensor] = {}
        self._calls: dict[tuple[str, int], int] = {}
        self._handles: list[Any] = []
        self.tokens = 1

    def __enter__(self) -> "Recorder":
        for part in self._lists:
            for number, layer in enumerate(part.layers, 1):
                hook = self._hook(part.name, number)
                self._handles.append(layer.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, part: str, number: int) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            x, y = tensor_of([*args, *kwargs.values()]), tensor_of(output)
            self._calls[part, number] = self._calls.get((part, number), 0) + 1
            if y is None:
                return
            self.tokens = y.shape[self._axis] if y.ndim >= 2 else 1
            for name, value in _statistics(x, y, self._axis).items():
                self._values[part, number, name] = value
            if y.requires_grad:
                y.register_hook(lambda gradient: self._put(part, number, gradient))

        return record

    def _put(self, part: str, number: int, gradient: Tensor) -> None:
        self._values[part, number, "gradient_sq"] = gradient.detach().float().square().sum()

    def rows(self) -> list[tuple[Any, ...]]:
        """Of every layer."""
        return [(part, number, "", name, value) for (part, number, name), value in self._values.items()]

    def notes(self) -> list[str]:
        """Layers that ran more than once, of which the last time counts, or never."""
        said = []
        for part in self._lists:
            for number in range(1, len(part.layers) + 1):
                count = self._calls.get((part.name, number), 0)
                if count != 1:
                    what = "never ran" if not count else f"ran {count} times, of which the last is recorded"
                    said.append(f"layer {number} of {part.name} {what}")
        return said


def _statistics(x: Tensor | None, y: Tensor, axis: int) -> dict[str, Tensor]:
    """Of a layer's input and output, whose last axis is the width."""
    after = y.detach().float()
    found = {"hidden_energy": after.square().mean()}
    if after.ndim >= 2 and after.shape[axis] > 1:
        n = after.shape[axis]
        pairs = after.sum(axis).square().mean() - after.square().sum(axis).mean()
        found["token_correlation"] = pairs / (n * (n - 1))
    if x is not None and x.shape == y.shape:
        found["stream_cosine"] = nn.functional.cosine_similarity(x.detach().float(), after, dim=-1).mean()
    return found
