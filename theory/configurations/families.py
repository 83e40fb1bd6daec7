"""What the fields of each family's configuration mean: a row of the Stack's fields, and rules for what is its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from theory.configurations.reading import Note, Reading
from theory.configurations.training_codes import Scales
from theory.stack.initializations import Law

Fields = dict[str, Any]
Rule = Callable[[Reading, Fields, int], None]

_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu", "silu": "silu", "swish": "silu", "tanh": "tanh", "relu2": "relu_squared",
    "gelu_python_tanh": "gelu_tanh", "linear": "identity",
}  # fmt: skip

WIDTH = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
HIDDEN = ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "ffn_hidden_size")
EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
DEVIATION = ("initializer_range", "init_std")
ACTIVATION = ("hidden_activation", "hidden_act", "activation_function", "activation")
"""What configurations call a size, a norm's epsilon, a deviation and an activation."""

_LENGTH = "it only matters for more tokens than there are here"
_SLOW = "it changes slow rotations alone, which so few tokens do not tell from none"
_CENTRED = "queries and keys are normalized here without being centred, which is 1/d_k off"


@dataclass(frozen=True)
class Family:
    """How a family's configuration is read: what its Stack always has, and rules for keys of its own.

    Attributes:
        fields: of the Stack, whatever the file says.
        rules: run after the sizes and before what all families have; a field that they set stays.
    """

    fields: Mapping[str, Any]
    rules: tuple[Rule, ...] = ()

    def but(self, *rules: Rule, **fields: Any) -> "Family":
        """A sister with other fields and further rules."""
        return Family({**self.fields, **fields}, (*self.rules, *rules))

    def __call__(self, r: Reading, tokens: int) -> Fields:
        """The fields of the Stack that a configuration describes."""
        width, heads = r.count(*WIDTH), r.count(*HEADS)
        # Null is four times the width where the class leaves it to others, and else no width. GPT-1 has no such field.
        usual = r.usual(4 * width, *HIDDEN)
        hidden = r.count(*HIDDEN, **usual) if any(r.knows(name) for name in HIDDEN) else 4 * width
        fields = {
            "width": width,
            "depth": r.count(*DEPTH),
            "vocab": r.count("vocab_size"),
            "heads": heads,
            "ffn_ratio": hidden / width,
            "output_projection": "random",
            **self.fields,
        }
        shared_heads(r, fields)
        for rule in self.rules:
            rule(r, fields, tokens)
        without_dropout(r)
        _window(r, fields, tokens)
        if "rotary" not in fields and (r.of.rope is not None or r.knows("rotary_dim")):
            _rotary(r, fields)
        one_std(r, fields)
        fields.setdefault("embeddings", tied(r))
        if "norm_epsilon" not in fields:
            fields["norm_epsilon"] = r.number(*EPSILON, **r.usual(1e-5, *EPSILON))
        if "activation" not in fields:
            fields["activation"] = activation_of(r, *ACTIVATION)
        return {name: value for name, value in fields.items() if not name.startswith("_")}


def activation_of(r: Reading, *names: str, default: Any = ...) -> str:
    """The activation by the name that we have for it.

    Raises:
        ValueError: there is none of that name.
    """
    given = next((name for name in names if r.left.get(name) is not None), names[0])
    name = r.take(*names) if default is ... else r.take(*names, default=default)
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ValueError(f"{given} must be one of {', '.join(_ACTIVATIONS)}, got {name!r}.")
    return _ACTIVATIONS[name]


def one_std(r: Reading, fields: Fields) -> None:
    """Every matrix and embedding N(0, σ²), the embeddings times the rules' `_inputs`, the logits times `_logits`.

    Rules may give the matrices a deviation `_matrices` of their own, and multiply queries and keys by `_queries`.

    Raises:
        ValueError: σ is not positive.
    """
    name = next((name for name in DEVIATION if name in r.left), DEVIATION[0])
    std, root = r.number(*DEVIATION, **r.usual(0.02, *DEVIATION)), fields["width"] ** 0.5
    if not std > 0:
        raise ValueError(f"{name} must be above 0, got {std!r}.")
    matrices = fields.get("_matrices", std)
    r.scales = Scales(std, *(fields.get(name, 1.0) for name in ("_queries", "_inputs", "_logits")))
    fields |= {
        "init_std": matrices,
        "query_key_scale": matrices * root * r.scales.queries,
        "output_scale": std * root * r.scales.logits,
        "embedding_scale": std * r.scales.inputs,
    }
    if fields["query_key_scale"] > 4:
        raise ValueError(
            f"queries and keys must have entries of at most 4 beside tokens of unit size, which {name} = {std!r} and "
            f"the factor of the logits make {fields['query_key_scale']:.3g}: attention is then one token's."
        )


def logits_times(r: Reading, fields: Fields, factor: float) -> None:
    """Attention logits are q k times a factor, not 1/sqrt(d_k): by larger queries and keys, or by a note."""
    head_width = fields.get("head_width", fields["width"] // fields["heads"])
    factor_of_each = (factor * head_width**0.5) ** 0.5
    if abs(factor_of_each - 1) < 1e-9:
        return
    if fields.get("query_key_norm", "none") != "none":
        r.say(
            "factor of attention's logits", factor, f"they are divided by sqrt({head_width}), of a head's width, here"
        )
        return
    if abs(factor_of_each**4 * head_width - 1) < 1e-9:
        fields["attention_scale"] = "linear"
        return
    fields["_queries"] = factor_of_each
    r.factor("W^Q and W^K", 1 / factor_of_each)


def tied(r: Reading) -> str:
    """Whether both ends are one matrix, as the class has it.

    Raises:
        ValueError: the file says neither, or null.
    """
    if r.left.get("tie_word_embeddings", False) is None:
        raise ValueError("tie_word_embeddings must be true or false, got null.")
    default = r.of.defaults.get("tie_word_embeddings")
    asked = r.switch("tie_word_embeddings", default=True if default is None else default)
    is_tied = r.of.tied[asked]
    if is_tied != asked:
        r.say(
            "tie_word_embeddings", asked, f"the class {'ties' if is_tied else 'never ties'} both ends, whatever it says"
        )
    return "tied" if is_tied else "untied"


def without_dropout(r: Reading) -> None:
    """Name all shares of dropout that the file has."""
    names = [name for name in r.left if "dropout" in name or name.endswith(("pdrop", "layerdrop"))]
    r.left_out("gradients are those without dropout, as in evaluation", *names)


def shared_heads(r: Reading, fields: Fields) -> None:
    """Heads that share keys and values, and heads of a width of their own.

    Raises:
        ValueError: keys and values cannot be shared out among so many heads, or the class has no such width.
    """
    heads = fields["heads"]
    kv = r.count("num_key_value_heads", default=heads) if r.knows("num_key_value_heads") else heads
    if heads % kv:
        whose = "" if "num_key_value_heads" in r.given else ", the class's default"
        raise ValueError(f"num_key_value_heads must divide num_attention_heads = {heads}, got {kv}{whose}.")
    fields["kv_heads"] = 0 if kv == heads else kv
    given, usual = r.count("head_dim", default=None), fields["width"] / heads
    if given is not None and given != usual:
        if not r.of.own_heads:
            raise ValueError(
                f"head_dim must be the width over the heads, {usual:g}, got {given}: this class has no heads of "
                "another width; --ignore head_dim leaves it out."
            )
        fields["head_width"] = given


_KINDS = ("full_attention", "sliding_attention")
_AS_WITH_A_WINDOW = "all layers rotate as those with a window here"


def _window(r: Reading, fields: Fields, tokens: int) -> None:
    """Attention to the last tokens alone, in all layers that have it.

    Raises:
        ValueError: the layers' kinds are no list of words that are known, one a layer.
    """
    listed = r.left.get("layer_types") or []
    if not isinstance(listed, list) or not all(isinstance(kind, str) for kind in listed):
        raise ValueError(f"layer_types must be a list of words, got {listed!r}.")
    if unknown := sorted(set(listed) - set(_KINDS)):
        raise ValueError(f"layer_types must be of {' and '.join(_KINDS)}, got {unknown[0]!r}.")
    if listed and len(listed) != fields["depth"]:
        raise ValueError(f"layer_types must be as many words as layers, {fields['depth']}, got {len(listed)}.")
    window, used, kinds = None, True, set(listed)
    if r.knows("sliding_window"):
        window = r.number("sliding_window", default=None)
        used = r.take("use_sliding_window", default=True) if r.knows("use_sliding_window") else True
    else:
        r.neutral("its class has no windows", "sliding_window", "use_sliding_window")
    r.neutral(
        _LENGTH, "max_window_layers", "layer_types", "sliding_window_pattern", "_sliding_window_pattern",
        "sliding_window_size",
    )  # fmt: skip
    if window is not None and used and window < tokens and kinds != {"full_attention"}:
        fields["window"] = window
        if kinds != {"sliding_attention"} and ("layer_types" in r.of.defaults or kinds):
            r.say("layer_types", sorted(kinds) or "of the class", "all layers have the window here")
    elif window is not None and "sliding_window" in r.given:
        r.notes.append(_neutral("sliding_window", window, _LENGTH))


def _rotary(r: Reading, fields: Fields) -> None:
    """Rotary positions: which share of a head's coordinates, and the base of the frequencies.

    Raises:
        ValueError: what stands for their parameters is no object, two, or one for some layers in a class where all are
            alike; or more coordinates turn than there are.
    """
    defaults, (name, given) = dict(r.of.rope or {}), _rotations(r)
    layered, nested = "sliding_attention" in defaults, [kind for kind in _KINDS if kind in given]
    if nested and not layered:
        raise ValueError(f"{name} must be one object for all layers, as this class has it, got one for {nested[0]}.")
    if layered:  # as in Gemma 3: five layers of six
        # What is no object for each kind of layers is that of those without a window.
        parts = given if nested else {"full_attention": given}
        full, sliding = (
            {**defaults.get(kind, {}), **_object(f"{name} of {kind}", parts.get(kind) or {})} for kind in _KINDS
        )
        both = r.number("rope_theta", "global_rope_theta", default=full.get("rope_theta"))
        both = given.get("rope_theta", both) if not nested else both
        local = r.number("rope_local_base_freq", "local_rope_theta", default=sliding.get("rope_theta"))
        if {**full, "rope_theta": local} != {**sliding, "rope_theta": local}:
            r.say(f"{name} of full_attention", full, _AS_WITH_A_WINDOW)
        if local != both:
            r.say("rope_theta of full_attention", both, _AS_WITH_A_WINDOW)
        defaults, given = {}, {**sliding, "rope_theta": local}
    elif not given and defaults.get("rope_type", "default") != "default":
        name, given, defaults = "rope_parameters of the class", defaults, {}  # and no number beside it
    inner = Reading(given)  # whose values are numbers too
    theta = inner.number("rope_theta", default=None)
    part = inner.number("partial_rotary_factor", default=None)
    base = None if layered else r.number("rope_theta", default=None)
    if theta is not None and base not in (None, theta):
        r.notes.append(_neutral("rope_theta", base, f"that of {name}, {theta:g}, is what counts"))
    base = theta if theta is not None else base
    if base is None:
        base = defaults.get("rope_theta", 10_000.0)
        if defaults:
            r.notes.append(Note("rope_theta", base, "default", "the file has none"))
    share = None if layered else r.number("partial_rotary_factor", default=None)
    if part is not None and share not in (None, part):
        r.notes.append(_neutral("partial_rotary_factor", share, f"that of {name}, {part:g}, is what counts"))
    share = part if part is not None else share
    if share is None:
        share = defaults.get("partial_rotary_factor", 1.0)
        if share != 1.0:
            r.notes.append(Note("partial_rotary_factor", share, "default", "the file has none"))
    turned = r.number("rotary_dim", default=None) if r.knows("rotary_dim") else None
    width = fields.get("head_width", fields["width"] // fields["heads"])
    if turned is not None and turned > width:
        raise ValueError(f"rotary_dim must be at most {width}, the coordinates of a head, got {turned!r}.")
    fields |= {"rotary": share if turned is None else turned / width, "rotary_base": float(base)}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind in ("llama3", "dynamic"):
        r.notes.append(_neutral(name, dict(given), _SLOW))
    elif kind != "default":
        r.say(name, dict(given), f"rotations are not scaled as {kind!r} has it here")
    elif given.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}:
        r.notes.append(_neutral(name, dict(given), "the class scales no rotations of this or of no rope_type"))


def _rotations(r: Reading) -> tuple[str, Mapping[str, Any]]:
    """The object of the rotations' parameters, and its name in the file: two versions of the library have two.

    Raises:
        ValueError: it is none, or both are there and differ.
    """
    scaling, parameters = (_object(name, r.left.pop(name, None) or {}) for name in ("rope_scaling", "rope_parameters"))
    if scaling and parameters and scaling != parameters:
        raise ValueError(
            f"rope_scaling and rope_parameters must be one object, got {dict(scaling)!r} and {dict(parameters)!r}; "
            "--ignore either leaves it out."
        )
    return ("rope_scaling", scaling) if scaling else ("rope_parameters", parameters)


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {value!r}.")
    return value


def _neutral(field: str, value: Any, reason: str) -> Note:
    return Note(field, value, "neutral", reason)


# Rules of single families.


def _rooted(r: Reading, fields: Fields, tokens: int) -> None:
    """Embeddings times sqrt(d)."""
    fields["_inputs"] = fields["width"] ** 0.5


def _rooted_if_asked(r: Reading, fields: Fields, tokens: int) -> None:
    if r.switch("scale_embedding"):
        _rooted(r, fields, tokens)
        small_positions(r, fields)


def small_positions(r: Reading, fields: Fields) -> None:
    """Learned positions beside words that are sqrt(d) times as large."""
    if fields["positions"] == "learned":
        fields["positions"] = "none"
        r.say("learned positions", fields["width"] ** -0.5, "they are so much smaller than words, and 0 here")


def _gemma(r: Reading, fields: Fields, tokens: int) -> None:
    """Embeddings times sqrt(d), and GELU as tanh approximates it, also where the file has the exact one.

    Raises:
        ValueError: the two names of the activation have different ones.
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
    r.refused("tokens then see later ones", "use_bidirectional_attention")
    if r.knows("query_pre_attn_scalar"):
        logits_times(r, fields, r.positive("query_pre_attn_scalar") ** -0.5)
        fields["logit_softcap"] = r.number("attn_logit_softcapping", default=0.0)


def _stretched(r: Reading, fields: Fields, tokens: int) -> None:
    """HunYuan's `alpha`, which makes the base of its rotations larger at any number of tokens."""
    name, given = _rotations(r)
    alpha = Reading(given).number("alpha", default=None)
    if alpha and given.get("rope_type", given.get("type")) == "dynamic":
        kept = ("rope_theta", "partial_rotary_factor")
        r.left[name] = {key: value for key, value in given.items() if key in kept}
    elif given:
        r.left[name], alpha = given, None
    _rotary(r, fields)
    if alpha:
        turned = fields.get("head_width", fields["width"] // fields["heads"])
        fields["rotary_base"] *= alpha ** (turned / (turned - 2))
        r.notes.append(_neutral(name, dict(given), f"by its alpha the base is {fields['rotary_base']:.6g} here"))


def _always(**what: Any) -> Rule:
    """Fields of a family's older code that its class does not have, since it always does what they say.

    Raises:
        ValueError: a file says something else.
    """

    def rule(r: Reading, fields: Fields, tokens: int) -> None:
        for name, value in what.items():
            given = r.left.get(name)
            if given is not None and given != value:
                raise ValueError(
                    f"{name} must be {value!r}, as the class of this model_type always has it, got {given!r}; --ignore "
                    f"{name} leaves it out."
                )
            r.neutral("it is what the class does", name)

    return rule


def _clipped(r: Reading, fields: Fields, tokens: int) -> None:
    r.left_out("queries, keys and values are not clipped here", "clip_qkv")


def _gpt2(r: Reading, fields: Fields, tokens: int) -> None:
    r.refused(
        "logits of layer l are then divided by l as well, which a Stack cannot say; --ignore leaves it out",
        "scale_attn_by_inverse_layer_idx",
    )
    if not r.take("scale_attn_weights", default=True):
        logits_times(r, fields, 1.0)


def _gpt_bigcode(r: Reading, fields: Fields, tokens: int) -> None:
    r.neutral("multi_query says it", "num_key_value_heads")
    fields["kv_heads"] = 1 if r.switch("multi_query") and fields["heads"] > 1 else 0


def _parallel(r: Reading, fields: Fields, tokens: int) -> None:
    """Both branches from the same tokens, if the family's file can say so."""
    if r.knows("use_parallel_residual"):
        fields["layout"] = "parallel" if r.switch("use_parallel_residual") else "sequential"


def _neox(r: Reading, fields: Fields, tokens: int) -> None:
    """Older names of what rotates.

    Raises:
        ValueError: old and new name have different values.
    """
    for old, new in (("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")):
        given = r.left.pop(old, None)
        if given is not None and r.left.setdefault(new, given) != given:
            raise ValueError(f"{new} and {old} must be one number, got {r.left[new]!r} and {given!r}.")


def _head_norms(r: Reading, fields: Fields, tokens: int) -> None:
    """Norms of queries and keys by head, LayerNorm where ours is RMSNorm."""
    if r.switch(*(name for name in ("qk_layernorm", "use_qk_norm") if r.knows(name))):
        fields["query_key_norm"] = "head"
        r.say("norms of queries and keys", "LayerNorm", _CENTRED)


def _old_code(r: Reading, fields: Fields, tokens: int) -> None:
    r.neutral("its code divides logits by sqrt(d_k) whatever it says", "scale_attn_weights")
    if r.left.get("rotary") is True:
        r.neutral("it is what the class does", "rotary")


def _falcon(r: Reading, fields: Fields, tokens: int) -> None:
    """Heads of keys and values, layout and positions of Falcon's three architectures.

    Raises:
        ValueError: positions are biases of logits.
    """
    r.refused("biases of attention's logits (ALiBi) have no rule", "alibi")
    new, single = r.switch("new_decoder_architecture"), r.switch("multi_query")
    kv = r.count("num_kv_heads", "n_head_kv", default=fields["heads"])
    kv = kv if new else 1 if single else fields["heads"]
    if fields["heads"] % kv:
        raise ValueError(f"num_kv_heads must divide num_attention_heads = {fields['heads']}, got {kv}.")
    fields["kv_heads"] = 0 if kv == fields["heads"] else kv
    fields["layout"] = "parallel" if r.switch("parallel_attn") or new else "sequential"
    r.neutral("norms of the same tokens are one norm at initialization", "num_ln_in_parallel_attn")


def _opt(r: Reading, fields: Fields, tokens: int) -> None:
    """Norms before the branches, or after the sums in one model.

    Raises:
        ValueError: embeddings are narrower than the stream.
    """
    _narrow(r, fields, "word_embed_proj_dim")
    before = r.switch("do_layer_norm_before")
    fields["placement"] = "pre" if before else "post"
    r.refused("the stream then ends without a norm", "_remove_final_layer_norm")


def _narrow(r: Reading, fields: Fields, name: str) -> None:
    """Embeddings as wide as the stream.

    Raises:
        ValueError: they are narrower.
    """
    narrow = r.count(name, default=fields["width"])
    if narrow != fields["width"]:
        raise ValueError(
            f"{name} must be the width {fields['width']}, got {narrow}: a matrix between embeddings and stream has no "
            "rule."
        )


def _cohere(r: Reading, fields: Fields, tokens: int) -> None:
    """Output logits times a factor."""
    _logits_scaled(r, fields, r.positive("logit_scale"))


def _logits_scaled(r: Reading, fields: Fields, factor: float) -> None:
    fields["_logits"] = factor
    if factor != 1:
        r.factor("W_emb", 1 / factor)


def _granite(r: Reading, fields: Fields, tokens: int) -> None:
    """Factors on embeddings, branches, attention's logits and the output's."""
    fields["_inputs"] = r.positive("embedding_multiplier")
    fields["branch_scale"] = r.number("residual_multiplier")
    logits_times(r, fields, r.positive("attention_multiplier"))
    _logits_scaled(r, fields, 1 / r.positive("logits_scaling"))


def _experts(r: Reading, fields: Fields, tokens: int) -> None:
    """Experts in all layers but the first ones that the file names, with the weights of the chosen as the class has.

    Raises:
        ValueError: more are chosen than there are, or layers without experts are not the first ones.
    """
    count = r.count("num_local_experts", "num_experts")
    chosen = r.count("num_experts_per_tok")
    if chosen > count:
        raise ValueError(f"num_experts_per_tok must be at most the {count} experts, got {chosen}.")
    fields |= {"experts": count, "experts_per_token": chosen}
    # Over the sum of the chosen where the class does not ask.
    normed = r.switch("norm_topk_prob") if r.knows("norm_topk_prob") else True
    fields["router_norm"] = "sum" if normed else "none"
    if r.knows("moe_intermediate_size"):
        dense = _dense_layers(r, fields["depth"])
        fields |= {"dense_layers": dense, "dense_ratio": fields["ffn_ratio"]} if dense else {}
        fields["ffn_ratio"] = r.count("moe_intermediate_size") / fields["width"]
    if r.knows("shared_expert_intermediate_size"):
        fields["shared_ratio"] = r.count("shared_expert_intermediate_size") / fields["width"]
        fields["shared_gate"] = "sigmoid"
    if r.knows("shared_intermediate_size"):  # Granite's, without a gate; 0 for none
        fields["shared_ratio"] = r.count("shared_intermediate_size", least=0) / fields["width"]
    if r.left.get("output_router_logits"):
        r.left_out("the loss that balances the router's loads is not added here", "output_router_logits")
    r.neutral("it is the weight of a loss that is not added here", "router_aux_loss_coef")
    r.left_out("the router's inputs have no noise here, as in evaluation", "router_jitter_noise")


def _dense_layers(r: Reading, depth: int) -> int:
    """How many layers have no experts.

    Raises:
        ValueError: they are not the first ones, or all; or the file has no list of numbers of layers.
    """
    every, listed = r.count("decoder_sparse_step"), r.take("mlp_only_layers", default=None) or []
    if not isinstance(listed, list) or not all(
        isinstance(layer, int) and not isinstance(layer, bool) and 0 <= layer < depth for layer in listed
    ):
        raise ValueError(f"mlp_only_layers must be a list of numbers of layers, from 0 to {depth - 1}, got {listed!r}.")
    dense = [layer for layer in range(depth) if layer in listed or (layer + 1) % every]
    if dense != list(range(len(dense))) or len(dense) == depth:
        raise ValueError(
            f"mlp_only_layers and decoder_sparse_step must leave experts to all layers but the first ones, got "
            f"{listed!r} and {every} of {depth} layers."
        )
    return len(dense)


def _unrotated(r: Reading, fields: Fields, tokens: int) -> None:
    """Layers without rotations: SmolLM 3's that the file names, Cohere 2's and EXAONE 4's without a window.

    Raises:
        ValueError: they are not one number a layer.
    """
    depth, listed = fields["depth"], r.left.get("no_rope_layers")
    if r.knows("no_rope_layers"):
        every = r.count("no_rope_layer_interval")
        r.left.pop("no_rope_layers", None)
        flags = listed or [int((layer + 1) % every != 0) for layer in range(depth)]
        if not isinstance(flags, list) or len(flags) != depth:
            raise ValueError(f"no_rope_layers must be a list of {depth} numbers, got {flags!r}.")
        still = [layer for layer, turns in enumerate(flags, start=1) if not turns]
    else:
        kinds = r.left.get("layer_types")
        every = r.number("sliding_window_pattern", default=4) or 0
        if isinstance(kinds, list):
            still = [layer for layer, kind in enumerate(kinds, start=1) if kind == "full_attention"]
        elif r.left.get("sliding_window", r.of.defaults.get("sliding_window")) is None:
            still = []
        else:
            still = [layer for layer in range(1, depth + 1) if every and layer % every == 0]
    if still:
        r.say("layers without rotations", still, "all layers rotate here")


def _bert(r: Reading, fields: Fields, tokens: int) -> None:
    """A norm of the embeddings, one vector of the token type in all of them, and a head's own layer."""
    r.say("masked words", "some positions", "the loss is averaged over all positions here")
    if r.take("position_embedding_type", default="absolute") != "absolute":
        r.say("position_embedding_type", "relative", "positions are added to the inputs here")
    if r.knows("type_vocab_size"):
        typed = r.number("type_vocab_size") > 0
        fields["positions"] = "learned_segment" if typed else "learned"
    if r.knows("is_decoder"):
        fields["mask"] = "causal" if r.switch("is_decoder", default=False) else "none"
    if r.knows("embedding_size"):
        _narrow(r, fields, "embedding_size")
    r.refused("a vector of the task is added to the inputs", "use_task_id")
    r.neutral("it is off, and there is no task", "task_type_vocab_size")


def _modern(r: Reading, fields: Fields, tokens: int) -> None:
    """Entries cut at some deviations; those of W^H, and of an output matrix of its own, smaller like W^O and W2.

    The first layer's missing norm stands before it, as that of the embeddings.
    """
    fields["truncation"] = r.number("initializer_cutoff_factor", default=3.0)
    left = Law(uniform=False, cut=fields["truncation"]).variance ** 0.5
    fields["transform_gain"] = (2 * fields["depth"]) ** -0.5
    fields["embeddings"] = tied(r)
    fields |= {"_inputs": left, "_logits": left * (fields["transform_gain"] if fields["embeddings"] == "untied" else 1)}
    window = r.count("local_attention", default=None)
    if window is not None and window // 2 < tokens:
        r.say("local_attention", window, "no layer has the window here")
    r.neutral("norm_eps is what counts", "layer_norm_eps")
    r.neutral(_LENGTH, "global_attn_every_n_layers", "local_attention")


def _gelu_head(r: Reading, fields: Fields, tokens: int) -> None:
    """The head's own layer has the exact GELU whatever the units have."""
    fields["activation"] = activation_of(r, *ACTIVATION)
    if fields["activation"] != "gelu":
        r.say("the head's activation", "gelu", "the head's own layer has the units' activation here")


def _distilbert(r: Reading, fields: Fields, tokens: int) -> None:
    r.refused("positions of fixed waves are not read", "sinusoidal_pos_embds")
    _bert(r, fields, tokens)


def _gpt_neo(r: Reading, fields: Fields, tokens: int) -> None:
    """Logits that nothing divides, and every other layer with a window."""
    logits_times(r, fields, 1.0)
    window = r.count("window_size")
    r.neutral("it says which layers have the window", "attention_layers")
    kinds = r.take("attention_types", default=None)
    if window < tokens:
        r.say("attention_types", kinds, f"no layer has the window of {window} here")


def _openai_gpt(r: Reading, fields: Fields, tokens: int) -> None:
    """Its GELU is the approximation by tanh, and matrices have a deviation of their own, which no key changes.

    Raises:
        ValueError: the activation is another.
    """
    fields["_matrices"] = 0.02
    fields["activation"] = {"gelu": "gelu_tanh"}.get(name := r.take("afn"), name)
    if fields["activation"] not in _ACTIVATIONS.values():
        raise ValueError(f"afn must be one of relu, silu, gelu, swish, got {name!r}.")


def _nanogpt(r: Reading, fields: Fields, tokens: int) -> None:
    """The arguments of nanoGPT, which have no model_type and no class."""
    fields |= {"activation": "gelu", "norm_epsilon": 1e-5}


_LLAMA = Family({"placement": "pre", "normalization": "rms", "ffn": "gated", "mask": "causal"})
_NORMED = _LLAMA.but(normalization="layer")
_PLAIN = _NORMED.but(ffn="plain")
_GPT2 = _PLAIN.but(_gpt2, depth_scaling="depth", positions="learned")
_GPTJ = _PLAIN.but(_old_code, layout="parallel")
_GEMMA = _LLAMA.but(_gemma)
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
    "smollm3": _LLAMA.but(_unrotated),
    "granite": _LLAMA.but(_granite),
    "arcee": _LLAMA.but(ffn="plain"),
    "glm4": _LLAMA.but(placement="peri"),
    "qwen3": _LLAMA.but(query_key_norm="head"),
    "hunyuan_v1_dense": _LLAMA.but(
        _stretched, _always(use_qk_norm=True, norm_type="rms", use_rotary_pos_emb=True), query_key_norm="head"
    ),
    "olmo2": _LLAMA.but(placement="output", query_key_norm="all"),
    "olmo3": _LLAMA.but(placement="output", query_key_norm="all"),
    "exaone4": _LLAMA.but(_unrotated, placement="output", query_key_norm="head"),
    "gemma": _GEMMA,
    "vaultgemma": _GEMMA,
    "gemma2": _GEMMA.but(placement="peri"),
    "gemma3_text": Family({**_LLAMA.fields, "placement": "peri", "query_key_norm": "head"}, (_gemma,)),
    # With experts.
    "mixtral": _LLAMA.but(_experts),
    "qwen2_moe": _LLAMA.but(_experts),
    "qwen3_moe": _LLAMA.but(_experts, query_key_norm="head"),
    "olmoe": _LLAMA.but(_experts, _clipped, query_key_norm="all"),
    "granitemoe": _LLAMA.but(_granite, _experts),
    "granitemoeshared": _LLAMA.but(_granite, _experts),
    # With LayerNorm; OLMo's has no parameters, Nemotron's multiplies by 2.
    "olmo": _NORMED.but(_clipped, norm_epsilon=1e-5),
    "stablelm": _NORMED.but(_parallel, _head_norms),
    "cohere": _NORMED.but(_head_norms, _cohere, layout="parallel"),
    "cohere2": _NORMED.but(
        _cohere, _unrotated,
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
    "gpt_neox": _PLAIN.but(_parallel, _neox),
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
    "nanogpt": _PLAIN.but(_nanogpt, depth_scaling="depth", positions="learned"),
}  # fmt: skip
"""By `model_type`; nanoGPT's files have none."""
