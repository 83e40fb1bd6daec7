"""How far a sweep is: a bar on a terminal, plain lines elsewhere."""

import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from simulate.runs.sweep import Progress

_LINES = 10

# The share of the work from which on it is said how long the rest takes.
_FIRST_ESTIMATE = 0.05

_DAY, _YEAR = 86400.0, 365.25 * 86400.0

# From here on hours are too many to be read.
_DAYS = 4 * _DAY


@contextmanager
def progress() -> "Iterator[Callable[[Progress], None]]":
    """Show what a sweep reports."""
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
def counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, and nothing elsewhere, for what is called with how much is done, and of how much."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, of: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal what runs while it does, and nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def words(now: "Progress") -> str:
    """Cells, draws per second and time left."""
    elapsed = max(now.seconds, 1e-9)
    line = (
        f"{now.cells[0]} of {now.cells[1]} cells, {now.blocks[0]} of {now.blocks[1]} blocks, "
        f"{now.draws / elapsed:.3g} draws/s"
    )
    # What starts up counts as sampling at first, and what is left at the end is nothing but rounding.
    if not _FIRST_ESTIMATE <= now.share < 1 - 1e-9:
        return line
    return f"{line}, {duration(elapsed * (1 - now.share) / now.share)} left"


def duration(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> duration(0.4), duration(61), duration(86400)
    ('0.4 s', '1.0 min', '24.0 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < _DAYS:
        return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
    return f"{seconds / _DAY:.0f} days" if seconds < 2 * _YEAR else f"{min(seconds / _YEAR, 1e9):.2g} years"


def size(count: float) -> str:
    """Bytes in the unit that suits them.

    >>> size(512), size(3 * 2**20), size(5 * 2**50)
    ('1 KiB', '3.0 MiB', '5.0 PiB')
    """
    if count < 2**20:
        return f"{max(count / 2**10, 1):.0f} KiB"
    power = min(int(math.log2(count)) // 10, len(_UNITS) - 1)
    return f"{count / 2 ** (10 * power):.1f} {_UNITS[power]}"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """A duration in seconds.

    Raises:
        ValueError: it is none.

    >>> seconds_of("90"), seconds_of("1.5h")
    (90.0, 5400.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"max_time must be a positive duration such as 90s, 10m, 2h or 1d, got {text!r}.")
    return float(match[1]) * _SECONDS[match[2] or "s"]
