"""A configuration that is being read: each of its fields is used, or named with the reason why it is not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from theory.stack.registry import nearest

_REQUIRED: Any = object()

SAID_ELSEWHERE = {
    "names and software, not numbers of the network": (
        "_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "dtype", "transformers_version",
        "use_cache", "use_return_dict", "return_dict", "output_attentions", "output_hidden_states", "id2label",
        "label2id", "problem_type", "chunk_size_feed_forward", "gradient_checkpointing", "pretraining_tp",
        "tokenizer_class", "task_specific_params", "attn_implementation", "_attn_implementation", "is_decoder",
        "cache_implementation", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
        "position_embedding_type", "cross_attention_hidden_size", "quantization_config", "name",
        "decoder_start_token_id", "output_past",
    ),
    "only limits the length of a sequence": (
        "max_position_embeddings", "n_positions", "n_ctx", "block_size", "sequence_len",
        "original_max_position_embeddings",
        "max_sequence_length",
    ),
    "a bias is zero at initialization": (
        "attention_bias", "mlp_bias", "bias", "qkv_bias", "use_bias",
    ),
}  # fmt: skip
"""Fields that change nothing at initialization, in any family, by the reason."""


@dataclass(frozen=True, slots=True)
class Note:
    """What was done with a field of a configuration that is not a field of the Stack.

    Attributes:
        field: its name.
        value: its value.
        what: "neutral" if it changes nothing at initialization, "left out" if the Stack is without what it asks for.
        reason: in words.
    """

    field: str
    value: Any
    what: Literal["neutral", "left out"]
    reason: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r} is {self.what}: {self.reason}"


class Reading:
    """The fields of a configuration that are not yet read, and notes on those that are.

    Args:
        config: the fields of the file.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.left = dict(config)
        self.notes: list[Note] = []

    def take(self, *names: str, default: Any = _REQUIRED) -> Any:
        """The value of a field, by any of its names; null is as if it were not there.

        Raises:
            ValueError: it has none and is required, or two of its names have different values.
        """
        given = {name: self.left.pop(name) for name in names if name in self.left}
        given = {name: value for name, value in given.items() if value is not None}
        values = list(given.values())
        if any(value != values[0] for value in values[1:]):
            raise ValueError(f"{' and '.join(given)} must be one number, got {' and '.join(map(repr, values))}.")
        if not values and default is _REQUIRED:
            raise ValueError(f"config must have {' or '.join(names)}, got none.")
        return values[0] if values else default

    def number(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A field that is a number.

        Raises:
            ValueError: it is not, or as `take`.
        """
        value = self.take(*names, default=default)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf
        ):
            raise ValueError(f"{names[0]} must be a number, got {value!r}.")
        return value

    def count(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A field that is an integer of at least 1.

        Raises:
            ValueError: it is not, or as `take`.
        """
        value = self.number(*names, default=default)
        if value is not None and not (1 <= value < math.inf and value == int(value)):
            raise ValueError(f"{names[0]} must be an integer of at least 1, got {value!r}.")
        return value

    def refused(self, reason: str, *names: str) -> None:
        """Fields that must be off.

        Raises:
            ValueError: one is on.
        """
        for name in names:
            if self.left.get(name):
                raise ValueError(f"{name} must be false, got {self.left[name]!r}: {reason}.")
            self.neutral("it is switched off", name)

    def neutral(self, reason: str, *names: str) -> None:
        """Fields that change nothing at initialization."""
        self._note("neutral", reason, names)

    def left_out(self, reason: str, *names: str) -> None:
        """Fields that change something that the Stack does not have, unless they are off."""
        for name in names:
            if name in self.left and self.left[name] in (None, False, 0, 0.0, [], {}):
                self._note("neutral", "it is switched off", [name])
            else:
                self._note("left out", reason, [name])

    def say(self, field: str, value: Any, reason: str) -> None:
        """Name something that is left out and that no field of the file says."""
        self.notes.append(Note(field, value, "left out", reason))

    def _note(self, what: Literal["neutral", "left out"], reason: str, names: Any) -> None:
        for name in names:
            if name in self.left:
                value = self.left.pop(name)
                if value is not None:
                    self.notes.append(Note(name, value, what, reason))

    def finish(self, known: set[str]) -> None:
        """Say what changes nothing in any family, and refuse what nobody knows.

        Args:
            known: names of other fields, for a hint.

        Raises:
            ValueError: a field is left, or an encoder is asked for.
        """
        self.refused("attention to an encoder is not read from a file", "is_encoder_decoder", "add_cross_attention")
        for reason, names in SAID_ELSEWHERE.items():
            self.neutral(reason, *names)
        self.left = {name: value for name, value in self.left.items() if value is not None}
        if self.left:
            name = sorted(self.left)[0]
            raise ValueError(
                f"config must have fields that its family has, got {name} = {self.left[name]!r}, whose part at "
                f"initialization is not known.{nearest(name, sorted(known))}"
            )
