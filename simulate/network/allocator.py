"""How the C library's allocator treats the memory that a batch of networks frees."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Parameters of glibc's mallopt, from its malloc.h, and bytes.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT, _GROWTH, _OWN_PAGES = 2**29, 2**26, 2**25
_NEVER = -1


@cache
def keep_freed_memory() -> None:
    """Let a process keep up to 512 MiB that it freed, for its next block; once, and for the whole process.

    By default glibc returns the top of its heap to the system as soon as some MiB of it are free, and every block pays
    for the same pages again: a fifth of its time at d = 1024, L = 12, n = 16 (12 ms a draw instead of 15.4 on an EPYC).
    Tensors of 32 MiB and more still go back at once. Other C libraries are left as they are.
    Source: mallopt(3), Linux man-pages.
    """
    library = _glibc()
    if library is None:
        return
    for parameter, size in ((_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _GROWTH), (_MMAP_THRESHOLD, _OWN_PAGES)):
        library.mallopt(parameter, size)


@contextmanager
def all_freed_memory_kept() -> Iterator[None]:
    """Let the process keep all that it frees, for the next of several large batches; give it back in the end.

    A page that the system hands out anew costs microseconds, on virtual machines most: a thousand layers spent a
    quarter of their time on that where each batch takes new ones. Other C libraries are left as they are.
    """
    keep_freed_memory()
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, _KEPT)
        library.malloc_trim(_KEPT)


@cache
def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    library = ctypes.CDLL(None)
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    return library
