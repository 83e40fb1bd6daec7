"""Spectra of real translation models at d = 32, 6-6; MULTI30K names the folder of val.de and val.en."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from checks.curvature import more_curvature, residual_shares
from gradbounds.cli import main
from tests.record import record

pytestmark = pytest.mark.evidence
FOLDER = os.environ.get("MULTI30K", "")


def summary(out: Path) -> dict[str, Any]:
    """What a run found: per placement and matrix geometric means over seeds, the residual term's part, and H1."""
    about = json.loads((out / "about.json").read_text())
    table = pd.read_csv(out / "summaries.csv")
    table = table[table["block"] == "all"]
    found: dict[str, Any] = {name: about[name] for name in ("command", "processor", "gpu", "torch", "device")}
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
    (verdict,) = more_curvature(table, "")
    found["H1"] = {"verdict": verdict.verdict, "ratio": round(verdict.measured, 3),
                   "interval": np.round(verdict.interval, 3).tolist()}  # fmt: skip
    return found


@pytest.mark.skipif(not FOLDER, reason="MULTI30K must name a folder with val.de and val.en")
def test_spectra(tmp_path):
    """Masses are 1, and traces of Gauss-Newton matrices positive."""
    source, target = (str(Path(FOLDER) / f"val.{end}") for end in ("de", "en"))
    assert main(["hessian", "--source", source, "--target", target, "--steps", "30", "--out", str(tmp_path)]) == 0
    found = summary(tmp_path)
    record("hessian", found)
    weights = pd.read_csv(tmp_path / "spectra.csv").query("probe >= 0")
    masses = weights.groupby(["placement", "seed", "matrix", "probe"])["weight"].sum()
    assert np.allclose(masses, 1.0, atol=1e-6)
    for placement in ("post", "pre"):
        assert min(found[f"{placement}, gauss-newton"]["trace"]) > 0
