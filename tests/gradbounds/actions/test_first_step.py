"""`predict --first-step`: theory beside networks, exponents, its figure, and what is refused."""

import json

import pandas as pd
import pytest

from gradbounds.cli import main
from theory import Stack
from theory.first_step.prediction import first_step

# torch's own, of tracing.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LINE = ["predict", "--first-step", "--width", "32", "--depth", "1", "--tokens", "2", "--vocab", "4"]
WIDER = ["--compare", "width=64"]


def test_the_command(png_alone, tmp_path, capsys):
    """A row per network and optimizer, a table and a figure; the ratio of means is that of the networks' numbers."""
    assert main([*LINE, *WIDER, "--optimizer", "sgd", "adam", "--draws", "2", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Networks: ratios of means of 2; break-even" in said
    assert "Post-LN, sgd, depth 1: d^-0." in said
    table = pd.read_csv(tmp_path / "first_step.csv")
    assert table["optimizer"].tolist() == ["sgd", "adam", "sgd", "adam"]
    theory = first_step(Stack(width=32, depth=1, tokens=2, vocab=4))
    assert table["critical_rate"].iloc[0] == pytest.approx(theory.critical_rate)
    assert ((table["sampled_rate"] / table["critical_rate"]).between(0.2, 5)).all()
    assert (table["break_even_rate"] > 0).all()
    assert (tmp_path / "first_step.png").stat().st_size > 20_000


def test_json_and_no_rule(capsys):
    assert main([*LINE, "--optimizer", "sgd", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["schema"], len(content["first_step"])) == (1, 1)
    assert content["first_step"][0]["sampled_rate"] is None
    assert main([*LINE, "--optimizer", "sgd", "--dropout", "0.1"]) == 0
    assert "Theory has no rule: stack must have no dropout" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--draws", "1"], "draws must be an integer of at least 2, got 1."),
        (["--width", "65536", "--draws", "2"], "draws must be left out for networks of more than 2e+08 parameters"),
        (["--optimizer", "lion"], "invalid choice 'lion'"),
        (["--seed", "-1"], "seed must be an integer of at least 0, got -1."),
    ],
)
def test_what_is_refused(capsys, more, message):
    assert main([*LINE, *more]) == 2
    assert message in capsys.readouterr().err
