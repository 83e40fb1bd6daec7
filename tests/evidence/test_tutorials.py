"""Commands of the tutorials that the suite leaves out, because they take longer: they print what the pages show."""

import pytest

from tests.docs.test_readme import TUTORIALS, follow

pytestmark = pytest.mark.evidence


@pytest.mark.parametrize("name", TUTORIALS)
def test_heavy_commands_of_a_tutorial_print_what_it_shows(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(name, capsys, heavy=True)
