"""The network that a command is about, described by flags, a configuration file or a published model's name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gradbounds.grid import FIELDS, field_name, field_value, field_values, said
from theory import Stack
from theory.configurations import Note, stack_from_config
from theory.configurations.training_codes import HUGGING_FACE, training_code
from theory.stack.placements import COMPOSITIONS
from theory.stack.registry import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The configuration of a network: a file or a published model's name, and the code that initializes its weights.

    Attributes:
        config: a configuration file, or its content.
        like: name of a published model.
        ignore: keys of the file to leave out.
        drawn_by: name of the code whose rule initializes the weights; "hf" is the model's own class.
    """

    config: Path | Mapping[str, Any] | None = None
    like: str | None = None
    ignore: Sequence[str] = ()
    drawn_by: str = HUGGING_FACE

    def read(self, given: Mapping[str, Any]) -> tuple[Stack, tuple[Note, ...]]:
        """Return the network of a configuration, with some fields changed, and notes on the configuration file.

        Raises:
            ValueError: there is neither a file nor a model whose keys are ignored or whose weights are drawn, or as
                `theory.configurations.configuration_file`.
        """
        if self.config is None and self.like is None:
            if self.ignore:
                raise ValueError(f"ignore requires config or like, got {', '.join(self.ignore)} without them.")
            if training_code(self.drawn_by):  # an unknown name lists all
                raise ValueError(f"drawn_by requires config or like, got {self.drawn_by!r} without them.")
            return Stack(**given), ()
        return stack_from_config(self.config, like=self.like, ignore=self.ignore, drawn_by=self.drawn_by, **given)

    def compared(self, given: Mapping[str, Any], changes: Sequence[str]) -> Stack:
        """Return the network of a configuration with changed fields, each given as FIELD=VALUE.

        Raises:
            ValueError: a change is not of that form, or names no field, or the field does not take the value.
        """
        return self.read({**given, **changed_values(changes)})[0]

    @property
    def is_model(self) -> bool:
        """Return whether the user named a configuration file or a published model."""
        return self.config is not None or self.like is not None

    def grid(self, given: Mapping[str, Any], *, zipped: bool = False) -> dict[str, Any]:
        """Return a grid of networks: one configuration, with several given values of some fields.

        Without a configuration, the grid consists of the given fields. At every width and depth the weights are
        initialized by the model's rule for that size: fields that the rule changes move together with the sizes.

        Args:
            given: values by field of the Stack, as in `gradbounds.grid.stacks`.
            zipped: whether widths and depths move together, and do not make a product.

        Raises:
            ValueError: the configuration cannot be read; see `read`.
        """
        if not self.is_model:
            self.read({})  # which refuses what only a model takes
            return dict(given)
        stack, _ = self.read({})
        values = {name: said(name, value) for name, value in vars(stack).items()}
        changed: dict[str, Any] = {n: value for n, value in values.items() if value != said(n, FIELDS[n].default)}
        grid = {"placement": stack.placement} | changed | dict(given)
        asked = {name: field_values(name, given[name]) for name in ("width", "depth") if name in given}
        moving = [name for name, values in asked.items() if self._following(stack, given, [name], zip(values)).keys()]
        if not moving:
            return grid
        names = list(asked) if zipped else moving
        sizes = list((zip if zipped else product)(*(asked[name] for name in names)))
        together = {name: [pair[k] for pair in sizes] for k, name in enumerate(names)}
        together |= self._following(stack, given, names, sizes)
        return grid | together | {"zip": [[*together]]}

    def _following(
        self, stack: Stack, given: Mapping[str, Any], names: Sequence[str], sizes: Iterable[tuple[Any, ...]]
    ) -> dict[str, list[Any]]:
        """Return the fields that the model's rule changes at some of these sizes, with one value for each size.

        Args:
            stack: network at the model's own sizes.
            given: fields that keep their values.
            names: names of the size fields.
            sizes: values of these fields, one tuple for each network.
        """
        each = [self.read(dict(zip(names, pair, strict=True)))[0] for pair in sizes]
        values = {name: [getattr(network, name) for network in each] for name in FIELDS if name not in {*given, *names}}
        return {name: of for name, of in values.items() if {*of} != {getattr(stack, name)}}


def variants(changes: Sequence[str]) -> list[tuple[str, ...]]:
    """Split a list of changed fields into the changes of each compared network.

    A repeated field or a `+` begins the next network. Several values of a field, separated by commas, are a network
    each.

    >>> variants(["placement=post", "placement=peri", "depth=4"])
    [('placement=post',), ('placement=peri', 'depth=4')]
    >>> variants(["placement=peri", "+", "depth=4"])
    [('placement=peri',), ('depth=4',)]
    >>> variants(["placement=peri", "depth=4,8"])
    [('placement=peri', 'depth=4'), ('placement=peri', 'depth=8')]
    >>> variants(["depth_mixing=[[1,0],[1,1]]"])
    [('depth_mixing=[[1,0],[1,1]]',)]
    """
    networks: list[dict[str, list[str]]] = [{}]
    for change in changes:
        field, equals, values = change.partition("=")
        if change == "+" or field_name(field) in networks[-1]:
            networks.append({})
        if change != "+":
            each = [values] if values.startswith("[") else values.split(",")  # a matrix is one value
            networks[-1][field_name(field)] = [f"{field}{equals}{value}" for value in each]
    return [choice for network in networks if network for choice in product(*network.values())]


def changed_values(changes: Sequence[str]) -> dict[str, Any]:
    """Return the values of changed fields, each given as FIELD=VALUE.

    Raises:
        ValueError: one is not of that form, or names no field, or the field does not take the value.

    >>> changed_values(["branch-scale=0"])
    {'branch_scale': 0.0}
    """
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        name = field_name(name)
        if not equals or name not in FIELDS:
            hint = nearest(value or name, COMPOSITIONS).replace("mean ", "mean placement=") or nearest([name], FIELDS)
            raise ValueError(
                f"compare must be fields of a network and values, as placement=peri, got {change!r}"
                + (" without a value." if name in FIELDS else f".{hint}")
            )
        values[name] = field_value(name, value)
    return values
