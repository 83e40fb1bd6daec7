"""The questions of the interactive page, each about a network and a quantity."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gradbounds.actions.plan import DISTINCT
from gradbounds.described_network import Description
from gradbounds.grid import FIELDS, field_value
from gradbounds.units import seconds_of
from simulate.counts import check_count
from theory import Stack
from theory.configurations import Note
from theory.configurations.training_codes import HUGGING_FACE
from theory.mean_field.text_law import KINDS
from theory.stack.registry import nearest

MOST_LAYERS = 512
"""The largest depth of a network that the page shows."""

_KINDS: dict[str, type | tuple[type, ...]] = {
    "fields": dict, "like": (str, type(None)), "config": (dict, type(None)), "drawn_by": str, "batch": str,
    "draws": str, "seed": str, "zipf": str, "max_time": str,
}  # fmt: skip

MOST_SECONDS = 600.0
"""The largest limit of time that a question may request for its answer."""

_LEAST = {"batch": 1, "draws": 2, "seed": 0}  # one draw has no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of the interactive page about one network.

    Attributes:
        of: the model that describes it, if there is one; its configuration is an object, and never a file.
        given: values of fields.
        batch: sequences of a batch.
        draws: networks that are sampled.
        seed: seed of the sampled networks.
        text: token law of a batch, as for `--text`; None for the command's default.
        seconds: limit on theory's time; None for the default of an answer.
    """

    of: Description
    given: Mapping[str, Any]
    batch: int = 1
    draws: int = 2
    seed: int = 0
    text: str | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, asked: Any) -> Self:
        """Read a question of the interactive page from decoded JSON.

        Args:
            asked: an object; `fields` has values as flags take them, `like`, `config`, `drawn_by` are those of
                `gradbounds predict`, `batch` counts sequences, `draws` networks of a `seed`,
                `zipf` is a kind of text, the exponent of Zipf's law, or "distinct", `max_time` what `--max-time` takes.
                All may be left out.

        Raises:
            ValueError: there is something else in it, or a value cannot be read.
        """
        if not isinstance(asked, dict):
            raise ValueError("question must be an object of JSON.")
        for name, value in asked.items():
            if name not in _KINDS:
                raise ValueError(f"question must have {', '.join(_KINDS)}, got {name!r}.{nearest([name], _KINDS)}")
            if not isinstance(value, _KINDS[name]):
                raise ValueError(f"{name} must be of another kind, got {value!r}.")
        given = {}
        for name, word in asked.get("fields", {}).items():
            if name not in FIELDS:
                raise ValueError(f"the network has no field {name!r}.{nearest([name], FIELDS)}")
            if not isinstance(word, str):
                raise ValueError(f"{name} must be given as text, got {word!r}.")
            given[name] = field_value(name, word)
        counts = {name: _count(name, asked.get(name, str(least)), least) for name, least in _LEAST.items()}
        of = Description(
            config=asked.get("config"), like=asked.get("like"), drawn_by=asked.get("drawn_by", HUGGING_FACE)
        )
        law = asked.get("zipf", "")  # and no file, which is nobody's to read
        text = law if law in (DISTINCT, *KINDS) else f"zipf:{law}" if law else None
        return cls(of=of, given=given, **counts, text=text, seconds=_limit(asked.get("max_time", "")))

    def network(self) -> tuple[Stack, tuple[Note, ...]]:
        """Return the network that a question is about, and notes on its configuration.

        Raises:
            ValueError: the network cannot be read, or has more layers than the page shows.
        """
        stack, notes = self.of.read(self.given)
        if stack.most_layers > MOST_LAYERS:
            raise ValueError(
                f"depth must be at most {MOST_LAYERS} on this page, got {stack.most_layers}; gradbounds predict has no "
                "such limit."
            )
        return stack, notes


def _limit(word: str) -> float | None:
    """Return a limit of time in seconds; None for an empty word.

    Raises:
        ValueError: the word is not a duration, or the duration is too long.
    """
    if not word:
        return None
    if (seconds := seconds_of(word)) > MOST_SECONDS:
        raise ValueError(f"max_time must be at most {MOST_SECONDS:g}s on this page, got {word!r}.")
    return seconds


def _count(name: str, word: str, least: int) -> int:
    """Parse an integer that is at least `least`.

    Raises:
        ValueError: the word is not a number, or the number is too small or too large.
    """
    try:
        number = float(word)
    except ValueError as error:
        raise ValueError(f"{name} must be an integer, such as 512 or 1e6, got {word!r}.") from error
    value: Any = int(number) if number.is_integer() else number
    check_count(name, value, least)
    return int(value)
