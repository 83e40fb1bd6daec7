"""Families whose configurations are not read, with the reason."""

from collections.abc import Mapping
from typing import Any

_REASONS = {
    "queries, keys and values come from narrow matrices, and experts are chosen by groups, which have no rule": (
        "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 kimi_k2 glm_moe_dsa deepseek"
    ),
    "a bias enters its router's choice of experts, which no field describes": (
        "glm4_moe dots1 exaone_moe ernie4_5_moe minimax_m2 minimax_m3 mimo_v2_flash step3p7 afmoe"
    ),
    "its attention has sinks, and its experts clamped units, which no field describes": "gpt_oss",
    "its router masks scores before their softmax (sparse mixer), which no field describes": "phimoe",
    "its attention is made of experts as well, which no field describes": "jetmoe",
    "its router's weights multiply what experts are given, which no field describes": "llama4_text llama4",
    "its experts take a limited number of tokens, which no field describes": "switch_transformers nllb-moe",
    "most of its attention is linear, without a softmax, which has no rule": "minimax",
    "its router of experts has not been compared with its class": "dbrx flex_olmo hunyuan_v1_moe",
    "its layers mix tokens by a recurrence, which is no attention": (
        "mamba mamba2 rwkv nemotron_h jamba zamba zamba2 lfm2 lfm2_moe falcon_mamba falcon_h1 bamba recurrent_gemma "
        "xlstm qwen3_next qwen3_5_text granitemoehybrid olmo_hybrid"
    ),
    "its positions are biases of attention's logits (ALiBi), which have no rule": "bloom mpt refact",
    "its layers share their matrices, whose gradients then add up, which has no rule": "albert",
    "queries and keys of contents meet those of relative positions, which has no rule": "deberta deberta-v2 xlnet",
    "relative positions are biases of its logits, drawn as large as its words": "mpnet",
    "its vectors of token types stand without positions beside them, which is no field": "roformer nomic_bert",
    "a part of its values are embeddings of their own, and scalars add its inputs to every layer, which no field "
    "describes; --drawn-by nanochat draws another decoder by its rule": "nanochat",
    "queries, keys and values come from narrow matrices, one after the other, which has no rule": "minicpm3 youtu",
    "attention is the difference of two, which has no rule": "diffllama",
    "its activation xIELU, which has parameters, is none that theory has": "apertus",
    "its matrices are rounded to three values in every step": "bitnet",
    "its inputs are parts of images, and its loss one of classes: neither is a field": (
        "vit deit beit swin dinov2 dinov3_vit vit_mae siglip_vision_model clip_vision_model imagegpt"
    ),
    "its loss compares images with texts, or it has none": (
        "clip clip_text_model siglip siglip_text_model clap blip altclip"
    ),
    "its encoder reads sounds, which no field describes": "whisper speech_to_text wav2vec2 hubert wavlm seamless_m4t",
    "boxes of a page are added to its inputs, which no field describes": "layoutlm layoutlmv2 layoutlmv3 bros",
    "transformers has no class of it, and code that comes with a file is not read": (
        "qwen baichuan internlm internlm2 chatglm xverse mimo minicpm phi3small nemotron-nas deci stablelm_epoch yi "
        "mixformer-sequential phi-msft RefinedWeb RefinedWebModel"
    ),
    "masked words are scaled by their share in its inputs, which no field describes": "esm",
    "the configuration of the words is mixed with that of images, and has no class of its own": (
        "qwen2_vl qwen2_5_vl qwen2_vl_text qwen2_5_vl_text qwen3_vl_text phi3_v multi_modality mllama_text_model"
    ),
}
_SIGNS = {
    "it has a router of experts, and none that is known": (
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok",
    ),
    "it has a recurrence's sizes, and layers that are no attention have no rule": (
        "state_size", "mamba_d_state", "ssm_cfg", "ssm_state_size", "linear_num_key_heads", "conv_kernel",
    ),
    "it is made of several models, each with a configuration of its own": (
        "encoder", "decoder", "question_encoder", "generator",
    ),
    "its inputs are parts of images": ("image_size", "patch_size"),
}  # fmt: skip


def sign(fields: Mapping[str, Any]) -> str:
    """Why a model of an unknown family is not read, as far as its fields tell; "" if they do not.

    >>> sign({"hidden_size": 64, "num_experts": 8})
    'it has a router of experts, and none that is known'
    """
    return next((reason for reason, names in _SIGNS.items() if any(fields.get(name) for name in names)), "")


UNREAD = {family: reason for reason, families in _REASONS.items() for family in families.split()}
"""Why a model is not read, by `model_type`."""
