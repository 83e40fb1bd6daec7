"""`gradbounds predict`: its numbers are theory's and the samples', and it says what theory lacks."""

import json

import numpy as np
import pandas as pd
import pytest

from checks.stacks.gradients_by_layer import exponents, layer_table
from gradbounds.cli import main
from simulate import sample
from theory import Stack, predict

SMALL = ("--width", "64", "--depth", "2", "--tokens", "4", "--vocab", "16")
STACK = Stack(width=64, depth=2, tokens=4, vocab=16)


def printed(capsys, *arguments):
    assert main(["predict", *SMALL, *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.quick
def test_theory_is_printed_with_the_bound_and_the_exponents(capsys):
    said = printed(capsys)
    norms = np.sqrt(predict(STACK)["grad_sq_W2"])
    for layer, norm in enumerate(norms, start=1):
        assert any(
            line.split()[0] == str(layer) and line.split()[-1] == f"{norm:.4g}" for line in said.splitlines()[3:6]
        )
    exponents_in_d = "from here to twice the width: dL/dWV 0.500, dL/dW1 0.500, dL/dW2 0.500."
    assert f"Exponents in d of the last layer's norms, {exponents_in_d}" in said
    assert "Theorem 1 allows the last dL/dW2" in said


def test_samples_stand_beside_theory(png_alone, capsys, tmp_path):
    found = json.loads(printed(capsys, "--draws", "8", "--seed", "3", "--json", "--out", str(tmp_path / "out")))
    table = pd.DataFrame(found["quantities"])
    row = table[(table["quantity"] == "grad_W1") & (table["layer"] == 2)].iloc[0]
    values = sample(STACK, draws=8, seed=3)["grad_sq_W1"][:, 1].astype(float)
    assert row["mean"] == pytest.approx(np.sqrt(values.mean()))
    assert row["sem"] == pytest.approx(values.std(ddof=1) / np.sqrt(8) / (2 * row["mean"]))
    assert row["predicted"] == pytest.approx(np.sqrt(predict(STACK)["grad_sq_W1"][1]))
    assert (found["schema"], found["stack"]["width"], found["no_rule"]) == (1, 64, None)
    written = pd.read_csv(tmp_path / "out" / "prediction.csv")
    assert written["quantity"].tolist() == table["quantity"].tolist()
    assert (tmp_path / "out" / "gradient_over_layers.png").stat().st_size > 0


def test_without_a_rule_samples_stand_in(capsys):
    said = printed(capsys, "--embeddings", "tied", "--query-key-scale", "1", "--draws", "2")
    assert "Theory: embeddings must be 'untied' for a prediction with query_key_scale" in said
    assert "Samples, root mean squares: 2 networks" in said
    assert "over theory" not in said
    assert (
        "No bound: Theorem 1 is about the paper's setting, which this network leaves by query_key_scale, embeddings."
        in said
    )


def test_what_theory_samples_has_errors_and_an_encoder_lines_of_its_own(capsys):
    arguments = ("--query-key-scale", "1", "--source-tokens", "3", "--patterns", "16")
    said = printed(capsys, *arguments)
    assert "standard errors of at most" in said
    assert said.count("  layer") == 2
    assert "Norms of the first layer over the last layer's, encoder: dL/dWQ" in said
    assert printed(capsys, *arguments) == said, "the same command gives the same numbers"


def test_exponents_are_those_of_the_recursion():
    """Pre-LN's last layer falls like 1/√L in the end, and a norm grows like √d."""
    found = exponents(predict(Stack(placement="pre", width=64, depth=512, tokens=1, vocab=16)), predict)
    value = found[found["quantity"] == "grad_W2"].set_index("field")["exponent"]
    assert value["width"] == pytest.approx(0.5, abs=1e-9)
    assert value["depth"] == pytest.approx(-0.5, abs=2e-3)


def test_a_table_needs_theory_or_samples_alone():
    drawn = sample(STACK, draws=2, seed=0)
    alone = layer_table(None, drawn)
    assert alone["predicted"].isna().all()
    assert (alone["draws"] == 2).all()
    both = layer_table(predict(STACK), drawn)
    assert set(alone["quantity"]) <= set(both["quantity"])


@pytest.mark.parametrize("arguments", [("--draws", "1"), ("--patterns", "1"), ("--seed", "-1"), ("--width", "1")])
def test_bad_input(capsys, arguments):
    assert main(["predict", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_check_shows_a_run_s_gradients_and_says_what_has_no_rule(capsys, tmp_path):
    run = str(tmp_path / "run")
    grid = ("--placement", "post", "--width", "32", "--depth", "2", "--tokens", "4", "--vocab", "8")
    tied = ("--embeddings", "tied", "--query-key-scale", "0.5")
    assert main(["sweep", *grid, *tied, "--draws", "2", "--out", run]) == 0
    capsys.readouterr()
    assert main(["check", run, "--layers"]) == 0
    said = capsys.readouterr().out
    assert "Samples, root mean squares: 64 networks" in said
    assert "Theory has no rule for 1 of 1 networks: embeddings must be 'untied'" in said
    assert "wide enough" not in said
