"""`predict --logged` on sampled networks: how often a healthy step 1 is judged to be off, and which cause is named.

TEXTS names a folder of texts as token ids below 2048, one file NAME.txt for each text, separated by white space.
"""

import hashlib
import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradbounds.actions import logged
from gradbounds.described_network import Description
from simulate import sample
from simulate.text import TextWindows
from tests.helpers import text_networks
from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.predicted_once import predicted_once  # noqa: F401  (a fixture)
from theory import Stack
from theory.mean_field.text_law import TextLaw

pytestmark = pytest.mark.evidence

USUAL: dict[str, Any] = {
    "placement": "pre", "width": 128, "depth": 4, "tokens": 16, "vocab": 512, "heads": 4, "mask": "causal",
    "output_projection": "random", "query_key_scale": 1.0, "activation": "gelu", "ffn_ratio": 4.0,
    "depth_scaling": "depth", "init_std": 0.0625, "embeddings": "untied",
}  # fmt: skip
NETWORKS: dict[str, tuple[dict[str, Any], float | None]] = {
    "words that differ": (USUAL, None),
    "Zipf's law": (USUAL, 1.0),
    "Zipf's law, RMSNorm, SwiGLU": (
        USUAL | {"normalization": "rms", "ffn": "gated", "activation": "silu", "ffn_ratio": 2.0}, 1.0,
    ),
    "Zipf's law, of eight layers": (USUAL | {"depth": 8}, 1.0),
    "Post-LN": (USUAL | {"placement": "post"}, None),
    "tied": (USUAL | {"embeddings": "tied"}, None),
}  # fmt: skip
UNITS = ("tied.gelu", "tied.swiglu", "untied.gelu", "untied.swiglu")
BATCH, SEEDS = 8, 20
TOKENS = BATCH * USUAL["tokens"]
PLANTED: dict[str, tuple[float, float]] = {
    f"the gradient is a sum over all {TOKENS} tokens": (1.0, TOKENS),
    "the gradient is a sum over the 16 tokens of a sequence": (1.0, 16.0),
    f"the loss is a sum over all {TOKENS} tokens": (TOKENS, TOKENS),
    "the gradient is added up over 8 accumulation steps or devices": (1.0, 8.0),
    "the gradient is divided once too often, by 4": (1.0, 0.25),
    "the loss is in bits": (1.0 / np.log(2.0), 1.0),
}
OTHERS: dict[str, dict[str, Any]] = {
    "W^O and W2 are not scaled by the depth": {"depth_scaling": "none"},
    "embeddings and output matrix are tied": {"embeddings": "tied"},
    "the vocabulary is padded to 1024": {"vocab": 1024},
}


def runs(fields: dict[str, Any], exponent: float | None, seed: int) -> list[tuple[float, float]]:
    stack, text = Stack(**fields, sequences=BATCH), None
    if exponent is not None:
        ids = TextLaw.zipf(exponent, USUAL["vocab"]).windows(BATCH * SEEDS, stack.tokens, np.random.default_rng(seed))
        text = TextWindows(ids=ids, digest=hashlib.sha256(ids.tobytes()).hexdigest(), source="Zipf's law")
    samples = sample(stack, draws=SEEDS, seed=seed, text=text)
    squares = sum(np.asarray(samples[n], float).reshape(SEEDS, -1).sum(1) for n in samples if n.startswith("grad_sq_"))
    losses = np.asarray(samples["loss"], float).reshape(SEEDS, -1).mean(1)
    return [(float(loss), float(square**0.5)) for loss, square in zip(losses, squares, strict=True)]


def judged(folder: Path, fields: dict[str, Any], exponent: float | None, pairs: list[tuple[float, float]]) -> list[Any]:
    """Of every run whether it is as it should be, and the causes that explain it, the nearest first."""
    found = []
    for loss, norm in pairs:
        file = folder / "log.jsonl"
        file.write_text(json.dumps({"step": 1, "loss": loss, "grad_norm": norm}))
        result = logged.predict_logged(
            fields, BATCH, Description(), file, text="distinct" if exponent is None else f"zipf:{exponent}", patterns=4,
            max_time="10m",
        )  # fmt: skip
        causes = result.to_frame().query("explains")["cause"].tolist() if len(result.to_frame()) else []
        found.append((result.values["as_it_should_be"], causes))
    return found


def of_network(folder: Path, name: str) -> dict[str, Any]:
    """False alarms of a network's own runs; of those with a planted cause, how often it explains, and how often first.

    Whether a run is off counts as well: a cause within its deviations is not seen.
    """
    fields, exponent = NETWORKS[name]
    healthy = runs(fields, exponent, 31)
    rows = {"false alarms": sum(not fine for fine, _ in judged(folder, fields, exponent, healthy)) / SEEDS}
    cases = {cause: [(a * loss, b * norm) for loss, norm in healthy] for cause, (a, b) in PLANTED.items()}
    for cause, other in OTHERS.items() if name in ("words that differ", "Zipf's law") else ():
        if not (other.get("embeddings") == "tied" and exponent is not None):
            cases[cause] = runs(fields | other, exponent, 32)
    for cause, pairs in cases.items():
        rows_of = judged(folder, fields, exponent, pairs)
        rows[cause] = {
            "seen": sum(not fine for fine, _ in rows_of) / SEEDS,
            "explains": sum(cause in causes for _, causes in rows_of) / SEEDS,
            "among three": sum(cause in causes[:3] for _, causes in rows_of) / SEEDS,
            "first": sum(causes[:1] == [cause] for _, causes in rows_of) / SEEDS,
        }
    return rows


@pytest.mark.usefixtures("predicted_once")
def test_step_1_of_sampled_networks(kept_folder, tmp_path):
    """At most 5% of healthy runs are judged to be off: 2% by two tests of 1%; 120 runs have an error of 1.3%."""
    found = {name: kept_case(kept_folder, name, partial(of_network, tmp_path, name)) for name in NETWORKS}
    alarms = float(np.mean([rows["false alarms"] for rows in found.values()]))
    record("logged", {"runs of each": SEEDS, "sequences": BATCH, "false alarms": round(alarms, 4), "networks": found})
    assert all(
        row["seen"] >= 0.9 for rows in found.values() for cause, row in rows.items() if cause in PLANTED
    )  # factors of at least four
    assert alarms <= 0.05


def on_text(folder: Path, file: Path, units: str) -> dict[str, Any]:
    """Return the distance of five networks' first steps on a text from `predict --logged` with the text's law."""
    setting, ids = text_networks.Setting.of(f"256-4-64-{units}-windows"), np.array(file.read_text().split(), dtype=int)
    log, offs = folder / "log.jsonl", []
    fields = {name: value for name, value in asdict(setting.stack).items() if value != getattr(Stack, name, None)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_networks, "words", lambda: ids)
        for seed in range(1000, 1005):
            squares = text_networks.squares(setting, seed)
            loss = squares.pop("loss")
            log.write_text(json.dumps({"step": 1, "loss": loss, "grad_norm": sum(squares.values()) ** 0.5}))
            found = logged.predict_logged(fields, 64, Description(), log, text=f"{file}", patterns=4, max_time="10m")
            offs.append((found.values["as_it_should_be"] is False, found.values))
    return {
        "off": sum(off for off, _ in offs),
        "loss": [(one["logged_loss"] - one["loss"]) / one["loss_deviation"] for _, one in offs],
        "norm": [one["logged_norm"] / one["gradient_norm"] - 1.0 for _, one in offs],
        "deviation": offs[0][1]["gradient_norm_deviation"] / offs[0][1]["gradient_norm"],
    }


@pytest.mark.skipif("TEXTS" not in os.environ, reason="TEXTS must name a folder of token ids")
@pytest.mark.usefixtures("predicted_once")
def test_step_1_on_texts(kept_folder, tmp_path):
    """At most 2 of 120 healthy first steps, on six texts that no law was made of, are judged to be off."""
    cases = [(file, units) for file in sorted(Path(os.environ["TEXTS"]).glob("*.txt")) for units in UNITS]
    found = {
        f"{file.stem} {units}": kept_case(kept_folder, f"{file.stem}-{units}", partial(on_text, tmp_path, file, units))
        for file, units in cases
    }
    record("logged-texts", {"networks of each": 5, "texts": rounded(found)}, short=True)
    assert sum(row["off"] for row in found.values()) <= 2
