"""Logged gradient norms of single matrices, compared with predicted norms or with a module's own norms."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gradbounds.actions.log_names import bare, unwrapped
from gradbounds.network_text import matrix_name
from theory.mean_field.kernels import Array

if TYPE_CHECKING:
    from simulate.modules.probe import Probed  # loads torch

_ROLES = {
    "q_proj k_proj v_proj o_proj": "WQ WK WV WO", "wq wk wv wo": "WQ WK WV WO", "query key value": "WQ WK WV",
    "out_proj out_lin q_lin k_lin v_lin": "WO WO WQ WK WV", "gate_proj up_proj down_proj": "WG W1 W2",
    "w1 w2 w3": "WG W2 W1", "fc1 fc2 fc_in fc_out c_fc": "W1 W2 W1 W2 W1", "lin1 lin2": "W1 W2",
    "dense_h_to_4h dense_4h_to_h linear_fc1 linear_fc2": "W1 W2 W1 W2", "linear_proj": "WO",
    "attn_out ff_proj ff_out": "WO W1 W2",
}  # fmt: skip
_FUSED = ("c_attn", "qkv_proj", "query_key_value", "linear_qkv", "wqkv", "att_proj", "qkv")
# Modules that contain the gate and the first matrix of a gated MLP together.
_FUSED_UNITS = ("linear_fc1", "ff_proj")
ROLES: dict[str, tuple[str, ...]] = {
    name: (role,)
    for names, roles in _ROLES.items()
    for name, role in zip(names.split(), roles.split(), strict=True)
} | {name: ("WQ", "WK", "WV") for name in _FUSED} | {"gate_up_proj": ("WG", "W1")}  # fmt: skip
"""Roles by the last part of a module's name in transformers, torchtitan, Megatron-LM, OLMo and Composer."""

# The suffixes that loggers append to the name of a parameter.
_NORM = re.compile(r"(?:(?<=weight)_|[./])(?:grad(?:ient)?_?)?(?:norm|l2)$|[./]grad(?:ient)?s?$|(?<=weight)_step$")
_LAYER = re.compile(r"(?:(?:layers?|blocks?|h)_?)?\d+")
_NUMBER_OF_LAYER = re.compile(r"((?:^|[./_])(?:layers?|blocks?|h)_?)\d+(?=[./_])|(?<=[./])\d+(?=[./])", re.IGNORECASE)
# The factor by which a matrix's ratio logged / predicted may differ from the median; in the tested run it is 1.25.
_FAR = 2.0
_SHOWN = 8
# The matrices of units, of queries and keys, and of values. The mean and the standard deviation of the logarithm of the
# first two kinds' ratio logged / predicted, over the values' ratio, if the text is another one. In 120 logs of five
# networks on eight raw texts (docs/report.md), root mean squares are 0.93 and 0.87 of these deviations, and the
# furthest matrix of a kind is 0.44 from the kind's median.
_KINDS = ("W1", "W2", "WG"), ("WQ", "WK"), ("WV", "WO")
_PROPORTIONS = ((0.0, 0.17), (-0.4, 0.6))
_OF_MATRIX = 0.44


def matrix_of(name: str) -> tuple[int, tuple[str, ...]] | None:
    """Return the layer (from 0) and the matrices that a parameter contains, from its name; None if it is in no layer.

    A logger's prefix up to a slash and the suffixes `.grad` and `/norm` are ignored. The first number is the layer, and
    the last word is the role.

    >>> matrix_of("layers.3.self_attn.q_proj.weight")
    (3, ('WQ',))
    >>> matrix_of("gradients/transformer.h.0.attn.c_attn.weight")
    (0, ('WQ', 'WK', 'WV'))
    """
    plain = _NORM.sub("", bare(name.lower())).removesuffix(".weight").removesuffix("/weight")
    tail = re.split(r"[./]", plain.rpartition("/")[2])
    for parts in (tail, re.split(r"[./]", plain)):
        number = next((k for k, part in enumerate(parts[:-1]) if _LAYER.fullmatch(part)), None)
        if number is not None:
            break
    else:
        return None
    layer, leaf, inside = int(re.sub(r"\D", "", parts[number])), parts[-1], ".".join(parts[number:-1])
    if "bias" in leaf or any("norm" in part for part in parts[number:]):
        return None
    if leaf in ("c_proj", "dense"):
        unit = "mlp" in inside or "output" in inside and "attention" not in inside
        return layer, ("W1",) if "intermediate" in inside else ("W2",) if unit else ("WO",)
    return (layer, ROLES[leaf]) if leaf in ROLES else None


def compare_with_theory(
    parameters: Mapping[str, float], squares: Mapping[str, Array]
) -> tuple[pd.DataFrame, list[str]]:
    """Compare logged with predicted gradient norms by layer and matrix; also list names that match no matrix.

    Names with invalid norms come first. If some names contain `grad`, other names belong to other quantities, such as
    weights.

    Args:
        parameters: logged norms by parameter name.
        squares: theory's squared norms by role, (L,) for matrices of layers; NaN for unknown ones.
    """
    marked = any("grad" in name.lower() for name in parameters)

    def reference(name: str) -> dict[str, Any] | None:
        matrix = matrix_of(name) if not marked or "grad" in name.lower() else None
        layer, roles = matrix or (0, ())
        roles = ("WG", "W1") if any(fused in name for fused in _FUSED_UNITS) and "WG" in squares else roles
        known = [squares[role] for role in roles if role in squares and np.ndim(squares[role])]
        if matrix is None or len(known) < len(roles) or layer >= len(known[0]):
            return None
        theory = float(sum(square[layer] for square in known)) ** 0.5
        return None if math.isnan(theory) else {"layer": layer + 1, "role": "+".join(roles), "theory": theory}

    return _compared(parameters, reference)


def compare_with_module(parameters: Mapping[str, float], measured: "Probed") -> tuple[pd.DataFrame, list[str]]:
    """Compare logged gradient norms with a module's own on one batch; also list names that match no matrix.

    Args:
        parameters: logged norms by names that contain the module's own name of the parameter.
        measured: the probed module.

    Returns:
        A table like `compare_with_theory`'s, in which a role is a layer list and a parameter name, and "theory" is the
        module's own norm; and the unmatched names.
    """
    frame = measured.frame
    kept = {(row.part, row.layer, row.parameter) for row in frame[frame["quantity"] == "shortest"].itertuples()}
    gradients = {
        unwrapped(f"{measured.names[row.part, row.layer]}.{row.parameter}"): row
        for row in frame[frame["quantity"] == "gradient"].itertuples()
        if (row.part, row.layer, row.parameter) in kept and row.value > 0
    }

    def reference(name: str) -> dict[str, Any] | None:
        # The longest: an encoder's layers stand in the names of a decoder's, if these are called by the same.
        whole = (each for each in gradients if re.search(rf"(?<![^\W_]){re.escape(each)}(?![^\W_])", name))
        known = max(whole, key=len, default=None)
        at = gradients[known] if known else None
        return at and {"layer": at.layer, "role": f"{at.part}: {at.parameter}", "theory": at.value}

    return _compared(parameters, reference)


def _compared(
    parameters: Mapping[str, float], reference: Callable[[str], dict[str, Any] | None]
) -> tuple[pd.DataFrame, list[str]]:
    # Return the table of norms whose reference is found by name, and the other names, those of invalid norms first.
    rows = {name: reference(name) for name in parameters}
    norms = {name: norm for name, norm in parameters.items() if rows[name]}
    vanishing = [f"{name}, which is {norm:g}" for name, norm in norms.items() if not 0 < norm < math.inf]
    table = pd.DataFrame(
        [{**(rows[name] or {}), "logged": norm, "name": name} for name, norm in norms.items() if 0 < norm < math.inf],
        columns=["layer", "role", "logged", "theory", "name"],
    )
    return table.assign(ratio=table["logged"] / table["theory"]), [
        *vanishing,
        *(name for name in rows if not rows[name]),
    ]


def patterns_of(names: Iterable[str]) -> list[str]:
    """Merge parameter names that differ only in the number of the layer into one name with a star, and count them.

    >>> patterns_of(["h.0.ln_1.bias", "h.1.ln_1.bias", "h.1.rotary.weight"])
    ['h.*.ln_1.bias (2)', 'h.1.rotary.weight']
    >>> patterns_of(["layer0_ln_1_gnorm", "layer1_ln_1_gnorm"])
    ['layer*_ln_1_gnorm (2)']
    """
    groups = dict[str, list[str]]()
    for name in names:
        groups.setdefault(_NUMBER_OF_LAYER.sub(r"\1*", name), []).append(name)
    return [f"{pattern} ({len(group)})" if len(group) > 1 else group[0] for pattern, group in groups.items()]


def names_line(names: Iterable[str]) -> str:
    """Return a line of text with parameter names; equal names of several layers are merged, and a long list is cut."""
    patterns = patterns_of(names)
    return ", ".join(patterns[:_SHOWN]) + ", ..." * (len(patterns) > _SHOWN)


def furthest(table: pd.DataFrame) -> tuple[int, float]:
    """Return the row of the matrix whose ratio logged / predicted is furthest from the median, and by which factor."""
    middle = float(np.exp(np.log(table["ratio"]).median()))
    row = int((np.log(table["ratio"]) - np.log(middle)).abs().idxmax())
    return row, float(table.loc[row, "ratio"]) / middle


def far_lines(table: pd.DataFrame, fine: str) -> list[str]:
    """Report a matrix with an unusual gradient norm although the loss and the total gradient norm agree with theory.

    Args:
        table: table of `compare_with_theory`.
        fine: beginning of the sentence, which states the numbers that are as predicted.
    """
    if table.empty or not np.isfinite(table["ratio"]).all():
        return []
    row, times = furthest(table)
    if 1 / _FAR < times < _FAR:
        return []
    role, layer = table.loc[row, ["role", "layer"]]
    return [
        f"{fine}, except {_called(str(role))} of layer {layer}: its ratio logged / predicted is "
        f"{times:.3g} times the median ratio."
    ]


def proportions_off(table: pd.DataFrame) -> tuple[float, ...]:
    """Return how far the proportions of logged norms are from their predictions, in standard deviations.

    The proportions are those of units, and of queries and keys, over values, and of a matrix over others of its kind.
    Twice the standard deviation of all weights multiplies the norms of queries and keys by 3 to 8, next to those of
    values. It doubles the norms of gated units. Texts change both less. Kinds that the log lacks are omitted.

    Args:
        table: table of `compare_with_theory`.
    """
    kinds = table["role"].replace({role: kind[0] for kind in _KINDS for role in kind})
    ratios = np.log(table["ratio"].clip(upper=1e9)).groupby(kinds)  # some weights are zero, and so the prediction
    *means, values = ratios.mean().reindex([kind[0] for kind in _KINDS])
    furthest = float((ratios.transform(lambda each: each - each.median())).abs().max())
    offs = [*((mean - values - middle) / off for mean, (middle, off) in zip(means, _PROPORTIONS, strict=True))]
    return tuple(off for off in (*offs, furthest / _OF_MATRIX) if not math.isnan(off))


def _called(role: str) -> str:
    if ": " in role:
        return f"the gradient of {role.partition(': ')[2]}"
    return " and ".join(matrix_name(f"grad_{part}") for part in role.split("+"))


def layer_lines(table: pd.DataFrame, unmatched: list[str], beside: str = "theory") -> list[str]:
    """Report the ratio logged / predicted norm for every kind of matrix, and the matrix furthest from the median ratio.

    Each role's line ends with the names that were read as this role.

    Args:
        table: table of `compare_with_theory` or `compare_with_module`.
        unmatched: names that match no matrix.
        beside: name of the reference: "theory" or "the module".
    """
    lines = [f"Parameters not compared: {names_line(unmatched)}."] if unmatched else []
    if table.empty:
        return lines
    middle = float(np.exp(np.log(table["ratio"]).median()))
    row, times = furthest(table)
    worst = table.loc[row]
    return [
        f"Norms by layer and matrix, logged / {beside}: median {middle:.3g}. Furthest from the median: "
        f"{_called(str(worst['role']))} of layer {worst['layer']}, logged {worst['logged']:.4g}, {beside} "
        f"{worst['theory']:.4g}, {times:.3g} times the median.",
        *(
            f"  {role:<9} {rows['ratio'].median():7.3g} times {beside} in the median, {rows['ratio'].min():.3g} in "
            f"layer {rows.loc[rows['ratio'].idxmin(), 'layer']} to {rows['ratio'].max():.3g} in layer "
            f"{rows.loc[rows['ratio'].idxmax(), 'layer']}; read from {', '.join(patterns_of(rows['name']))}"
            for role, rows in table.groupby("role", sort=True)
        ),
        *lines,
    ]
