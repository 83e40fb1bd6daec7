"""Today's attention, each field alone and several together: predictions beside the sampler and torch's modules.

The modules (`tests.helpers.twins.attention_module`) draw their own matrices. All have d = 1024, 8 heads, L = 2 and 6.
"""

from functools import partial
from typing import Any

import pytest

from simulate import sample
from tests.helpers.agreement import deviations
from tests.helpers.evidence_file import kept_case, record
from tests.helpers.twins.attention_module import module_samples
from theory import Stack, predict

pytestmark = pytest.mark.evidence

DRAWS, MODULE_DRAWS, PATTERNS = 256, 48, 256
FIELDS: dict[str, dict[str, Any]] = {
    "shared keys and values": {"kv_heads": 2},
    "window": {"window": 3},
    "norm of heads": {"query_key_norm": "head", "query_key_scale": 0.5},
    "norm of all heads": {"query_key_norm": "all", "query_key_scale": 0.5},
    "rotary": {"rotary": 1.0},
    "soft cap": {"logit_softcap": 0.7},
    "shared, rotary, window": {"kv_heads": 2, "rotary": 1.0, "window": 4},
    "all": {
        "kv_heads": 4,
        "rotary": 1.0,
        "rotary_base": 100.0,
        "window": 4,
        "query_key_norm": "head",
        "logit_softcap": 1.5,
    },
}


def case(stack: Stack) -> dict[str, list[dict[str, Any]]]:
    """Every number of one case."""
    prediction = predict(stack, patterns=PATTERNS)
    found = {"sampler": sample(stack, draws=DRAWS, seed=7), "modules": module_samples(stack, MODULE_DRAWS, seed=8)}
    return {who: deviations(samples, prediction, common=True) for who, samples in found.items()}


def test_every_field_of_attention(kept_folder):
    """Within 3% or 4 standard errors, where a number is off by chance with at most 6e-5; the widest of each case."""
    found: dict[str, Any] = {}
    beyond, numbers = [], {"sampler": 0, "modules": 0}
    for name, fields in FIELDS.items():
        for placement in ("post", "pre", "peri") if name == "all" else ("post", "pre"):
            for depth in (2, 6):
                stack = Stack(
                    **{"query_key_scale": 1.3} | fields, placement=placement, width=1024, depth=depth, tokens=6,
                    vocab=64, heads=8, mask="causal", normalization="rms", norm_epsilon=1e-5, initialization="fan_in",
                    output_projection="random",
                )  # fmt: skip
                label = f"{name}, {placement}, L = {depth}"
                found[label] = {}
                for who, table in kept_case(kept_folder, label, partial(case, stack)).items():
                    numbers[who] += len(table)
                    found[label][who] = max(table, key=lambda row: row["of what is allowed"])
                    beyond += [{"case": label, "of": who} | row for row in table if row["of what is allowed"] > 1]
    about = {"draws": {"sampler": DRAWS, "modules": MODULE_DRAWS}, "patterns": PATTERNS, "numbers": numbers}
    record("attention-fields", about | {"beyond": beyond, "widest of each case": found})
    assert len(beyond) <= 0.001 * sum(numbers.values()), beyond
