"""Spectra judged: moments, exponents and verdicts of synthetic ones, and the command on a small text of our own."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from studies.__main__ import run as main
from studies.hessian import spectra
from studies.hessian.claims import curvature_exponents, densities, more_curvature, residual_shares, summaries
from studies.hessian.lanczos import Quadrature
from tests.helpers.parallel_text import write

# curvlinops' functional calls warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def spectrum(placement, depth, seed, largest, width=16, matrix="hessian"):
    rows = [
        (probe, node * largest, 1 / 3, 0.0 if probe == 0 else np.nan)
        for probe in (0, 1) for node in (-0.5, 0.1 + 0.1 * probe, 1.0)
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["probe", "node", "weight", "residual"])
    return frame.assign(
        placement=placement, width=width, depth=depth, seed=seed, matrix=matrix, block="all", dimension=30
    )


def synthetic(ratio, spread=0.05, exponent=1.0):
    draw, frames = np.random.default_rng(0), []
    for depth in (2, 4, 8):
        for seed in range(4):
            for placement in ("post", "pre"):
                size = (ratio if placement == "post" else 1.0) * depth**exponent * np.exp(spread * draw.normal())
                frames.append(spectrum(placement, depth, seed, size))
    return pd.concat(frames, ignore_index=True)


def test_verdicts_and_exponents():
    for ratio, word in ((2.0, "holds"), (0.5, "fails"), (1.0, "undecided")):
        found = more_curvature(summaries(synthetic(ratio)), "encoder-decoder", "a text, ")
        assert [v.verdict for v in found] == [word] * 3
    common = synthetic(1.3, spread=0.0)
    common["node"] *= np.exp(common["seed"].map({0: 0.0, 1: 1.0, 2: -1.0, 3: 2.0}))
    found = more_curvature(summaries(common), "encoder-decoder", "")
    assert [v.interval for v in found] == [pytest.approx((1.3, 1.3))] * 3, "what both share of a seed does not matter"
    assert not more_curvature(summaries(synthetic(2.0).query("seed < 2")), "encoder-decoder", "a text, "), (
        "two seeds have no interval"
    )
    fits = curvature_exponents(summaries(synthetic(2.0, exponent=1.5)), "depth")
    assert fits.loc[fits["quantity"] == "largest", "exponent"].to_numpy() == pytest.approx(1.5, abs=0.1)
    assert curvature_exponents(summaries(synthetic(2.0)), "width").empty


def test_summaries():
    """Trace, norm and negative mass by hand; Gauss-Newton's part; a density of mass 1."""
    table = pd.concat([spectrum("post", 2, 0, 6.0), spectrum("post", 2, 0, 3.0, matrix="gauss-newton")])
    row = summaries(table).iloc[0]
    probes = [30 * 6 * (-0.5 + 0.1 + 0.1 * k + 1.0) / 3 for k in (0, 1)]
    assert row["trace"] == pytest.approx(np.mean(probes))
    assert row["trace_sem"] == pytest.approx(abs(probes[1] - probes[0]) / 2)
    assert row["negative"] == pytest.approx(1 / 3)
    assert (row["smallest"], row["largest"]) == (-3.0, 6.0)
    squares = [30 * 36 * (0.25 + (0.1 + 0.1 * k) ** 2 + 1.0) / 3 for k in (0, 1)]
    assert row["frobenius"] == pytest.approx(np.mean(squares) ** 0.5)
    # Half of the relative error of the mean square, which is half of the difference of the two probes.
    assert row["frobenius_sem"] == pytest.approx((squares[1] - squares[0]) / 2 / (2 * np.mean(squares) ** 0.5))
    assert np.isnan(summaries(table).iloc[1]["smallest"]), "of a Gauss-Newton matrix"
    assert np.isnan(summaries(table.assign(residual=np.nan))[["smallest", "largest"]]).all(axis=None)
    assert residual_shares(summaries(table))["eigenvalue"].iloc[0] == pytest.approx(0.5)
    assert (summaries(table.assign(node=0.0))["frobenius_sem"] == 0).all(), "a block that no loss sees"
    curve = densities(table).query("matrix == 'hessian'")
    assert np.trapezoid(curve["mean"], curve["eigenvalue"]) == pytest.approx(1.0, abs=1e-3)


def command(folder, out, *more):
    files = write(folder)
    sizes = "--width 8 --depth 1 --heads 2 --vocab 20 --pairs 8 --steps 3 --probes 2 --seeds 1".split()
    return ["hessian", "texts", "--source", str(files[0]), "--target", str(files[1]), "--out", str(out), *sizes, *more]


def test_the_command(png_alone, tmp_path, capsys, request):
    """A table, a figure, and a second time nothing is computed; blocks have spectra too."""
    some = ["--placement", "post", "--probes", "1"]
    assert main(command(tmp_path, tmp_path / "ends", *some)) == 0
    assert (tmp_path / "ends" / "curvature.png").stat().st_size > 30_000
    request.getfixturevalue("blank_pictures")
    capsys.readouterr()
    more = [*some, "--blocks", "--no-extreme"]
    assert main(command(tmp_path, tmp_path / "run", *more)) == 0
    said = capsys.readouterr().out
    assert "Post-LN d = 8, L = 1, seed 0, hessian" in said
    assert "Gauss-Newton over Hessian" in said
    table = pd.read_csv(tmp_path / "run" / "spectra.csv")
    assert set(table["block"]) == {
        "all", "embeddings", "attention", "feed-forward", "norms", "encoder", "decoder", "encoder 1", "decoder 1",
    }  # fmt: skip
    weights = table[table["probe"] >= 0].groupby(["placement", "matrix", "block", "probe"])["weight"].sum()
    np.testing.assert_allclose(weights, 1.0, atol=1e-6)
    made = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "models").iterdir()}
    assert len(made) == 2 * 9
    assert main(command(tmp_path, tmp_path / "run", *more)) == 0
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "models").iterdir()} == made


def test_stacks(png_alone, tmp_path, capsys, request):
    """Theory beside the Gauss-Newton matrix, exponents, H1 of both matrices; blocks; one value of other fields."""
    run = ["hessian", "stack", "--width", "8:32:x2", "--depth", "1", "--tokens", "2", "--vocab", "4", "--seeds", "3"]
    run += ["--steps", "2", "--probes", "1", "--out", str(tmp_path / "run")]
    ends = ["--width", "16", "--probes", "2", "--out", str(tmp_path / "ends")]
    assert main([*run[:2], *run[4:-2], *ends]) == 0
    assert (tmp_path / "ends" / "curvature.png").stat().st_size > 30_000
    request.getfixturevalue("blank_pictures")
    said = capsys.readouterr().out
    assert "largest eigenvalue of the Gauss-Newton matrix, Post-LN over Pre-LN, simplified stack with n = 2" in said
    assert re.search(r"Post-LN, v'Hv over v'Gv along .* top direction: 1 \(Gauss-Newton\) -[0-9.]+ \(radial\)", said)
    kept = set((tmp_path / "ends" / "models").iterdir())
    assert main([*run[:2], *run[4:-2], *ends]) == 0
    assert set((tmp_path / "ends" / "models").iterdir()) == kept, "nothing is measured again"
    capsys.readouterr()
    assert main([*run, "--no-extreme"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"Post-LN, L = 1, trace ~ d\^0?[0-9.]+ \[.*\], theory 1.00", said)
    table = pd.read_csv(tmp_path / "run" / "theory.csv")
    assert set(table["width"]) == {8, 16, 32}
    assert (table["agreement"] == "beyond").all()
    blocks = ["--width", "16", "--seeds", "2", "--placement", "pre", "--blocks", "--no-extreme"]
    blocks += ["--out", str(tmp_path / "blocks")]
    assert main([*run[:2], *run[4:-2], *blocks]) == 0
    assert re.search(r"Pre-LN d = 16, L = 1, last W2, trace +\d", capsys.readouterr().out)
    table = pd.read_csv(tmp_path / "blocks" / "theory.csv")
    assert set(table["block"]) == {"all", "output", "attention", "feed-forward", "last W2", "layer 1"}
    assert main([*run[:-2], "--tokens", "2", "4", "--out", str(tmp_path / "no")]) == 2
    assert "tokens must have one value here" in capsys.readouterr().err
    assert main([*run[:-2], "--dropout", "0.1", "--out", str(tmp_path / "no")]) == 2
    assert "stack must have no dropout" in capsys.readouterr().err


def test_a_ratio_beyond_1_by_chance_is_undecided():
    """Logarithms of -0.1, 0.2 and 0.3 have a mean above 0 and an interval that holds 0."""
    rows = [spectrum("post", 2, seed, np.exp(log)) for seed, log in enumerate((-0.1, 0.2, 0.3))]
    rows += [spectrum("pre", 2, seed, 1.0) for seed in range(3)]
    for sign, ratio in ((1, np.exp(0.4 / 3)), (-1, np.exp(-0.4 / 3))):
        table = pd.concat(rows).assign(node=lambda t, sign=sign: np.sign(t["node"]) * t["node"].abs() ** sign)
        found = more_curvature(summaries(table), "encoder-decoder", "")
        assert [v.verdict for v in found] == ["undecided"]
        assert found[0].measured == pytest.approx(ratio)


def test_every_probe_is_a_vector_of_its_own(monkeypatch):
    """Of every seed too; else their scatter, and so every error, is 0."""
    seeds = []

    def probed(*_, seed, **__):
        seeds.append(seed)
        return Quadrature(np.zeros(1), np.ones(1), np.zeros(1), 4)

    monkeypatch.setattr(spectra, "probe_spectrum", probed)
    problem = SimpleNamespace(parameters=lambda _: [SimpleNamespace(numel=lambda: 4)])
    request = SimpleNamespace(steps=2, reorthogonalize=True, to_the_ends=lambda *_: False)
    for seed in (0, 1):
        for probe in (0, 1):
            spectra._one(request, problem, "hessian", ("*",), probe, seed, block="all")
    assert len(set(seeds)) == 4
