"""Batches of 64 sequences of a text by its law, beside plain modules that are given it.

MULTI30K names the folder of train.en. Networks are drawn on DEVICE and predicted here, or are those of TEXT_DRAWS, a
folder of files by `tests.helpers.text_networks`.
"""

import itertools
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.evidence_file import DEVICE, kept_case, record
from tests.helpers.text_networks import SEQUENCES, Setting, draw, drawn, squares, theory

MULTI30K, DRAWN = os.environ.get("MULTI30K", ""), os.environ.get("TEXT_DRAWS", "")

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(not MULTI30K, reason="MULTI30K must name a folder with train.en"),
]

PLAIN = [f"{tied}.{units}" for tied in ("tied", "untied") for units in ("gelu", "swiglu")]
SIZES = [f"{width}-{depth}-{tokens}" for width, depth, tokens in itertools.product((256, 512), (4, 8), (64, 128))]
SETTINGS = [f"{size}-{net}-{text}" for size in SIZES for net in PLAIN for text in ("bigrams", "windows")] + [
    f"256-4-{tokens}-{net}-independent" for tokens in (64, 128) for net in PLAIN
]
DRAWS = {256: 192, 512: 96, 1024: 64}
# Of tied gated networks, whose W^Q and W^K vary most.
GATED_DRAWS = {256: 256, 512: 160}

# Of theory.
PATTERNS = 64


def draws_of(name: str) -> int:
    setting = Setting.of(name)
    return (DRAWS | (GATED_DRAWS if setting.network == "tied.swiglu" else {}))[setting.width]


def networks_of(name: str, folder: Path) -> dict[str, Any]:
    """The networks of a setting: those of TEXT_DRAWS, or drawn here."""
    if DRAWN:
        return drawn(name, Path(DRAWN))
    draw(Setting.of(name), range(draws_of(name)), folder / DEVICE / f"{name}.json")
    return drawn(name, folder / DEVICE)


def beside(name: str, networks: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Theory over networks less 1, of norms of all parameters and of each kind, with standard errors; and losses.

    Those of networks, and of the patterns of theory, which is one of TEXT_DRAWS or made here.
    """
    file = Path(DRAWN or folder) / f"theory-{name}.json"
    by_theory = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else theory(Setting.of(name), PATTERNS)
    expected, draws = by_theory["squares"], networks["draws"]
    losses, rows = np.array([each["loss"] for each in draws]), {}
    for role in ("all", *expected):
        parts = [[each[part] for part in (expected if role == "all" else (role,))] for each in draws]
        values = np.array(parts).sum(1)
        square = sum(expected.values()) if role == "all" else expected[role]
        error = values.std(ddof=1) / len(values) ** 0.5 / values.mean() / 2
        rows[role] = [float((square / values.mean()) ** 0.5) - 1, float(error), by_theory["errors"].get(role, 0.0)]
    loss = {
        "theory": round(by_theory["loss"], 4), "networks": round(float(losses.mean()), 4),
        "standard error": round(float(losses.std(ddof=1) / len(losses) ** 0.5), 4),
    }  # fmt: skip
    about = {"draws": len(draws), "device": networks["device"], "patterns": by_theory["patterns"]}
    return about | {"norms": {role: [round(one, 4) for one in row] for role, row in rows.items()}, "loss": loss}


def found(folder: Path) -> dict[str, dict[str, Any]]:
    networks = {name: networks_of(name, folder) for name in SETTINGS}
    return {
        name: kept_case(folder, f"{name} {len(found['draws'])}", partial(beside, name, found, folder))
        for name, found in networks.items()
        if found["draws"]  # else not drawn there
    }


def test_norms(kept_folder):
    """Norms of all parameters and of each kind within 5%, at errors of 1.5%; losses within four errors."""
    cases = found(kept_folder)
    record("text-networks", {"sequences": SEQUENCES, "settings": cases}, short=True)
    rows = [(name, role, *numbers) for name, case in cases.items() for role, numbers in case["norms"].items()]
    assert not [row for row in rows if row[3] > 0.015 or abs(row[2]) >= 0.05]
    losses = [(case["loss"][each] for each in ("theory", "networks", "standard error")) for case in cases.values()]
    assert all(abs(expected - sampled) < 4 * error for expected, sampled, error in losses)


@pytest.mark.parametrize("network", ["tied.swiglu", "untied.gelu"])
def test_single_precision(network):
    """Squares in float32 are those of float64 to 1e-4, with the same weights and text."""
    single, double = (
        squares(Setting.of(f"256-4-64-{network}-windows"), 0, dtype=dtype) for dtype in (torch.float32, torch.float64)
    )
    assert single == pytest.approx(double, rel=1e-4)
