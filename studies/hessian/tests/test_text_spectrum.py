"""A spectrum of a translation model as a row that follows from its coefficients."""

import json

import numpy as np
import pytest
import torch

from studies.hessian.krylov import Krylov
from studies.hessian.lanczos import quadrature
from studies.hessian.text_spectrum import TextSpectrum, more_curvature_in_rows, price, tails
from studies.parallel_text import read_pairs
from studies.translation_model import Translation

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


def row_of(eigenvalues, steps, probe):
    """Of a diagonal matrix."""
    kept = Krylov()
    quadrature(lambda vector: torch.tensor(eigenvalues) * vector, torch.tensor(probe), steps, kept=kept)
    return {"placement": "post", "matrix": "hessian", "seed": 0, "size": len(eigenvalues), "alphas": kept.alphas,
            "betas": kept.betas}  # fmt: skip


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_counts_of_eigenvalues_lie_between_the_two(steps):
    """Of a known spectrum, by the probe's own components; a few of 60 eigenvalues far out, the rest near 0."""
    generator = np.random.default_rng(3)
    eigenvalues = np.concatenate([generator.normal(size=54) * 0.1, [-9.0, -5.0, -2.0, 3.0, 4.0, 7.0]])
    probe = generator.normal(size=60)
    share = 60 * probe**2 / (probe @ probe)
    found = tails([row_of(eigenvalues, steps, probe)])
    # The heaviest node ends both counts.
    assert len(found) == steps + 1
    for end, node, without, through in found[["end", "node", "without", "through"]].to_numpy():
        assert without - 1e-9 <= share[end * eigenvalues >= end * node].sum() <= through + 1e-9


def test_counts_of_an_exhausted_space():
    """Signs have the same component everywhere: eight eigenvalues, repeated, are counted as integers."""
    times = {-6.0: 1, -3.0: 2, -1.0: 4, 0.0: 40, 1.0: 3, 2.0: 5, 4.0: 2, 8.0: 1}
    eigenvalues = np.repeat(list(times), list(times.values()))
    found = tails([row_of(eigenvalues, 8, np.random.default_rng(0).choice([-1.0, 1.0], len(eigenvalues)))])
    for end, expected in ((1, [1, 3, 8, 11, 51]), (-1, [1, 3, 7, 47])):
        line = found[found["end"] == end]
        assert line["through"].tolist() == pytest.approx(expected)
        assert line["without"].tolist() == pytest.approx([0, *expected[:-1]], abs=1e-12)
        assert line["node"].tolist() == pytest.approx(sorted(times, reverse=end == 1)[: len(line)], abs=1e-9)
