"""Gradient norms of single matrices in a log, by layer and role, beside theory's."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gradbounds.network_text import matrix_name
from theory.mean_field.kernels import Array

_ROLES = {
    "q_proj k_proj v_proj o_proj": "WQ WK WV WO", "wq wk wv wo": "WQ WK WV WO", "query key value": "WQ WK WV",
    "out_proj out_lin q_lin k_lin v_lin": "WO WO WQ WK WV", "gate_proj up_proj down_proj": "WG W1 W2",
    "w1 w2 w3": "WG W2 W1", "fc1 fc2 fc_in fc_out c_fc": "W1 W2 W1 W2 W1", "lin1 lin2": "W1 W2",
    "dense_h_to_4h dense_4h_to_h linear_fc1 linear_fc2": "W1 W2 W1 W2", "linear_proj": "WO",
}  # fmt: skip
ROLES: dict[str, tuple[str, ...]] = {
    name: (role,)
    for names, roles in _ROLES.items()
    for name, role in zip(names.split(), roles.split(), strict=True)
} | {
    "c_attn": ("WQ", "WK", "WV"), "qkv_proj": ("WQ", "WK", "WV"), "query_key_value": ("WQ", "WK", "WV"),
    "linear_qkv": ("WQ", "WK", "WV"), "gate_up_proj": ("WG", "W1"),
}  # fmt: skip
"""Matrices by the last part of their module's name in transformers, torchtitan and Megatron-LM."""


def matrix_of(name: str) -> tuple[int, tuple[str, ...]] | None:
    """The layer from 0 and the roles of a parameter; None of what is no matrix of a layer.

    >>> matrix_of("layers.3.self_attn.q_proj.weight")
    (3, ('WQ',))
    """
    parts = name.lower().rpartition("/")[2].removesuffix(".weight").split(".")
    layer = next((int(part) for part in parts if part.isdigit()), None)
    leaf, inside = parts[-1], ".".join(parts[:-1])
    if layer is None or "bias" in leaf or any("norm" in part for part in parts):
        return None
    if leaf in ("c_proj", "dense"):
        unit = "mlp" in inside or "output" in inside and "attention" not in inside
        return layer, ("W1",) if "intermediate" in inside else ("W2",) if unit else ("WO",)
    return (layer, ROLES[leaf]) if leaf in ROLES else None


def beside_theory(parameters: Mapping[str, float], squares: Mapping[str, Array]) -> tuple[pd.DataFrame, list[str]]:
    """Norms by layer and role beside theory's, and names that are no matrix of the network.

    Args:
        parameters: norms by name.
        squares: theory's squared norms by role, (L,) for matrices of layers.
    """
    rows, unmatched = [], []
    for name, norm in parameters.items():
        matrix = matrix_of(name)
        layer, roles = matrix or (0, ())
        roles = ("WG", "W1") if "linear_fc1" in name and "WG" in squares else roles  # of gated units both are one
        known = [squares[role] for role in roles if role in squares and np.ndim(squares[role])]
        if not roles or len(known) < len(roles) or layer >= len(known[0]):
            unmatched.append(name)
            continue
        theory = float(sum(square[layer] for square in known)) ** 0.5
        rows.append({"layer": layer + 1, "role": "+".join(roles), "logged": norm, "theory": theory})
    table = pd.DataFrame(rows, columns=["layer", "role", "logged", "theory"])
    return table.assign(ratio=table["logged"] / table["theory"]), unmatched


def layer_lines(table: pd.DataFrame, unmatched: list[str]) -> list[str]:
    """Which matrix is furthest off, ratios over theory by role and the layers where they are most and least."""
    lines = [f"Parameters of other names: {', '.join(unmatched[:8])}{', ...' * (len(unmatched) > 8)}."] * bool(
        unmatched
    )
    if table.empty:
        return lines
    middle = float(np.exp(np.log(table["ratio"]).median()))
    off = (np.log(table["ratio"]) - np.log(middle)).abs()
    worst = table.loc[off.idxmax()]
    named = " and ".join(matrix_name(f"grad_{role}") for role in str(worst["role"]).split("+"))
    head = [
        f"By layer and matrix logged norms are {middle:.3g} times theory's in the median. Furthest from that is "
        f"{named} of layer {worst['layer']}: {worst['logged']:.4g} where theory has {worst['theory']:.4g}, "
        f"{worst['ratio'] / middle:.3g} times the median's.",
    ]
    of_roles = [
        f"  {role:<9} {rows['ratio'].median():7.3g} times theory in the median, {rows['ratio'].min():.3g} in layer "
        f"{rows.loc[rows['ratio'].idxmin(), 'layer']} to {rows['ratio'].max():.3g} in layer "
        f"{rows.loc[rows['ratio'].idxmax(), 'layer']}"
        for role, rows in table.groupby("role", sort=False)
    ]
    return [*head, *of_roles, *lines]
