"""Functions of tensors that a GPU is given as one graph of CUDA, where they come again and again.

A deep stack fills a GPU's memory with few draws, and then a layer costs what its launches cost the host. A graph is
launched at once, with the same kernels on the same numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Calls before a graph is made, which takes as long as some; at their first, libraries make what they need.
CALLS_BEFORE = 128

# A call of more numbers keeps a GPU as busy as launches keep the host, and a graph would hold as many once more.
MOST_NUMBERS = 2**25

Function = Callable[..., Sequence[Tensor]]


class Replays:
    """Graphs of functions, by their names and the shapes of what they are given; of no use to a CPU.

    Args:
        device: the device of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._of_use = device.type == "cuda"
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph | None] = {}

    def call(self, function: Function, *inputs: Tensor) -> Sequence[Tensor]:
        """Return a function's output, in memory of its own.

        Args:
            function: named, of tensors alone; whatever else it reads must stay as it is.
            inputs: tensors on one device.
        """
        if not self._of_use or sum(value.numel() for value in inputs) > MOST_NUMBERS:
            return function(*inputs)
        key = function.__name__, tuple((value.shape, value.stride()) for value in inputs)
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] == CALLS_BEFORE:
            self._graphs[key] = captured(function, inputs)
        graph = self._graphs.get(key)
        return function(*inputs) if graph is None else graph.replay(inputs)


class _Graph:
    """A graph with the places of its numbers."""

    def __init__(self, function: Function, inputs: Sequence[Tensor]) -> None:
        self._inputs = [torch.empty_like(value) for value in inputs]
        self._graph = torch.cuda.CUDAGraph()
        # The device may be another than the current one, whose launches alone would be captured.
        with torch.cuda.device(inputs[0].device), torch.cuda.graph(self._graph, stream=torch.cuda.Stream()):
            self._outputs = list(function(*self._inputs))

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The function of other numbers."""
        for group in _by_dtype(self._inputs):  # of one dtype many are copied at once
            torch._foreach_copy_([self._inputs[k] for k in group], [inputs[k] for k in group])
        self._graph.replay()
        copies = list(self._outputs)
        for group in _by_dtype(copies):
            for k, copy in zip(group, torch._foreach_mul([copies[k] for k in group], 1.0), strict=True):
                copies[k] = copy
        return copies


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Positions of the tensors of each dtype."""
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    return [[k for k, tensor in enumerate(tensors) if tensor.dtype == dtype] for dtype in dtypes]


def captured(function: Function, inputs: Sequence[Tensor]) -> _Graph | None:
    """The graph of a function, or None where a library does something that has no place in one.

    Raises:
        OutOfMemoryError: of the GPU.
    """
    try:
        return _Graph(function, inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
