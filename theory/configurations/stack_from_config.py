"""From a configuration file to the Stack that such a model is at initialization."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from theory.configurations.encoder_decoders import ENCODER_DECODERS
from theory.configurations.families import FAMILIES as DECODERS_AND_ENCODERS
from theory.configurations.published import PUBLISHED
from theory.configurations.reading import Note, Reading
from theory.configurations.unread import UNREAD
from theory.stack import Stack
from theory.stack.documents import read_document

FAMILIES = DECODERS_AND_ENCODERS | ENCODER_DECODERS
"""What reads a configuration, by `model_type`; nanoGPT's files have none."""

_NANOGPT = {"n_layer", "n_head", "n_embd", "vocab_size"}
# Which the arguments of nanochat have besides.
_NANOCHAT = {"n_kv_head", "sequence_len", "window_pattern"}


def stack_from_config(
    config: Mapping[str, Any] | str | Path, *, tokens: int = 16, embeddings: Literal["untied", "tied"] | None = None
) -> tuple[Stack, tuple[Note, ...]]:
    """The network that a model's configuration describes, with weights as its own code initializes them.

    Args:
        config: the fields of a Hugging Face `config.json`, or its path; or the arguments of nanoGPT's `GPTConfig`.
        tokens: sequence length n.
        embeddings: whether the output matrix is that of the inputs; None for what the file says.

    Returns:
        The network; and a note on every field of the file that is none of the Stack's: neutral at initialization, or
        left out, and why. A field that nobody knows is an error.

    Raises:
        ValueError: the file is no configuration, or of a family that is not known, or a field is unknown, missing or
            contradicts another.

    Source: the classes of Hugging Face transformers 5 and their `_init_weights`; docs/configurations.md.

    >>> stack, notes = stack_from_config({"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 96, "dropout": 0.1})
    >>> stack.depth_scaling, round(stack.output_scale, 3), str(notes[0])
    ('depth', 0.16, 'dropout = 0.1 is left out: gradients are those without dropout, as in evaluation')
    """
    fields = _read(config) if isinstance(config, str | Path) else dict(config)
    family = fields.get("model_type")
    if family is None and set(fields) >= _NANOGPT:
        family = "nanochat" if set(fields) & _NANOCHAT else "nanogpt"
    if family is not None and not isinstance(family, str):
        raise ValueError(f"model_type must be a word, got {family!r}.")
    if family not in FAMILIES and isinstance(fields.get("text_config"), Mapping):
        raise ValueError("config must be that of the language model; give the file's text_config with its model_type.")
    if family not in FAMILIES:
        why = f", which is not read: {UNREAD[family]}" if family in UNREAD else ""
        raise ValueError(f"model_type must be one of {', '.join(sorted(FAMILIES))}, got {family!r}{why}.")
    reading = Reading(fields)
    try:
        values = FAMILIES[family](reading, tokens)
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"config must have values of the kinds that {family} has, but a field has another: {error}."
        ) from error
    reading.finish({name for config in PUBLISHED.values() for name in config})
    if embeddings is not None:
        if values["embeddings"] != embeddings:
            reading.say("tie_word_embeddings", values["embeddings"] == "tied", f"embeddings are {embeddings} here")
        values["embeddings"] = embeddings
    return Stack(tokens=tokens, **values), tuple(reading.notes)


def _read(path: str | Path) -> dict[str, Any]:
    """The fields of a file.

    Raises:
        ValueError: it cannot be read, or is no JSON object.
    """
    fields = read_document(path, "config", "JSON")
    if not isinstance(fields, dict):
        raise ValueError(f"config must be a JSON object, got a {type(fields).__name__} in {path}.")
    return fields
