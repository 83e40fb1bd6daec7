"""Gradients of queries and keys in translation models as they widen; MULTI30K names the texts' folder."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from studies.fig3.table import predicted
from studies.measurements import measure
from studies.parallel_text import ParallelText, read_pairs
from studies.translation_model import Translation
from tests.helpers.evidence_file import kept_case, record, rounded

FOLDER = os.environ.get("MULTI30K", "")
WIDTHS, SEEDS, DEPTH, BATCH_TOKENS = (256, 512, 1024), range(10, 13), 6, 4096
ROLES = ("WQ", "WK", "XQ", "XK", "W2")

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(not FOLDER, reason="MULTI30K must name a folder with train.de and train.en"),
]


def ratios(text: ParallelText, placement: str, width: int) -> dict[str, Any]:
    """Measured over predicted norms, geometric means over the layers, by part and matrix, of every seed."""
    model = Translation(
        placement=placement, width=width, ffn_width=2 * width, depth=DEPTH, vocab=text.vocab, tied=False,  # type: ignore[arg-type]
    )  # fmt: skip
    found = [measure(model, text, batches=1, batch_tokens=BATCH_TOKENS, seed=seed) for seed in SEEDS]
    size = float(found[0].loc[found[0]["statistic"] == "effective pairs", "value"].iloc[0])
    place = ["part", "matrix", "layer"]

    def norms(rows: pd.DataFrame, statistic: str) -> pd.Series:
        return np.log(rows[rows["statistic"] == statistic].set_index(place)["value"])

    measured = pd.concat([norms(rows, "mean norm") for rows in found], axis=1)
    table: dict[str, Any] = {"effective pairs": size}
    for name, drawn in {"products' means": False, "products drawn": True}.items():
        theory = norms(predicted(model, text, effective_pairs=size, finite_width=drawn), "predicted")
        over = measured.sub(theory, axis=0).groupby(["part", "matrix"]).mean()
        table[name] = {
            f"{part} {role}": np.exp(over.loc[(part, role)]).tolist()
            for part, role in over.index if role in ROLES and not (part == "encoder" and role.startswith("X"))
        }  # fmt: skip
    return table


def is_nearer(case: dict[str, Any]) -> bool:
    """Whether theory with draws is nearer than with means, by the attention to the source."""
    means, drawn = (
        np.mean([abs(np.log(np.mean(case[how][f"decoder {role}"]))) for role in ("XQ", "XK")])
        for how in ("products' means", "products drawn")
    )
    return bool(drawn < means)


def test_query_widths(kept_folder):
    """Queries and keys of the source within 10% and 4 standard errors, and where draws are nearer than means.

    That they are in every model was expected, and fails where both are within the errors: it is recorded.
    """
    text = read_pairs(Path(FOLDER) / "train.de", Path(FOLDER) / "train.en", vocab=10_000, units="bpe")
    cases = {
        f"{placement}, d = {width}": rounded(
            kept_case(kept_folder, f"{placement} {width}", lambda p=placement, d=width: ratios(text, p, d))
        )
        for placement in ("post", "pre")
        for width in WIDTHS
    }
    about = {
        "output matrix": "untied", "layers": f"{DEPTH}-{DEPTH}", "target tokens": BATCH_TOKENS,
        "seeds": list(SEEDS), "draws are nearer": {name: is_nearer(case) for name, case in cases.items()},
    }  # fmt: skip
    record("query-widths", about | cases, short=True)
    for name, case in cases.items():
        for role in ("XQ", "XK"):
            over = np.array(case["products drawn"][f"decoder {role}"])
            assert abs(over.mean() - 1) < 0.1 + 4 * over.std(ddof=1) / len(over) ** 0.5, (name, role)
