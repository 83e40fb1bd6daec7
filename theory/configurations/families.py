"""What the fields of each family's configuration mean: one function per family, from a Reading to fields of a Stack."""

from collections.abc import Callable, Mapping
from typing import Any

from theory.configurations.reading import Note, Reading

Fields = dict[str, Any]

_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "silu": "silu", "swish": "silu", "tanh": "tanh", "relu2": "relu_squared",
}  # fmt: skip

_LENGTH = "it only matters for more tokens than there are here"
_SLOW = "it changes slow rotations alone, which so few tokens do not tell from none"


def activation_of(r: Reading, *names: str, default: str | None = None) -> str:
    """The activation by the name that we have for it.

    Raises:
        ValueError: there is none of that name.
    """
    given = next((name for name in names if r.left.get(name) is not None), names[0])
    name = r.take(*names) if default is None else r.take(*names, default=default)
    if name not in _ACTIVATIONS:
        raise ValueError(f"{given} must be one of {', '.join(_ACTIVATIONS)}, got {name!r}.")
    return _ACTIVATIONS[name]


def _sizes(r: Reading) -> Fields:
    width, heads = r.count("hidden_size", "n_embd", "d_model"), r.count("num_attention_heads", "n_head")
    hidden = r.count("intermediate_size", "n_inner", "ffn_dim", default=4 * width)
    return {
        "width": width,
        "depth": r.count("num_hidden_layers", "n_layer", "num_layers"),
        "vocab": r.count("vocab_size"),
        "heads": heads,
        "ffn_ratio": hidden / width,
        "output_projection": "random",
    }


def _one_std(r: Reading, sizes: Fields, *, inputs: float = 1.0) -> Fields:
    """Every matrix and embedding N(0, initializer_range²), embeddings times `inputs`.

    Raises:
        ValueError: initializer_range is not positive.
    """
    std, root = r.number("initializer_range", default=0.02), sizes["width"] ** 0.5
    if not std > 0:
        raise ValueError(f"initializer_range must be above 0, got {std!r}.")
    return {
        "init_std": std,
        "query_key_scale": std * root,
        "output_scale": std * root,
        "embedding_scale": std * inputs,
    }


def _tied(r: Reading, default: bool) -> Fields:
    return {"embeddings": "tied" if r.take("tie_word_embeddings", default=default) else "untied"}


def without_dropout(r: Reading) -> None:
    """Name all shares of dropout that the file has."""
    r.left_out(
        "gradients are those without dropout, as in evaluation",
        "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "residual_dropout",
        "embedding_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout",
    )  # fmt: skip


def _attention(r: Reading, sizes: Fields, tokens: int) -> None:
    """What attention of today's decoders has besides queries, keys and values.

    Raises:
        ValueError: keys and values cannot be shared out among so many heads.
    """
    kv = r.count("num_key_value_heads", "n_kv_head", default=sizes["heads"])
    if sizes["heads"] % kv:
        raise ValueError(f"num_key_value_heads must divide num_attention_heads = {sizes['heads']}, got {kv}.")
    sizes["kv_heads"] = 0 if kv == sizes["heads"] else kv
    given, usual = r.number("head_dim", default=None), sizes["width"] // sizes["heads"]
    if given is not None and given != usual:
        sizes["head_width"] = given
    window, used = r.number("sliding_window", default=None), r.take("use_sliding_window", default=True)
    listed = r.left.get("layer_types") or []
    if not isinstance(listed, list) or not all(isinstance(kind, str) for kind in listed):
        raise ValueError(f"layer_types must be a list of words, got {listed!r}.")
    kinds = set(listed)
    r.neutral(
        _LENGTH,
        "max_window_layers",
        "layer_types",
        "sliding_window_pattern",
        "_sliding_window_pattern",
    )
    if window is not None and used and window < tokens:
        sizes["window"] = window
        if len(kinds) > 1:
            r.say("layer_types", sorted(kinds), "all layers have the window here")
    elif window is not None:
        r.notes.append(_neutral("sliding_window", window, _LENGTH))
    _rotary(r, sizes)


def _rotary(r: Reading, sizes: Fields) -> None:
    """Rotary positions: which share of a head's coordinates, and the base of the frequencies.

    Raises:
        ValueError: what stands for their parameters is no object.
    """
    given = _object("rope_parameters", r.take("rope_parameters", default={}))
    if "sliding_attention" in given:  # Gemma 3: five layers of six
        full = given.get("full_attention")
        r.say("rope_parameters of full_attention", full, "all layers rotate as the sliding ones here")
        given = _object("rope_parameters of sliding_attention", given["sliding_attention"])
    local = r.number("rope_local_base_freq", default=None)
    inner = Reading(given)  # whose values are numbers too
    theta, part = inner.number("rope_theta", default=10_000.0), inner.number("partial_rotary_factor", default=1.0)
    base = r.number("rope_theta", "rotary_emb_base", default=theta)
    if local is not None:
        r.say("rope_theta", base, "all layers rotate as those with a window, by rope_local_base_freq, here")
        base = local
    share = r.number("rotary_pct", "partial_rotary_factor", default=part)
    turned = r.number("rotary_dim", default=None)
    width = sizes.get("head_width", sizes["width"] // sizes["heads"])
    sizes |= {"rotary": share if turned is None else turned / width, "rotary_base": float(base)}
    scaling = _object("rope_scaling", r.take("rope_scaling", default={}))
    for name, rule in (("rope_scaling", scaling), ("rope_parameters", given)):
        kind = rule.get("rope_type", rule.get("type", "default"))
        if kind in ("llama3", "dynamic"):
            r.notes.append(_neutral(name, dict(rule), _SLOW))
        elif kind != "default":
            r.say(name, dict(rule), f"rotations are not scaled as {kind!r} has it here")


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {value!r}.")
    return value


def _neutral(field: str, value: Any, reason: str) -> Note:
    return Note(field, value, "neutral", reason)


def _llama(r: Reading, tokens: int, *, tied: bool = False, act: str = "silu", rooted: bool = False) -> Fields:
    """Llama 2 and 3, Mistral, Qwen 2, Phi-3: Pre-LN with RMSNorm and gated units."""
    sizes = _sizes(r)
    _attention(r, sizes, tokens)
    without_dropout(r)
    inputs = sizes["width"] ** 0.5 if rooted else 1.0
    return sizes | _one_std(r, sizes, inputs=inputs) | _tied(r, tied) | {
        "placement": "pre",
        "normalization": "rms",
        "norm_epsilon": r.number("rms_norm_eps", "layer_norm_eps", default=1e-6),
        "ffn": "gated",
        "activation": activation_of(r, "hidden_activation", "hidden_act", default=act),
        "mask": "causal",
    }  # fmt: skip


def _qwen3(r: Reading, tokens: int) -> Fields:
    return _llama(r, tokens) | {"query_key_norm": "head"}


def _gemma(r: Reading, tokens: int) -> Fields:
    """Gemma: embeddings times sqrt(d), norms of scale 1 + w with w = 0."""
    # The file keeps a field that Gemma's code replaces by its own activation.
    if "hidden_activation" in r.left and r.left["hidden_activation"] is not None:
        r.neutral("hidden_activation is what counts", "hidden_act")
    return _llama(r, tokens, tied=True, act="gelu_pytorch_tanh", rooted=True)


def _gemma2(r: Reading, tokens: int) -> Fields:
    """Gemma 2 and 3: norms before and after every branch."""
    qk_norm = str(r.left.get("model_type", "")).startswith("gemma3")
    fields = _gemma(r, tokens) | {"placement": "peri"}
    head_width = fields.get("head_width", fields["width"] // fields["heads"])
    scale = r.number("query_pre_attn_scalar", default=256)
    if scale != head_width:
        r.say("query_pre_attn_scalar", scale, f"logits are divided by sqrt({head_width}), the width of a head, here")
    fields["logit_softcap"] = r.number("attn_logit_softcapping", default=0.0)
    r.left_out("output logits of random networks are far below the cap", "final_logit_softcapping")
    r.neutral("it is causal", "use_bidirectional_attention")
    return fields | {"query_key_norm": "head" if qk_norm else "none"}


def _olmo(r: Reading, tokens: int) -> Fields:
    """OLMo 1: LayerNorm without parameters."""
    r.left_out("queries, keys and values are not clipped here", "clip_qkv")
    return _llama(r, tokens) | {"normalization": "layer", "norm_epsilon": 1e-5}


def _olmo2(r: Reading, tokens: int) -> Fields:
    """OLMo 2: norms after the branches, and of all queries and keys."""
    return _llama(r, tokens) | {"placement": "output", "query_key_norm": "all"}


def _gpt2(r: Reading, tokens: int) -> Fields:
    """GPT-2, with W^O and W2 smaller by sqrt(2 L)."""
    sizes = _sizes(r)
    without_dropout(r)
    r.left_out("logits are divided by sqrt(d_k) alone", "scale_attn_by_inverse_layer_idx")
    r.neutral("it is how numbers are computed", "reorder_and_upcast_attn")
    if not r.take("scale_attn_weights", default=True):
        r.say("scale_attn_weights", False, "logits are divided by sqrt(d_k) here")
    r.neutral(
        "of a head that language models do not have", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj",
    )  # fmt: skip
    return sizes | _one_std(r, sizes) | _tied(r, True) | {
        "placement": "pre",
        "norm_epsilon": r.number("layer_norm_epsilon", default=1e-5),
        "activation": activation_of(r, "activation_function", default="gelu_new"),
        "depth_scaling": "depth",
        "positions": "learned",
        "mask": "causal",
    }  # fmt: skip


def _parallel(r: Reading, tokens: int) -> Fields:
    """GPT-J, GPT-NeoX (Pythia), Phi: both branches from the same tokens."""
    sizes = _sizes(r)
    _attention(r, sizes, tokens)
    without_dropout(r)
    r.left_out("queries and keys are not centred and normalized here", "qk_layernorm")
    r.neutral(
        "of a head that language models do not have", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj",
    )  # fmt: skip
    r.neutral("their code divides logits by sqrt(d_k) whatever it says", "scale_attn_weights")
    return sizes | _one_std(r, sizes) | _tied(r, False) | {
        "placement": "pre",
        "layout": "parallel" if r.take("use_parallel_residual", default=True) else "sequential",
        "norm_epsilon": r.number("layer_norm_eps", "layer_norm_epsilon", default=1e-5),
        "activation": activation_of(r, "hidden_act", "activation_function", default="gelu_new"),
        "mask": "causal",
    }  # fmt: skip


def _neox(r: Reading, tokens: int) -> Fields:
    r.left.setdefault("hidden_act", "gelu")
    return _parallel(r, tokens)


def _bert(r: Reading, tokens: int) -> Fields:
    """BERT: Post-LN, a norm of the embeddings, one vector of the token type in all of them, and a head's own layer."""
    sizes = _sizes(r)
    without_dropout(r)
    fields = sizes | _one_std(r, sizes) | _tied(r, True)
    typed = r.number("type_vocab_size", default=2) > 0
    r.say("masked words", "some positions", "the loss is averaged over all positions here")
    if r.take("position_embedding_type", default="absolute") != "absolute":
        r.say("position_embedding_type", "relative", "positions are added to the inputs here")
    return fields | {
        "mask": "causal" if r.take("is_decoder", default=False) else "none",
        "norm_epsilon": r.number("layer_norm_eps", default=1e-12),
        "activation": activation_of(r, "hidden_act", default="gelu"),
        "embedding_norm": "added",
        "positions": "learned_segment" if typed else "learned",
        "output_transform": "added",
    }


def _roberta(r: Reading, tokens: int) -> Fields:
    fields = _bert(r, tokens)
    if fields["activation"] != "gelu":
        r.say("the head's activation", "gelu", "the head's own layer has the units' activation here")
    return fields


def _nanogpt(r: Reading, tokens: int) -> Fields:
    """The arguments of nanoGPT, which have no model_type."""
    return _gpt2(r, tokens) | {"activation": "gelu"}


FAMILIES: dict[str, Callable[[Reading, int], Fields]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "phi3": _llama,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma2,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "gpt2": _gpt2,
    "gptj": _parallel,
    "gpt_neox": _neox,
    "phi": _parallel,
    "bert": _bert,
    "roberta": _roberta,
    "nanogpt": _nanogpt,
}
"""By `model_type`; nanoGPT's files have none."""
