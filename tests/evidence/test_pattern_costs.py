"""What sampled patterns of published models cost and leave as an error: seconds of one core beside relative errors."""

import json
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.helpers.evidence_file import FOLDER, kept_case, record, rounded
from theory import predict
from theory.configurations import stack_from_config
from theory.configurations.published import published

pytestmark = pytest.mark.evidence

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"embeddings": "untied"}, "gpt2, tied": {}, "llama-3-8b": {}, "qwen3-8b": {},
}  # fmt: skip
PATTERNS = {16: 64, 64: 16}
NAME = "pattern-costs"


def measured(model: str, tokens: int, patterns: int) -> dict[str, float]:
    """CPU seconds of a pattern; and one's error of W^Q and W^K, over all layers and both, and of W^V."""
    stack, _ = stack_from_config(published(model.partition(",")[0]), tokens=tokens, **MODELS[model])
    predict(stack, patterns=4, grouped=False, max_time=np.inf)  # what is cached once is not part of it
    before = time.process_time()
    found = predict(stack, patterns=patterns, grouped=False, max_time=np.inf)
    seconds = (time.process_time() - before) / patterns
    squares = {role: np.square(found.errors[name] / found[name]) * patterns
               for role in ("WQ", "WK", "WV") if (name := f"grad_sq_{role}") in found}  # fmt: skip
    queries, values = (float(np.mean([squares[role] for role in roles])) ** 0.5 for roles in (("WQ", "WK"), ("WV",)))
    return {
        "patterns": patterns, "CPU seconds": seconds, "W^Q, W^K": queries,
        "W^V": values, "CPU seconds to 0.5% of W^Q, W^K": seconds * (queries / 0.005) ** 2,
    }  # fmt: skip


def test_costs_of_patterns(kept_folder):
    """Beside what was measured before patterns had pairs, one rotation of a head and control variates."""
    file = FOLDER / f"{NAME}.json"
    before = json.loads(file.read_text(encoding="utf-8"))["before"]
    after = {
        f"{model}, n = {tokens}": rounded(
            kept_case(kept_folder, f"{model}, {tokens}", partial(measured, model, tokens, count))
        )
        for model in MODELS
        for tokens, count in PATTERNS.items()
        if (model, tokens) != ("gpt2, tied", 64)
    }
    record(NAME, {"before": before, "after": after})
    name = "CPU seconds to 0.5% of W^Q, W^K"
    for case in after:
        if "tied" not in case and case in before:
            assert after[case][name] < before[case][name] / 3, case
