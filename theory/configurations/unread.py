"""Families whose configurations are not read, with the reason."""

_EXPERTS = "a router picks experts for each token, which has no rule"
_UNWRITTEN = "its reading has not been written"
_RECURRENT = "its layers mix tokens by a recurrence, which is no attention"
UNREAD = {
    "nanochat": "its output matrices are 0 at initialization, so that all others receive no gradient",
    "bloom": "its positions are biases of attention's logits (ALiBi), which have no rule",
    "mpt": "its positions are biases of attention's logits (ALiBi), which have no rule",
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "olmoe"), _EXPERTS),
    **dict.fromkeys(("mamba", "mamba2", "rwkv"), _RECURRENT),
    **dict.fromkeys(("falcon", "stablelm", "opt", "gpt_bigcode", "starcoder2", "cohere"), _UNWRITTEN),
}
"""Why a model is not read, by `model_type`."""
