"""The mark `study` on every test of a study but its smoke test."""

from pathlib import Path

import pytest

from tests.conftest import pytest_configure, pytest_ignore_collect  # noqa: F401  (the suite's plugin)

STUDIES = f"{Path(__file__).parent}/"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them before unmarked ones are chosen."""
    for item in items:
        if str(item.path).startswith(STUDIES) and item.path.name != "test_smoke.py":
            item.add_marker(pytest.mark.study)
