"""Registry of the figures of a run, each registered where it is drawn, with its caption in the report."""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure that `gradbounds figures` draws for a run and that the run's report shows.

    Attributes:
        name: of its files, without the suffix.
        draw: from its table to a `Figure`.
        needs: name of its table, which `checks.stacks.run_tables.RUN_TABLES` makes from the run's samples.
        title: the question that it answers.
        caption: what the marks are, and what one sees.
        claims: ids of the claims that it is about.
    """

    name: str
    draw: Callable[..., Figure]
    needs: str
    title: str
    caption: str
    claims: tuple[str, ...]


_Draw = TypeVar("_Draw", bound=Callable[..., Figure])
_REGISTERED: dict[str, RunFigure] = {}


def run_figure(
    name: str, *, needs: str, title: str, caption: str, claims: tuple[str, ...], **arguments: Any
) -> Callable[[_Draw], _Draw]:
    """Decorate a function of a table to register it as a figure of every run; several decorators register several.

    Args:
        name: of the figure's files, without the suffix.
        needs: name of its table in `checks.stacks.run_tables.RUN_TABLES`.
        title: the question that it answers.
        caption: what the marks are, and what one sees.
        claims: ids of the claims that it is about.
        arguments: what the function takes by name besides its table.

    Raises:
        ValueError: another figure has that name.
    """

    def register(draw: _Draw) -> _Draw:
        if name in _REGISTERED:
            raise ValueError(f"figure must have a name of its own, but there are two called {name!r}.")
        _REGISTERED[name] = RunFigure(name, partial(draw, **arguments), needs, title, caption, claims)
        return draw

    return register


def run_figures() -> dict[str, RunFigure]:
    """Return every registered figure of a run by name, after loading all modules of this package."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"figures.{module.name}")
    return dict(_REGISTERED)
