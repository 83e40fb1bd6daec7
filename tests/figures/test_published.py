"""Published points over theory: every panel is drawn, and the command says first what it costs."""

import pytest

from figures.published import published, published_panels
from gradbounds.cli import main


@pytest.mark.parametrize("source", ["completep", "transformers_get_stable"])
def test_points_are_drawn_over_theory(source):
    assert len(published(source).axes) == len(published_panels(source))


def test_a_figure_says_its_seconds_and_a_claim_without_points_has_one_line(tmp_path, capsys):
    assert main(["claims", "TS1", "--figure", str(tmp_path / "a.png"), "--json"]) == 0
    assert "published points: about 1." in capsys.readouterr().err
    assert main(["claims", "KE2", "--figure", str(tmp_path / "a.png")]) == 2
    assert "figure requires" in capsys.readouterr().err
