"""Limit the number of threads that NumPy's matrix products use."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

_libraries = cache(ThreadpoolController)  # finding the libraries takes milliseconds


@contextmanager
def one_numpy_thread() -> Iterator[None]:
    """Limit NumPy's matrix products to one thread within a `with` block.

    Products of small matrices take many times longer with two threads on a busy machine, because the threads wait for
    each other.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield
