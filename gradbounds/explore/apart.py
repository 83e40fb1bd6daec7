"""Answers from a separate process, which is killed if nobody waits for the answer or its time is over."""

import multiprocessing
import time
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from typing import Any

from gradbounds.explore.answers import NobodyWaitsError, answer
from gradbounds.explore.questions import Question
from gradbounds.explore.samples import drawn

MOST_SECONDS = 120.0
"""The seconds after which a process ends, or four times its limit if that is more: estimates assume idle cores."""

_EVERY = 0.1


def answer_apart(
    kind: str, asked: Any, *, is_wanted: Callable[[], bool] = lambda: True, seconds: float | None = None
) -> dict[str, Any]:
    """Answer a question of the page in a separate process, which is killed if it is too slow or no longer needed.

    Raises:
        ValueError: what is wrong with the question, or that there was no time for it.
        NobodyWaitsError: it is not wanted any more.
    """
    (content,) = answers_apart(kind, asked, is_wanted=is_wanted, seconds=seconds)
    return content


def answers_apart(
    kind: str, asked: Any, *, is_wanted: Callable[[], bool] = lambda: True, seconds: float | None = None
) -> Generator[dict[str, Any], None, None]:
    """Yield the answers to a question of the page from a separate process; sampling yields one answer per block.

    Yields:
        One answer, or several.

    Raises:
        ValueError: what is wrong with the question, or that there was no time for it.
        NobodyWaitsError: it is not wanted any more.
    """
    if seconds is None:
        seconds = max(MOST_SECONDS, 4.0 * (Question.read(asked).seconds or 0.0))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, kind, asked), daemon=True)
    process.start()
    there.close()
    end = time.monotonic() + seconds
    try:
        while True:
            while not here.poll(_EVERY):
                if not is_wanted():
                    raise NobodyWaitsError
                if time.monotonic() > end:
                    raise ValueError(f"the answer took more than {seconds:g} seconds, and was given up.")
            try:
                content, error = here.recv()
            except EOFError:
                raise ValueError("the process that answers ended, as one without memory does.") from None
            if error:
                raise ValueError(error)
            if content is None:
                return
            yield content
    finally:
        process.kill()
        process.join()
        here.close()


def _send(there: Connection, kind: str, asked: Any) -> None:
    # Send the answers and then None, or the message of an error.
    try:
        for content in drawn(Question.read(asked)) if kind == "sample" else (answer(kind, asked),):
            there.send((content, ""))
        there.send((None, ""))
    except (ValueError, TypeError, ArithmeticError, MemoryError) as problem:
        there.send((None, str(problem) or type(problem).__name__))
