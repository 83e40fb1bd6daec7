"""`make compatibility`: what is asked for, and what of it could not be had."""

import tomllib

from packaging.requirements import Requirement

from tests.compatibility import ROOT, allowed, lowest, not_had


def test_every_dependency_has_a_lower_bound():
    """Else the oldest environment is not defined; this project is not asked of an index, nor what no test needs."""
    wanted = allowed(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])
    assert {"numpy", "torch", "sentencepiece", "pytest"} < set(wanted)
    assert not {"gradbounds", "sphinx", "transformers"} & set(wanted)
    assert all(lowest(requirement) for requirement in wanted.values())


def test_what_could_not_be_had():
    """2.0 is 2.0.0, a later version than the bound is named, and so is one that is behind the newest."""
    wanted = {one.name: one for one in map(Requirement, ("numpy>=2.0", "pandas>=2.2", "torch==2.6", "scipy"))}
    had = {"numpy": "2.0.0", "pandas": "2.2.2"}
    assert not_had("oldest", {"versions": had}, wanted) == {"pandas": ["2.2", "2.2.2"], "torch": ["2.6", "none"]}
    behind = {"versions": had, "held back": {"numpy": "2.5.0", "mpmath": "1.4.1"}}
    assert not_had("newest", behind, wanted) == {"numpy": ["2.5.0", "2.0.0"]}
