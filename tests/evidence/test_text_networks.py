"""Batches of 64 sequences of a text by its law, beside plain modules and transformers' classes that are given it.

MULTI30K names the folder of train.en. Networks are drawn on DEVICE and predicted here, or are those of TEXT_DRAWS, a
folder of files by `tests.helpers.text_networks`. ENGLISH names a folder of two English texts that no law was made of,
captions.txt and rustbook.txt (the paragraphs of the Rust book), as token ids below 8000 between white space. Their
tokenizer is SentencePiece's BPE with 8000 pieces and byte fallback, trained on the text itself, 1.2 MB at most; a line
ends with the id of its newline.
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

from tests.helpers import text_networks
from tests.helpers.evidence_file import DEVICE, kept_case, record, rounded
from tests.helpers.text_networks import CLASSES, SEQUENCES, Setting, draw, drawn, squares, theory
from theory.mean_field.text_law import TextLaw

MULTI30K, DRAWN = os.environ.get("MULTI30K", ""), os.environ.get("TEXT_DRAWS", "")

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(not MULTI30K, reason="MULTI30K must name a folder with train.en"),
]

PLAIN = [f"{tied}.{units}" for tied in ("tied", "untied") for units in ("gelu", "swiglu")]
SIZES = [f"{width}-{depth}-{tokens}" for width, depth, tokens in itertools.product((256, 512), (4, 8), (64, 128))]
SETTINGS = {
    "networks": [f"{size}-{net}-{text}" for size in SIZES for net in PLAIN for text in ("bigrams", "windows")]
    + [f"256-4-{tokens}-{net}-independent" for tokens in (64, 128) for net in PLAIN],
    "classes": [f"{size}-{net}-windows" for size in SIZES for net in CLASSES]
    + [f"{width}-4-64-{net}-bigrams" for width in (256, 512) for net in CLASSES],
}
DRAWS = {256: 192, 512: 96, 1024: 64}
# Of tied gated networks, whose W^Q and W^K vary most.
GATED_DRAWS = {256: 256, 512: 160}

# Of theory.
PATTERNS = 64

# Networks on texts of `ENGLISH`, 16 windows of 128 tokens each, and their draws.
ENGLISH = {
    f"{width}-2-128-{net}-windows": draws + 8 * (net == "tied.swiglu")
    for width, draws in ((256, 24), (512, 16))
    for net in PLAIN
}


def draws_of(name: str) -> int:
    setting = Setting.of(name)
    return (DRAWS | (GATED_DRAWS if setting.network in ("tied.swiglu", "llama") else {}))[setting.width]


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


def found(kind: str, folder: Path) -> dict[str, dict[str, Any]]:
    networks = {name: networks_of(name, folder) for name in SETTINGS[kind]}
    return {
        name: kept_case(folder, f"{name} {len(found['draws'])}", partial(beside, name, found, folder))
        for name, found in networks.items()
        if found["draws"]  # else not drawn there
    }


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_norms(kind, kept_folder):
    """Norms of all parameters and of each kind within 5%, at errors of 1.5%; losses within four errors."""
    cases = found(kind, kept_folder)
    record(f"text-{kind}", {"sequences": SEQUENCES, "settings": cases}, short=True)
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


def by_laws(name: str, laws: dict[str, TextLaw]) -> dict[str, Any]:
    """Return theory's norm of all parameters by each law, over networks' norm, less 1."""
    setting = Setting.of(name)
    draws = [squares(setting, seed) for seed in range(ENGLISH[name])]
    values = np.array([sum(draw.values()) - draw["loss"] for draw in draws])
    by_law = {law: sum(theory(setting, 8, one)["squares"].values()) / values.mean() for law, one in laws.items()}
    error = float(values.std(ddof=1) / len(values) ** 0.5 / values.mean() / 2)
    return {"draws": len(draws), "standard error": error} | {law: ratio**0.5 - 1 for law, ratio in by_law.items()}


@pytest.mark.skipif("ENGLISH" not in os.environ, reason="ENGLISH must name a folder of token ids")
def test_english(kept_folder, monkeypatch):
    """Norms of all parameters: the bar is 3% by the text's own law, 6% by the English law; which networks miss it.

    The card has the first 8000 ranks of the law of 32,000 ids, among which the frequency of the others is shared out.
    """
    monkeypatch.setattr(text_networks, "VOCAB", 8000)
    monkeypatch.setattr(text_networks, "SEQUENCES", 16)
    shares = TextLaw.of_kind("english", 32_000).frequencies
    laws, found = {"card": TextLaw.of_frequencies(shares[:8000] + shares[8000:].sum() / 8000)}, {}
    for file in sorted(Path(os.environ["ENGLISH"]).glob("*.txt")):
        ids = np.array(file.read_text(encoding="utf-8").split(), dtype=int)
        monkeypatch.setattr(text_networks, "words", lambda ids=ids: ids)
        laws |= {"counts": TextLaw.of_counts(np.bincount(ids)), "own": TextLaw.of_text(ids, 128)}
        found |= {f"kappa, {file.stem}": {name: [law.across, law.within] for name, law in laws.items()}}
        found |= {
            f"{file.stem} {net}": kept_case(kept_folder, f"{file.stem} {net}", partial(by_laws, net, laws))
            for net in ENGLISH
        }
    record("text-english", rounded(found), short=True)
    nets = {name: case for name, case in found.items() if "draws" in case}
    bars = {"own": 0.03, "card": 0.06}
    missed = {law: sum(abs(case[law]) >= bar for case in nets.values()) for law, bar in bars.items()}
    if any(missed.values()):
        pytest.xfail(f"{missed} of {len(nets)} networks miss the bars {bars}")
