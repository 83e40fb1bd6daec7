"""The display of a sweep's progress: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeRemainingColumn

from gradbounds.units import duration, takes

if TYPE_CHECKING:
    from simulate.runs.sweep import Progress
    from theory.mean_field.cost import Cost

# The number of progress lines of a counted task, and the seconds after which a line is printed in any case.
_LINES, _SILENCE = 10, 30.0

LONG = 2.0
"""The seconds above which the expected duration of a step is printed before it starts."""

# The share of the work from which on it is said how long the rest takes.
_FIRST_ESTIMATE = 0.05


@contextmanager
def progress() -> "Iterator[Callable[[Progress], None]]":
    """Display the progress of a sweep while it samples networks."""
    with counted("sampling", lines=True) as display:
        yield lambda now: display(*now.blocks, now.share)


@contextmanager
def counted(what: str, *, lines: bool = False) -> Iterator[Callable[..., None]]:
    """Display how many steps of a task are done: as a bar on a terminal, and elsewhere as lines of text or not at all.

    If steps take different times, the function is also called with the share of the work that is done.

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
    """Return the remaining time as text; "" if too little is done for an estimate, or everything."""
    return f", {duration(elapsed * (1 - share) / share)} left" if _FIRST_ESTIMATE <= share < 1 - 1e-9 else ""


@contextmanager
def estimated(about: str) -> Iterator[None]:
    """Display the name and the expected cost of a running task."""
    if not Console(stderr=True).is_terminal:
        print(about, file=sys.stderr, flush=True)
    with working(about):
        yield


@contextmanager
def working(what: str) -> Iterator[None]:
    """Display the name of the running task if standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def quietly() -> Iterator[None]:
    """Hide the progress displays of single tasks within a `with` block."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


@contextmanager
def shown(what: str, cost: "Cost") -> Iterator[None]:
    """Display a running task on a terminal, without the tasks inside it; print the cost of a long one."""
    long = estimated(f"{what}: {takes(cost.seconds, cost.bytes)}") if cost.seconds > LONG else working(what)
    with nullcontext() if _silent.get() else long, quietly():
        yield
