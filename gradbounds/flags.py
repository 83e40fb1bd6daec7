"""The definitions of command-line flags that several commands share."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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
    """Declare an optional command-line flag, and describe its default value in words in the help text."""
    return Flag(help=about, metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "")


LOGGED_AS = optional(
    "how the logged numbers were computed; requires --logged",
    "mean|sum|norm|square|unclipped|clipped:C [...]",
    default="from the names in the log, else mean norm unclipped",
)
"""The flag `--logged-as` of commands that read a log."""

_TYPES = get_type_hints(Stack)


def in_groups(flag: Callable[[Field], Any]) -> Any:
    """Return a dataclass with a command-line flag for every field of a network, in the groups of the help text.

    A flag that is not given has the value None.

    Args:
        flag: function from a field to its flag's annotation.
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


def network(defaults: Stack) -> Any:
    """Return command-line flags for all fields of a network, with their default values in the help text.

    Args:
        defaults: the Stack with the default values.
    """

    def flag(of: Field) -> Any:
        name, default = of.name, str(said(of.name, getattr(defaults, of.name)))
        choices = "|".join(of.metadata.get("choices", ()))
        kind = Annotated[Any, _number(name)] if not isinstance(of.default, str) else _TYPES[name] | None
        return Annotated[kind, optional(of.metadata["help"], choices or None, default)]

    return in_groups(flag)


def _number(name: str) -> tyro.constructors.PrimitiveConstructorSpec[Any]:
    """Return the rule that reads a number field from its argument."""
    metavar = "INT" if FIELDS[name].type is int else "own|FLOAT" if name in OWN else "FLOAT"
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar=metavar, instance_from_str=lambda words: said(name, field_value(name, words[0])),
        is_instance=lambda _: True, str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


def given(flags: Any) -> dict[str, Any]:
    """Return the fields of a network that the user gave as command-line flags, with the values as typed."""
    named = {name: value for group in vars(flags).values() for name, value in vars(group).items() if value is not None}
    return {name: None if value == OWN_WORD and name in OWN else value for name, value in named.items()}


def flag_text(name: str) -> str:
    """Return a name in a table of flags as users type it; a name with spaces, such as "two logs", keeps its form.

    >>> flag_text("batch or first_step"), flag_text("two logs")
    ('--batch or --first-step', 'two logs')
    """
    return " or ".join(part if " " in part else f"--{part.replace('_', '-')}" for part in name.split(" or "))


def check_together(
    command: Any,
    *,
    needs: Mapping[str, str] = {},
    excludes: Mapping[str, tuple[Sequence[str], str]] = {},
    also: Mapping[str, bool] = {},
) -> None:
    """Check that the command-line flags that were given can be combined.

    Args:
        command: the command; flags that differ from their defaults count as given.
        needs: for a flag, the other flag that it requires.
        excludes: for a flag, the flags that it cannot be combined with, and the reason.
        also: further names in the tables, and whether they are given.

    Raises:
        ValueError: a flag lacks one that it requires, or cannot be combined with another.
    """
    values = {each.name: getattr(command, each.name) for each in fields(command) if each.default is not MISSING}
    flags = {name: value for name, value in values.items() if value != getattr(type(command), name)}
    flags |= {name: name for name, is_given in also.items() if is_given}
    for name, other in needs.items():
        if name in flags and other not in flags:
            value = flags[name]
            parts = value if isinstance(value, tuple) else (value,)
            shown = " ".join(str(word) for part in parts for word in (part if isinstance(part, tuple) else (part,)))
            raise ValueError(f"{flag_text(name)} requires {flag_text(other)}, got {shown!r} without it.")
    for name, (others, why) in excludes.items():
        if name in flags and (beside := [other for other in others if other in flags]):
            raise ValueError(f"{flag_text(name)} cannot be combined with {', '.join(map(flag_text, beside))}{why}")


@dataclass(frozen=True, kw_only=True)
class WithJson:
    """The command-line flag `--json`, for commands that print tables."""

    json: Annotated[bool, optional("print JSON instead of text (keys: docs/runs.md)", None)] = False


@dataclass(frozen=True, kw_only=True)
class ModelFlags(WithJson):
    """The command-line flags that name the configuration of a network: a file or a published model."""

    config: Annotated[Path | None, optional("config.json (Hugging Face) or nanoGPT's arguments", "FILE")] = None
    like: Annotated[str | None, optional("published model; an unknown name lists all", "NAME")] = None
    ignore: Annotated[tuple[str, ...], optional("keys of the configuration to ignore", "KEY [...]")] = ()

    drawn_by: Annotated[
        str,
        optional(
            "rule that initializes the weights; an unknown name lists all",
            "CODE",
            HUGGING_FACE,
        ),
    ] = HUGGING_FACE

    @property
    def description(self) -> Description:
        """Return the network's configuration that these command-line flags describe."""
        return Description(config=self.config, like=self.like, ignore=self.ignore, drawn_by=self.drawn_by)
