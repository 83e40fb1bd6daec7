"""`gradbounds predict --tokens 16 256 4096`: one table of several lengths."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from gradbounds.cli import main
from theory import Stack, predict

CAUSAL = ("--placement", "pre", "--depth", "4", "--width", "64", "--vocab", "16", "--mask", "causal")


def test_several_lengths_are_one_table(capsys):
    """First over last of every matrix, with theory's errors, and why attention's matrices gain."""
    assert main(["predict", *CAUSAL, "--query-key-scale", "1", "--patterns", "8", "--tokens", "64", "1", "16"]) == 0
    said = capsys.readouterr().out
    assert said.count("n = 1 ") == said.count("n = 64") == 2
    assert "tokens 1, 16, 64," in said.splitlines()[0]
    lines = said.splitlines()
    (ratio, *_), (last, *_) = [line.split()[1:] for line in lines if line.strip().startswith("dL/dWV ")]
    alone = np.sqrt(predict(Stack(placement="pre", depth=4, width=64, vocab=16, mask="causal", tokens=1))["grad_sq_WV"])
    assert (ratio, last) == (f"{alone[0] / alone[-1]:.3g}", f"{alone[-1]:.4g}")
    assert next(line for line in lines if line.strip().startswith("dL/dWQ")).split()[1] == "-", "one token asks nothing"
    assert re.search(r"dL/dWQ .* [0-9.]+ \+- [0-9.]+", said)


def test_lengths_have_the_numbers_of_one_by_one(capsys, tmp_path):
    asked_for = ["predict", *CAUSAL, "--tokens", "8", "128", "--json", "--out", str(tmp_path / "out")]
    assert main(asked_for) == 0
    found = pd.DataFrame(json.loads(capsys.readouterr().out)["lengths"])
    for tokens in (8, 128):
        one = predict(Stack(placement="pre", depth=4, width=64, vocab=16, mask="causal", tokens=tokens))["grad_sq_WV"]
        row = found[(found["tokens"] == tokens) & (found["quantity"] == "grad_WV")].iloc[0]
        assert row["first_over_last"] == pytest.approx((one[0] / one[-1]) ** 0.5)
        assert (row["last"], row["last_sem"]) == (pytest.approx(one[-1] ** 0.5), 0.0)
    assert len(pd.read_csv(tmp_path / "out" / "lengths.csv")) == len(found)


def test_why_it_grows_is_said_where_it_grows(capsys):
    """In a small Llama, with a mask and without, and not where attention is uniform and labels often coincide."""
    why = "have less in common, so that its gradients shrink"
    small = ["--like", "llama-3-8b", "--depth", "8", "--heads", "2", "--kv-heads", "2", "--head-width", "128"]
    for mask in ("causal", "none"):
        lengths = [*small, "--rotary", "0", "--mask", mask, "--patterns", "8", "--tokens", "4", "32"]
        assert main(["predict", *lengths]) == 0
        assert why in capsys.readouterr().out
    assert main(["predict", *CAUSAL, "--depth", "16", "--tokens", "8", "128"]) == 0
    assert why not in capsys.readouterr().out
