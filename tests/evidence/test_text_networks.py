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
from tests.helpers.evidence_file import DEVICE, FOLDER, kept_case, record, rounded
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

# Networks on texts of `ENGLISH`, 16 windows of 128 tokens each; tied gated networks have 8 draws more.
ENGLISH = [f"{width}-2-128-{net}-windows" for width in (256, 512) for net in PLAIN]
ENGLISH_DRAWS, ENGLISH_VOCAB, ENGLISH_PATTERNS = {256: 24, 512: 16}, 8000, 8
CARD_BAR, OWN_BAR = 0.06, 0.03


def draws_of(name: str) -> int:
    """How many networks a setting has."""
    setting = Setting.of(name)
    gated = GATED_DRAWS if setting.network in ("tied.swiglu", "llama") else {}
    return gated.get(setting.width, DRAWS[setting.width])


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
    """Every setting of a kind."""
    cases = {}
    for name in SETTINGS[kind]:
        networks = networks_of(name, folder)
        if not networks["draws"]:
            continue  # not drawn there
        cases[name] = kept_case(folder, f"{name} {len(networks['draws'])}", partial(beside, name, networks, folder))
    return cases


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_norms(kind, kept_folder):
    """Norms of all parameters and of each kind within 5%, at errors of 1.5%; losses within four errors."""
    cases = found(kind, kept_folder)
    record(f"text-{kind}", {"sequences": SEQUENCES, "settings": cases}, short=True)
    rows = [(name, role, *numbers) for name, case in cases.items() for role, numbers in case["norms"].items()]
    assert not [(name, role, error) for name, role, _, error, _ in rows if error > 0.015]
    assert not [(name, role, over) for name, role, over, *_ in rows if abs(over) >= 0.05]
    for name, case in cases.items():
        loss = case["loss"]
        assert abs(loss["theory"] - loss["networks"]) < 4 * loss["standard error"], name


def test_single_precision():
    """Squares in float32 are those of float64 to 1e-4, with the same weights and text."""
    for network in ("tied.swiglu", "untied.gelu"):
        setting = Setting.of(f"256-4-64-{network}-windows")
        single, double = (squares(setting, 0, dtype=dtype) for dtype in (torch.float32, torch.float64))
        for role, value in double.items():
            assert single[role] == pytest.approx(value, rel=1e-4), (network, role)


def card() -> TextLaw:
    """Return the English law of 32,000 token ids, cut to fewer ids: all share the frequencies of the ranks cut off."""
    shares = TextLaw.of_kind("english", 32_000).frequencies
    return TextLaw.of_frequencies(shares[:ENGLISH_VOCAB] + shares[ENGLISH_VOCAB:].sum() / ENGLISH_VOCAB)


def by_laws(name: str) -> dict[str, Any]:
    """Return theory's norm over networks' less 1, by the card, by the text's counts alone and by the text's own law."""
    setting, ids = Setting.of(name), text_networks.words()
    number = ENGLISH_DRAWS[setting.width] + 8 * (setting.network == "tied.swiglu")
    draws = [squares(setting, seed) for seed in range(number)]
    values = np.array([sum(draw.values()) - draw["loss"] for draw in draws])
    laws = {"card": card(), "counts": TextLaw.of_counts(np.bincount(ids)), "own": setting.law}
    norms = {law: sum(theory(setting, ENGLISH_PATTERNS, laws[law])["squares"].values()) ** 0.5 for law in laws}
    error = values.std(ddof=1) / len(values) ** 0.5 / values.mean() / 2
    over = {law: float(norm / values.mean() ** 0.5) - 1 for law, norm in norms.items()}
    return {"draws": number, "standard error": float(error), **over}


def of_text(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Every network of `ENGLISH` on a text, and how often its token ids repeat."""
    ids = np.array((Path(os.environ["ENGLISH"]) / f"{name}.txt").read_text().split(), dtype=int)
    with pytest.MonkeyPatch.context() as patch:
        for attribute, value in (("words", lambda: ids), ("VOCAB", ENGLISH_VOCAB), ("SEQUENCES", 16)):
            patch.setattr(text_networks, attribute, value)
        laws = {"card": card(), "own": Setting.of(ENGLISH[0]).law}
        chances = {law: [one.across, one.within, one.same_word_labels] for law, one in laws.items()}
        return {"chances": chances} | {
            net: kept_case(folder, f"{name} {net}", partial(by_laws, net)) for net in ENGLISH
        }


@pytest.mark.skipif("ENGLISH" not in os.environ, reason="ENGLISH must name a folder of token ids")
def test_english(kept_folder):
    """Norms of all parameters within 6% by the card's English law, and within 3% by the text's own law."""
    found = {name: of_text(name, kept_folder) for name in ("captions", "rustbook")}
    kept = json.loads((FOLDER / "text-networks.json").read_text(encoding="utf-8"))
    record("text-networks", kept | {"english": rounded(found)}, short=True)
    cases = [(name, net, case) for name, nets in found.items() for net, case in nets.items() if net in ENGLISH]
    assert not [(name, net) for name, net, case in cases if abs(case["own"]) >= OWN_BAR]
    assert not [(name, net) for name, net, case in cases if abs(case["card"]) >= CARD_BAR]
