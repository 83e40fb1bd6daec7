"""An answer in a process of its own, which ends when nobody waits for it, or its time is over."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from gradbounds.explore.answers import NobodyWaitsError, answer

MOST_SECONDS = 120.0
"""That a process is waited for: its estimate is of one idle core."""

_EVERY = 0.1


def answer_apart(
    kind: str, asked: Any, *, is_wanted: Callable[[], bool] = lambda: True, seconds: float = MOST_SECONDS
) -> dict[str, Any]:
    """As `gradbounds.explore.answers.answer`, in a process that is killed once it is not wanted, or too slow.

    Raises:
        ValueError: what is wrong with the question, or that there was no time for it.
        NobodyWaitsError: it is not wanted any more.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, kind, asked), daemon=True)
    process.start()
    there.close()
    end = time.monotonic() + seconds
    try:
        while not here.poll(_EVERY):
            if not is_wanted():
                raise NobodyWaitsError
            if time.monotonic() > end:
                raise ValueError(f"the answer took more than {seconds:g} seconds, and was given up.")
        try:
            content, error = here.recv()
        except EOFError:
            raise ValueError("the process that answers ended, as one without memory does.") from None
    finally:
        process.kill()
        process.join()
        here.close()
    if error:
        raise ValueError(error)
    return content


def _send(there: Connection, kind: str, asked: Any) -> None:
    """Send the answer, or what is wrong."""
    try:
        content, error = answer(kind, asked), ""
    except (ValueError, TypeError, ArithmeticError, MemoryError) as problem:
        content, error = {}, str(problem) or type(problem).__name__
    there.send((content, error))
