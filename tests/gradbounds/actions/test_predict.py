"""`gradbounds predict`: its numbers are theory's and the samples', and it says what theory lacks."""

import dataclasses
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from checks.stacks.gradients_by_layer import exponents, layer_table
from gradbounds.actions import predict as asked
from gradbounds.cli import main
from simulate import sample
from theory import Stack, predict
from theory.configurations import stack_from_config

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
    table = pd.DataFrame(found["prediction"])
    row = table[(table["quantity"] == "grad_W1") & (table["layer"] == 2)].iloc[0]
    values = sample(STACK, draws=8, seed=3)["grad_sq_W1"][:, 1].astype(float)
    assert row["mean"] == pytest.approx(np.sqrt(values.mean()))
    assert row["sem"] == pytest.approx(values.std(ddof=1) / np.sqrt(8) / (2 * row["mean"]))
    assert row["predicted"] == pytest.approx(np.sqrt(predict(STACK)["grad_sq_W1"][1]))
    assert (found["schema"], found["stack"]["width"], found["no_rule"]) == (1, 64, None)
    written = pd.read_csv(tmp_path / "out" / "prediction.csv")
    assert written["quantity"].tolist() == table["quantity"].tolist()
    assert (tmp_path / "out" / "gradient_over_layers.png").stat().st_size > 0


def test_a_field_given_again_is_another_network(capsys):
    several = json.loads(printed(capsys, "--json", "--compare", "placement=pre", "depth=3", "placement=peri"))[
        "compared"
    ]
    assert [(one["stack"]["placement"], one["stack"]["depth"]) for one in several] == [("pre", 3), ("peri", 2)]
    for one in several:
        norms = {row["layer"]: row["predicted"] for row in one["prediction"] if row["quantity"] == "grad_W2"}
        expected = predict(replace(STACK, placement=one["stack"]["placement"], depth=one["stack"]["depth"]))
        assert list(norms.values()) == pytest.approx(np.sqrt(expected["grad_sq_W2"]))
    said = printed(capsys, "--compare", "placement=pre", "placement=peri")
    assert said.index("With placement=pre, by theory") < said.index("With placement=peri, by theory")


def test_what_takes_theory_too_long_is_sampled(monkeypatch, capsys):
    """Tied embeddings take a time that grows like n^4, of which an estimate is said before it is spent."""
    monkeypatch.setattr(asked, "_tied_seconds", lambda stack, patterns: 259.0)
    said = printed(capsys, "--embeddings", "tied", "--draws", "2")
    assert "Theory: with tied embeddings it would take about 4.3 min for 4 tokens, more than max_time" in said
    assert "--max-time 9m waits for it" in said
    assert "Samples, root mean squares: 2 networks" in said
    assert "over theory" in printed(capsys, "--embeddings", "tied", "--draws", "2", "--max-time", "9m")
    assert main(["predict", "--max-time", "soon"]) == 2


def test_without_a_rule_samples_stand_in(capsys):
    said = printed(capsys, "--embeddings", "tied", "--dropout", "0.1", "--draws", "2")
    assert "Theory: stack must have untied embeddings or no dropout" in said
    assert "Samples, root mean squares: 2 networks" in said
    assert "over theory" not in said
    assert "No bound: Theorem 1 is about the paper's setting, which this network leaves by dropout, embeddings." in said


def test_what_theory_samples_has_errors_and_an_encoder_lines_of_its_own(capsys):
    arguments = ("--query-key-scale", "1", "--source-tokens", "3", "--patterns", "16")
    said = printed(capsys, *arguments)
    assert re.search(r"with standard errors of at most [\d.]+% \(.+\); smaller differences may be chance\.", said)
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
    tied = ("--embeddings", "tied", "--dropout", "0.5")
    assert main(["sweep", *grid, *tied, "--draws", "2", "--out", run]) == 0
    capsys.readouterr()
    assert main(["check", run, "--layers"]) == 0
    said = capsys.readouterr().out
    assert "Samples, root mean squares: 64 networks" in said
    assert "Theory has no rule for 1 of 1 networks: stack must have untied embeddings" in said
    assert "wide enough" not in said


NANOGPT = {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 128, "vocab_size": 65, "dropout": 0.2, "bias": False}


def test_a_configuration_file(capsys, tmp_path):
    """Its network is predicted, flags change it, and each of its fields is named or used."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(NANOGPT))
    line = ["predict", "--config", str(path), "--tokens", "4", "--patterns", "8"]
    assert main([*line, "--json", "--compare", "placement=peri", "depth-scaling=none"]) == 0
    found = json.loads(capsys.readouterr().out)
    stack, notes = stack_from_config(NANOGPT, tokens=4)
    assert stack.embeddings == "tied"
    assert found["stack"] == json.loads(json.dumps(dataclasses.asdict(stack)))
    assert {note["field"] for note in found["notes"]} == {note.field for note in notes}
    beside = {"placement": "peri", "depth_scaling": "none"}
    assert {name: found["compared"][0]["stack"][name] for name in beside} == beside
    assert main([*line, "--compare", "placement=post", "--activation", "tanh"]) == 0
    said = capsys.readouterr().out
    ratios = np.sqrt(predict(replace(stack, activation="tanh"), patterns=8)["grad_sq_W1"])
    compared = said[said.index("With placement=post, by theory") :].splitlines()
    assert next(row for row in compared if "dL/dW1" in row).split()[1] == f"{ratios[0] / ratios[-1]:.3g}"
    assert "- dropout = 0.2 is left out: gradients are those without dropout, as in evaluation" in said
    assert "Theory samples logits and attention patterns here" in said
    assert "Neutral at initialization: bias, block_size." in said


def test_what_stands_out(capsys):
    """The ratio of first to last layer, the stream, the tokens, and the largest step beside its matrix."""
    said = printed(capsys, "--placement", "pre", "--depth", "4", "--ffn-ratio", "4", "--initialization", "he")
    stack = replace(STACK, placement="pre", depth=4, ffn_ratio=4.0, initialization="he")
    found = predict(stack)
    ratios = {role: (found[f"grad_sq_{role}"][0] / found[f"grad_sq_{role}"][-1]) ** 0.5 for role in ("WV", "W1", "W2")}
    least, most = min(ratios, key=ratios.get), max(ratios, key=ratios.get)
    assert f"are {ratios[least]:.3g} (dL/d{least}) to {ratios[most]:.3g} times (dL/d{most}) the last layer's." in said
    energy = found["hidden_energy"]
    assert f"|x|^2/d is {energy[0]:.3g} after the first layer and {energy[-1]:.3g} after the last." in said
    # Squared norms of He's matrices, 2 d_out: of W2 a quarter of W1's.
    sizes = {"WV": 2 * 64, "W1": 2 * 256, "W2": 2 * 64}
    steps = {(role, k): found[f"grad_sq_{role}"][k] / size for role, size in sizes.items() for k in range(4)}
    role, layer = max(steps, key=steps.get)
    assert f"A step of SGD changes {role} of layer {layer + 1} most beside its own size" in said


def test_the_matrix_before_the_output_matrix_has_its_gradient(capsys):
    """BERT's head, behind which tied embeddings sample no logits."""
    assert main(["predict", "--width", "32", "--depth", "2", "--vocab", "16", "--output-transform", "added"]) == 0
    assert "dL/dW_H " in capsys.readouterr().out
    tied = ["--embeddings", "tied", "--vocab", "16", "--query-key-scale", "1"]
    assert main(["predict", "--width", "32", "--depth", "2", "--output-transform", "added", *tied]) == 0
    assert "Theory samples attention patterns here" in capsys.readouterr().out


def test_a_flag_with_its_default_changes_a_published_model_too(capsys):
    """GPT-2 is Pre-LN with twelve heads; Post-LN, ReLU and one head are the defaults of the flags."""
    line = ["predict", "--like", "gpt2", "--width", "16", "--depth", "1", "--tokens=2", "--vocab", "8", "--json"]
    changes = {"placement": "post", "activation": "relu", "heads": 1, "embeddings": "untied"}
    flags = [word for name, value in changes.items() for word in (f"--{name}", str(value))]
    assert main([*line, *flags]) == 0
    stack = json.loads(capsys.readouterr().out)["stack"]
    assert {name: stack.get(name, getattr(Stack(), name)) for name in changes} == changes
    assert main([*line[:-1], "--heads", "4"]) == 0
    assert capsys.readouterr().out.startswith("Pre-LN: width 16, depth 1, tokens 2, vocab 8, ")
