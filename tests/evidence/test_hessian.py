"""Spectra of translation models on real text, MULTI30K naming the folder of val.de and val.en, and of stacks."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from checks.models.spectra import curvature_exponents, more_curvature, residual_shares
from gradbounds.cli import main
from tests.agreement.test_gauss_newton import exact
from tests.helpers.evidence_file import circumstances, record
from theory import Stack
from theory.mean_field.gauss_newton import gauss_newton_traces

pytestmark = [
    pytest.mark.evidence,
    # curvlinops' functional calls warn of torch's own deprecations.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
FOLDER = os.environ.get("MULTI30K", "")


def texts() -> list[str]:
    """The flags of the two texts."""
    return ["--source", str(Path(FOLDER) / "val.de"), "--target", str(Path(FOLDER) / "val.en")]


def summary(out: Path, arguments: list[str]) -> dict[str, Any]:
    """What a run found: per placement and matrix geometric means over seeds, the residual term's part, and H1."""
    table = pd.read_csv(out / "summaries.csv")
    table = table[table["block"] == "all"]
    found = circumstances(out, arguments)
    found["dimension"] = {placement: int(one["dimension"].iloc[0]) for placement, one in table.groupby("placement")}
    for (placement, matrix), one in table.groupby(["placement", "matrix"]):
        found[f"{placement}, {matrix}"] = {
            name: [None if np.isnan(value) else float(f"{value:.5g}") for value in one[name]]
            for name in ("smallest", "largest", "trace", "trace_sem", "frobenius", "frobenius_sem", "negative")
        }
    shares = residual_shares(table).groupby("placement")
    found["Gauss-Newton over Hessian"] = {
        placement: {name: round(float(one[name].mean()), 3) for name in ("eigenvalue", "norm")}
        for placement, one in shares
    }
    (verdict,) = more_curvature(table, "", "")
    found["H1"] = {"verdict": verdict.verdict, "ratio": round(verdict.measured, 3),
                   "interval": np.round(verdict.interval, 3).tolist()}  # fmt: skip
    return found


def rounded(value: float) -> float:
    """Of four digits."""
    return float(f"{value:.4g}")


def scaling(out: Path, arguments: list[str]) -> dict[str, Any]:
    """Exponents of whole matrices in depth and width, and the placements' ratio at every size."""
    table = pd.read_csv(out / "summaries.csv")
    table = table[table["block"] == "all"]
    found = circumstances(out, arguments)
    for against, other in (("depth", "width"), ("width", "depth")):
        for row in curvature_exponents(table, against).to_dict("records"):
            name = f"{row['placement']}, {row['matrix']}, {row['quantity']}, {other} = {row[other]}"
            found.setdefault(f"exponents in {against}", {})[name] = [
                rounded(row[key]) for key in ("exponent", "low", "high")
            ]
    for matrix in ("hessian", "gauss-newton"):
        found[f"H1, {matrix}"] = {
            v.part.partition("encoder-decoder, ")[2]: [v.verdict, rounded(v.measured), *map(rounded, v.interval)]
            for v in more_curvature(table, "encoder-decoder", "", matrix=matrix)
        }
    return found


WIDTHS, DEPTHS, PLACEMENTS = ("8", "16", "32"), ("2", "4", "8"), ("post", "pre")
EACH = "--vocab 500 --pairs 100 --steps 20 --seeds 5".split()


@pytest.mark.skipif(not FOLDER, reason="MULTI30K must name a folder with val.de and val.en")
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_one_size(width, depth, placement, kept_folder):
    """What `test_scaling` takes together, as all at once would take hours."""
    size = ["--width", width, "--depth", depth, "--placement", placement]
    assert main(["hessian", "texts", *texts(), *size, *EACH, "--out", str(kept_folder / "sizes")]) == 0


@pytest.mark.skipif(not FOLDER, reason="MULTI30K must name a folder with val.de and val.en")
def test_scaling(kept_folder):
    """Exponents in depth and width, and H1 at nine sizes."""
    out = kept_folder / "sizes"
    command = ["hessian", "texts", *texts(), "--width", *WIDTHS, "--depth", *DEPTHS, *EACH, "--out", str(out)]
    assert main(command) == 0
    found = scaling(out, command)
    record("hessian-sizes", found)
    assert len(found["H1, hessian"]) == len(found["H1, gauss-newton"]) == 9


def beside(out: Path, arguments: list[str]) -> dict[str, Any]:
    """Theory beside the Gauss-Newton matrix of stacks: how many agree, the widest deviation, and every number."""
    table = pd.read_csv(out / "theory.csv")
    judged = table[table["judged"]]
    found = circumstances(out, arguments)
    found["agreement"] = {str(word): int(count) for word, count in judged["agreement"].value_counts().items()}
    found["widest"] = rounded(float((judged["measured"] / judged["predicted"] - 1).abs().max()))
    found["theory, measured, s.e."] = {
        f"{row.placement}, d = {row.width}, L = {row.depth}, {row.block}, {row.quantity}": [
            rounded(row.predicted), rounded(row.measured), rounded(row.sem)
        ]
        for row in table.itertuples()
    }  # fmt: skip
    summaries = pd.read_csv(out / "summaries.csv")
    shares = residual_shares(summaries[summaries["block"] == "all"]).groupby(["placement", "width", "depth"])
    found["largest eigenvalue, Gauss-Newton over Hessian"] = {
        f"{placement}, d = {width}, L = {depth}": rounded(float(one["eigenvalue"].mean()))
        for (placement, width, depth), one in shares
    }
    return found


STACKS = "--width 32:128:x2 --depth 2:8:x2 --tokens 4 --vocab 8 --seeds 16 --steps 8 --probes 3".split()
BLOCKS = "--width 128 --depth 4 --tokens 4 --vocab 8 --seeds 16 --steps 4 --probes 3 --blocks".split()


def test_stacks(kept_folder):
    """Nothing differs from theory, of whole matrices and of blocks."""
    found = {}
    for name, sizes in (("sizes", STACKS), ("blocks", BLOCKS)):
        out = kept_folder / f"stacks-{name}"
        command = ["hessian", "stack", *sizes, "--out", str(out)]
        assert main(command) == 0
        found[name] = beside(out, command)
    record("hessian-stacks", found)
    assert "differs" not in found["sizes"]["agreement"] | found["blocks"]["agreement"]


def test_last_block():
    """The trace of the last W2's block against depth and width, exact in every one of 200 networks."""
    found: dict[str, Any] = {"networks": 200}
    sizes = [(128, depth) for depth in (1, 2, 4, 8, 16)] + [(width, 4) for width in (32, 64, 256, 512)]
    for placement in ("post", "pre"):
        for width, depth in sizes:
            stack = Stack(placement=placement, width=width, depth=depth, tokens=4, vocab=8)
            name = f"W2_{depth}"
            values = [exact(stack, seed, (name,))[0][name] for seed in range(found["networks"])]
            theory = float(gauss_newton_traces(stack)["W2"][-1])
            numbers = theory, float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
            found[f"{placement}, d = {width}, L = {depth}"] = [rounded(value) for value in numbers]
            # Corrections are O(1/d) in the last layer.
            assert abs(numbers[1] - theory) < max(4 / width * theory, 4 * numbers[2])
    record("last-block", found)


@pytest.mark.skipif(not FOLDER, reason="MULTI30K must name a folder with val.de and val.en")
def test_spectra(kept_folder):
    """Masses are 1, and traces of Gauss-Newton matrices positive."""
    out = kept_folder / "spectra"
    command = ["hessian", "texts", *texts(), "--steps", "30", "--out", str(out)]
    assert main(command) == 0
    found = summary(out, command)
    record("hessian", found)
    weights = pd.read_csv(out / "spectra.csv").query("probe >= 0")
    masses = weights.groupby(["placement", "seed", "matrix", "probe"])["weight"].sum()
    assert np.allclose(masses, 1.0, atol=1e-6)
    for placement in ("post", "pre"):
        assert min(found[f"{placement}, gauss-newton"]["trace"]) > 0
