"""Limit the number of threads that NumPy's matrix products use."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_numpy_thread() -> Iterator[None]:
    """Limit NumPy's matrix products to one thread within a `with` block.

    Products of small matrices take many times longer with two threads on a busy machine, because the threads wait for
    each other.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """Return the controller of the linear algebra libraries' threads; finding them takes milliseconds."""
    return ThreadpoolController()
