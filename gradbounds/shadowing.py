"""Whether Python finds the packages of this project, or somebody's modules of the same names before them.

`theory`, `simulate`, `checks` and `figures` are words that a folder of one's own may well use. Where that folder comes
first on Python's path (a script's own folder, a notebook's, `python -m`), its module would be taken for ours. A folder
without `__init__.py` does no harm: Python prefers a package to it.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

# Each needs no more than those before it.
_PACKAGES = ("theory", "simulate", "checks", "figures")
_ROOT = Path(__file__).resolve().parents[1]


class ShadowedError(ImportError):
    """Somebody else's module stands before a package of ours; the message is one line."""


def check_own_packages(last: str = _PACKAGES[-1]) -> None:
    """Pass where Python finds our packages, those that `last` needs and itself; all if it is left out.

    Raises:
        ShadowedError: it finds another module first, or has loaded it already.
    """
    for name in _PACKAGES[: _PACKAGES.index(last) + 1]:
        origin = _found(name)
        if origin is not None and Path(origin).resolve().parent != _ROOT / name:
            raise ShadowedError(
                f"gradbounds needs its own package {name!r}, but Python finds {origin} first: rename that, or start "
                "Python with -P or in another folder.",
                name=name,
                path=origin,
            )


def _found(name: str) -> str | None:
    """The file of a top-level module, loaded or not; None where there is none to name."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = find_spec(name)
    return spec.origin if spec else None
