"""The command `train`: its table, exponents and figure, rates in critical ones and of mu-P, and what is refused."""

import json

import pandas as pd
import pytest

from gradbounds.recipe import Recipe
from simulate import Run
from simulate.runs.execution import Execution, InProcess
from studies.__main__ import run as main
from studies.training import train as training
from studies.training.plan import Plan
from studies.training.reproduce import train_into
from studies.training.train import train
from theory import Stack
from theory.first_step.prediction import first_step

LINE = ["training", "--placement", "post", "--width", "16:64:x2", "--depth", "1", "--tokens", "2", "--vocab", "4"]


def test_the_command(blank_pictures, tmp_path, capsys):
    """Means over draws of what training gives, and exponents of mu-P, which has changes that do not grow."""
    more = ["--steps", "2", "--parametrization", "mup", "--learning-rate", "0.5", "--out", str(tmp_path)]
    assert main([*LINE, *more, "--draws", "64"]) == 0
    said = capsys.readouterr().out
    assert "Post-LN, L = 1, logits' change, step 2: d^" in said
    assert "limit d^0.000: " in said
    assert len(pd.read_csv(tmp_path / "exponents.csv")) == 4
    assert set(pd.read_csv(tmp_path / "limits.csv")["step"]) == {1, 2}
    table = pd.read_csv(tmp_path / "training.csv").set_index(["width", "quantity", "step", "layer"])
    stack = Stack(width=64, depth=1, tokens=2, vocab=4, output_scale=1 / 8)
    rates = {"WV": 0.5, "W1": 0.5, "W2": 0.5, "Wemb": 0.5 / 64}
    found = train(stack, steps=2, learning_rate=rates, draws=64, seed=0)
    one = table.loc[64, "logit_change_sq", 2, 0]
    assert one["mean"] == pytest.approx(found["logit_change_sq"][:, 2].mean(), rel=1e-6)
    assert one["sem"] == pytest.approx(found["logit_change_sq"][:, 2].std(ddof=1) / 8, rel=1e-6)
    assert table.loc[64, "grad_sq_W2", 1, 1]["mean"] == pytest.approx(found["grad_sq_W2"][:, 1, 0].mean(), rel=1e-6)
    assert (tmp_path / "training.png").is_file()
    assert (tmp_path / "coordinate_check.png").is_file()
    assert not (tmp_path / "losses.png").exists()  # of one placement


def test_a_text_device_and_precision(tmp_path, capsys):
    """They reach the networks, and one that there is not is refused before anything is written."""
    text = tmp_path / "text.txt"
    text.write_text("a b a c d a b b c a d b " * 4, encoding="utf-8")
    line = [*LINE, "--text", str(text), "--batch", "fresh", "--dtype", "float64", "--steps", "1", "--draws", "2"]
    assert main([*line, "--out", str(tmp_path / "run")]) == 0
    table = pd.read_csv(tmp_path / "run" / "training.csv").set_index(["width", "quantity", "step", "layer"])
    row, stack = table.loc[64, "loss", 1, 0], Stack(width=64, depth=1, tokens=2, vocab=4)
    more = {"batch": "fresh", "text": text, "dtype": "float64"}
    known = train(stack, steps=1, learning_rate=0.1, draws=int(row["draws"]), seed=0, **more)
    assert row["mean"] == pytest.approx(known["loss"][:, 1].mean(), rel=1e-12)
    capsys.readouterr()
    for wrong, said in ([["--device", "tpu"], "device must be"], [["--text", str(tmp_path / "no")], "text must be"],
                        [["--workers", "2", "--dask", "tcp://a:1"], "workers and dask must not"]):  # fmt: skip
        assert main([*LINE, *wrong, "--out", str(tmp_path / "none")]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "none").exists()


def test_a_run_is_continued(blank_pictures, tmp_path, monkeypatch):
    """Stopped after a block, with other workers and then with more draws: no block twice, and the same file.

    Numbers are those of `train`, and what reads samples of initialization refuses the folder.
    """
    recipe = Recipe().changed(
        {"placement": ["post", "pre"], "width": [8, 16], "depth": 1, "tokens": 2, "vocab": 4}, draws=70
    )
    plan, done = Plan(steps=1, learning_rate=0.1), []
    block = training.train_block

    def counted(cell, schedule, seed, draws):
        if len(done) == 3 and not (tmp_path / "late").exists():
            (tmp_path / "late").touch()
            raise KeyboardInterrupt
        done.append((cell.name, seed))
        return block(cell, schedule, seed, draws)

    monkeypatch.setattr(training, "train_block", counted)
    with pytest.raises(KeyboardInterrupt):
        train_into(tmp_path / "stopped", recipe, plan, Execution(land_every=0.0))
    assert len(done) == 3
    stopped = train_into(tmp_path / "stopped", recipe, plan, Execution(workers=2, pool=InProcess()))
    assert len(done) == len(set(done)) == 8
    for asked in (recipe.changed({}, draws=64), recipe):
        whole = train_into(tmp_path / "whole", asked, plan)
    table = whole.to_frame()
    pd.testing.assert_frame_equal(stopped.to_frame(), table, check_exact=True)
    monkeypatch.undo()
    table = table.set_index(["placement", "width", "quantity", "step", "layer"])
    stack = Stack(placement="pre", width=16, depth=1, tokens=2, vocab=4)
    found = train(stack, steps=1, learning_rate=0.1, draws=128, seed=0)
    mean = found["grad_sq_W1"][:, 1, 0].astype(float).mean()
    assert table.loc["pre", 16, "grad_sq_W1", 1, 1]["mean"] == pytest.approx(mean, rel=1e-12)
    with pytest.raises(ValueError, match="^run must be of networks at initialization"):
        Run.open(tmp_path / "whole").samples()
    with pytest.raises(ValueError, match="holds another run"):
        train_into(tmp_path / "whole", recipe, Plan(steps=1, learning_rate=0.2))


def test_json_and_critical_rates(capsys):
    """At a tenth of the critical rate logits move by as much at every width, features by less."""
    line = [*LINE, "--steps", "1", "--draws", "60", "--rate-unit", "critical", "--json"]
    assert main([*line, "--width", "32:128:x2"]) == 0
    exponents = {row["quantity"]: row for row in json.loads(capsys.readouterr().out)["exponents"]}
    assert abs(exponents["logit_change_sq"]["exponent"]) < 0.2
    assert exponents["logit_change_sq"]["source"] == "theory"
    assert exponents["feature_change_sq"]["source"] == "limit"
    assert exponents["feature_change_sq"]["low"] < -0.5 < exponents["feature_change_sq"]["high"]
    stack = Stack(width=32, depth=1, tokens=2, vocab=4)
    assert Plan(steps=1, learning_rate=0.1, in_critical_rates=True).rate(stack) == pytest.approx(
        0.1 * first_step(stack).critical_rate
    )
