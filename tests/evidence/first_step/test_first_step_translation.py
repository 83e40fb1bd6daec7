"""Adam's first step from the paper's translation model at d = 512, 6-6; MULTI30K names the folder of its texts."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from simulate.curvature.module_step import WHOLE, ParameterLine, module_direction, one_step
from simulate.modules.factories import Made
from studies.hessian.text_problem import translation_problem
from studies.parallel_text import read_pairs
from studies.translation_model import Translation
from tests.helpers.evidence_file import kept_case, record, rounded

FOLDER = os.environ.get("MULTI30K", "")
pytestmark = [pytest.mark.evidence, pytest.mark.skipif(not FOLDER, reason="MULTI30K is not set")]

PAIRS, SEEDS, VOCAB = 32, 2, 10000
PUBLISHED = (5e-4, 7.0e-4, 1e-3)
GRID = tuple(1e-4 * 2.0**k for k in range(12))
"""Rates at which the loss is asked for, for a crossing that the search may have passed over."""


def one_model(placement: str, seed: int) -> dict[str, Any]:
    """The rates of one model, without dropout."""
    torch.set_num_threads(1)
    folder = Path(FOLDER)
    text = read_pairs(folder / "train.de", folder / "train.en", vocab=VOCAB, units="bpe", pairs=PAIRS)
    problem = translation_problem(Translation(placement=placement, vocab=VOCAB), text, seed=seed, piece=PAIRS)
    ((inputs, labels),) = problem.data
    one = Made("translation", problem.model, (inputs,), lambda logits: problem.loss(logits, labels))
    rows = one_step(one, ["adam"], seed, layers=["translator.encoder", "translator.decoder"])
    path = ParameterLine(one, seed)
    u = module_direction(one.module, path.gradient, "adam")
    whole = next(row for row in rows if row["group"] == WHOLE)
    limits = max((row for row in rows if row["group"] != WHOLE), key=lambda row: row["share"])
    return {
        "critical rate": 2 * whole["gain"] / whole["curvature"],
        "Hessian rate": 2 * whole["gain"] / whole["hessian"] if whole["hessian"] > 0 else None,
        "break-even rate": whole["break_even_rate"],
        "passes": whole["passes"],
        "loss": whole["loss"],
        "limits": [limits["group"].removeprefix("translator."), limits["share"]],
        "losses at the published rates": [path.at(u, rate) for rate in PUBLISHED],
        "losses on a grid": [path.at(u, rate) for rate in GRID],
        "labels": len(labels),
    }


def test_translation(kept_folder):
    """Recorded, with the rates of the papers."""
    found = {
        placement: [
            kept_case(
                kept_folder,
                f"model {placement} {seed} {PAIRS} {VOCAB} {len(GRID)}",
                partial(one_model, placement, seed),
            )
            for seed in range(SEEDS)
        ]
        for placement in ("post", "pre")
    }
    shown = {placement: [rounded(one) for one in models] for placement, models in found.items()}
    content = {"published rates": list(PUBLISHED), "grid": list(GRID)}
    record("first-step-translation", content | {"models": shown})
    for one in (model for models in found.values() for model in models):
        assert one["critical rate"] > 0 and one["break-even rate"] > 0
