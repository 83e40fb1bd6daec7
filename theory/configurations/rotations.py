"""Read rotary positions from a model's configuration: rotated share of a head, base, and scaling.

Layers without rotations are noted.
"""

import re
from collections.abc import Mapping
from typing import Any

from theory.configurations.reading import Fields, Note, Reading

KINDS = ("full_attention", "sliding_attention")
"""The kinds of layers in a configuration's `layer_types`: without and with a window."""
_AS_WITH_A_WINDOW = "here, all layers have the rotations of layers with a window"
_SLOW = "it changes only slow rotations, which are negligible for so few tokens"


def read_rotations(r: Reading, fields: Fields) -> None:
    """Set the share of each head that rotary positions rotate, and the base of the rotation frequencies.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, changed in place.

    Raises:
        ValueError: the parameters of the rotations contradict each other or the class, or exceed a head's width.
    """
    defaults, (name, given) = dict(r.of.rope or {}), _rotations(r)
    layered, nested = "sliding_attention" in defaults, [kind for kind in KINDS if kind in given]
    if nested and not layered:
        raise ValueError(f"{name} must be one object for all layers, as this class has it, got one for {nested[0]}.")
    if layered:  # as in Gemma 3: five layers of six
        parts = given if nested else {"full_attention": given}  # one object is for layers without a window
        full, sliding = (
            {**defaults.get(kind, {}), **_object(f"{name} of {kind}", parts.get(kind) or {})} for kind in KINDS
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

    def of_layers(key: str, usual: float) -> float:
        # Return a number of the rotations: from their object, else from beside it, else the default.
        within, beside = inner.number(key, default=None), None if layered else r.number(key, default=None)
        if within is not None and beside not in (None, within):
            r.notes.append(Note.neutral(key, beside, f"{name} sets it to {within:g}"))
        known = beside if within is None else within
        if known is not None:
            return known
        if defaults.get(key, 1.0) != 1.0:
            r.notes.append(Note(key, defaults[key], "default", "the file has none"))
        return float(defaults.get(key, usual))

    base, share = of_layers("rope_theta", 10_000.0), of_layers("partial_rotary_factor", 1.0)
    turned = r.number("rotary_dim", default=None) if r.knows("rotary_dim") else None
    width = fields.get("head_width", r.in_file["width"] // fields["heads"])
    if turned is not None and turned > width:
        raise ValueError(f"rotary_dim must be at most {width}, the coordinates of a head, got {turned!r}.")
    fields |= {"rotary": share if turned is None else turned / width, "rotary_base": float(base)}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind in ("llama3", "dynamic"):
        r.notes.append(Note.neutral(name, dict(given), _SLOW))
    elif kind != "default":
        r.say(name, dict(given), f"here, rotations are not scaled as in {kind!r}")
    elif given.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}:
        r.notes.append(Note.neutral(name, dict(given), "the class scales no rotations of this or of no rope_type"))


def _rotations(r: Reading) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the object of the rotation parameters; two versions of transformers use two names.

    Raises:
        ValueError: the value is not an object, or both names are given with different values.
    """
    scaling, parameters = (_object(name, r.left.pop(name, None) or {}) for name in ("rope_scaling", "rope_parameters"))
    if scaling and parameters and scaling != parameters:
        raise ValueError(
            f"rope_scaling and rope_parameters must be equal, got {dict(scaling)!r} and {dict(parameters)!r}; "
            "--ignore either leaves it out."
        )
    return ("rope_scaling", scaling) if scaling else ("rope_parameters", parameters)


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {value!r}.")
    return value


def stretched(r: Reading, fields: Fields, tokens: int) -> None:
    """Set rotary positions whose base is enlarged by the field `alpha` of HunYuan's configuration files.

    The base is enlarged for any number of tokens.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, changed in place.
        tokens: sequence length, which is not used here.
    """
    name, given = _rotations(r)
    alpha = Reading(given).number("alpha", default=None)
    if alpha and given.get("rope_type", given.get("type")) == "dynamic":
        kept = ("rope_theta", "partial_rotary_factor")
        r.left[name] = {key: value for key, value in given.items() if key in kept}
    elif given:
        r.left[name], alpha = given, None
    read_rotations(r, fields)
    if alpha:
        turned = fields.get("head_width", fields["width"] // fields["heads"])
        fields["rotary_base"] *= alpha ** (turned / (turned - 2))
        r.notes.append(Note.neutral(name, dict(given), f"by its alpha the base is {fields['rotary_base']:.6g} here"))


def older_names(r: Reading, fields: Fields, tokens: int) -> None:
    """Rename the older names of configuration fields for rotary positions to the current names.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, which are not changed.
        tokens: sequence length, which is not used here.

    Raises:
        ValueError: the old and the new name have different values.
    """
    for old, new in (("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")):
        given = r.left.pop(old, None)
        if given is not None and r.left.setdefault(new, given) != given:
            raise ValueError(f"{new} and {old} must be one number, got {r.left[new]!r} and {given!r}.")


def unrotated(r: Reading, fields: Fields, tokens: int) -> None:
    """Note the layers in which the model does not rotate queries and keys; the prediction rotates all layers.

    SmolLM 3's files list such layers; in Cohere 2 and EXAONE 4 they are the layers without a window.

    Args:
        r: reader of the configuration.
        fields: fields of the Stack, which are not changed.
        tokens: sequence length, which is not used here.

    Raises:
        ValueError: the file's list does not have one number for every layer.
    """
    depth, listed = r.in_file["depth"], r.left.get("no_rope_layers")
    if r.knows("no_rope_layers"):
        every = r.count("no_rope_layer_interval")
        r.left.pop("no_rope_layers", None)
        flags = listed or [int((layer + 1) % every != 0) for layer in range(depth)]
        if not isinstance(flags, list) or len(flags) != depth:
            raise ValueError(f"no_rope_layers must be a list of {depth} numbers, got {flags!r}.")
        still = [layer for layer, turns in enumerate(flags, start=1) if not turns]
    else:
        kinds, pattern = r.left.get("layer_types"), r.left.get("sliding_window_pattern")
        if isinstance(pattern, str) and re.fullmatch("L*G", pattern):  # EXAONE's other spelling of 4 is LLLG
            r.left["sliding_window_pattern"] = len(pattern)
        every = r.number("sliding_window_pattern", default=4) or 0
        if r.left.get("sliding_window", r.of.defaults.get("sliding_window")) is None:
            still = (
                [] if r.knows("sliding_window_pattern") else list(range(1, depth + 1))
            )  # EXAONE's all, Cohere's none
        elif isinstance(kinds, list):
            still = [layer for layer, kind in enumerate(kinds, start=1) if kind == "full_attention"]
        else:
            still = [layer for layer in range(1, depth + 1) if every and layer % every == 0]
    if still:
        r.say("layers without rotations", still, "all layers rotate here")
