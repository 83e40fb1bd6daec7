"""Threads of NumPy's products."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_numpy_thread() -> Iterator[None]:
    """One thread in a product of NumPy, as long as it lasts.

    Small matrices run many times slower on two threads of a busy machine, which wait for one another.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """The libraries whose threads can be counted; to look for them takes milliseconds."""
    return ThreadpoolController()
