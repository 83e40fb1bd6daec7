"""Folders in which evidence that was stopped finds what it had."""

from pathlib import Path

import pytest


@pytest.fixture
def kept_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a file of tests, the same in every run of `make evidence` with these sources."""
    resumption = request.config.pluginmanager.get_plugin("resumption")
    folder = resumption.folder(request.path) / "work" if resumption else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder
