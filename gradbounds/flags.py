"""How a flag is declared."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from gradbounds.described_network import Description
from gradbounds.grid import FIELDS, OWN_WORD, field_value, said
from theory import Stack
from theory.configurations.training_codes import HUGGING_FACE
from theory.stack.groups import GROUPS
from theory.stack.stack import OWN

Flag = tyro.conf.arg
Positional = tyro.conf.Positional
Folder = Annotated[Path, Positional, Flag(name="run", help="run folder")]


def optional(about: str, metavar: str | None, default: str = "") -> Any:
    """A flag that may be left out; what happens then is said in words, not as None."""
    return Flag(help=about, metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "")


LOGGED_AS = optional(
    "units of --logged",
    "mean|sum|norm|square|unclipped|clipped:C [...]",
    default="as its names say, else mean norm unclipped",
)
"""The flag of commands that read a log."""

_TYPES = get_type_hints(Stack)


def in_groups(flag: Callable[[Field], Any]) -> Any:
    """A dataclass of a Stack's groups, each of a flag for every field, which help has a box for; None is not given.

    Args:
        flag: the annotation of a field's flag.
    """

    def of(group: type) -> tuple[str, Any, Any]:
        flags = make_dataclass(
            group.__name__, [(each.name, flag(each), None) for each in fields(group)], frozen=True, kw_only=True
        )
        flags.__doc__ = ""
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", group.__name__).lower()
        return (
            f"network_{name}",
            Annotated[flags, tyro.conf.OmitArgPrefixes, Flag(help="")],
            field(default_factory=flags),
        )

    groups = make_dataclass("NetworkFlags", [of(group) for group in GROUPS], frozen=True, kw_only=True)
    groups.__doc__ = "The fields of the Stack that are given."
    return groups


def network(defaults: Stack, several: Collection[str] = ()) -> Any:
    """Flags for the fields of a Stack, one value each; the help of one has the default.

    Args:
        defaults: of the fields.
        several: fields of numbers that take several values as well, which are a tuple then.
    """

    def flag(of: Field) -> Any:
        name, default = of.name, str(said(of.name, getattr(defaults, of.name)))
        choices = "|".join(of.metadata.get("choices", ()))
        many = name in several
        kind = Annotated[Any, _number(name, many)] if not isinstance(of.default, str) else _TYPES[name] | None
        about = of.metadata["help"] + "; of several values a table over them" * many
        return Annotated[kind, optional(about, choices or None, default)]

    return in_groups(flag)


def _number(name: str, many: bool) -> tyro.constructors.PrimitiveConstructorSpec[Any]:
    """How a field of numbers is read: None, of one that is not given, is no word."""
    metavar = "INT" if FIELDS[name].type is int else "own|FLOAT" if name in OWN else "FLOAT"

    def read(words: list[str]) -> Any:
        values = tuple(said(name, field_value(name, word)) for word in words)
        return values[0] if len(values) == 1 else values

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*" if many else 1, metavar=f"{metavar} [...]" if many else metavar, instance_from_str=read,
        is_instance=lambda _: True, str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


def given(flags: Any) -> dict[str, Any]:
    """The fields of a Stack that flags give, as they were typed."""
    named = {name: value for group in vars(flags).values() for name, value in vars(group).items() if value is not None}
    return {name: None if value == OWN_WORD and name in OWN else value for name, value in named.items()}


def check_together(
    command: Any,
    *,
    needs: Mapping[str, str] = {},
    excludes: Mapping[str, tuple[Sequence[str], str]] = {},
    also: Mapping[str, bool] = {},
) -> None:
    """Refuse flags that would be ignored beside others.

    Args:
        command: the flags; those that are not at their defaults are given.
        needs: by the name of a flag another one that it goes with.
        excludes: by the name of a flag those that it does not go with, and why.
        also: further names for the tables, and whether they are given.

    Raises:
        ValueError: some do not go together.
    """
    values = {each.name: getattr(command, each.name) for each in fields(command) if each.default is not MISSING}
    flags = {name: value for name, value in values.items() if value != getattr(type(command), name)}
    flags |= {name: name for name, is_given in also.items() if is_given}
    for name, other in needs.items():
        if name in flags and other not in flags:
            value = flags[name]
            shown = " ".join(value) if isinstance(value, tuple) else str(value)
            raise ValueError(f"{name} must stand with {other}, got {shown!r} without.")
    for name, (others, why) in excludes.items():
        if name in flags and (beside := [other for other in others if other in flags]):
            raise ValueError(f"{name} must stand without {', '.join(beside)}{why}")


@dataclass(frozen=True, kw_only=True)
class WithJson:
    """The flag of commands that print tables."""

    json: Annotated[bool, optional("one JSON object instead of text; docs/runs.md", None)] = False


@dataclass(frozen=True, kw_only=True)
class ModelFlags(WithJson):
    """Flags of commands that take the network of a model."""

    config: Annotated[Path | None, optional("config.json of a model (Hugging Face, nanoGPT)", "FILE")] = None
    like: Annotated[str | None, optional("a published model; a wrong name lists them", "NAME")] = None
    ignore: Annotated[tuple[str, ...], optional("keys of the file to leave out", "KEY [...]")] = ()

    drawn_by: Annotated[
        str,
        optional(
            "who draws the weights; a wrong name lists them",
            "CODE",
            HUGGING_FACE,
        ),
    ] = HUGGING_FACE

    @property
    def description(self) -> Description:
        """What describes the network."""
        return Description(config=self.config, like=self.like, ignore=self.ignore, drawn_by=self.drawn_by)


@dataclass(frozen=True, kw_only=True)
class IntoFolder(WithJson):
    """Flags of commands that make networks and keep what they measure of them."""

    out: Annotated[Path, Flag(help="folder; what it holds already is not done again")]
    seed: Annotated[int, Flag(help="seed of the first network")] = 0
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    dry_run: Annotated[bool, Flag(help="say how much it is, and stop")] = False


@dataclass(frozen=True, kw_only=True)
class OnTexts(IntoFolder):
    """Flags of commands that make translation models on two texts."""

    source: Annotated[Path, Flag(help="text to translate from, UTF-8, a sentence a line")]
    target: Annotated[Path, Flag(help="text to translate to, line by line")]
    placement: Annotated[tuple[Literal["post", "pre"], ...], Flag(help="placements of LayerNorm")] = ("post", "pre")
    heads: Annotated[int, Flag(help="heads of every attention")] = 4
    smoothing: Annotated[float, Flag(help="label smoothing")] = 0.1
    units: Annotated[
        Literal["words", "bpe"], Flag(help="units of the vocabulary: words, or pieces of them by sentencepiece")
    ] = "words"
