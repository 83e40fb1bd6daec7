"""The steps that reading a configuration file has in common for all model families.

They set sizes, standard deviations, heads, embeddings and windows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from theory.configurations.reading import Fields, Note, Reading
from theory.configurations.rotations import KINDS, read_rotations
from theory.configurations.training_codes import Scales

Rule = Callable[[Reading, Fields, int], None]

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu", "silu": "silu", "swish": "silu", "tanh": "tanh", "relu2": "relu_squared",
    "gelu_python_tanh": "gelu_tanh", "linear": "identity",
}  # fmt: skip

WIDTH = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "n_head_kv")
HIDDEN = ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "ffn_hidden_size")
EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
DEVIATION = ("initializer_range", "init_std")
ACTIVATION = ("hidden_activation", "hidden_act", "activation_function", "activation")
"""The keys for the activation; the tuples above list the keys for sizes, a norm's epsilon and a standard deviation."""

LENGTH = "it only matters for longer sequences"


@dataclass(frozen=True)
class Family:
    """The reader of the configuration files of one model family: its constant fields and its rules for file keys.

    Attributes:
        fields: fields of the Stack that do not depend on the file.
        rules: functions that run after the sizes are read and before the part common to all families; a field that
            they set is kept.
    """

    fields: Mapping[str, Any]
    rules: tuple[Rule, ...] = ()

    def but(self, *rules: Rule, **fields: Any) -> "Family":
        """Return a copy of the reader for a similar model family, with some fields replaced and further rules."""
        return Family({**self.fields, **fields}, (*self.rules, *rules))

    def __call__(self, r: Reading, tokens: int) -> Fields:
        """Return the network fields that a model's configuration describes.

        Args:
            r: reader of the configuration.
            tokens: sequence length.
        """
        in_file, heads = r.count(*WIDTH), r.count(*HEADS)
        width = r.size("width", in_file)
        # Null is four times the width where the class leaves it to others, and else no width. GPT-1 has no such field.
        usual = r.usual(4 * in_file, *HIDDEN)
        hidden = r.count(*HIDDEN, **usual) if any(r.knows(name) for name in HIDDEN) else 4 * in_file
        fields = {
            "width": width,
            "depth": r.size("depth", r.count(*DEPTH)),
            "vocab": r.count("vocab_size"),
            "heads": heads,
            "ffn_ratio": hidden / in_file,
            "output_projection": "random",
            **self.fields,
        }
        shared_heads(r, fields)
        for rule in self.rules:
            rule(r, fields, tokens)
        without_dropout(r)
        _window(r, fields, tokens)
        if "rotary" not in fields and (r.of.rope is not None or r.knows("rotary_dim")):
            read_rotations(r, fields)
        one_std(r, fields)
        fields["embeddings"] = fields.get("embeddings") or tied(r)
        if "norm_epsilon" not in fields:
            fields["norm_epsilon"] = r.number(*EPSILON, **r.usual(1e-5, *EPSILON))
        if "activation" not in fields:
            fields["activation"] = activation_of(r, *ACTIVATION)
        return {name: value for name, value in fields.items() if not name.startswith("_")}


def activation_of(r: Reading, *names: str, default: Any = ...) -> str:
    """Return this project's name of the activation function that a model's configuration names.

    Args:
        r: reader of the configuration.
        names: keys of the activation.
        default: name in the configuration's language if none of the keys is given.

    Raises:
        ValueError: the activation is not known.
    """
    given = next((name for name in names if r.left.get(name) is not None), names[0])
    name = r.take(*names) if default is ... else r.take(*names, default=default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"{given} must be one of {', '.join(ACTIVATIONS)}, got {name!r}.")
    return ACTIVATIONS[name]


def one_std(r: Reading, fields: Fields) -> None:
    """Set the standard deviations for a model family with one standard deviation for all matrices and embeddings.

    Their entries are N(0, σ²).

    Embeddings are multiplied by the rules' `_inputs`, and logits by their `_logits`. Rules may give the matrices a
    standard deviation `_matrices` of their own.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, changed in place.

    Raises:
        ValueError: σ is not positive, or so large that each query attends to a single token.
    """
    name = next((name for name in DEVIATION if name in r.left), DEVIATION[0])
    std, root = r.number(*DEVIATION, **r.usual(0.02, *DEVIATION)), fields["width"] ** 0.5
    if not std > 0:
        raise ValueError(f"{name} must be above 0, got {std!r}.")
    matrices = fields.get("_matrices", std)
    r.scales = Scales(std, *(fields.get(name, 1.0) for name in ("_inputs", "_logits")))
    fields |= {
        "init_std": matrices,
        "query_key_scale": matrices * root,
        "output_scale": std * root * r.scales.logits,
        "embedding_scale": std * r.scales.inputs,
    }
    scale = fields["query_key_scale"] * fields.get("logit_factor", 1.0) ** 0.5
    if scale > 4:
        raise ValueError(
            f"{name} = {std!r} is too large: with the factor of the logits it makes query_key_scale {scale:.3g}, which "
            "must be at most 4; above 4, each query attends to a single token."
        )


def logits_times(r: Reading, fields: Fields, factor: float) -> None:
    """Set a factor on the attention logits that replaces the usual 1/sqrt(d_k)."""
    head_width = fields.get("head_width", fields["width"] // fields["heads"])
    over_root = factor * head_width**0.5
    if abs(factor * head_width - 1) < 1e-9:
        fields["attention_scale"] = "linear"
    elif abs(over_root - 1) > 1e-9:
        fields["logit_factor"] = over_root


def tied(r: Reading) -> str:
    """Return "tied" or "untied": whether the model's embeddings are also its output matrix.

    A requested value comes first. The file's value has the effect that the model's class gives it.

    Raises:
        ValueError: the file's value is null or not a switch.
    """
    if r.left.get("tie_word_embeddings", False) is None:
        raise ValueError("tie_word_embeddings must be true or false, got null.")
    default = r.of.defaults.get("tie_word_embeddings")
    asked = r.switch("tie_word_embeddings", default=True if default is None else default)
    is_tied = r.of.tied[asked]
    if is_tied != asked:
        r.say("tie_word_embeddings", asked, f"the class {'ties' if is_tied else 'never ties'} both ends in any case")
    return r.embeddings or ("tied" if is_tied else "untied")


def without_dropout(r: Reading) -> None:
    """Note that all dropout probabilities in the configuration file are ignored."""
    names = [name for name in r.left if "dropout" in name or name.endswith(("pdrop", "layerdrop"))]
    r.left_out("the prediction is without dropout, as in evaluation", *names)


def shared_heads(r: Reading, fields: Fields) -> None:
    """Set the number of heads with their own keys and values, and the width of a head if the file gives one.

    The width differs from the usual d/h.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, changed in place.

    Raises:
        ValueError: the number of key and value heads does not divide the number of heads, or the class does not
            support another head width.
    """
    heads = fields["heads"]
    kv = r.count(*_KEY_HEADS, default=heads) if r.knows("num_key_value_heads") else heads
    if heads % kv:
        whose = "" if "num_key_value_heads" in r.in_config else ", the class's default"
        raise ValueError(f"num_key_value_heads must divide num_attention_heads = {heads}, got {kv}{whose}.")
    fields["kv_heads"] = 0 if kv == heads else kv
    is_read = r.of.own_heads or r.of.rope is not None or not r.is_unread("head_dim")  # by rotations, too
    given, usual = r.count("head_dim", default=None) if is_read else None, r.in_file["width"] / heads
    if given is not None and given != usual:
        if not r.of.own_heads:
            raise ValueError(
                f"head_dim must be width / heads, {usual:g}, got {given}: this class has no heads of "
                "another width; --ignore head_dim leaves it out."
            )
        fields["head_width"] = given


def small_positions(r: Reading, fields: Fields) -> None:
    """Drop learned positions if they are negligible compared with the token embeddings, and note it.

    This is the case if token embeddings are multiplied by sqrt(d).
    """
    if fields["positions"] == "learned":
        fields["positions"] = "none"
        r.say("learned positions", fields["width"] ** -0.5, "they are much smaller than token embeddings, and 0 here")


def _window(r: Reading, fields: Fields, tokens: int) -> None:
    # Set the sliding attention window in all layers if some layers have one.
    # ValueError: `layer_types` is not a list with one known word for each layer.
    listed = r.left.get("layer_types") or []
    if not isinstance(listed, list) or not all(isinstance(kind, str) for kind in listed):
        raise ValueError(f"layer_types must be a list of words, got {listed!r}.")
    if unknown := sorted(set(listed) - set(KINDS)):
        raise ValueError(f"layer_types must be of {' and '.join(KINDS)}, got {unknown[0]!r}.")
    if listed and len(listed) != r.in_file["depth"]:
        raise ValueError(f"layer_types must be as many words as layers, {r.in_file['depth']}, got {len(listed)}.")
    window, used, kinds = None, True, set(listed)
    if r.knows("sliding_window"):
        window = r.number("sliding_window", default=None)
        used = r.take("use_sliding_window", default=True) if r.knows("use_sliding_window") else True
    elif not r.is_unread("sliding_window"):
        r.neutral("its class has no windows", "sliding_window", "use_sliding_window")
    r.neutral(
        LENGTH, "max_window_layers", "layer_types", "sliding_window_pattern", "_sliding_window_pattern",
        "sliding_window_size",
    )  # fmt: skip
    if window is not None and used and window < tokens and kinds != {"full_attention"}:
        fields["window"] = window
        if kinds != {"sliding_attention"} and ("layer_types" in r.of.defaults or kinds):
            r.say("layer_types", sorted(kinds) or "of the class", "here, all layers have the window")
    elif window is not None and "sliding_window" in r.in_config:
        r.notes.append(Note.neutral("sliding_window", window, LENGTH))
