"""Convert one configuration file into a network description, with notes on the fields that it cannot represent."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from theory.configurations.classes import CLASSES, MEASURED, OF_WORDS, OLDER, WITHOUT_WORDS
from theory.configurations.encoder_decoders import ENCODER_DECODERS
from theory.configurations.families import FAMILIES as DECODERS_AND_ENCODERS
from theory.configurations.family import DEVIATION
from theory.configurations.reading import Note, Reading
from theory.configurations.training_codes import HUGGING_FACE, TRAINING_CODES, TrainingCode, training_code
from theory.configurations.unread import NEAREST, UNREAD, reason
from theory.stack import Stack
from theory.stack.documents import parsed, read_document
from theory.stack.registry import nearest

PUBLISHED: dict[str, dict[str, Any]] = parsed(Path(__file__).with_name("published.toml").read_bytes(), "TOML")
"""The fields of each published model's configuration, by name of the model."""

FAMILIES: dict[str, Callable[[Reading, int], dict[str, Any]]] = {**DECODERS_AND_ENCODERS, **ENCODER_DECODERS}
"""The function that reads a configuration of each family, by `model_type`, and by "nanogpt" for files without one."""

_NANOGPT = {"n_layer", "n_head", "n_embd"}
_NANOGPT_WORDS = 50304  # by default
# Which the arguments of nanochat have besides.
_NANOCHAT = {"n_kv_head", "sequence_len", "window_pattern"}
# Those of Meta's params.json, by the keys of a Llama's config.json.
_META = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}


# Where configurations of several parts have that of the words.
_INNER = ("text_config", "language_config", "llm_config")


def published(name: str) -> dict[str, Any]:
    """Return the fields of a published model's configuration file (`config.json`), from the model's name.

    Capitals and the name of an organization are ignored.

    Raises:
        ValueError: the name is not known; the message lists the known names.

    >>> published("llama-3-8b")["num_key_value_heads"], published("Qwen/Qwen3-8B")["num_key_value_heads"]
    (8, 8)
    """
    if (known := name.lower().rpartition("/")[2]) in PUBLISHED:
        return dict(PUBLISHED[known])
    raise ValueError(f"like must be one of {', '.join(PUBLISHED)}, got {name!r}.{nearest(name, PUBLISHED)}")


def stack_from_config(
    config: Mapping[str, Any] | str | Path | None = None,
    *,
    like: str | None = None,
    tokens: int = 16,
    embeddings: Literal["untied", "tied"] | None = None,
    ignore: Sequence[str] = (),
    drawn_by: str = HUGGING_FACE,
    **fields: Any,
) -> tuple[Stack, tuple[Note, ...]]:
    """Return the network that a model's configuration file describes, with the model's own initialization.

    Args:
        config: a Hugging Face `config.json`, as its fields or its path, or the arguments of nanoGPT's `GPTConfig`.
        like: the name of a published model, instead of config.
        tokens: sequence length n.
        embeddings: "tied" or "untied"; None for the value in the file.
        ignore: fields of the file to ignore.
        drawn_by: initialization rule: "hf" for the model's class in transformers, or a training framework whose rule
            sets the standard deviations of all weights: "neox", "megatron", "nanogpt", "olmo" (OLMo 1), "olmo2",
            "torchtitan", "nanochat", "mup:256" (base width 256) or "completep:256:2" (base width 256 and depth 2).
        fields: fields of the Stack that override the file; the initialization rule uses the new width and depth.

    Returns:
        The network; and a note on every field of the file without a field in the Stack, on every default of the class
        that was used, and on how weights are initialized.

    Raises:
        ValueError: the file, its family, a field, or `drawn_by` is not known or contradicts another. `init_std` is
            given together with a framework's `drawn_by`. The framework's rule does not cover one of the matrices.

    Source: the classes of Hugging Face transformers 5 and theory/configurations/training_codes.toml.

    >>> stack_from_config(like="llama-3-8b", tokens=4096)[0].kv_heads
    8
    >>> stack_from_config(like="pythia-1.4b", drawn_by="neox", width=512)[0].embedding_scale == (2 / 5 / 512) ** 0.5
    True
    """
    code = training_code(drawn_by)
    _check_fields(fields)
    if config is not None and like is not None:
        raise ValueError("config cannot be combined with like: give one of them.")
    family, in_file, about = _recognized(config if like is None else published(like), ignore)
    reading = _reading(family, in_file, ignore, fields)
    reading.notes += about
    reading.embeddings = embeddings  # rules decide by it which factors are in the Stack
    reading.masked = fields.get("loss_share", reading.masked)
    values = _read_by(family, reading, tokens)
    if embeddings is not None:
        reading.notes = [note for note in reading.notes if note.field != "tie_word_embeddings"]
        values["embeddings"] = embeddings
    if code is not None:
        values |= _drawn_fields(code, reading, values | fields, fields)
    else:
        _note_older(reading, values["depth"])
        if fields.get("init_std") and values.get("init_std"):
            # Queries and keys are matrices like the others, with a field of their own.
            values["query_key_scale"] *= fields["init_std"] / values["init_std"]
    reading.notes.append(_drawn(code, reading.of.name, fields))
    return Stack(**{"tokens": tokens, **values, **fields}), tuple(reading.notes)


def _reading(family: str, in_file: Mapping[str, Any], ignore: Sequence[str], fields: Mapping[str, Any]) -> Reading:
    """Return the reader of a file's fields, with the requested sizes and without the ignored fields.

    Args:
        family: `model_type` of the family.
        in_file: all fields of the file.
        ignore: names of fields to ignore.
        fields: fields of the Stack that override the file, of which width and depth are used.

    Raises:
        ValueError: a field to ignore is not in the file, or a switch is neither true nor false.
    """
    sizes: dict[str, int] = {name: fields[name] for name in ("width", "depth") if name in fields}
    reading = Reading({k: v for k, v in in_file.items() if k not in ignore}, CLASSES.get(family), sizes)
    for name in ignore:
        if name not in in_file:
            raise ValueError(f"ignore must name fields of the file, got {name!r}.")
        reading.say(name, in_file[name], "ignored on request")
    return reading


def _recognized(
    config: Mapping[str, Any] | str | Path | None, ignore: Sequence[str]
) -> tuple[str, dict[str, Any], list[Note]]:
    """Return the family of a configuration, the fields of its language model, and notes on its other parts.

    If `model_type` is ignored, the nearest family with a reader replaces a family that has none.

    Args:
        config: the fields of a file, or its path.
        ignore: names of fields to ignore.

    Raises:
        ValueError: the file cannot be read, or its family is not known.
    """
    if config is None:
        raise ValueError("config or like must be given.")
    in_file = _read(config) if isinstance(config, str | Path) else dict(config)
    _check_type(in_file)
    in_file, about = _of_words(in_file)
    family = _check_type(in_file)
    if family is None and set(in_file) >= _NANOGPT:
        family = "nanochat.GPTConfig" if set(in_file) & _NANOCHAT else "nanogpt"
        if "vocab_size" not in in_file:
            in_file["vocab_size"] = _NANOGPT_WORDS
            about.append(Note("vocab_size", _NANOGPT_WORDS, "default", "the default of nanoGPT's GPTConfig"))
    if family is not None and "model_type" in ignore:
        family = NEAREST.get(family, family)
    if family is None or family not in FAMILIES:
        raise ValueError(
            "model_type must be one of the families in docs/configurations.md, got "
            f"{_unread(family, in_file)}.{_offer(family, in_file)}"
        )
    return family, in_file, about


def _offer(family: str | None, in_file: Mapping[str, Any]) -> str:
    """Return the flags that read a file as the nearest known family, in a sentence; "" if this is not possible."""
    if family not in NEAREST:
        return ""
    fields = {name: value for name, value in in_file.items() if name != "model_type"}
    try:
        reading = Reading(fields, CLASSES[NEAREST[family]])
        FAMILIES[NEAREST[family]](reading, 1)
        ignored = " ".join(["model_type", *reading.unknown()])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):  # values that the family has not
        return ""
    nearest = f"{NEAREST[family]!r}, the nearest supported family"
    return f" --ignore {ignored} reads it as {nearest}; gradbounds probe measures your own module."


def _read_by(family: str, reading: Reading, tokens: int) -> dict[str, Any]:
    """Return the fields of the Stack that the rules of a family read from a file.

    Raises:
        ValueError: a field has a value of the wrong type, is missing, or is not known.
    """
    try:
        values = FAMILIES[family](reading, tokens)
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"config must have fields with the types of {family}, but one has another type: {error}."
        ) from error
    reading.finish()
    return values


def _note_older(reading: Reading, depth: int) -> None:
    """Add a note on older versions of transformers whose class initializes some weights differently."""
    if older := [version for version in OLDER if version in reading.of.older]:
        roles = " and ".join(reading.of.older[older[-1]])
        larger = f"sqrt(2 L) = {(2 * depth) ** 0.5:.3g} times as large"
        versions = " to ".join(dict.fromkeys([older[0], older[-1]]))
        reading.notes.append(Note("transformers", versions, "older", f"draws {roles} {larger}"))


def _drawn_fields(
    code: TrainingCode, reading: Reading, values: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the initialization fields that a training framework's rule sets, and note which fields it does not read.

    Args:
        code: the training framework.
        reading: reader of the configuration, to which notes are added.
        values: fields of the Stack.
        given: fields that the user set.

    Raises:
        ValueError: `init_std` is given together with the rule, or the rule does not cover one of the matrices.
    """
    if "init_std" in given:
        raise ValueError(
            "init_std cannot be combined with drawn_by, which sets all standard deviations, got "
            f"{given['init_std']!r} and {code.name!r}."
        )
    drawn = code.fields(values, reading.scales)
    if (times := code.logits_times(values["width"])) != 1.0:
        reading.factor("W_emb as the output", 1 / times)
    if not code.reads_std:
        reading.notes = [note for note in reading.notes if note.field not in DEVIATION or note.what != "default"]
        unread = {name: reading.in_config[name] for name in DEVIATION if name in reading.in_config}
        reading.notes += [Note(k, v, "neutral", f"{code.title} does not ask") for k, v in unread.items()]
    return drawn


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Check that all names are fields of a Stack, and that width and depth are positive integers.

    Raises:
        ValueError: a name or a size is not allowed.
    """
    known = Stack.__dataclass_fields__
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"fields must be those of a Stack, got {name!r}.{nearest(name, known)}")
        if name in ("width", "depth") and (type(value) is not int or value < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")


def _drawn(code: TrainingCode | None, class_name: str, given: Iterable[str]) -> Note:
    """Return the note on how the weights are initialized.

    Args:
        code: training framework that initializes them; None for the model's own class.
        class_name: name of the model's class; "" for nanoGPT, whose files name no class.
        given: names of the fields that the user set.
    """
    scales = ", ".join(name for name in given if name.endswith(("_scale", "_std", "depth_scaling")))
    other, title = f", except for {scales}" * bool(scales), f"transformers' {class_name}"
    if code is not None:
        rule = f"{code.rule}; {code.source}; {code.date}"
        return Note("weights", code.name, "drawn", f"as {code.title} draws them{other} ({rule})")
    title = title if class_name else TRAINING_CODES["nanogpt"].title
    return Note("weights", HUGGING_FACE, "drawn", f"as {title} draws them{other}")


def _check_type(fields: dict[str, Any]) -> str | None:
    """Return the `model_type` of a configuration; None without one.

    Raises:
        ValueError: the `model_type` is not text.
    """
    family = fields.get("model_type")
    if family is not None and not isinstance(family, str):
        raise ValueError(f"model_type must be a string, got {family!r}.")
    return family


def _unread(family: str | None, fields: dict[str, Any]) -> str:
    """Return the text for an unknown model family, and the reason why it is not read."""
    if family is None:
        if set(fields) >= _META.keys():
            renamed = ", ".join(f"{name} as {ours}" for name, ours in _META.items())
            return (
                f"none; these are the parameters of Meta's Llama; a file of model_type 'llama' has {renamed}, and "
                "vocab_size and intermediate_size"
            )
        named = fields.get("architectures")
        families = [name for name, known in CLASSES.items() if named == [known.name]]
        return f"none; {named[0]} is the class for model_type {', '.join(families)}" if named and families else "none"
    return f"{family!r}, which is not read: {reason(family, fields)}"


def _of_words(fields: dict[str, Any]) -> tuple[dict[str, Any], list[Note]]:
    """Return the language model's configuration from that of a multimodal model, with notes on the model's other parts.

    Raises:
        ValueError: the language model's configuration is not an object, or its family is not known.
    """
    name = next((name for name in _INNER if name in fields and fields.get("model_type") not in FAMILIES), None)
    if name is None:
        return fields, []
    inner, outer = fields[name], fields.get("model_type")
    if not isinstance(inner, Mapping):
        raise ValueError(f"{name} must be an object, got {inner!r}.")
    inner = {"model_type": OF_WORDS.get(str(outer)), **inner}
    if inner["model_type"] is None and outer in UNREAD:
        return fields, []  # whose error has the reason
    if outer in WITHOUT_WORDS:
        raise ValueError(
            f"model_type must belong to a language model, got {outer!r}, which has no language model class in "
            f"transformers {MEASURED}; to read {name} as a language model, save it as a file of its own."
        )
    if inner["model_type"] is None:
        raise ValueError(
            f"{name} must have a model_type, because the outer model_type {outer!r} does not imply it, got none."
        )
    if "tie_word_embeddings" in fields:
        inner["tie_word_embeddings"] = fields["tie_word_embeddings"]
    others = sorted(other for other in fields if other.endswith("_config") and other != name)
    others = [other for other in others if other != "quantization_config"]
    what = f"only the language model, {name}, is read{', without ' if others else ''}{', '.join(others)}"
    return inner, [Note("model_type", outer, "left out", what)]


def _read(path: str | Path) -> dict[str, Any]:
    """Return the fields of a configuration file.

    Raises:
        ValueError: the file cannot be read, or is not a JSON object.
    """
    fields = read_document(path, "config", "JSON", finite=False)  # Python writes Infinity, and so do classes
    if not isinstance(fields, dict):
        raise ValueError(f"config must be a JSON object, got a {type(fields).__name__} in {path}.")
    return fields
