"""How far one run is from the first line in theory, beside the networks of text-networks.json and its like.

MULTI30K names the folder of train.en, as there.
"""

import json
import os
import warnings
from functools import partial
from typing import Any

import pytest

from gradbounds.actions.first_line import first_line
from tests.helpers.evidence_file import FOLDER, kept_case, record, rounded
from tests.helpers.text_networks import SEQUENCES, Setting
from theory.first_step.noise_scale import noise_scale

MULTI30K = os.environ.get("MULTI30K", "")

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(not MULTI30K, reason="MULTI30K must name a folder with train.en"),
]


def sampled() -> dict[str, dict[str, Any]]:
    """What was recorded of the networks that have chains of 64 words."""
    found = {}
    for kind in ("networks", "classes", "widths"):
        found |= json.loads((FOLDER / f"text-{kind}.json").read_text(encoding="utf-8"))["settings"]
    return {name: row for name, row in found.items() if "-64-" in name and name.endswith("bigrams")}


def deviations(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Deviations of one run in theory, of the loss and relative of the norm, over those of networks."""
    setting, root = Setting.of(name), row["draws"] ** 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale = noise_scale(setting.stack, text=setting.law, patterns=2)
    line = first_line(scale, SEQUENCES, (), setting.law)
    loss, norm = row["loss"]["standard error"] * root, row["norms"]["all"][1] * root
    return {
        "loss": line.loss_deviation / loss, "norm": line.norm_deviation / line.norm / norm, "error": 0.5**0.5 / root,
    }  # fmt: skip


def test_one_run(kept_folder):
    """The deviation of the loss within four standard errors, and of the norm, which is no rule, within a quarter."""
    found = {name: kept_case(kept_folder, name, partial(deviations, name, row)) for name, row in sampled().items()}
    record("one-run", {"sequences": SEQUENCES, "settings": rounded(found)})
    for name, row in found.items():
        assert abs(row["loss"] - 1.0) < 4.0 * row["error"], name
        assert abs(row["norm"] - 1.0) < 0.25, name
