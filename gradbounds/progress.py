"""The progress of a sweep: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from gradbounds.units import duration

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.progress_bar import ProgressBar

    from simulate.runs.sweep import Progress

_LINES, _SILENCE = 10, 30.0
"""Lines of what is counted, and the seconds after which one comes all the same."""

LONG = 2.0
"""Seconds beyond which it is said beforehand how long a step takes."""

# The share of the work from which on it is said how long the rest takes.
_FIRST_ESTIMATE = 0.05


@contextmanager
def progress() -> "Iterator[Callable[[Progress], None]]":
    """Show the progress that a sweep reports."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = -1

        def line(now: "Progress") -> None:
            nonlocal last
            if (part := int(_LINES * now.share + 1e-9)) != last:
                last = part
                print(f"sampling: {100 * now.share:.0f}%, {words(now)}", file=sys.stderr, flush=True)

        yield line
        return
    with Bar(BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("sampling", total=1.0)
        yield lambda now: bar.update(task, completed=now.share, description=words(now))


@contextmanager
def counted(what: str, *, lines: bool = False) -> Iterator[Callable[..., None]]:
    """Show the progress of a counted task: a bar on a terminal, elsewhere nothing or lines.

    Where things take unlike times, it is called with the share of the work that is done, too.

    Args:
        what: is done.
        lines: whether a line says so at every tenth elsewhere, and where the last was half a minute ago.
    """
    console, started = Console(stderr=True), time.monotonic()
    if not console.is_terminal:
        last = started

        def line(done: int, of: int, share: float | None = None) -> None:
            nonlocal last
            now = time.monotonic()
            if lines and (now - last > _SILENCE or _LINES * done // of > _LINES * (done - 1) // of):
                left = "" if share is None else _left(now - started, share)
                print(f"{what}: {done} of {of}{left}", file=sys.stderr, flush=True)
                last = now

        yield line
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)

        def update(done: int, of: int, share: float | None = None) -> None:
            bar.update(task, completed=done / of if share is None else share, description=f"{what}: {done} of {of}")

        yield update


def _left(elapsed: float, share: float) -> str:
    """How long the rest takes; "" where too little is done to say so, or all."""
    known = _FIRST_ESTIMATE <= share < 1 - 1e-9
    return f", {duration(elapsed * (1 - share) / share)} left" if known else ""


@contextmanager
def estimated(what: str, seconds: float) -> Iterator[None]:
    """Show the progress of a task with an estimated time: a bar on a terminal, elsewhere one line.

    The bar is full after that time, and says how long it has taken since.
    """
    console, about = Console(stderr=True), f"{what}, about {duration(seconds)}"
    if not console.is_terminal:
        print(about, file=sys.stderr, flush=True)
        yield
        return
    with Bar(TextColumn("{task.description}"), _Clock(), TimeElapsedColumn(), console=console, transient=True) as bar:
        bar.add_task(about, total=seconds)
        yield


class _Clock(BarColumn):
    """A bar of the time that has passed."""

    def render(self, task: "Task") -> "ProgressBar":
        """Draw the bar."""
        task.completed = min(task.elapsed or 0.0, task.total or 0.0)
        return super().render(task)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Name the running task on a terminal while it runs; print nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def quietly() -> Iterator[None]:
    """Silence `shown` within a `with` block: one bar is enough for many steps."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def shown(what: str, seconds: float) -> AbstractContextManager[None]:
    """Name a running task on a terminal, and print its duration if it takes long."""
    if _silent.get():
        return nullcontext()
    return estimated(what, seconds) if seconds > LONG else working(what)


def words(now: "Progress") -> str:
    """Write the finished cells, the draws per second and the remaining time."""
    elapsed = max(now.seconds, 1e-9)
    line = (
        f"{now.cells[0]} of {now.cells[1]} cells, {now.blocks[0]} of {now.blocks[1]} blocks, "
        f"{now.draws / elapsed:.3g} draws/s"
    )
    # What starts up counts as sampling at first, and what is left at the end is nothing but rounding.
    return line + _left(elapsed, now.share)
