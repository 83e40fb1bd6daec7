"""The command `train`: its table, exponents and figure, rates in critical ones and of mu-P, and what is refused."""

import json

import pandas as pd
import pytest

from gradbounds.actions.training.command import Plan
from gradbounds.cli import main
from simulate.training.train import train
from theory import Stack
from theory.first_step.prediction import first_step

LINE = ["train", "--placement", "post", "--width", "16:64:x2", "--depth", "1", "--tokens", "2", "--vocab", "4"]


def test_the_command(blank_pictures, tmp_path, capsys):
    """Means over draws of what training gives, and exponents of mu-P, which has changes that do not grow."""
    more = ["--steps", "2", "--parametrization", "mup", "--learning-rate", "0.5", "--out", str(tmp_path)]
    assert main([*LINE, *more, "--draws", "40"]) == 0
    said = capsys.readouterr().out
    assert "Post-LN, L = 1, logits' change, step 2: d^" in said
    table = pd.read_csv(tmp_path / "training.csv").set_index(["width", "quantity", "step", "layer"])
    stack = Stack(width=64, depth=1, tokens=2, vocab=4, output_scale=1 / 8)
    rates = {"WV": 0.5, "W1": 0.5, "W2": 0.5, "Wemb": 0.5 / 64}
    found = train(stack, steps=2, learning_rate=rates, draws=40, seed=0)
    one = table.loc[64, "logit_change_sq", 2, 0]
    assert one["mean"] == pytest.approx(found["logit_change_sq"][:, 2].mean(), rel=1e-6)
    assert one["sem"] == pytest.approx(found["logit_change_sq"][:, 2].std(ddof=1) / 40**0.5, rel=1e-6)
    assert table.loc[64, "grad_sq_W2", 1, 1]["mean"] == pytest.approx(found["grad_sq_W2"][:, 1, 0].mean(), rel=1e-6)
    assert (tmp_path / "training.png").is_file()


def test_json_and_critical_rates(capsys):
    """At a tenth of the critical rate logits move by as much at every width, features by less."""
    line = [*LINE, "--steps", "1", "--draws", "60", "--rate-unit", "critical", "--json"]
    assert main([*line, "--width", "32:128:x2"]) == 0
    content = json.loads(capsys.readouterr().out)
    exponents = {row["quantity"]: row for row in content["exponents"]}
    assert abs(exponents["logit_change_sq"]["exponent"]) < 0.2
    assert exponents["feature_change_sq"]["low"] < -0.5 < exponents["feature_change_sq"]["high"]
    stack = Stack(width=32, depth=1, tokens=2, vocab=4)
    assert Plan(steps=1, learning_rate=0.1, in_critical_rates=True).rate(stack) == pytest.approx(
        0.1 * first_step(stack).critical_rate
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--draws", "1"], "draws must be an integer of at least 2, got 1."),
        (["--steps", "0"], "steps must be an integer of at least 1, got 0."),
        (["--optimizer", "adam"], "invalid choice 'adam'"),
        (["--parametrization", "mup", "--optimizer", "muon"], "parametrization must be 'standard' with"),
        (["--dropout", "0.1", "--rate-unit", "critical"], "rate_unit must be 'one' where theory has no critical rate"),
        (["--placement", "rezero"], "placement must not be 'rezero' in training"),
    ],
)
def test_what_is_refused(capsys, more, message):
    assert main([*LINE, *more]) == 2
    assert message in capsys.readouterr().err
