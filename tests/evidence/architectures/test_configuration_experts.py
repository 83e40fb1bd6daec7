"""Gradients of families with experts, built by their own classes, against their predictions: routers, experts, all.

As in `test_configuration_gradients`, whose draws these are, but narrower: experts have most of the parameters.
"""

from typing import Any

import pytest

from tests.evidence.architectures.test_configuration_gradients import (
    SEQUENCES,
    TOKENS,
    VOCAB,
    beyond,
    case,
    differing,
    ours,
)
from tests.helpers.evidence_file import kept_case, record

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

from tests.helpers import model_classes  # noqa: E402  # it needs transformers

WIDTH = 256
ERROR = 0.015
_SIZES: dict[str, Any] = {"num_experts_per_tok": 2, "initializer_range": 0.02, "tie_word_embeddings": False}
_GRANITE: dict[str, Any] = {
    "attention_multiplier": 1 / 16, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
}  # fmt: skip

# What is built: a family, and its fields beside the sizes.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 8}),
    "olmoe": ("olmoe", {"num_experts": 8}),
    "olmoe, one of 8": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 1}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 32, "moe_intermediate_size": 128, "norm_topk_prob": True}),
    "qwen2_moe": ("qwen2_moe", {"num_experts": 8, "shared_expert_intermediate_size": 512}),
    "qwen2_moe, a dense layer": ("qwen2_moe", {"num_experts": 8, "mlp_only_layers": [0]}),
    "granitemoe": ("granitemoe", {"num_local_experts": 8} | _GRANITE),
    "granitemoeshared": ("granitemoeshared", {"num_local_experts": 8, "shared_intermediate_size": 512} | _GRANITE),
    "glm4_moe": ("glm4_moe", {"n_routed_experts": 8, "use_qk_norm": True}),
    "glm4_moe, scores not divided": (
        "glm4_moe",
        {"n_routed_experts": 8, "first_k_dense_replace": 0, "norm_topk_prob": False, "routed_scaling_factor": 2.5},
    ),
    "dots1": ("dots1", {"n_routed_experts": 8, "norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "solar_open": ("solar_open", {"n_routed_experts": 8}),
    "exaone_moe": ("exaone_moe", {"num_experts": 8}),
    "minimax_m2": ("minimax_m2", {"num_local_experts": 8}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 8}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"num_experts": 8}),
    "flex_olmo": ("flex_olmo", {"num_experts": 8}),
    "mellum": ("mellum", {"num_experts": 8}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_families_with_experts_are_as_their_configurations_predict(kept_folder):
    """Every matrix's norm within 5%, or as in networks of the Stack itself, whose width then makes the difference.

    Those may differ by 4 standard errors, which by chance one in 16000 does; standard errors are at most 1.5%.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, (family, others) in CASES.items():
        fields = model_classes.small_fields(family, **_SIZES | others)
        one = kept_case(
            kept_folder, f"experts {name}", lambda family=family, fields=fields: case(family, fields, ERROR)
        )
        if beyond(one):
            one = one | {
                "networks of the Stack": kept_case(
                    kept_folder,
                    f"experts {name}, the Stack's",
                    lambda family=family, fields=fields: ours(family, fields),
                )
            }
        found[name] = one
    about = {"width": WIDTH, "depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "sequences": SEQUENCES}
    record("configuration-experts", about | {"transformers": transformers.__version__, "models": found})
    assert model_classes.with_experts() <= set(found)
    assert not [row for one in found.values() for row in one["matrices"].values() if row["sem"] > ERROR]
    assert not differing(found)
