"""What `check` prints of a few networks, and the text that comes along."""

import sys

import numpy as np
import pytest

import gradbounds as gb
from gradbounds.cli import main
from gradbounds.recipe import read_recipe
from simulate import Cell, Run, read_windows, sample
from simulate.runs import cell
from simulate.runs.tables import Block
from theory import Stack, predict

SMALL = ["--depth", "3", "--tokens", "4", "--vocab", "16"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, tmp_path):
    monkeypatch.setattr(cell, "MOST_DRAWS", 16)
    monkeypatch.chdir(tmp_path)


def rows_of(said):
    """What stands in each row of the printed tables, by network and then by quantity and layer."""
    tables, rows = [], {}
    for line in said.splitlines():
        words = line.split()
        if words[:3] == ["quantity", "layer", "measured"]:
            tables.append(rows := {})
        elif line.startswith("  ") and not line.startswith("   "):
            layer = int(words[1]) if words[1].isdigit() else 0
            rows[words[0], layer] = words[2:] if layer else words[1:]
    return tables


def test_a_table_of_each_network_on_a_text_of_ours(monkeypatch, capsys):
    """In a folder of one's own; first and last layer, gradients as norms, beside what samples and theory have."""
    assert main(["sweep", "--text", "lighthouse", "--width", "32", *SMALL, "--draws", "16", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["check", "run"]) == 0
    said = capsys.readouterr().out
    assert "Post-LN: width 32, depth 3, tokens 4, vocab 16, lighthouse.txt\n" in said
    assert "of these" not in said.lower()
    tables, runs = rows_of(said), Run.open("run").samples()
    assert len(tables) == len(runs) == 2
    for table, samples in zip(tables, runs, strict=True):
        assert {layer for _, layer in table} == {0, 1, 3}
        known = predict(samples.stack, samples.cell.text.ids)
        assert {name for name, _ in table} >= {"loss", "|x|^2/d", "dL/dW1", "dL/dW2", "dL/dWV", "dL/dWemb"}
        for layer in (1, 3):
            squares, theory = samples["grad_sq_W2"][:, layer - 1].astype(float), known["grad_sq_W2"][layer - 1] ** 0.5
            norm = squares.mean() ** 0.5
            error = squares.std(ddof=1) / 4 / (2 * norm)
            shown = [float(word) for word in table["dL/dW2", layer][:4]]
            np.testing.assert_allclose(shown, [norm, error, theory, norm / theory], rtol=0.05)
            np.testing.assert_allclose(shown[::2], [norm, theory], rtol=1e-3)
        assert float(table["loss", 0][0]) == pytest.approx(samples["loss"].mean(), rel=1e-3)
    # On a terminal, where libraries would colour what commands then spell out.
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["check", "run"]) == 0
    assert capsys.readouterr().out == said


def test_of_many_networks_there_is_another_way(capsys):
    assert main(["sweep", "--width", "8", "16", "32", *SMALL, "--draws", "32", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["check", "run"]) == 0
    said = capsys.readouterr().out
    assert "6 networks: --layers prints each" in said
    assert "verdicts were compared with committed verdicts." in said
    assert rows_of(said) == []


def test_draws_that_are_not_finite_are_counted(capsys):
    """An error without --strict; one token's correlation with others is defined nowhere, and none."""
    stack = Stack(width=16, depth=2, tokens=1, vocab=4)
    assert np.isnan(sample(stack, draws=16, seed=0)["token_correlation"]).all()
    run = gb.sweep([stack], draws=16, seed=0, out="run")
    assert main(["check", "run"]) == 0
    values = sample(stack, draws=32, seed=0).arrays
    values = {name: value[16:].copy() for name, value in values.items()}
    values["grad_sq_W2"][[3, 5], 1], values["loss"][7] = [np.nan, np.inf], np.inf
    run.append([Block(Cell(stack), 0, 1, values)])
    capsys.readouterr()
    assert main(["check", "run"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NOT FINITE")]
    assert lines == ["NOT FINITE loss, grad_sq_W2 at post, d = 16, L = 2: in 3 of 32 draws"]


def test_the_name_of_a_text_is_no_path(tmp_path):
    """It stays what it is in a file of a sweep, whose other texts lie beside it."""
    (tmp_path / "folder").mkdir()
    for text, read in (("lighthouse", "lighthouse"), ("mine.txt", str(tmp_path / "folder" / "mine.txt"))):
        file = tmp_path / "folder" / "sweep.toml"
        file.write_text(f'text = "{text}"\n')
        assert read_recipe(file).text == read
    windows = read_windows("lighthouse", tokens=4, vocab=16)
    assert windows.source == "lighthouse.txt"
    assert len(windows.ids) > 100
