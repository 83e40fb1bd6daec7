"""Alarms that every newly initialized module of a model class raises, which are therefore no fault of one module."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

from checks.models.alarm import WHOLE_MODEL, Alarm
from simulate.modules.factories import seeded

KINDS = (
    "structure", "norm", "attention", "weight", "energy", "units", "bias", "growth", "residual", "detached",
    "vanishing", "exploding",
)  # fmt: skip
"""The kinds of alarms that the authors of a class may have meant."""
DRAWS = 4
"""The number of new modules. A number close to its limit raises an alarm in some of them only."""
_LAYERS = re.compile(r" \[(all layers|layers [\d, ]+)\]")
_NUMBER = re.compile(r"[\d.]+(?:e[+-]?\d+)?(?: to [\d.]+(?:e[+-]?\d+)?)?")
_NAME = re.compile(r"[\w*]*[A-Za-z*][\w*]*[._][\w.*]+")

Place = tuple[str, str, str]
"""List, kind, and the words of an alarm without its numbers, names and layers."""


def drawn_alike(
    module: Any, wrong: Sequence[Alarm], depths: Mapping[str, int],
    judged: Callable[[Any, int], Iterable[Alarm]], seed: int,
) -> list[Alarm]:  # fmt: skip
    """Return the alarms that newly initialized modules of the same class and configuration raise as well.

    Args:
        module: the judged module. A class in the user's own files is never excused, and neither is a module whose
            configuration sets the size of initial weights to another number than the class's default.
        wrong: the module's alarms.
        depths: the number of layers of each list.
        judged: function of a new module and its number that returns its alarms.
        seed: the seed of the module; the new modules have the next ones.
    """
    asked = [alarm for alarm in wrong if alarm.kind in KINDS]
    config = getattr(module, "config", None)
    if not asked or not _is_installed(module):
        return []
    if config is None:
        return [alarm for alarm in asked if _is_code(alarm, module)]
    names, layers = dict[Place, set[str]](), dict[Place, set[int]]()
    with suppress(Exception):
        # Somebody else's class may take other arguments, or fail in any way.
        if _draws_of_the_user(config):
            return []
        for draw in range(1, DRAWS + 1):
            with seeded(seed + draw):
                new = type(module)(deepcopy(config))
            new.to(next(module.parameters())).train(module.training)
            for alarm in judged(new, draw):
                place, named, numbers = _parts(alarm, depths)
                names.setdefault(place, set()).update(named)
                layers.setdefault(place, set()).update(numbers)
            if all(_among(alarm, depths, names, layers) for alarm in asked):
                break
    return [alarm for alarm in asked if _among(alarm, depths, names, layers)]


def _among(
    alarm: Alarm, depths: Mapping[str, int], names: Mapping[Place, set[str]], layers: Mapping[Place, set[int]]
) -> bool:
    place, named, numbers = _parts(alarm, depths)
    return place in names and named <= names[place] and numbers <= layers[place]


def _parts(alarm: Alarm, depths: Mapping[str, int]) -> tuple[Place, set[str], set[int]]:
    """Return the place of an alarm, the parameters or modules that it names, and its layers."""
    match = _LAYERS.search(alarm.what)
    part = alarm.part
    if "logits are q.k times" in alarm.what:
        # The factor belongs to the code; the draw decides in which layers it is felt.
        part, layers = "", set[int]()
    elif match is None:
        layers = {alarm.layer}
    else:
        every = range(1, depths.get(alarm.part, 0) + 1)
        layers = {*(every if match[1] == "all layers" else map(int, re.findall(r"\d+", match[1])))}
    text = _LAYERS.sub("", alarm.what)
    words = re.sub(r"[\s,]+", " ", _NUMBER.sub("#", _NAME.sub("", text)))
    return (part, alarm.kind, words), {*_NAME.findall(text)}, layers


def _draws_of_the_user(config: Any) -> bool:
    """Return whether a field about initial weights differs from the default of the configuration's class."""
    default = vars(type(config)())
    return any(
        isinstance(value, float) and ("init" in name or name.endswith("_std")) and value != default.get(name, value)
        for name, value in vars(config).items()
    )


def _is_code(alarm: Alarm, module: Any) -> bool:
    """Return whether an alarm is about an installed class's code, for a module without a configuration.

    Weights of attention that do not add up to 1, and the factor of q·k, do not depend on the weights' draw. They count
    as code if several layers share them, and so do parameters that the first layer alone lacks. A norm whose output is
    linear in its input counts too if all modules are of installed classes. EvoNorm without its activation, for example,
    only scales its input.
    """
    several = alarm.layer == WHOLE_MODEL or _LAYERS.search(alarm.what) is not None
    shared = "query add up to" in alarm.what or "logits are q.k times" in alarm.what
    first = alarm.kind == "structure" and alarm.layer == 1
    if alarm.kind == "norm" and "grows as input^1," in alarm.what:
        return all(_is_installed(part) for part in module.modules())
    return first or (alarm.kind == "attention" and several and shared)


def _is_installed(module: Any) -> bool:
    """Return whether a module's class is in an installed package, and its forward is the class's own."""
    source = getattr(sys.modules.get(type(module).__module__), "__file__", "")
    return "-packages" in str(source) and "forward" not in vars(module)
