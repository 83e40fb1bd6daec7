"""Published points over theory: every panel is drawn, and the misses are the ones that the title states."""

import pytest

from figures.published import published, published_panels
from gradbounds.cli import main


@pytest.mark.parametrize("source", ["completep", "transformers_get_stable"])
def test_points_are_drawn_over_theory(source):
    figure = published(source)
    assert len(figure.axes) == len(published_panels(source))
    assert "nothing fitted" in figure.get_suptitle()


def test_a_claim_without_points_has_one_line(tmp_path, capsys):
    assert main(["claims", "KE2", "--figure", str(tmp_path / "a.png")]) == 2
    assert "figure requires" in capsys.readouterr().err
