"""Experts by groups of tokens beside all 64 tokens: Mixtral's, OLMoE's and other choices, with 256 patterns of each."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.evidence_file import kept_case, record, rounded
from tests.theory.attention.test_grouped_experts import CASES, WIDE, deviations
from theory import predict

pytestmark = pytest.mark.evidence

PATTERNS = 256


def beside(fields: dict[str, Any]) -> dict[str, Any]:
    """Every quantity by groups over that of all tokens, of the layer where it is furthest off in standard errors."""
    stack = replace(WIDE, **fields)
    groups, of_all = (predict(stack, grouped=grouped, patterns=PATTERNS) for grouped in (True, False))
    found = {}
    for name, (relative, error) in deviations(groups, of_all).items():
        worst = np.argmax(np.abs(relative) / np.maximum(error, 1e-4))
        found[name] = {"ratio": float(1.0 + relative[worst]), "sem": float(error[worst])}
    return rounded(found)


def test_groups_beside_all_tokens(kept_folder):
    """Within 1.5% and 4.5 standard errors, in every layer."""
    found = {
        name: kept_case(kept_folder, f"experts by groups, {name}", lambda fields=fields: beside(fields))
        for name, fields in CASES.items()
    }
    record("expert-groups", {"tokens": WIDE.tokens, "patterns": PATTERNS, "networks": found})
    rows = [row for one in found.values() for row in one.values()]
    assert all(abs(row["ratio"] - 1.0) <= max(0.015, 4.5 * row["sem"]) for row in rows)
    assert np.median([row["sem"] for row in rows]) < 0.01
