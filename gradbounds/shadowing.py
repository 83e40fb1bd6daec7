"""A check that Python imports this project's own packages, and not other modules that have the same names.

`theory`, `simulate`, `checks` and `figures` are words that a script or a folder of one's own may well use. Where that
folder comes first on Python's path (a script's own folder, a notebook's, `python -m`), its module would be taken for
ours. A script may have such a name all the same: nobody imports the program that runs by it. Any other module is named
in one line. A folder without `__init__.py` does no harm: Python prefers a package to it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

# Each needs no more than those before it.
_PACKAGES = ("theory", "simulate", "checks", "figures")
_ROOT = Path(__file__).resolve().parents[1]

# The program that runs, and in a worker the program that started it.
_PROGRAMS = ("__main__", "__mp_main__")


class ShadowedError(ImportError):
    """An error: Python found another module with the name of one of this project's packages."""


class _OwnPackages(MetaPathFinder):
    """An import finder for gradbounds' packages where Python would import the running program instead, or always.

    Args:
        always: names that mean our packages whatever Python would find.
    """

    def __init__(self, always: Sequence[str] = ()) -> None:
        self._always = always

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of this project's packages, or return None so that other finders look."""
        if path is not None or fullname not in _PACKAGES:
            return None
        first = PathFinder.find_spec(fullname)
        if fullname in self._always or (first is not None and first.origin and _is_program(first.origin)):
            return PathFinder.find_spec(fullname, [str(_ROOT)])
        return None


def _is_program(origin: str) -> bool:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _PROGRAMS)
    return any(Path(file).resolve() == Path(origin).resolve() for file in files if file)


def allow_names_of_programs() -> None:
    """Make Python import this project's own packages even if the running program has the name of one of them."""
    sys.meta_path.insert(0, _OwnPackages())


def load_own(*names: str) -> None:
    """Import this project's own packages even if other modules with the same names would be found first."""
    finder = _OwnPackages(names)
    sys.meta_path.insert(0, finder)
    try:
        for name in names:
            __import__(name)
    finally:
        sys.meta_path.remove(finder)


def check_own_packages(last: str = _PACKAGES[-1]) -> None:
    """Raise an error if Python would import another module instead of one of this project's packages.

    Raises:
        ShadowedError: Python finds another module first, or has loaded one already.
    """
    for name in _PACKAGES[: _PACKAGES.index(last) + 1] if last in _PACKAGES else _PACKAGES:
        origin = _found(name)
        if origin is not None and Path(origin).resolve().parent != _ROOT / name:
            raise ShadowedError(
                f"gradbounds needs its own package {name!r}, but Python finds {origin} first: rename that, or start "
                "Python with -P or in another folder.",
                name=name,
                path=origin,
            )


def stranger() -> str:
    """Describe a file of the user that Python imported instead of a library with the same name; "" if there is none."""
    folder = Path(sys.path[0] or ".").resolve()
    return next((
        f"gradbounds needs the library {name!r}, but Python finds {file} first: rename that, or start Python with -P "
        "or in another folder."
        for name, module in list(sys.modules.items())
        if "." not in name and getattr(module, "__file__", None)
        for file in [Path(str(module.__file__)).resolve()]
        if file.parent in (folder, folder / name)
        for library in [PathFinder.find_spec(name, sys.path[1:])]
        if library and library.origin and Path(library.origin).resolve() != file
    ), "")  # fmt: skip


def _found(name: str) -> str | None:
    """Return the file of a top-level module, loaded or not; None if there is none."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = find_spec(name)
    return spec.origin if spec else None
