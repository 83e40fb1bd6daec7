"""The readers of configuration files for all supported model families, such as Llama or GPT-2.

A family has fields that are always the same, and rules for its own keys.
"""

from typing import Any

from theory.configurations.experts import experts
from theory.configurations.family import (
    ACTIVATION,
    LENGTH,
    Family,
    Rule,
    activation_of,
    logits_times,
    small_positions,
    tied,
)
from theory.configurations.reading import Fields, Reading
from theory.configurations.rotations import older_names, stretched, unrotated
from theory.stack.initializations import Law

_CENTRED = "here, queries and keys are normalized without centring, an error of relative order 1/d_k"


def _rooted(r: Reading, fields: Fields, tokens: int) -> None:
    _inputs_times(r, fields, fields["width"] ** 0.5)


def _inputs_times(r: Reading, fields: Fields, factor: float) -> None:
    fields |= {"_inputs": factor, "embeddings": tied(r)}
    if fields["embeddings"] == "untied" and factor != 1:
        r.factor("table of inputs", 1 / factor)


def _rooted_if_asked(r: Reading, fields: Fields, tokens: int) -> None:
    if r.switch("scale_embedding"):
        _rooted(r, fields, tokens)
        small_positions(r, fields)


def _gemma(r: Reading, fields: Fields, tokens: int) -> None:
    """Multiply the embeddings by sqrt(d), and use the tanh approximation of GELU even if the file names the exact GELU.

    Raises:
        ValueError: the two names of the activation have different values.
    """
    _rooted(r, fields, tokens)
    names = [name for name in ("hidden_act", "hidden_activation") if r.knows(name) or r.left.get(name) is not None]
    activations = {name: activation_of(r, name, default="gelu_pytorch_tanh") for name in names}
    activations = {name: "gelu_tanh" if value == "gelu" else value for name, value in activations.items()}
    if len(set(activations.values())) > 1:
        raise ValueError(
            f"{' and '.join(activations)} must be one activation, got {' and '.join(activations.values())}."
        )
    fields["activation"] = activations[names[0]]
    r.left_out("output logits of random networks are far below the cap", "final_logit_softcapping")
    r.refused(
        "tokens would then attend to later tokens; --ignore use_bidirectional_attention --mask none predicts that",
        "use_bidirectional_attention",
    )
    if r.knows("query_pre_attn_scalar"):
        logits_times(r, fields, r.positive("query_pre_attn_scalar") ** -0.5)
        fields["logit_softcap"] = r.number("attn_logit_softcapping", default=0.0)


def _always(**what: Any) -> Rule:
    """Return a rule for keys of a family's older code whose value the class in transformers has fixed.

    Args:
        what: the fixed values, by key.

    Raises:
        ValueError: a file has another value (raised by the rule).
    """

    def rule(r: Reading, fields: Fields, tokens: int) -> None:
        for name, value in what.items():
            given = r.left.get(name)
            if given is not None and given != value:
                if not r.is_unread(name):
                    raise ValueError(
                        f"{name} must be {value!r}, as in every model of this model_type, got {given!r}; --ignore "
                        f"{name} leaves it out."
                    )
                r.say_unread(name, value)
            r.neutral("the model's class always does this", name)

    return rule


def _clipped(r: Reading, fields: Fields, tokens: int) -> None:
    r.left_out("here, queries, keys and values are not clipped", "clip_qkv")


def _gpt2(r: Reading, fields: Fields, tokens: int) -> None:
    r.refused(
        "logits of layer l would also be divided by l, which no field describes; --ignore omits it",
        "scale_attn_by_inverse_layer_idx",
    )
    if not r.take("scale_attn_weights", default=True):
        logits_times(r, fields, 1.0)


def _gpt_bigcode(r: Reading, fields: Fields, tokens: int) -> None:
    r.neutral("multi_query says it", "num_key_value_heads")
    fields["kv_heads"] = 1 if r.switch("multi_query") and fields["heads"] > 1 else 0


def _parallel(r: Reading, fields: Fields, tokens: int) -> None:
    """Set whether attention and MLP read the same tokens, if the family's file has a key for this."""
    if r.knows("use_parallel_residual"):
        fields["layout"] = "parallel" if r.switch("use_parallel_residual") else "sequential"


def _head_norms(r: Reading, fields: Fields, tokens: int) -> None:
    """Set norms of queries and keys per head, and note that the model's class has LayerNorm, the Stack RMSNorm."""
    if r.switch(*(name for name in ("qk_layernorm", "use_qk_norm") if r.knows(name))):
        fields["query_key_norm"] = "head"
        if fields["normalization"] == "layer":
            r.say("norms of queries and keys", "LayerNorm", _CENTRED)


def _falcon(r: Reading, fields: Fields, tokens: int) -> None:
    """Set the heads of keys and values and the layout for Falcon's three architectures.

    Raises:
        ValueError: positions are biases of attention logits (ALiBi).
    """
    r.refused("biases of attention logits (ALiBi) have no rule", "alibi")
    new, single = r.switch("new_decoder_architecture"), r.switch("multi_query")
    kv = r.count("num_kv_heads", "n_head_kv", default=fields["heads"])
    kv = kv if new else 1 if single else fields["heads"]
    if fields["heads"] % kv:
        raise ValueError(f"num_kv_heads must divide num_attention_heads = {fields['heads']}, got {kv}.")
    fields["kv_heads"] = 0 if kv == fields["heads"] else kv
    fields["layout"] = "parallel" if r.switch("parallel_attn") or new else "sequential"
    r.neutral("at initialization, norms of the same tokens are equal", "num_ln_in_parallel_attn")


def _opt(r: Reading, fields: Fields, tokens: int) -> None:
    """Set norms before the branches, or after the residual sums for one of the models.

    Raises:
        ValueError: the embeddings are narrower than the residual stream.
    """
    _narrow(r, fields, "word_embed_proj_dim")
    fields["placement"] = "pre" if r.switch("do_layer_norm_before") else "post"
    r.refused("the residual stream would then end without a norm", "_remove_final_layer_norm")


def _narrow(r: Reading, fields: Fields, name: str) -> None:
    """Check that embeddings are as wide as the residual stream.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, which are not changed.
        name: key of the embeddings' width.

    Raises:
        ValueError: the embeddings are narrower.
    """
    width = r.in_file["width"]
    narrow = r.count(name, default=width)
    if narrow != width:
        raise ValueError(f"{name} must be the width {width}, got {narrow}: a matrix after the embeddings has no rule.")


def _cohere(r: Reading, fields: Fields, tokens: int) -> None:
    _logits_scaled(r, fields, r.positive("logit_scale"))


def _logits_scaled(r: Reading, fields: Fields, factor: float) -> None:
    fields["_logits"] = factor
    if factor != 1:
        r.factor("W_emb", 1 / factor)


def _granite(r: Reading, fields: Fields, tokens: int) -> None:
    """Set the factors on embeddings, branches, attention logits and output logits."""
    _inputs_times(r, fields, r.positive("embedding_multiplier"))
    fields["branch_scale"] = r.number("residual_multiplier")
    logits_times(r, fields, r.positive("attention_multiplier"))
    _logits_scaled(r, fields, 1 / r.positive("logits_scaling"))


def _hunyuan_moe(r: Reading, fields: Fields, tokens: int) -> None:
    """Set a shared expert as wide as an expert, and one number of chosen experts that a file lists for every layer."""
    fields["shared_ratio"] = fields["ffn_ratio"]
    listed = r.left.get("moe_topk")
    if isinstance(listed, list) and len(listed) == r.in_file["depth"] and len(set(map(str, listed))) == 1:
        r.left["moe_topk"] = listed[0]


def _minimax(r: Reading, fields: Fields, tokens: int) -> None:
    """Set the rotated share of a head by its number of coordinates, as the class does.

    Raises:
        ValueError: more coordinates are rotated than a head has.
    """
    if "rotary_dim" in r.left:
        if (turned := r.positive("rotary_dim")) > fields["head_width"]:
            raise ValueError(f"rotary_dim must be at most the width of a head, {fields['head_width']}, got {turned:g}.")
        r.left.setdefault("partial_rotary_factor", turned / fields["head_width"])


def _bert(r: Reading, fields: Fields, tokens: int) -> None:
    """Set a norm of the embeddings, one token-type vector in all of them, and the output head's own layer."""
    if r.take("position_embedding_type", default="absolute") != "absolute":
        r.say("position_embedding_type", "relative", "here, position embeddings are added to the inputs")
    if r.knows("type_vocab_size"):
        fields["positions"] = "learned_segment" if r.number("type_vocab_size") > 0 else "learned"
    if r.knows("is_decoder"):
        fields["mask"] = "causal" if r.switch("is_decoder", default=False) else "none"
    if fields["mask"] == "none" and r.masked != 1.0:
        r.say(
            "masked words",
            r.masked,
            "only a batch of text has them, with this share (--loss-share); elsewhere, all positions count",
        )
    if r.knows("embedding_size"):
        _narrow(r, fields, "embedding_size")
    r.refused("a vector of the task is added to the inputs", "use_task_id")
    r.neutral("it is switched off, so there is no task vector", "task_type_vocab_size")


def _modern(r: Reading, fields: Fields, tokens: int) -> None:
    """Set truncated matrix entries and the smaller standard deviations of W^H and of an untied output matrix.

    These matrices are divided by sqrt(2 L), like W^O and W2. The norm that the first layer lacks stands before that
    layer, as the norm of the embeddings.
    """
    fields["truncation"] = r.number("initializer_cutoff_factor", default=3.0)
    left = Law(uniform=False, cut=fields["truncation"]).variance ** 0.5
    fields["transform_gain"] = (2 * fields["depth"]) ** -0.5
    fields["embeddings"] = tied(r)
    fields |= {"_inputs": left, "_logits": left * (fields["transform_gain"] if fields["embeddings"] == "untied" else 1)}
    window = r.count("local_attention", default=None)
    if window is not None and window // 2 < tokens:
        r.say("local_attention", window, "here, no layer has the window")
    r.neutral("norm_eps is what counts", "layer_norm_eps")
    r.neutral(LENGTH, "global_attn_every_n_layers", "local_attention")


def _gelu_head(r: Reading, fields: Fields, tokens: int) -> None:
    """Set the activation, and note that the output head's own layer has the exact GELU whatever the MLP has."""
    fields["activation"] = activation_of(r, *ACTIVATION)
    if fields["activation"] != "gelu":
        r.say("the head's activation", "gelu", "here, the layer of the head has the activation of the hidden units")


def _distilbert(r: Reading, fields: Fields, tokens: int) -> None:
    r.refused("sinusoidal positions cannot be read from a file", "sinusoidal_pos_embds")
    _bert(r, fields, tokens)


def _gpt_neo(r: Reading, fields: Fields, tokens: int) -> None:
    """Set attention logits without a divisor, and note that every other layer has a window."""
    logits_times(r, fields, 1.0)
    window = r.count("window_size")
    r.neutral("it states which layers have the window", "attention_layers")
    kinds = r.take("attention_types", default=None)
    if window < tokens:
        r.say("attention_types", kinds, f"no layer has the window of {window} here")


def _openai_gpt(r: Reading, fields: Fields, tokens: int) -> None:
    """Set the tanh approximation of GELU, and a standard deviation of the matrices that no key changes.

    Raises:
        ValueError: the activation is not known.
    """
    fields["_matrices"] = 0.02
    activation = activation_of(r, "afn")
    fields["activation"] = "gelu_tanh" if activation == "gelu" else activation


_LLAMA = Family({"placement": "pre", "normalization": "rms", "ffn": "gated", "mask": "causal"})
_NORMED = _LLAMA.but(normalization="layer")
_PLAIN = _NORMED.but(ffn="plain")
_GPT2 = _PLAIN.but(_gpt2, depth_scaling="depth", positions="learned")
_GPTJ = _PLAIN.but(_always(scale_attn_weights=True), layout="parallel")
_GEMMA = _LLAMA.but(_gemma)
_HUNYUAN = _LLAMA.but(
    stretched, _always(use_qk_norm=True, norm_type="rms", use_rotary_pos_emb=True), query_key_norm="head"
)
_BERT = Family({"placement": "post", "embedding_norm": "added", "output_transform": "added", "mask": "none"}, (_bert,))
_ROBERTA = _BERT.but(_gelu_head)
_MODERN = Family(
    {**_NORMED.fields, "embedding_norm": "added", "output_transform": "added", "depth_scaling": "depth"}, (_modern,)
)

FAMILIES: dict[str, Family] = {
    # Pre-LN with RMSNorm and gated units.
    "llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA, "phi3": _LLAMA, "helium": _LLAMA, "seed_oss": _LLAMA,
    "glm": _LLAMA, "ernie4_5": _LLAMA, "ministral": _LLAMA, "ministral3": _LLAMA, "exaone": _LLAMA,
    "internlm3": _LLAMA, "cwm": _LLAMA,
    "smollm3": _LLAMA.but(unrotated),
    "granite": _LLAMA.but(_granite),
    "arcee": _LLAMA.but(ffn="plain"),
    "glm4": _LLAMA.but(placement="peri"),
    "qwen3": _LLAMA.but(_always(use_qk_norm=True), query_key_norm="head"),
    "hunyuan_v1_dense": _HUNYUAN,
    "olmo2": _LLAMA.but(placement="output", query_key_norm="all"),
    "olmo3": _LLAMA.but(placement="output", query_key_norm="all"),
    "exaone4": _LLAMA.but(unrotated, placement="output", query_key_norm="head"),
    "gemma": _GEMMA,
    "vaultgemma": _GEMMA,
    "gemma2": _GEMMA.but(placement="peri"),
    "gemma3_text": Family({**_LLAMA.fields, "placement": "peri", "query_key_norm": "head"}, (_gemma,)),
    # With experts.
    "mixtral": _LLAMA.but(experts),
    "qwen2_moe": _LLAMA.but(experts),
    "qwen3_moe": _LLAMA.but(experts, _always(use_qk_norm=True), query_key_norm="head"),
    "olmoe": _LLAMA.but(experts, _clipped, query_key_norm="all"),
    "flex_olmo": _LLAMA.but(experts, placement="output", query_key_norm="all"),
    "mellum": _LLAMA.but(experts, query_key_norm="head"),
    "hunyuan_v1_moe": _HUNYUAN.but(_hunyuan_moe, experts),
    "ernie4_5_moe": _LLAMA.but(experts),
    "glm4_moe": _LLAMA.but(experts, _head_norms, router_scores="sigmoid"),
    "solar_open": _LLAMA.but(experts, _always(use_qk_norm=False, first_k_dense_replace=0), router_scores="sigmoid"),
    "dots1": _LLAMA.but(experts, _always(use_qk_norm=True), query_key_norm="head", router_scores="sigmoid"),
    "exaone_moe": _LLAMA.but(unrotated, experts, query_key_norm="head", router_scores="sigmoid"),
    "minimax_m2": _LLAMA.but(
        _minimax, experts, _always(use_qk_norm=True, qk_norm_type="per_layer", scoring_func="sigmoid"),
        query_key_norm="all", router_scores="sigmoid",
    ),
    "granitemoe": _LLAMA.but(_granite, experts),
    "granitemoeshared": _LLAMA.but(_granite, experts),
    # With LayerNorm; OLMo's has no parameters, Nemotron's multiplies by 2.
    "olmo": _NORMED.but(_clipped, norm_epsilon=1e-5),
    "stablelm": _NORMED.but(_parallel, _head_norms),
    "cohere": _NORMED.but(_head_norms, _cohere, layout="parallel"),
    "cohere2": _NORMED.but(
        _cohere, unrotated,
        _always(
            rotary_pct=1.0, use_gated_activation=True, use_parallel_block=True, use_embedding_sharing=True,
            layer_switch=4, order_of_interleaved_layers="local_attn_first",
        ),
        layout="parallel",
    ),
    "starcoder2": _PLAIN.but(_always(mlp_type="default", norm_type="layer_norm")),
    "jais2": _PLAIN,
    "nemotron": _PLAIN.but(norm_gain=2.0),
    "persimmon": _PLAIN.but(_head_norms),
    "falcon": _PLAIN.but(_falcon),
    "gpt_neox": _PLAIN.but(_parallel, older_names),
    "phi": _PLAIN.but(_head_norms, layout="parallel"),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2.but(_gpt_bigcode),
    "gpt_neo": _PLAIN.but(_gpt_neo, positions="learned"),
    "openai-gpt": _PLAIN.but(_openai_gpt, placement="post", positions="learned"),
    "opt": _PLAIN.but(_opt, positions="learned", norm_epsilon=1e-5),
    "biogpt": _PLAIN.but(_rooted_if_asked, positions="learned"),
    "xglm": _PLAIN.but(_rooted_if_asked, positions="sinusoidal", norm_epsilon=1e-5),
    # Encoders whose words are masked.
    "bert": _BERT,
    "ernie": _BERT,
    "electra": _ROBERTA,
    "distilbert": _BERT.but(_distilbert, _always(tie_weights_=True), positions="learned", norm_epsilon=1e-12),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": _ROBERTA,
    "megatron-bert": _BERT.but(placement="pre", embedding_norm="none"),
    "roberta-prelayernorm": _ROBERTA.but(placement="pre"),
    "xlm-roberta-xl": _ROBERTA.but(placement="pre", embedding_norm="none"),
    "eurobert": _LLAMA.but(mask="none"),
    "modernbert": _MODERN.but(_bert, mask="none"),
    "modernbert-decoder": _MODERN,
    # nanoGPT has no class in transformers.
    "nanogpt": _PLAIN.but(activation="gelu", norm_epsilon=1e-5, depth_scaling="depth", positions="learned"),
}  # fmt: skip
"""The readers for decoders and encoders, by `model_type`; nanoGPT's files, which have none, are read by "nanogpt"."""
