"""Fixtures of the suite, and the mark `study` on every test of a study but its smoke test."""

from pathlib import Path

import pytest
import torch

from tests.conftest import (  # noqa: F401  (fixtures, and the seed of every test)
    blank_pictures,
    own_names,
    parallel_files,
    png_alone,
    pytest_ignore_collect,
    pytest_runtest_setup,
    pytest_runtestloop,
    small_grid,
)

STUDIES = Path(__file__).parent
SMOKE = "test_smoke.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them before unmarked ones are chosen; leave GPU tests out where there is none."""
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if STUDIES in item.path.parents and item.path.name != SMOKE:
            item.add_marker(pytest.mark.study)
