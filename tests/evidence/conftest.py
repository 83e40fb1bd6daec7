"""Evidence is imported where it is asked for alone; evidence that was stopped finds the folder with what it had."""

from pathlib import Path

import pytest

from tests.helpers.evidence_shares import take_shares


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave the files out where no evidence will run: to import them takes seconds in every worker."""
    return "evidence" not in config.option.markexpr.replace("not evidence", "") or None


@pytest.fixture
def kept_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a file of tests, the same in every run of `make evidence` with these sources."""
    resumption = request.config.pluginmanager.get_plugin("resumption")
    folder = resumption.folder(request.path) / "work" if resumption else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    take_shares(folder)
    return folder
