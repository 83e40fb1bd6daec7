"""A spectrum of a translation model as a row that follows from its coefficients."""

import json

import numpy as np
import pytest

from gradbounds.studies.text_spectrum import TextSpectrum, more_curvature_in_rows, price
from simulate.translation.model import Translation
from simulate.translation.parallel_text import read_pairs

# curvlinops' functional calls warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_a_row(parallel_files, tmp_path):
    """All of it follows from its coefficients, and a second call makes no product."""
    text = read_pairs(*parallel_files, vocab=20, pairs=11)
    model = Translation(width=8, depth=1, heads=2, ffn_width=8, vocab=20, dropout=0.0)
    one = TextSpectrum(model=model, text=text, matrix="hessian", seed=0, steps=3)
    told = []
    row = one.row(tmp_path, told.append)
    assert len(told) == 3
    again = one.row(tmp_path, told.append)
    assert len(told) == 3
    assert {**row, "date": again["date"]} == again == json.loads(json.dumps(again))
    beside = np.diag(row["betas"][:2], 1)
    values, vectors = np.linalg.eigh(np.diag(row["alphas"]) + beside + beside.T)
    assert row["largest"] == pytest.approx([values[-1], row["betas"][2] * abs(vectors[-1, -1])])
    assert row["trace"] == pytest.approx(row["size"] * row["alphas"][0])
    assert row["frobenius"] ** 2 == pytest.approx(row["size"] * (row["alphas"][0] ** 2 + row["betas"][0] ** 2))
    whole, piece = price(one)
    assert whole == pytest.approx(3 * piece), "one piece is the whole text here"


def rows(seeds, placements=("post", "pre")):
    """Largest eigenvalues 2 (1 + seed) and 1 + seed, of the paper's size but for V."""
    common = {"model": {"vocab": 2000}, "pairs": 9, "names": ["a.de", "a.en"], "matrix": "hessian"}
    return [
        common | {"placement": one, "seed": seed, "largest": [(1.0 + seed) * (2 + seed % 2) ** (one == "post"), 0.1]}
        for seed in seeds for one in placements
    ]  # fmt: skip


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_h1_of_few_seeds_is_undecided(seeds):
    """And says how many they are; where one placement is there, or another matrix, there is no row."""
    (found,) = more_curvature_in_rows(rows(seeds))
    assert found.verdict == "undecided"
    assert found.measured == pytest.approx([2.0, 6.0**0.5][len(seeds) - 1])
    assert found.interval == (2.0, 1.0 + len(seeds))
    words = ["one seed", "two seeds"][len(seeds) - 1]
    assert str(found.setting) == f"encoder-decoder, d = 512, L = 6, 9 pairs of a.de and a.en, V = 2000, {words}"
    assert words in str(found.note)
    assert found.part == "largest eigenvalue of the Hessian, Post-LN over Pre-LN, encoder-decoder, d = 512, L = 6"
    assert not more_curvature_in_rows(rows(seeds, ("post",)))
    assert not more_curvature_in_rows([row | {"matrix": "gauss-newton"} for row in rows(seeds)])


def test_h1_of_three_seeds_is_judged():
    (found,) = more_curvature_in_rows(rows([0, 2, 4]))
    assert (found.verdict, found.measured) == ("holds", pytest.approx(2.0))
