"""The network that a command is asked about: of flags, of a configuration file, or of a published model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradbounds.grid import FIELDS, field_name, field_value, said
from theory import Stack
from theory.configurations import Note, stack_from_config
from theory.stack.registry import nearest


def read_network(
    given: Mapping[str, Any], config: Path | None, like: str | None, ignore: Sequence[str] = ()
) -> tuple[Stack, tuple[Note, ...]]:
    """The network of a configuration with some fields given anew, or of those alone; and notes on the file.

    Args:
        given: fields of the Stack.
        config: a file.
        like: a published model's name.
        ignore: keys of the file to leave out.

    Raises:
        ValueError: keys are ignored of neither a file nor a model, or as `theory.configurations.stack_from_config`.
    """
    if ignore and config is None and like is None:
        raise ValueError(f"ignore must stand with config or like, got {', '.join(ignore)} and neither.")
    if config is None and like is None:
        return Stack(**given), ()
    stack, notes = stack_from_config(config, like=like, tokens=given.get("tokens", 16), ignore=ignore)
    return replace(stack, **given), notes


def described_grid(
    given: Mapping[str, Any], config: Path | None, like: str | None, ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """The grid of a configuration's network, in which fields that are given anew have their values; or of those alone.

    Args:
        given: values of fields of the Stack, as `gradbounds.grid.stacks` takes them.
        config: a file.
        like: a published model's name.
        ignore: keys of the file to leave out.

    Raises:
        ValueError: as `read_network`.
    """
    if config is None and like is None and not ignore:
        return dict(given)
    stack, _ = read_network({}, config, like, ignore)
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
