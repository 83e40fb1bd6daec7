"""Tied embeddings: words that repeat, both uses of the matrix, and the overlaps on the way back."""

import numpy as np
import pandas as pd
import pytest
import torch

from gradbounds.cli import main
from simulate import sample
from simulate.network.tied_words import Words
from simulate.text import read_windows
from tests.helpers.agreement import off
from tests.helpers.twins.relaxed import deviation
from theory import Stack, predict
from theory.coverage import NoRuleError
from theory.mean_field import tied_gradient as tied_embeddings
from theory.mean_field import tied_loss as tied_output

TEXT = "the cat sat on the mat and the dog sat on the cat and the cat saw the dog on the mat " * 3
TIED = {"embeddings": "tied", "sequences": 2, "output_scale": 1.3, "label_smoothing": 0.1}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_the_network_is_the_slow_one_on_a_text(text, placement):
    stack = Stack(placement=placement, width=12, depth=2, tokens=4, vocab=9, **TIED)
    assert deviation(stack, read_windows(text, tokens=4, vocab=9)) < 1e-9


def test_planted_errors_are_seen(monkeypatch, text):
    stack, windows = Stack(width=12, depth=2, tokens=4, vocab=9, **TIED), read_windows(text, tokens=4, vocab=9)
    right = Words.put_in

    def put_in_twice(self, logits, output):
        """Every repetition put in, as if it were a word of its own."""
        return right(Words(self.ids, torch.arange(self.ids.shape[1]).expand_as(self.ids), self.rows), logits, output)

    monkeypatch.setattr(Words, "put_in", put_in_twice)
    assert deviation(stack, windows) > 1e-4
    monkeypatch.undo()
    monkeypatch.setattr(Words, "gradient_sq", lambda self, stack, _, rows: rows.square().sum((1, 2)))
    assert deviation(stack, windows) > 1e-4


@pytest.mark.parametrize(
    "case", [{"placement": "pre", "mask": "causal"}, {"sequences": 2, "label_smoothing": 0.1}, {"depth": 5}], ids=str
)
def test_theory_is_what_samples_do_on_a_text(text, case):
    """Words that repeat, and labels that are words of the window; within 3% or 4 standard errors."""
    stack = Stack(**{"width": 1024, "depth": 2, "tokens": 5, "vocab": 12, "embeddings": "tied"} | case)
    samples = sample(stack, draws=256, seed=0, text=text)
    worst, names = off(samples, predict(stack, samples.cell.text.ids))
    assert worst <= 1, names


def no_overlap_in_norms(monkeypatch):
    monkeypatch.setattr(tied_embeddings.Gradient, "along", lambda self, place: 0.0 * self.stream)


def no_product_of_the_uses(monkeypatch):
    right = tied_output.embedding_energy
    monkeypatch.setattr(
        tied_embeddings, "embedding_energy", lambda *given: right(*given[:-1], 0.0 * given[-1]),
    )  # fmt: skip


def no_projection_on_units(monkeypatch):
    monkeypatch.setattr(np.linalg, "pinv", lambda kernel, **_: 0.0 * kernel)


@pytest.mark.parametrize("error", [no_overlap_in_norms, no_product_of_the_uses, no_projection_on_units])
def test_every_overlap_is_needed(monkeypatch, error):
    stack = Stack(width=1024, depth=2, tokens=4, vocab=64, embeddings="tied")
    samples = sample(stack, draws=256, seed=0)
    assert off(samples, predict(stack))[0] <= 1
    error(monkeypatch)
    assert off(samples, predict(stack))[0] > 1


def test_a_wide_network_is_sure_of_its_own_words():
    """Its logit grows like √d, and the loss with it; a position's own ‖∂L/∂x_L‖² tends to 2 σ_e²."""
    losses = []
    for width in (2**10, 2**14, 2**18):
        stack = Stack(placement="pre", width=width, depth=1, tokens=2, vocab=100, embeddings="tied")
        prediction = predict(stack, patterns=512)
        losses.append(float(prediction["loss"]))
    assert np.diff(np.log(losses)) == pytest.approx(np.log(4), abs=0.03)
    assert float(prediction["loss_gradient_sq"]) == pytest.approx(2 * (1 - 1 / 100), rel=0.02)


@pytest.mark.parametrize("fields", [
    {"dropout": 0.1}, {"attention_dropout": 0.1}, {"query_key_scale": 1.0}, {"placement": "residual"},
])  # fmt: skip
def test_what_has_no_rule_is_refused_and_sampled(fields):
    stack = Stack(width=16, depth=1, tokens=2, vocab=8, embeddings="tied", **fields)
    with pytest.raises(NoRuleError, match="^stack must have untied embeddings(,)? or .* for a prediction, got "):
        predict(stack)
    assert (sample(stack, draws=2, seed=0)["grad_sq_Wemb"] > 0).all()


def test_what_has_no_rule_is_sampled_and_shown(tmp_path, capsys):
    """`check` says nothing of it, and does not fail."""
    out = str(tmp_path / "run")
    line = "--embeddings tied --dropout 0.1 --width 16 --depth 1 2 3 --tokens 2 --vocab 4"
    assert main(["sweep", "--out", out, *line.split()]) == 0
    assert main(["check", out, "--csv", str(tmp_path / "all.csv")]) == 0
    assert "0 agree within 3%, 0 are consistent" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "all.csv")
    assert table["predicted"].isna().all()
    assert (table[table["quantity"] == "grad_sq_W2"]["mean"] > 0).all()
    capsys.readouterr()
    assert main(["figures", out, "--out", str(tmp_path / "figures")]) == 2
    assert "run must have networks that large-width theory has a rule for" in capsys.readouterr().err


def test_too_many_tokens_are_refused():
    with pytest.raises(NoRuleError, match="^stack must have untied embeddings or at most 64 tokens x sequences"):
        predict(Stack(width=512, depth=1, tokens=33, sequences=2, vocab=128, embeddings="tied"))


@pytest.mark.parametrize("fields", [{"vocab": 7}, {"input_correlation": 0.5}, {"input_gram": np.eye(8).tolist()}])
def test_words_are_independent_and_distinct(fields):
    with pytest.raises(ValueError, match="^embeddings must be untied "):
        Stack(embeddings="tied", **fields)
