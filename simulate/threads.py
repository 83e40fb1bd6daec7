"""Control of the number of threads in NumPy's matrix products."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_numpy_thread() -> Iterator[None]:
    """Use one thread for NumPy's matrix products within this context.

    Small matrices run many times slower on two threads of a busy machine, which wait for one another.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """The libraries whose threads can be counted; to look for them takes milliseconds."""
    return ThreadpoolController()
