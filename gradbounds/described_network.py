"""The network that a command is asked about: of flags, of a configuration file, or of a published model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradbounds.grid import FIELDS, field_name, field_value, field_values, said
from theory import Stack
from theory.configurations import Note, stack_from_config
from theory.configurations.training_codes import HUGGING_FACE
from theory.stack.registry import nearest

_OF_ROOT_WIDTH = ("query_key_scale", "output_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What describes a network beside flags of single fields.

    Attributes:
        config: a file, or what is in it.
        like: a published model's name.
        ignore: keys of the file to leave out.
        drawn_by: the code whose rule gives the deviations of weights; "hf" is the model's own class.
    """

    config: Path | Mapping[str, Any] | None = None
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
        return resized(stack, given), notes

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
        grid = {"placement": stack.placement} | changed | dict(given)
        scaled = [name for name in _OF_ROOT_WIDTH if name not in given]
        if "width" not in given or not scaled:
            return grid
        # Entries keep their deviations at every width.
        widths = field_values("width", given["width"])
        each = {name: [getattr(stack, name) * (width / stack.width) ** 0.5 for width in widths] for name in scaled}
        return grid | {"width": widths} | each | {"zip": [["width", *scaled]]}


def resized(stack: Stack, values: Mapping[str, Any]) -> Stack:
    """A model's network with some fields of other values; at another width entries keep their standard deviations.

    Of queries, keys and the output matrix the fields are these times the root of the width.
    """
    share = (values.get("width", stack.width) / stack.width) ** 0.5
    scales = {name: getattr(stack, name) * share for name in _OF_ROOT_WIDTH} if share != 1.0 else {}
    return replace(stack, **scales | dict(values))


def variants(changes: Sequence[str]) -> list[tuple[str, ...]]:
    """The changes of each network that is compared: a field that is given again begins another one, and so does a +.

    >>> variants(["placement=post", "placement=peri", "depth=4"])
    [('placement=post',), ('placement=peri', 'depth=4')]
    >>> variants(["placement=peri", "+", "depth=4"])
    [('placement=peri',), ('depth=4',)]
    """
    networks: list[tuple[str, ...]] = []
    fresh = True
    for change in changes:
        if change == "+":
            fresh = True
            continue
        name = field_name(change.partition("=")[0])
        if fresh or any(field_name(earlier.partition("=")[0]) == name for earlier in networks[-1]):
            networks.append((change,))
        else:
            networks[-1] = (*networks[-1], change)
        fresh = False
    return networks


def apply_changes(stack: Stack, changes: Sequence[str], *, of_model: bool = False) -> Stack:
    """The network with some fields of other values, each as FIELD=VALUE; that of a model keeps its entries' deviations.

    Raises:
        ValueError: one is not of that form, or names no field, or the field does not take the value.
    """
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        name = field_name(name)
        if not equals or name not in FIELDS:
            raise ValueError(
                f"compare must be fields of a network and values, as placement=peri, got {change!r}"
                + (" without a value." if name in FIELDS else f".{nearest([name], FIELDS)}")
            )
        values[name] = field_value(name, value)
    return resized(stack, values) if of_model else replace(stack, **values)
