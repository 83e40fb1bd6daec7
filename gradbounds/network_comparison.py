"""Comparisons of networks as printed text: with changed fields, and samples with theory."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from checks.stacks.gradients_by_layer import Columns, matrices
from checks.statistics import agreement_text
from gradbounds.network_text import (
    SEEN,
    STREAM,
    ends_of_layers,
    matrix_name,
    number_text,
    ratio_text,
    with_cosines,
)
from gradbounds.plain_text import table_lines
from theory import Stack
from theory.configurations import Note
from theory.configurations.encoder_decoders import shares_ends
from theory.stack.quantities import QUANTITIES


def comparison_lines(
    changes: Sequence[str], tokens: tuple[int, int], table: Columns, other: Columns, notes: Sequence[Note] = ()
) -> list[str]:
    """Compare the predicted gradient norms of a network and of a changed network in one table.

    The table lists the ratio first layer / last layer, and the last layer's norms.

    Args:
        changes: changed fields, each as FIELD=VALUE.
        tokens: numbers of tokens of both networks.
        table: `layer_table` of the network.
        other: `layer_table` of the network with the changes.
        notes: notes on the network's configuration. The loss of a class that ties both ends is unknown.
    """
    value = "mean" if np.isnan(table["predicted"]).all() else "predicted"
    at = f"at {tokens[0]} tokens" if tokens[0] == tokens[1] else f"at {tokens[1]} tokens, compared with {tokens[0]}"
    table, other = with_cosines(table), with_cosines(other)
    heads = ["", "first / last layer", "changed", "last layer", "changed"]
    rows = []
    for name in dict.fromkeys([*matrices(table), *matrices(other), *STREAM]):
        both = (ends_of_layers(table, name, value), ends_of_layers(other, name, "predicted"))
        rows.append([matrix_name(name), *_end_texts(both, ratio=True), *_end_texts(both, ratio=False)])
    (loss, norm), (loss_changed, norm_changed) = _whole(table, value), _whole(other, "predicted")
    losses = f"{loss:.4g}, changed {loss_changed:.4g}" if not shares_ends(notes) else "unknown"
    return [
        "", f"Predictions {at}, without and (columns 'changed') with {', '.join(changes)}", *table_lines(heads, rows),
        f"  loss {losses}; gradient norm of all matrices {norm:.4g}, changed {norm_changed:.4g}",
    ]  # fmt: skip


def _whole(table: Columns, value: str) -> tuple[float, float]:
    """Return the loss and the gradient norm of all matrices from one column of a `layer_table`."""
    names, numbers = np.asarray(table["quantity"]), np.asarray(table[value], float)
    gradients = numbers[["grad_" in name for name in names]]
    return float(np.nanmean(numbers[names == "loss"])), float(np.nansum(gradients**2) ** 0.5)


def comparison_words(name: str, table: Columns, other: Columns) -> str:
    """Compare the gradient norms of two networks in one sentence.

    Args:
        name: name of the other network.
        table: `layer_table` of the network that it is compared with.
        other: `layer_table` of the other network.
    """
    ends = {of: [ends_of_layers(each, of, "predicted") for each in (table, other)] for of in matrices(table)}
    pairs = {of: [end for end in both if end is not None] for of, both in ends.items() if None not in both}
    if not pairs:
        return f"{name}: no matrix of its layers exists in this network, so nothing is compared."
    lasts = {of: there[2] / here[2] for of, (here, there) in pairs.items()}
    shifts = {of: abs(math.log(there[0] / here[0])) for of, (here, there) in pairs.items() if here[0] * there[0] > 0}
    most, least = max(lasts, key=lambda of: lasts[of]), min(lasts, key=lambda of: lasts[of])
    moved = max(shifts, key=lambda of: shifts[of], default=most)
    here, there = pairs[moved]
    return (
        f"{name}: the last layer's gradient norms are {lasts[least]:.3g} ({matrix_name(least)}) to {lasts[most]:.3g} "
        f"({matrix_name(most)}) times this network's. {matrix_name(moved)}, first layer / last layer: {there[0]:.3g}, "
        f"compared with {here[0]:.3g} in this network."
    )


def sample_comparison_lines(stack: Stack, rows: Any) -> list[str]:
    """Return a table, as text lines, of sampled and predicted quantities in the first and the last layer of a network.

    Gradients are root mean squares of norms. The verdict at the end of a line is on the mean square.

    Args:
        stack: the network.
        rows: the network's rows of `gradbounds.comparison`; rows without theory are omitted, unless none has theory.
    """
    if rows["predicted"].notna().any():
        rows = rows[rows["predicted"].notna()]
    of_encoder = [name in QUANTITIES and QUANTITIES[name].of_encoder for name in rows["quantity"]]
    last = np.where(of_encoder, stack.encoder_depth or stack.depth, stack.depth)
    lines = []
    for row in rows[rows["layer"].isin([0, 1]) | (rows["layer"] == last)].itertuples():
        mean, error, theory, name = row.mean, row.sem, row.predicted, str(row.quantity)
        if "grad_sq_" in name and mean > 0:
            mean, error, theory = mean**0.5, error / (2 * mean**0.5), theory**0.5
            name = name.replace("grad_sq_", "grad_")
        numbers = (f"{mean:.4g}", f"{error:.2g}", f"{theory:.4g}", f"{mean / theory:.3f}" if theory else "")
        known = ("" if text == "nan" else text for text in numbers)
        lines.append([matrix_name(name), str(row.layer or ""), *known, agreement_text(row.agreement)])
    return table_lines(["quantity", "layer", "measured", "error", "theory", "ratio", ""], lines)


def _end_texts(ends: Sequence[tuple[float, float, float, float] | None], *, ratio: bool) -> list[str]:
    """Format the ratios of first / last layer, or the last layer's values; a dash marks a missing number."""
    return [
        "-" if end is None else ratio_text(*end[:2]) if ratio else number_text(*end[2:], least=SEEN) for end in ends
    ]
