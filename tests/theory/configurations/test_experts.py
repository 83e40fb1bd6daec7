"""Configurations of models with experts: what their routers are, and which contradict themselves."""

import pytest

from theory.configurations import stack_from_config

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "num_key_value_heads": 2,
}
MIXTRAL = SIZES | {"model_type": "mixtral", "intermediate_size": 128, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN2 = SIZES | {
    "model_type": "qwen2_moe", "intermediate_size": 192, "moe_intermediate_size": 32, "num_experts": 6,
    "shared_expert_intermediate_size": 96, "num_experts_per_tok": 3,
}  # fmt: skip
QWEN3 = {name: value for name, value in QWEN2.items() if not name.startswith("shared")} | {"model_type": "qwen3_moe"}
GRANITE = MIXTRAL | {"model_type": "granitemoeshared"}
GLM = SIZES | {
    "model_type": "glm4_moe", "intermediate_size": 192, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 3, "routed_scaling_factor": 2.5, "first_k_dense_replace": 2,
}  # fmt: skip
ERNIE = SIZES | {
    "model_type": "ernie4_5_moe", "intermediate_size": 192, "moe_intermediate_size": 32, "moe_num_experts": 8,
    "moe_k": 2, "moe_num_shared_experts": 0,
}  # fmt: skip
EXAONE = {name: value for name, value in QWEN3.items() if name != "num_experts"} | {"model_type": "exaone_moe"}
HUNYUAN = SIZES | {
    "model_type": "hunyuan_v1_moe", "intermediate_size": 128, "num_experts": 8, "moe_topk": [2, 2, 2, 2]
}  # fmt: skip
OLMOE = MIXTRAL | {"model_type": "olmoe"}


def router(config):
    stack, _ = stack_from_config(config)
    names = ("experts", "experts_per_token", "router_scores", "router_norm", "ffn_ratio", "shared_ratio", "shared_gate")
    return tuple(getattr(stack, name) for name in names)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MIXTRAL, (8, 2, "softmax", "sum", 2.0, 0.0, "none")),
        (MIXTRAL | {"model_type": "granitemoe"}, (8, 2, "softmax", "sum", 2.0, 0.0, "none")),
        (GRANITE, (8, 2, "softmax", "sum", 2.0, 0.0, "none")),  # by its class's default no expert is shared
        (GRANITE | {"shared_intermediate_size": 96}, (8, 2, "softmax", "sum", 2.0, 1.5, "none")),
        (QWEN2, (6, 3, "softmax", "none", 0.5, 1.5, "sigmoid")),
        (QWEN3 | {"norm_topk_prob": True}, (6, 3, "softmax", "sum", 0.5, 0.0, "none")),
        # As the class writes it, by the name that stands for the other.
        (QWEN3 | {"num_local_experts": 4, "num_experts": None}, (4, 3, "softmax", "none", 0.5, 0.0, "none")),
        (OLMOE, (8, 2, "softmax", "none", 2.0, 0.0, "none")),
        (GLM, (8, 2, "sigmoid", "sum", 0.5, 1.5, "none")),
        (GLM | {"norm_topk_prob": False}, (8, 2, "sigmoid", "none", 0.5, 1.5, "none")),
        (ERNIE, (8, 2, "softmax", "sum", 0.5, 0.0, "none")),
        (EXAONE, (64, 3, "sigmoid", "sum", 0.5, 0.5, "none")),
        (HUNYUAN, (8, 2, "softmax", "sum", 2.0, 2.0, "none")),
        (MIXTRAL | {"model_type": "minimax_m2", "head_dim": 16}, (8, 2, "sigmoid", "sum", 2.0, 0.0, "none")),
    ],
)
def test_a_router_is_its_classes(config, expected):
    assert router(config) == expected


def test_layers_without_experts_are_the_first_ones():
    stack, _ = stack_from_config(QWEN3 | {"mlp_only_layers": [1, 0]})
    assert (stack.dense_layers, stack.dense_ratio, stack.ffn_ratio) == (2, 3.0, 0.5)
    # The list of kinds is what its class reads, and MiniMax's class divides rotary_dim by the width of a head.
    listed, turned = {"mlp_layer_types": ["dense"] * 3 + ["sparse"]}, {"head_dim": 64, "rotary_dim": 32}
    files = (GLM, ERNIE, EXAONE, EXAONE | listed, MIXTRAL | {"model_type": "minimax_m2"} | turned)
    found = [(one.dense_layers, one.routed_scale, one.rotary) for one, _ in map(stack_from_config, files)]
    assert found == [(2, 2.5, 0.5), (1, 1.0, 1.0), (1, 2.5, 1.0), (3, 2.5, 1.0), (0, 1.0, 0.5)]
    assert [stack.of_layer(layer).ffn_width for layer in (1, 2, 3)] == [192, 192, 32]


def test_losses_that_balance_loads_are_named():
    _, notes = stack_from_config(MIXTRAL | {"output_router_logits": True, "router_jitter_noise": 0.1})
    said = {note.field: note.what for note in notes}
    assert said["output_router_logits"] == said["router_jitter_noise"] == "left out"
    _, notes = stack_from_config(MIXTRAL | {"output_router_logits": False, "router_aux_loss_coef": 0.02})
    assert {note.field: note.what for note in notes}["router_aux_loss_coef"] == "neutral"
    assert {note.field: note.value for note in stack_from_config(MIXTRAL)[1]}["router_aux_loss_coef"] == 0.001


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (MIXTRAL | {"num_local_experts": 0}, "^num_local_experts must be an integer of at least 1, got 0"),
        (MIXTRAL | {"num_local_experts": -8}, "^num_local_experts must be an integer of at least 1, got -8"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "^num_experts_per_tok must be at most the 8 experts, got 9"),
        (MIXTRAL | {"num_experts_per_tok": 0}, "^num_experts_per_tok must be an integer of at least 1, got 0"),
        (MIXTRAL | {"num_local_experts": "8"}, "^num_local_experts must be a number, got '8'"),
        (MIXTRAL | {"num_experts": 4}, "^num_local_experts and num_experts must be one number, got 8 and 4"),
        (MIXTRAL | {"num_experts_per_tok": None}, "must have num_experts_per_tok, got null, which .* must not be"),
        (MIXTRAL | {"num_experts_per_tok": 1.5}, "^num_experts_per_tok must be an integer of at least 1, got 1.5"),
        (MIXTRAL | {"auto_map": {}, "norm_topk_prob": False}, "^norm_topk_prob must be true, got False: this m"),
        (MIXTRAL | {"auto_map": {}, "n_group": 3, "topk_group": 2}, "^config must have only fields of its family, got"),
        (GRANITE | {"shared_intermediate_size": -1}, "^shared_intermediate_size must be an integer of at least 0"),
        (QWEN2 | {"shared_expert_intermediate_size": 0}, "^shared_expert_intermediate_size .* at least 1, got 0"),
        (SIZES | {"auto_map": {}, "model_type": "llama", "num_experts_per_tok": 2}, "got num_experts_per_tok = 2"),
        (QWEN3 | {"norm_topk_prob": "yes"}, "^norm_topk_prob must be true or false, got 'yes'"),
        (QWEN3 | {"mlp_only_layers": [2]}, "^mlp_only_layers and decoder_sparse_step must give experts to all layers"),
        (QWEN3 | {"mlp_only_layers": [0, 1, 2, 3]}, "^mlp_only_layers and .* must give experts to all layers except"),
        (QWEN3 | {"mlp_only_layers": "0"}, "^mlp_only_layers must be a list of .* from 0 to 3, got '0'"),
        (QWEN3 | {"mlp_only_layers": [0, 4]}, "^mlp_only_layers must be a list of .* from 0 to 3, got .0, 4."),
        (QWEN2 | {"decoder_sparse_step": 0}, "^decoder_sparse_step must be an integer of at least 1, got 0"),
        (QWEN3 | {"decoder_sparse_step": 2}, r"must give .* first ones, got dense layers \[0, 2\] of 4"),
        (QWEN2 | {"moe_intermediate_size": 0}, "^moe_intermediate_size must be an integer of at least 1, got 0"),
        ({"model_type": "gpt_oss"}, "got 'gpt_oss', which is not read: its attention has sinks, and its experts"),
        ({"model_type": "deepseek_v3"}, "got 'deepseek_v3', which is not read: queries, keys and values come from"),
        ({"model_type": "phimoe"}, "got 'phimoe', which is not read: its router masks scores"),
        (GLM | {"n_group": 4, "topk_group": 2}, "^topk_group must be n_group = 4, got 2: a choice of groups has no"),
        (GLM | {"routed_scaling_factor": 0}, "^routed_scaling_factor must be above 0, got 0"),
        (GLM | {"first_k_dense_replace": 9}, "^first_k_dense_replace must give experts to all layers except the first"),
        (ERNIE | {"moe_layer_interval": 2}, r"^moe_layer_start_index and .* got dense layers \[0, 2\] of 4"),
        (ERNIE | {"moe_layer_end_index": 2}, r"^moe_layer_start_index and .* got dense layers \[0, 3\] of 4"),
        (EXAONE | {"mlp_layer_types": ["sparse"] * 3}, "^mlp_layer_types must be a list of 4 words dense or sparse"),
        (EXAONE | {"mlp_layer_types": ["sparse", "dense"] * 2}, r"^mlp_layer_types and .* dense layers \[1, 3\]"),
        (HUNYUAN | {"moe_topk": [2, 2, 2, 3]}, r"^moe_topk must be a number, got \[2, 2, 2, 3\]"),
        ({"model_type": "afmoe"}, "got 'afmoe', which is not read: a bias is added to its router's"),
        ({"model_type": "llama4_text"}, "got 'llama4_text', which is not read: its router's weights multiply the"),
        ({"model_type": "switch_transformers"}, "which is not read: its experts accept a limited number of tokens"),
    ],
)  # fmt: skip
def test_what_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        stack_from_config(config)
