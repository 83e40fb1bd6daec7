"""The table of theory/configurations/classes.json, measured again with the classes of the installed transformers.

Classes are built small, with random weights. A newer version than the table's rewrites the table, so that a difference
is seen where it is committed; an older one is compared with it, and its deviations that differ are put beside.
"""

import dataclasses
import json
import math
from typing import Any

import pytest

from tests.helpers.evidence_file import FOLDER, record
from theory.configurations import stack_from_config
from theory.configurations.classes import CLASSES, FILE, MEASURED
from theory.stack import Stack
from theory.stack.weights import gain, transform_gain, weight_shapes

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

from tests.helpers import model_classes  # noqa: E402  # it needs transformers


def read(fields: dict[str, Any]) -> Stack | str:
    """The network of a configuration, or why there is none."""
    try:
        return stack_from_config(fields)[0]
    except ValueError as error:
        return str(error)


def whole_files(family: str) -> list[str]:
    """Fields of the Stack that a file with all its keys has otherwise than one that leaves them to the class."""
    few = {name: value for name, value in CLASSES[family].small.items() if "head_dim" not in name and "key" not in name}
    different = []
    for fields in ({}, dict(CLASSES[family].small), few):
        whole = transformers.CONFIG_MAPPING[family](**fields).to_dict()
        of_some, of_all = read({"model_type": family, **fields}), read(whole)
        refused = isinstance(of_some, str) and isinstance(of_all, str)  # in words that say whose number it is
        if of_some != of_all and not refused:
            different.append(json.dumps(fields))
    return different


def of_stack(family: str) -> dict[str, float]:
    """The deviations that the small network's reading has, by matrix."""
    stack, notes = stack_from_config({"model_type": family, **CLASSES[family].small})
    factors = {f"W^{role}": note.value for note in notes for role in "QK" if f"W^{role}" in note.field}
    found = {}
    for role in CLASSES[family].deviations:
        part = stack.encoder if role.startswith("encoder_") else stack
        plain = role.removeprefix("encoder_")
        if plain == "WH":
            found[role] = math.sqrt(transform_gain(stack) / stack.width)
        else:
            one = part.of_layer(part.depth)  # the first layers of some lack experts
            found[role] = math.sqrt(gain(one, plain) / weight_shapes(one)[plain][0])
        found[role] *= factors.get(f"W^{plain[-1]}", 1.0)
    return found


def differences(classes: dict[str, Any]) -> dict[str, Any]:
    """What of each family is another than in the table: deviations by more than 1%, defaults, ties."""
    found: dict[str, Any] = {}
    for family, one in classes.items():
        table, here = CLASSES[family], {}
        times = {role: value / table.deviations[role] for role, value in one["deviations"].items()}
        here["deviations"] = {role: round(value, 3) for role, value in times.items() if abs(value - 1) > 0.01}
        both = sorted(table.defaults.keys() & one["defaults"].keys())
        pairs = {name: [one["defaults"][name], table.defaults[name]] for name in both}
        here["defaults"] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        here["rope"] = [one["rope"], table.rope] if one["rope"] != table.rope else []
        here["tied"] = [one["tied"], table.tied] if tuple(one["tied"]) != table.tied else []
        here["own_heads"] = [one["own_heads"], table.own_heads] if one["own_heads"] != table.own_heads else []
        if here := {name: value for name, value in here.items() if value}:
            found[family] = here
    return found


def keep(version: str, found: dict[str, Any]) -> None:
    """Put what was found with one version beside what was with others."""
    file = FOLDER / "configuration-classes.json"
    versions = json.loads(file.read_text(encoding="utf-8"))["versions"] if file.is_file() else {}
    versions[version] = found
    record("configuration-classes", {"versions": {one: versions[one] for one in sorted(versions, key=numbers)}})


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


@pytest.mark.filterwarnings("ignore")
def test_the_table_is_what_the_classes_have():
    """Every deviation within 1% of the reading's, and files with all keys read like those with few."""
    version, table = transformers.__version__, json.loads(FILE.read_text(encoding="utf-8"))
    families = [one for one in model_classes.read_families() if one in transformers.CONFIG_MAPPING]
    measured = {family: dataclasses.asdict(model_classes.measured(family)) for family in families}
    found: dict[str, Any] = {
        "families": len(measured),
        "missing": sorted(set(model_classes.read_families()) - set(families)),
        "other than in the table": differences({name: one for name, one in measured.items() if name in CLASSES}),
    }
    if numbers(version) < numbers(MEASURED):
        for family in families:
            older = found["other than in the table"].get(family, {}).get("deviations")
            kept = {key: value for key, value in CLASSES[family].older.items() if key != version}
            table["classes"][family]["older"] = kept | ({version: older} if older else {})
        table["older"] = sorted({*table["older"], version}, key=numbers)
    else:
        for family, one in measured.items():
            one["older"] = dict(CLASSES[family].older) if family in CLASSES else {}
        table |= {"transformers": version, "classes": measured, "words": model_classes.families_of_words()}
        table["other types"], table["without words"] = model_classes.other_types()
    FILE.write_text(model_classes.table_text(table), encoding="utf-8")
    if numbers(version) < numbers(MEASURED):
        keep(version, found)
        return
    ratios = {
        f"{family} {role}": one["deviations"][role] / expected
        for family, one in measured.items()
        for role, expected in of_stack(family).items()
    }
    worst = max(ratios, key=lambda name: abs(ratios[name] - 1))
    found |= {"matrices": len(ratios), "furthest off": {worst: round(ratios[worst], 4)}}
    found["read otherwise from a whole file"] = {one: different for one in families if (different := whole_files(one))}
    keep(version, found)
    assert all(abs(ratio - 1) < 0.01 for ratio in ratios.values())
    assert not found["read otherwise from a whole file"]
