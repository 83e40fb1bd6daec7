"""The list of figures that are drawn for every run, with their titles and captions in the run's report."""

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
    """A registered figure that `gradbounds figures` draws for a run and that the run's report shows.

    Attributes:
        name: the name of the figure's files, without the suffix.
        draw: function that draws a table as a matplotlib `Figure`.
        needs: the name of the table, a key of `checks.stacks.run_tables.RUN_TABLES`.
        title: the question that the figure answers.
        caption: the meaning of the marks, and the finding.
        claims: ids of the claims that the figure shows.
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
    """Return a decorator that registers a drawing function, so that its figure is drawn for every run.

    Args:
        name: the name of the figure's files, without the suffix.
        needs: the name of the function's table, a key of `checks.stacks.run_tables.RUN_TABLES`.
        title: the question that the figure answers.
        caption: the meaning of the marks, and the finding.
        claims: ids of the claims that the figure shows.
        arguments: further keyword arguments of the function; a function decorated twice makes two figures.

    Raises:
        ValueError: another figure has the same name.
    """

    def register(draw: _Draw) -> _Draw:
        if name in _REGISTERED:
            raise ValueError(f"figure must have a name of its own, but there are two called {name!r}.")
        _REGISTERED[name] = RunFigure(name, partial(draw, **arguments), needs, title, caption, claims)
        return draw

    return register


def run_figures() -> dict[str, RunFigure]:
    """Return all registered figures of a run by name.

    Every module of this package is imported before.
    """
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"figures.{module.name}")
    return dict(_REGISTERED)
