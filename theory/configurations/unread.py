"""The model families whose configuration files cannot be read, with the reason for each."""

from collections.abc import Mapping
from typing import Any

from theory.configurations.classes import MEASURED, OTHER_TYPES

_NARROW = "queries, keys and values come from low-rank matrices (MLA), which have no rule"
_REASONS = {
    _NARROW: (
        "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm_moe_dsa axk1 minicpm3 youtu mistral4 glm4_moe_lite "
        "longcat_flash sarvam_mla"
    ),
    "queries and the attention output pass through low-rank matrices, which have no rule": "deepseek_v4",
    "a bias is added to its router's scores, and its class has not been compared with theory": (
        "minimax_m3 mimo_v2_flash step3p5 step3p7 afmoe hy_v3 kolibri1 sarvam_moe"
    ),
    "a gate multiplies its attention output, which no field describes": "laguna muse_glimmer_text muse_spark_text",
    "convolutions mix the tokens' queries, keys and values, which has no rule": "zaya",
    "its attention has sinks, and its experts have clamped hidden units, which no field describes": "gpt_oss",
    "its attention has sinks, which no field describes": "granite_swa granitemoe_swa flint openai_privacy_filter",
    "its router masks scores before their softmax (sparse mixer), which no field describes": "phimoe",
    "its attention also consists of experts, which no field describes": "jetmoe",
    "its router's weights multiply the experts' input, which no field describes": "llama4_text llama4",
    "its experts accept a limited number of tokens, which no field describes": "switch_transformers nllb-moe",
    "most of its attention is linear, without a softmax, which has no rule": (
        "minimax minimax_m1 minimax_text_01 kimi_linear"
    ),
    "its layers mix tokens by a recurrence instead of attention": (
        "mamba mamba2 rwkv nemotron_h jamba zamba zamba2 falcon_mamba falcon_h1 bamba recurrent_gemma xlstm qwen3_next "
        "qwen3_5_text olmo_hybrid"
    ),
    "some of its layers mix tokens by short convolutions instead of attention": "lfm2 lfm2_moe lfm3",
    "its layers run several times, so that their gradients add up, which has no rule": "hrm_text",
    "its values decide which tokens attention sees, and weights multiply its stream, which no field describes": "doge",
    "its residual stream consists of several mixed streams, which has no rule": "gemma3n gemma3n_text",
    "heads of its full layers are wider than heads of its layers with a window, which no field describes": (
        "gemma4 gemma4_text gemma4_unified gemma4_unified_text diffusion_gemma_text"
    ),
    "its positions are biases of attention logits (ALiBi), which have no rule": "bloom mpt refact",
    "its layers share their matrices, so that their gradients add up, which has no rule": "albert",
    "queries and keys meet keys and queries of relative positions, which has no rule": "deberta deberta-v2 xlnet",
    "relative positions are biases of its logits, initialized as large as its token embeddings": "mpnet",
    "it has token type embeddings without position embeddings, which no field describes": "roformer nomic_bert",
    "a part of its values are embeddings of their own, and scalars add its inputs to every layer, which no field "
    "describes; --drawn-by nanochat draws another decoder by its rule": "nanochat.GPTConfig",
    "its attention is the difference of two softmax attentions, which has no rule": "diffllama",
    "its activation xIELU has parameters, which theory does not support": "apertus",
    "its matrices are rounded to three values in every step": "bitnet",
    "its inputs are parts of images and its loss is about classes, which no field describes": (
        "vit deit beit swin dinov2 dinov3_vit vit_mae siglip_vision_model clip_vision_model imagegpt"
    ),
    "its loss compares images with texts, or it has none": (
        "clip clip_text_model siglip siglip_text_model clap blip altclip"
    ),
    "its encoder reads audio, which no field describes": "whisper speech_to_text wav2vec2 hubert wavlm seamless_m4t",
    "bounding boxes of a page are added to its inputs, which no field describes": "layoutlm layoutlmv2 layoutlmv3 bros",
    "its inputs are scaled by the share of masked tokens, which no field describes": "esm",
    "the language model's configuration is mixed with the image model's": (
        "qwen2_vl qwen2_5_vl qwen2_vl_text qwen2_5_vl_text qwen3_vl_text phi3_v multi_modality mllama_text_model"
    ),
}
_SIGNS = {
    _NARROW: ("kv_lora_rank",),
    "it has the sizes of a recurrence, and layers without attention have no rule": (
        "state_size", "ssm_cfg", "ssm_state_size", "linear_num_key_heads", "mb_per_layer",
    ),
    "it consists of several models, each with its own configuration": (
        "encoder", "decoder", "question_encoder", "generator",
    ),
    "its inputs are parts of images": ("image_size", "mm_vision_tower"),
}  # fmt: skip

_ATTENTION = {"attention", "full_attention", "sliding_attention"}


def reason(family: str, fields: Mapping[str, Any]) -> str:
    """Return the reason why the configuration files of a model family cannot be read.

    The reason comes from the kinds of layers that the file lists, from the table of families, or from the file's
    keys.

    Args:
        family: `model_type` of the family.
        fields: fields of the file.

    >>> reason("new", {"layer_types": ["conv", "full_attention", "conv"]})
    '2 of its 3 layers are of kind conv, which no rule describes'
    """
    kinds = fields.get("layer_types") or fields.get("layers_block_type") or []
    kinds = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    others = sorted(set(kinds) - _ATTENTION)
    if others:
        count = sum(kind in others for kind in kinds)
        return f"{count} of its {len(kinds)} layers are of kind {' or '.join(others)}, which no rule describes"
    signs = (why for why, names in _SIGNS.items() if any(fields.get(name) for name in names))
    if why := UNREAD.get(family) or next(signs, ""):
        return why
    if family in OTHER_TYPES:
        return f"its class in transformers {MEASURED} has not been compared with theory"
    return f"transformers {MEASURED} has no class of it, and code in the model's repository is not read"


_NEAREST = {
    "llama": (
        "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm_moe_dsa mistral4 youtu minicpm3 glm4_moe_lite mimo_v2_flash "
        "diffllama iquestcoder"
    ),
    "qwen3": "hy_v3 laguna sarvam_moe",
    "mixtral": "gpt_oss",
    "qwen3_moe": "flint",
    "granite": "granite_swa",
    "granitemoe": "granitemoe_swa",
    "cohere2": "cohere2_moe cohere_compass_text",
}
NEAREST = {family: read for read, families in _NEAREST.items() for family in families.split()}
"""The nearest family that is read, with norms in the same places, by the `model_type` of a family that is not."""

UNREAD = {family: reason for reason, families in _REASONS.items() for family in families.split()}
"""The reason why a family is not read, by `model_type`."""
