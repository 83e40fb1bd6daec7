"""Section 3.4 on real models, at the paper's sizes; MULTI30K names the folder of its train.de and train.en."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from checks.translation import growth, last_norms, profiles, shares
from gradbounds.cli import main
from tests.record import record

pytestmark = pytest.mark.evidence
FOLDER = os.environ.get("MULTI30K", "")


def summary(out: Path) -> dict[str, Any]:
    """What a run found: W2's norms beside theory, and the growth of the decoder without each ingredient."""
    frame = pd.read_csv(out / "fig3.csv", keep_default_na=False)
    about = json.loads((out / "about.json").read_text())
    every = profiles(frame)
    every = every[every["depth"] == every["depth"].min()]
    table = every[every["matrix"] == "W2"]
    whole = every.query("without == 'nothing' and initialization == 'xavier'")
    off = (whole["mean norm"] / whole["predicted"] - 1).abs().groupby(whole["matrix"]).max()
    found: dict[str, Any] = {name: about[name] for name in ("command", "processor", "gpu", "torch", "device")}
    found["W2"] = {
        f"{placement}, {initialization}, {part}, without {missing}": {
            "mean norm": rows["mean norm"].round(4).tolist(), "sem": rows["mean norm sem"].round(4).tolist(),
            "theory": rows["predicted"].round(4).tolist(),
        }
        for (placement, initialization, part, missing), rows in table.groupby(
            ["placement", "initialization", "part", "without"]
        )
    }  # fmt: skip
    found["largest deviation of whole models"] = {matrix: round(value, 3) for matrix, value in off.items()}
    last = last_norms(frame).query("initialization == 'xavier'").groupby(["placement", "depth"])["value"].mean()
    found["last W2"] = {f"{placement}, L = {depth}": round(value, 4) for (placement, depth), value in last.items()}
    grown = growth(frame)
    found["shares of growth, Post-LN"] = {
        row["without"]: {name: round(row[name], 3) for name in ("share", "share_sem", "share_predicted")}
        for _, row in shares(grown).query("placement == 'post' and initialization == 'xavier'").iterrows()
    }
    return found


@pytest.mark.skipif(not FOLDER, reason="MULTI30K must name a folder with train.de and train.en")
def test_fig3(tmp_path):
    """Without ingredients, a quarter of an hour on two cores: every norm of W2 within 15% of theory."""
    source, target = (str(Path(FOLDER) / f"train.{end}") for end in ("de", "en"))
    sizes = "--units bpe --seeds 3 --batches 1 --initialization xavier".split()
    assert main(["reproduce", "fig3", "--source", source, "--target", target, "--out", str(tmp_path), *sizes]) == 0
    found = summary(tmp_path)
    record("fig3-short", found)
    for rows in found["W2"].values():
        for norm, theory in zip(rows["mean norm"], rows["theory"], strict=True):
            assert abs(norm / theory - 1) < 0.15
