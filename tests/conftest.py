"""Hooks that pytest loads first: the plugin `tests.suite` where tests run, and the files that are left out."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Load the suite's plugin, except in a process that only distributes tests: it takes three seconds there."""
    if config.getoption("dist", "no") == "no" or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("tests.suite")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose tests are all left out by their marks; loading them takes a third of collection."""
    if "not evidence" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    folders = set(collection_path.relative_to(ROOT).parts[:-1])
    chosen = "studies" not in folders or collection_path.name in ("test_smoke.py", "conftest.py")
    return "evidence" in folders or not chosen or None
