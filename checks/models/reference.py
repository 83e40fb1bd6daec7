"""The comparison of a module with a reference: another module, or stored measurements of one.

This finds faults that all layers share. It compares the means of logarithms of norms (weights, gradients, activations)
over seeds, with an error from the scatter of both modules.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Alarm, Finding, escaped, merged, ratio_words
from simulate.modules.catalogue import drawn_anew, makes_one
from simulate.modules.exact_tests import ExactTests
from simulate.modules.factories import module_seed
from simulate.modules.one_module import is_module
from simulate.modules.probe import probe
from simulate.runs.files import write_whole
from theory.stack.documents import read_document

FILE = "probe.json"
"""The file that `probe --out` writes, for comparisons with other modules."""
RATE = 0.01
"""The false-alarm rate: how often at most a healthy module differs from a reference of its own kind."""
# What differs by less is the same for practical purposes.
_FACTOR = 1.25
_FORMAT = 1

_KEYS = ["width", "depth", "part", "layer", "parameter", "quantity"]
_SIGHT = {"sees_later": "later positions", "sees_earlier": "earlier positions", "sees_samples": "other samples"}
_SCALE = "logit_scale"
# Factors of q·k are exact but for the rounding of their products.
_SAME_SCALE = 0.01
_COMPARED = {
    "hidden_energy": "mean squared activation",
    "weight": "norm of {}",
    "gradient": "gradient of {}",
    "loss": "loss",
}


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The stored measurements of one module, with which other modules are compared.

    Attributes:
        name: the name of the module's factory.
        table: for every width, depth, part, layer (`WHOLE_MODEL`: the mean over the layers of a list), parameter and
            quantity the mean of the logarithms, their variance over seeds, and the number of seeds.
    """

    name: str
    table: pd.DataFrame

    def save(self, path: Path) -> None:
        """Write the reference measurements to a JSON file."""
        rows = self.table.to_dict("split")
        content = {"format": _FORMAT, "name": self.name, "columns": rows["columns"], "rows": rows["data"]}
        write_whole(path, (json.dumps(content) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> "Reference":
        """Read reference measurements from a JSON file.

        Raises:
            ValueError: the file was not written by `save`, or by another version.
        """
        try:
            content = read_document(path, "reference", "JSON")
            if content["format"] != _FORMAT:
                raise ValueError(f"reference {str(path)!r} must have format {_FORMAT}, got {content['format']}.")
            table = pd.DataFrame(content["rows"], columns=content["columns"])
            numbers = dict.fromkeys(("width", "depth", "layer", "seeds"), int) | {"mean": float, "variance": float}
            table = table[[*_KEYS, "mean", "variance", "seeds"]].astype(numbers)
            if (table["variance"] < 0).any() or (table["seeds"] < 1).any():
                raise ValueError("variances must be at least 0, and seeds at least 1")
            return cls(str(content["name"]), table)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"reference must be a probe.json that `probe --out` wrote, got {str(path)!r}: {error}"
            ) from error


def reference_of(name: str, frame: pd.DataFrame, tests: ExactTests | None = None) -> Reference:
    """Return the measurements of a module as a reference for other modules.

    Args:
        name: the name of the module's factory.
        frame: the measured numbers, as in `simulate.Probed.frame`.
        tests: the exact tests, as in `simulate.Probed.tests`; if given, visible positions and the factor of q·k are
            compared too.
    """
    rows = frame[frame["quantity"].isin(_COMPARED) & (frame["value"] > 0) & np.isfinite(frame["value"])]
    logs = rows.assign(value=np.log(rows["value"]))
    # Every seed's mean over the layers that all seeds have.
    whole = logs[logs["layer"] > 0].groupby([*_KEYS[:3], "parameter", "quantity", "seed"])["value"].mean().reset_index()
    logs = pd.concat([logs, whole.assign(layer=WHOLE_MODEL)], ignore_index=True)
    table = logs.groupby(_KEYS)["value"].agg(mean="mean", variance="var", seeds="count").reset_index()
    sizes = table.fillna({"variance": 0.0})[["width", "depth"]]
    if tests is not None and len(sizes):
        # Exact ones, of one module: 1 where a layer sees them, and the logarithm of a factor.
        rows = [
            (sizes["width"].min(), sizes["depth"].min(), part, layer, "", quantity, float(value > 0), 0.0, 1)
            for part, layer, _, quantity, value in tests.rows if layer and quantity in _SIGHT
        ]  # fmt: skip
        rows += [
            (sizes["width"].min(), sizes["depth"].min(), part, layer, name, quantity, float(np.log(value)), 0.0, 1)
            for part, layer, name, quantity, value in tests.rows if layer and quantity == _SCALE and value > 0
        ]  # fmt: skip
        table = pd.concat([table, pd.DataFrame(rows, columns=table.columns)], ignore_index=True) if rows else table
    return Reference(name, table)


def against_reference(found: Reference, reference: Reference, rate: float = RATE) -> list[Alarm]:
    """Report the differences between a module and a reference as alarms: about the whole model first, then the layers.

    Args:
        found: the module's measurements.
        reference: the measurements to compare with.
        rate: false-alarm rate of all comparisons together (Bonferroni), if logarithms are normal.

    Raises:
        ValueError: the two have no width and depth in common, or one seed each.
    """
    joined = found.table.merge(reference.table, on=_KEYS, how="outer", suffixes=("", "_other"), indicator="side")
    mine, other = (
        {tuple(size) for size in table[["width", "depth"]].drop_duplicates().to_numpy().tolist()}
        for table in (found.table, reference.table)
    )
    if not (common := mine & other):
        raise ValueError(f"reference must have a width and depth of {sorted(mine)}, got {sorted(other)}.")
    joined = joined[[(row.width, row.depth) in common for row in joined.itertuples()]]
    both = joined[joined["side"] == "both"]
    seen, scales = both[both["quantity"].isin(_SIGHT)], both[both["quantity"] == _SCALE]
    both = both[both["quantity"].isin(_COMPARED)]
    if (both["seeds"] + both["seeds_other"]).max() < 3:
        raise ValueError(
            "seeds must be at least 2 for the module or its reference, because one seed each gives no error estimate."
        )
    return sorted(
        merged([*_seeing(seen), *_scaled(scales), *_missing(joined), *_differing(both, rate)]), key=_causes_first
    )


def compare_modules(
    maker: Any, other: Any, *, seeds: int, seed: int, layers: Sequence[str], device: str
) -> tuple[list[Alarm], list[str]]:
    """Compare two modules, each made by a function without arguments, and return alarms and notes on their differences.

    Args:
        maker: the function to judge, or its name.
        other: the function to compare with, or its name.
        seeds: number of random networks of each.
        seed: root seed of the random networks.
        layers: glob patterns of the layers' names.
        device: the device of the modules.

    Raises:
        ValueError: one of them is not such a function; and as in `simulate.probe` and `against_reference`.
    """
    for function in (maker, other):
        is_function = ":" in function if isinstance(function, str) else callable(function) and not is_module(function)
        if not (is_function and makes_one(function)):
            raise ValueError(
                "against requires two functions without arguments, or their names, because several random networks of "
                f"each are made; got {function!r}."
            )
    references, notes = list[Reference](), list[str]()
    for place, function in enumerate((maker, other)):
        name, factory = str(function), drawn_anew(function, module_seed(seed, 0, 0, place), device)
        drawn = probe(factory, widths=[1], depths=[1], seeds=seeds, seed=seed, layers=layers, device=device, alone=True)
        references.append(reference_of(name, drawn.frame, drawn.tests))
        table = references[-1].table
        if not table.loc[table["quantity"] == "weight", "variance"].any():
            notes.append(f"{name} always returns the same network, so activations, gradients and loss are not compared")
    if notes:
        # The norm of a matrix is known from one draw; nothing is known of what else differs by chance.
        kept = ("weight", _SCALE, *_SIGHT)
        references = [Reference(of.name, of.table[of.table["quantity"].isin(kept)]) for of in references]
    return [replace(alarm, where=()) for alarm in against_reference(references[0], references[1])], notes


def _causes_first(alarm: Alarm) -> tuple[int, int]:
    """Return a sort key for differences: likely causes first, then differences of the whole model."""
    words = ("q.k is ", "sees ", "does not see ", "norm of", "has ", "lacks ", "mean squared")
    return next((k for k, word in enumerate(words) if alarm.what.startswith(word)), len(words)), alarm.layer


def _seeing(rows: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    """Report layers that depend on positions or samples unlike the reference's layers."""
    keys = ["width", "depth", "part", "quantity"]
    for (width, depth, part, quantity), of in rows.groupby(keys, sort=False):
        other = of[of["mean"] != of["mean_other"]]
        alike = len(other) == len(of) and other["mean"].nunique() == 1
        for row in other.head(1 if alike else len(other)).itertuples():
            what = f"{'sees' if row.mean else 'does not see'} {_SIGHT[str(quantity)]}, unlike the reference"
            yield (int(width), int(depth)), str(part), Finding(WHOLE_MODEL if alike else row.layer, "reference", what)


def _scaled(rows: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    """Report layers whose factor of q·k differs from the reference's; one finding if all layers differ equally."""
    for (width, depth, part), of in rows.groupby(["width", "depth", "part"], sort=False):
        other = of[(of["mean"] - of["mean_other"]).abs() > _SAME_SCALE]
        alike = len(other) == len(of) and np.ptp((other["mean"] - other["mean_other"]).to_numpy()) < _SAME_SCALE
        for row in other.head(1 if alike else len(other)).itertuples():
            factors = tuple(float(np.exp(x)) for x in (row.mean, row.mean_other, row.mean - row.mean_other))
            what = "q.k is multiplied by {} (reference: {}): attention logits are {} times as large"
            yield (
                (int(width), int(depth)),
                str(part),
                Finding(WHOLE_MODEL if alike else row.layer, "reference", what, factors),
            )


def _missing(joined: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    """Report parameters that only the module or only the reference has, or whose gradient or norm is 0 in one."""
    rows = joined[(joined["side"] != "both") & joined["quantity"].isin(["weight", "gradient"])]
    rows = rows[(rows["layer"] != WHOLE_MODEL) | (rows["part"] == "")]
    keys = ["width", "depth", "part"]
    lengths = joined.groupby(keys)["layer"].nunique() - 1
    for (width, depth, part, quantity, side), group in rows.groupby([*keys, "quantity", "side"], observed=True):
        counts = group.groupby("parameter")["layer"].nunique()
        everywhere = {*counts.index[counts == lengths[width, depth, part]]} if part else set()
        has = "has" if side == "left_only" else "lacks"
        places = {WHOLE_MODEL: sorted(everywhere)} if everywhere else {}
        by_layer = {int(layer): sorted({*names} - everywhere) for layer, names in group.groupby("layer")["parameter"]}
        places |= {layer: names for layer, names in by_layer.items() if names}
        for layer, names in places.items():
            where = " in its layers" if layer == WHOLE_MODEL and part else ""
            name = escaped(f"a nonzero {'norm' if quantity == 'weight' else quantity} of {', '.join(names)}{where}")
            what = f"{has} {name}, unlike the reference"
            yield (int(width), int(depth)), str(part), Finding(layer, "reference", what)


def _differing(both: pd.DataFrame, rate: float) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    table = both.assign(size=both["mean"] - both["mean_other"], limit=_limits(both, rate))
    keys = ["width", "depth", "part", "parameter", "quantity"]
    # Where no layer is beyond its limit, and the mean is not, there is nothing to say.
    beyond = table.loc[table["size"].abs() > table["limit"], keys].drop_duplicates()
    for (width, depth, part, parameter, quantity), rows in table.merge(beyond, on=keys).groupby(keys, sort=False):
        name = escaped(_COMPARED[str(quantity)].format(str(parameter)))
        (whole,) = rows[rows["layer"] == WHOLE_MODEL].itertuples() if (rows["layer"] == WHOLE_MODEL).any() else (None,)
        layers = rows[rows["layer"] != WHOLE_MODEL]
        shift = 0.0
        if whole is not None and abs(whole.size) > whole.limit and _all_differ(layers, whole.size):
            shift = whole.size
            yield (int(width), int(depth)), str(part), _finding(WHOLE_MODEL, name, whole.size, part)
        for row in layers.itertuples():
            if abs(row.size - shift) > row.limit:
                yield (int(width), int(depth)), str(part), _finding(int(row.layer), name, row.size, part)


def _limits(both: pd.DataFrame, rate: float) -> pd.Series:
    """Return the allowed differences of logarithms between module and reference, by Student's t.

    The limit is the larger of two: from the number's own scatter, and from the scatter of all layers and sizes. Among
    hundreds of numbers some have a small scatter by chance, and few seeds do not show rare events, such as two equal
    labels.
    """
    seeds, others = both["seeds"], both["seeds_other"]
    freedom = (seeds + others - 2).clip(lower=1)
    variance = ((seeds - 1) * both["variance"] + (others - 1) * both["variance_other"]) / freedom
    table = both.assign(whole=both["layer"] == WHOLE_MODEL, freedom=freedom, variance=variance)
    alike = ["part", "parameter", "quantity", "whole"]
    # Layers of one module are no draws of their own; other sizes are.
    every = table.groupby([*alike, "width", "depth"])["freedom"].max().groupby(alike).sum().rename("every")
    shared = table.groupby(alike)["variance"].transform("mean")
    level = rate / 2 / len(both)
    single = stats.t.isf(level, freedom) * np.sqrt(variance)
    of_all = stats.t.isf(level, table.join(every, on=alike)["every"]) * np.sqrt(shared)
    return np.maximum(np.log(_FACTOR), np.maximum(single, of_all) * np.sqrt(1 / seeds + 1 / others))


def _all_differ(layers: pd.DataFrame, size: float) -> bool:
    """Return whether most layers differ by about as much as their mean, so that the cause is not a single layer."""
    alike = bool((np.sign(layers["size"]) == np.sign(size)).all())
    return layers.empty or (alike and abs(float(layers["size"].median())) > abs(size) / 2)


def _finding(layer: int, name: str, size: float, part: object) -> Finding:
    where = " in its layers" if layer == WHOLE_MODEL and part else ""
    words, factor = ratio_words(size)
    return Finding(layer, "reference", f"{name}{where} is {words} the reference's", (factor,))
