"""Global state of the suite: one torch thread, checked shapes, one parser; GPU tests skipped where there is none."""

import gc
import importlib
import os
import signal
import sys
from types import ModuleType

from jaxtyping import config, install_import_hook

# Before anything imports them: every shape in the signatures of these modules is checked in every test.
with install_import_hook(
    [
        "simulate.network.engines",
        "simulate.network.dense",
        "simulate.network.conditioned",
        "simulate.network.products",
        "simulate.network.transformer",
    ],
    "beartype.beartype",
):
    gc.disable()  # to look through what libraries load, again and again, takes a tenth of the suite's time
    import simulate.runs.sample  # noqa: F401  (simulate itself loads nothing)

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from checks.stacks import own_claims
from gradbounds import figure_files
from simulate import Cell, Samples, read_windows, sample
from simulate.curvature import problems
from simulate.network.engines import Engine
from simulate.runs import sample as sampling
from tests.helpers.parallel_text import write
from tests.quick import mark_quick
from theory import CLAIMS, Stack
from theory.stack import SIZES, registry
from theory.stack.stack import NAMED

# On a busy core, threads of small products wait for one another.
torch.set_num_threads(1)
threadpool_limits(1)
# A busy machine must not fail a property by its clock, and a red suite must be red again on the next run.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed global random generators, so that unseeded draws do not depend on earlier tests of the worker."""
    torch.default_generator.manual_seed(0)  # without asking for other devices, which takes three times as long


def checked_at_first(run: Callable[..., Any]) -> Callable[..., Any]:
    """A pass through a network with its shapes checked where a field, an engine or a dtype has a value not met before.

    Others go through the same lines, and checking them would take most of the suite's time. Sizes and numbers that are
    not 0 count as one value.
    """
    seen: set[tuple[object, ...]] = set()

    def checked(stack: Stack, engine: Engine, *rest: Any) -> Any:
        fields = {name: bool(value) if isinstance(value, float) else value for name, value in vars(stack).items()}
        kinds = {(type(engine), engine.dtype, *field) for field in fields.items() if field[0] not in SIZES}
        config.update("jaxtyping_disable", kinds <= seen)
        seen.update(kinds)
        try:
            return run(stack, engine, *rest)
        finally:
            config.update("jaxtyping_disable", False)

    return checked


def built_once(build: Callable[..., Any]) -> Callable[..., Any]:
    """Keep tyro's parser of the command line, whose making takes 20 times as long as parsing by it.

    The flags of a command are part of it, made when the command is first parsed.
    """
    kept: dict[Any, Any] = {}

    def built(f: Any, **how: Any) -> Any:
        if how.get("parent_classes") != set():  # of a part, or as another version of tyro calls it
            return build(f, **how)
        if f not in kept:
            kept[f] = build(f, **how)
        return kept[f]

    return built


class Uncompiled(ModuleType):
    """The two functions of `torch._dynamo` that optimizers call; all of it, where something else is asked for.

    To load all of it at the first step of an optimizer takes two seconds in every process.
    """

    graph_break = staticmethod(lambda: None)
    disable = staticmethod(lambda function, *_, **__: function)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        sys.modules.pop(self.__name__)
        return getattr(importlib.import_module(self.__name__), name)


sys.modules.setdefault("torch._dynamo", Uncompiled("torch._dynamo"))
sampling.run = checked_at_first(sampling.run)
problems.layers = checked_at_first(problems.layers)
try:
    from tyro._parsers import ParserSpecification
except ImportError:  # a private name, which another version may not have: tests are slower then
    pass
else:
    ParserSpecification.from_callable_or_type = staticmethod(built_once(ParserSpecification.from_callable_or_type))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()  # what there is now stays to the end, and is not looked through
    gc.set_threshold(700, 10, 100)  # to look through all that tests have loaded since is rarely worth it, and 6%
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before what is not marked is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark quick tests, and let heavy ones start first, since a worker cannot hand over its last two tests."""
    mark_quick(items)
    items.sort(key=lambda item: item.get_closest_marker("heavy") is None)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Names that a test registers are gone after it, or when it calls this; entry points are looked for again."""
    tables = [*NAMED.values(), CLAIMS, own_claims._JUDGES]
    before = [(dict(table), dict(table.versions), set(table.installed)) for table in tables]

    def forget() -> None:
        monkeypatch.setattr(registry, "_POINTS", registry._EntryPoints())
        for table, (entries, versions, installed) in zip(tables, before, strict=True):
            for state, kept in ((table, entries), (table.versions, versions), (table.installed, installed)):
                state.clear()
                state.update(kept)

    forget()
    yield forget
    forget()


@pytest.fixture(scope="session")
def small_grid() -> list[Samples]:
    """Both placements over three widths and three depths, few draws: enough for every verdict to have its row."""
    stacks = {
        Stack(placement=placement, width=width, depth=depth, tokens=4, vocab=64)
        for placement in ("post", "pre")
        for width, depth in ((64, 2), (128, 2), (256, 2), (256, 4), (256, 6))
    }
    return [sample(stack, draws=32, seed=1) for stack in sorted(stacks, key=str)]


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, not laid out, and saved as files without a picture: for tests that look at none."""
    monkeypatch.setattr(figure_files, "_lay_out", lambda figure: None)
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **_: file.write(b"no picture"))


@pytest.fixture
def png_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn once, as PNG, and saved as SVG without a picture: for tests that look at the PNG."""
    drawn = Figure.savefig

    def once(figure: Figure, file: Any, *, format: str, **options: Any) -> None:
        if format == "png":
            drawn(figure, file, format=format, **options)
            return
        file.write(b"no picture")

    monkeypatch.setattr(Figure, "savefig", once)


@pytest.fixture(scope="session")
def parallel_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small text of our own and its translation, line by line."""
    return write(tmp_path_factory.mktemp("parallel"))


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    """A plain cell, one with more layers, and that one on a text: what a run folder has to hold."""
    path = tmp_path / "words.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat " * 3)
    stack = Stack(width=16, depth=3, tokens=4, vocab=6)
    return [Cell(Stack(width=8, depth=2)), Cell(stack), Cell(stack, text=read_windows(path, tokens=4, vocab=6))]


# Workers of the suite are told a terminal's width, to which prose would be folded; a file or a pipe has none.
os.environ.pop("COLUMNS", None)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as Python has it, also where the suite runs in the background of a shell, which ignores it there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
