"""The network that a command is asked about: of flags, of a configuration file, or of a published model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradbounds.grid import FIELDS, field_name, field_value, said
from theory import Stack
from theory.configurations import Note, stack_from_config
from theory.configurations.training_codes import HUGGING_FACE
from theory.stack.registry import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What describes a network beside flags of single fields.

    Attributes:
        config: a file.
        like: a published model's name.
        ignore: keys of the file to leave out.
        drawn_by: the code whose rule gives the deviations of weights; "hf" is the model's own class.
    """

    config: Path | None = None
    like: str | None = None
    ignore: Sequence[str] = ()
    drawn_by: str = HUGGING_FACE

    def read(self, given: Mapping[str, Any]) -> tuple[Stack, tuple[Note, ...]]:
        """The network of a configuration with some fields given anew, or of those alone; and notes on the file.

        Raises:
            ValueError: there is neither a file nor a model whose keys are ignored or whose weights are drawn, or as
                `theory.configurations.stack_from_config`.
        """
        if self.config is None and self.like is None:
            if self.ignore:
                raise ValueError(f"ignore must stand with config or like, got {', '.join(self.ignore)} and neither.")
            if self.drawn_by != HUGGING_FACE:
                raise ValueError(f"drawn_by must stand with config or like, got {self.drawn_by!r} and neither.")
            return Stack(**given), ()
        ends = given.get("embeddings") if self.drawn_by != HUGGING_FACE else None
        stack, notes = stack_from_config(
            self.config, like=self.like, tokens=given.get("tokens", 16), embeddings=ends, ignore=self.ignore,
            drawn_by=self.drawn_by,
        )  # fmt: skip
        return replace(stack, **given), notes

    @property
    def is_model(self) -> bool:
        """Whether there is a file or a published model."""
        return self.config is not None or self.like is not None

    def grid(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The grid of the network, in which fields that are given anew have these values; or of those alone.

        Args:
            given: values of fields of the Stack, as `gradbounds.grid.stacks` takes them.

        Raises:
            ValueError: as `read`.
        """
        stack, _ = self.read({})
        if not self.is_model:
            return dict(given)
        values = {name: said(name, value) for name, value in vars(stack).items()}
        changed: dict[str, Any] = {n: value for n, value in values.items() if value != said(n, FIELDS[n].default)}
        return {"placement": stack.placement} | changed | dict(given)


def variants(changes: Sequence[str]) -> list[tuple[str, ...]]:
    """The changes of each network that is compared: a field that is given again begins another one.

    >>> variants(["placement=post", "placement=peri", "depth=4"])
    [('placement=post',), ('placement=peri', 'depth=4')]
    """
    networks: list[tuple[str, ...]] = []
    for change in changes:
        name = field_name(change.partition("=")[0])
        again = not networks or any(field_name(earlier.partition("=")[0]) == name for earlier in networks[-1])
        networks[len(networks) - (not again) :] = [(change,) if again else (*networks[-1], change)]
    return networks


def apply_changes(stack: Stack, changes: Sequence[str]) -> Stack:
    """The network with some fields of other values, each as FIELD=VALUE.

    Raises:
        ValueError: one is not of that form, or names no field, or the field does not take the value.
    """
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        name = field_name(name)
        if not equals or name not in FIELDS:
            raise ValueError(
                f"compare must be fields of a network and values, as placement=peri, got {change!r}."
                f"{nearest([name], FIELDS)}"
            )
        values[name] = field_value(name, value)
    return replace(stack, **values)
