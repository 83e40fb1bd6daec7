"""Use CUDA graphs for functions that are called repeatedly, to save kernel launches on a GPU.

A deep network fills a GPU's memory with few draws, so that kernel launches dominate a layer's time. A graph is launched
as a whole, with the same kernels on the same numbers.
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
    """A cache of CUDA graphs by function name and argument shapes; on a CPU, functions are called directly.

    Args:
        device: the device of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._of_use = device.type == "cuda"
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph | None] = {}

    def call(self, function: Function, *inputs: Tensor) -> Sequence[Tensor]:
        """Return a function's output in newly allocated memory, by replaying its CUDA graph if one is stored.

        Args:
            function: a named function of tensors only; everything else that it reads must not change.
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
    """A captured CUDA graph with the memory of its inputs and outputs."""

    def __init__(self, function: Function, inputs: Sequence[Tensor]) -> None:
        self._inputs = [torch.empty_like(value) for value in inputs]
        self._graph = torch.cuda.CUDAGraph()
        # The device may be another than the current one, whose launches alone would be captured.
        with torch.cuda.device(inputs[0].device), torch.cuda.graph(self._graph, stream=torch.cuda.Stream()):
            self._outputs = list(function(*self._inputs))

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the graph on other inputs and return copies of its outputs."""
        for group in _by_dtype(self._inputs):  # of one dtype many are copied at once
            torch._foreach_copy_([self._inputs[k] for k in group], [inputs[k] for k in group])
        self._graph.replay()
        copies = list(self._outputs)
        for group in _by_dtype(copies):
            for k, copy in zip(group, torch._foreach_mul([copies[k] for k in group], 1.0), strict=True):
                copies[k] = copy
        return copies


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    return [[k for k, tensor in enumerate(tensors) if tensor.dtype == dtype] for dtype in dtypes]


def captured(function: Function, inputs: Sequence[Tensor]) -> _Graph | None:
    """Capture a function as a CUDA graph; return None if the function does something that cannot be captured.

    Raises:
        OutOfMemoryError: the GPU's memory is too small.
    """
    try:
        return _Graph(function, inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
