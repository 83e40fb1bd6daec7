"""What a prediction does with kernels, counted while it runs: a twin of `theory.mean_field.cost` that is no formula."""

import tracemalloc
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from theory import Stack, predict
from theory.mean_field import prediction

_MAKES = (np.where, np.concatenate, np.tril, np.repeat)
"""Functions that are no ufuncs and make new numbers."""


@dataclass
class Counted:
    """Numbers made one by one, multiplications in products of matrices (a complex one is four), and such products."""

    entries: float = 0.0
    products: float = 0.0
    matrices: float = 0.0


_COUNTED = Counted()


class CountingArray(np.ndarray):
    """An array that counts what is done with it, and whose results count on."""

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **more: Any) -> Any:
        arrays = [_plain(one) for one in given]
        made = getattr(ufunc, method)(*arrays, **{name: _plain(one) for name, one in more.items()})
        if ufunc is np.matmul:
            _COUNTED.products += np.size(made) * np.shape(arrays[0])[-1] * (4 if np.iscomplexobj(made) else 1)
            _COUNTED.matrices += np.size(made) / np.prod(np.shape(made)[-2:])
        else:
            _COUNTED.entries += max(np.size(one) for one in [*arrays, made] if not isinstance(one, tuple))
        return _counting(made)

    def __array_function__(self, function: Any, types: Any, given: Any, more: Any) -> Any:
        made = function(*_plain(given), **{name: _plain(one) for name, one in more.items()})
        if function in _MAKES:
            _COUNTED.entries += np.size(made)
        return _counting(made)


def _plain(value: Any) -> Any:
    if isinstance(value, CountingArray):
        return value.view(np.ndarray)
    return type(value)(_plain(one) for one in value) if type(value) in (list, tuple) else value


def _counting(value: Any) -> Any:
    if type(value) is np.ndarray:
        return value.view(CountingArray)
    if isinstance(value, list | tuple):  # that of np.linalg.eigh has fields
        counting = [_counting(one) for one in value]
        return type(value)(*counting) if hasattr(value, "_fields") else type(value)(counting)
    return value


def counted(stack: Stack, **arguments: Any) -> Counted:
    """What `predict` does with the kernels of a stack, from its inputs on."""
    _COUNTED.__init__()  # type: ignore[misc]
    makers = {name: getattr(prediction, name) for name in ("gaussian_inputs", "grouped_inputs", "text_inputs")}

    def watched(name: str) -> Any:
        def inputs(*given: Any) -> Any:
            made = makers[name](*given)
            source = made.source and replace(made.source, kernel=np.array(made.source.kernel).view(CountingArray))
            return replace(made, kernel=made.kernel.view(CountingArray), source=source)

        return inputs

    # What `np.asarray` is given goes on counting.
    with patch.multiple(prediction, **{name: watched(name) for name in makers}), patch("numpy.asarray", np.asanyarray):
        predict(stack, **arguments)
    return replace(_COUNTED)


def peak_bytes(stack: Stack, **arguments: Any) -> int:
    """What `predict` holds at once."""
    tracemalloc.start()
    try:
        predict(stack, **arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
