"""`predict --first-step`: theory beside networks, exponents, and what is refused."""

import json
import re

import pandas as pd
import pytest

from gradbounds.budget import by_estimates
from gradbounds.cli import main
from tests.helpers.printed import output
from theory import Stack
from theory.first_step.prediction import first_step

# torch's own, of tracing.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


LINE = ["predict", "--first-step", "--width", "32", "--depth", "1", "--tokens", "2", "--vocab", "4"]
WIDER = ["--compare", "width=64"]


def test_the_command(tmp_path, capsys):
    """A row per network and optimizer, and a table; the ratio of means is that of the networks' numbers."""
    said = output(capsys, *LINE[1:], *WIDER, "--optimizer", "sgd", "adam", "--draws", "2", "--out", str(tmp_path))
    assert "networks: critical rate from means over 2 sampled networks; break-even" in said
    assert "Post-LN, SGD, depth 1: d^-0." in said
    table = pd.read_csv(tmp_path / "first_step.csv")
    assert table["optimizer"].tolist() == ["sgd", "adam", "sgd", "adam"]
    theory = first_step(Stack(width=32, depth=1, tokens=2, vocab=4))
    assert table["critical_rate"].iloc[0] == pytest.approx(theory.critical_rate)
    assert ((table["sampled_rate"] / table["critical_rate"]).between(0.2, 5)).all()
    assert (table["break_even_rate"] > 0).all()


def test_json_and_no_rule(capsys):
    content = json.loads(output(capsys, *LINE[1:], "--optimizer", "sgd", "--json"))
    assert (content["schema"], len(content["first_step"])) == (2, 1)
    assert content["first_step"][0]["sampled_rate"] is None
    said = output(capsys, *LINE[1:], "--optimizer", "sgd", "--dropout", "0.1")
    assert "Theory has no rule: stack must have no dropout" in said and "--batch" not in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--draws", "1"], "draws must be an integer of at least 2, got 1."),
        (["--optimizer", "lion"], "invalid choice 'lion'"),
        (["--max-time", "0.01s"], "theory of the first step would take about "),
        (["--seed", "-1"], "seed must be an integer of at least 0, got -1."),
    ],
)
def test_what_is_refused(capsys, more, message):
    assert main([*LINE, *more]) == 2
    assert message in capsys.readouterr().err


def test_a_model_s_configuration(tmp_path, capsys):
    """Flags change its fields; what would take long is refused with the tokens that fit."""
    content = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(content | {"tie_word_embeddings": False}))
    line = ["predict", "--first-step", "--config", str(tmp_path / "config.json"), "--patterns", "2"]
    (row,) = json.loads(output(capsys, *line[1:], "--tokens", "2", "--optimizer", "adam", "--json"))["first_step"]
    assert (row["width"], row["vocab"], row["tokens"], row["ffn_ratio"]) == (32, 64, 2, 4.0)
    assert row["critical_rate"] > 0
    # Signs are ±1 everywhere, and GPT-2 draws W^O and W2 smaller by the root of 2 L = 4.
    assert row["update_ratio"] == pytest.approx(2, rel=0.01)
    assert "Multipliers of the learning rate" in output(capsys, *line[1:], "--tokens", "2", "--optimizer", "adamw")
    takes = output(capsys, *line[1:], "--tokens", "2", "--dry-run")
    assert "1 sequence of 2 tokens that all differ\n  computes  critical learning rates of SGD, AdamW" in takes
    with by_estimates():
        assert main([*line[:4], *"--tokens 32 --vocab 400 --depth 12 --optimizer adam --max-time 3s".split()]) == 2
    assert re.search(r"of --max-time; --tokens \d+ is within the limits; --max-time", capsys.readouterr().err)


def test_bert_s_configuration_beside_networks(tmp_path, capsys):
    """Its head's matrix is in no layer, its embeddings are tied, and a share of the positions count."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 64} | sizes))
    line = ["predict", "--first-step", "--config", str(tmp_path / "config.json"), "--tokens", "2"]
    (row,) = json.loads(
        output(
            capsys, *line[1:], "--patterns", "2", "--loss-share", "0.5", "--optimizer", "adam", "--draws", "2", "--json"
        )
    )["first_step"]
    assert (row["embeddings"], row["output_transform"], row["draws"]) == ("tied", "added", 2)
    assert row["relative_updates"].endswith("WH 1, Wemb 1")
    assert 0.2 < row["sampled_rate"] / row["critical_rate"] < 5


def test_signs_of_a_framework_s_weights(tmp_path, capsys):
    """Signs are ±1 everywhere; GPT-NeoX draws W^O and W2 with 2/sqrt(d) at L = 1, all others with sqrt(2/(5 d))."""
    content = {"model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    content |= {"vocab_size": 64, "intermediate_size": 128, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(content))
    line = ["predict", "--first-step", "--config", str(tmp_path / "config.json")]
    line += ["--tokens", "2", "--patterns", "2", "--optimizer", "adam", "--drawn-by", "neox"]
    found = json.loads(output(capsys, *line[1:], "--json"))
    assert found["drawn_by"] == "neox"
    assert found["first_step"][0]["update_ratio"] == pytest.approx(2 / 0.4**0.5, rel=0.02)
    assert output(capsys, *line[1:]).startswith("Weights are drawn as GPT-NeoX draws them (small_init and wang_init; ")


def test_networks_too_large_to_be_stepped_are_named(capsys):
    line = ["predict", "--first-step", "--like", "llama-3-8b", "--tokens", "2", "--optimizer", "sgd", "--draws", "2"]
    assert "Networks of more than 2e+08 parameters are not stepped." in output(
        capsys, *line[1:], "--patterns", "2", "--depth", "1"
    )
