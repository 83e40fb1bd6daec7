"""One network as text: theory's norms layer by layer, samples over theory, and what differs between layers."""

import math

import numpy as np
import pandas as pd

from checks.large_width import why_not_judged
from checks.stacks.gradients_by_layer import matrices
from theory import Stack
from theory.stack import TITLES

_STREAM = {"hidden_energy": "|x|^2/d", "token_correlation": "x_i.x_j/d"}

# First layer over last, up to so much in the logarithm.
_FLAT = 0.05


def network_lines(stack: Stack, table: pd.DataFrame, reason: str) -> list[str]:
    """What theory and samples have of one network.

    Args:
        stack: the network.
        table: its `layer_table`.
        reason: why theory has no rule; "" if it has one.
    """
    has_theory, draws = bool(table["predicted"].notna().any()), int(table["draws"].max())
    lines = [_title(stack), ""]
    if has_theory:
        lines += ["Large-width theory: root mean squares of the gradients' Frobenius norms, layer by layer"]
        lines += [*_block(table, "predicted"), ""]
        worst = (table["predicted_sem"] / table["predicted"].abs()).max()
        if worst > 0:
            what = "logits" if stack.embeddings == "tied" else "attention patterns"
            lines += [f"Theory samples {what} here, with standard errors of at most {100 * worst:.2g}%.", ""]
        if why := why_not_judged(stack):
            lines += [f"Theory may be off by more than 3% here ({why}).", ""]
    else:
        lines += [f"Theory: {reason}", ""]
    if draws:
        shown = table
        if has_theory:
            shown = table.assign(mean=table["mean"] / table["predicted"], sem=table["sem"] / table["predicted"].abs())
        what = "Samples over theory" if has_theory else "Samples, root mean squares"
        lines += [f"{what}: {draws} networks, +- standard error", *_block(shown, "mean", "sem"), ""]
    return [*lines, *_over_layers(table, "predicted" if has_theory else "mean")]


def _title(stack: Stack) -> str:
    sizes = {name: getattr(stack, name) for name in ("width", "depth", "tokens", "vocab")}
    named = {name: value for name, value in (sizes | stack.non_default()).items() if name != "placement"}
    fields = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in named.items()]
    return f"{TITLES[stack.placement]}: {', '.join(fields)}"


def _block(table: pd.DataFrame, value: str, error: str = "") -> list[str]:
    """A line per layer and a column per stream statistic and matrix; of an encoder first, if there is one."""
    lines = []
    for prefix in ("encoder_", ""):
        wanted = [prefix + name for name in _STREAM]
        wanted += [name for name in matrices(table) if name.startswith("encoder_") == bool(prefix)]
        rows = table[table["quantity"].isin(wanted) & (table["layer"] > 0) & table[value].notna()]
        if rows.empty:
            continue
        columns = [name for name in wanted if name in set(rows["quantity"])]
        errors = rows[error] if error else np.zeros(len(rows))
        texts = [_number(*both) for both in zip(rows[value], errors, strict=True)]
        cells = dict(zip(zip(rows["quantity"], rows["layer"], strict=True), texts, strict=True))
        width = max(11, *(len(text) + 2 for text in cells.values()))
        heads = "".join(f"{matrix_name(name):>{width}}" for name in columns)
        lines += ["encoder"] if prefix else []
        lines.append("  layer" + heads)
        for layer in sorted({layer for _, layer in cells}):
            lines.append(f"{layer:>7}" + "".join(f"{cells.get((name, layer), '-'):>{width}}" for name in columns))
    whole = table[(table["layer"] == 0) & table[value].notna()].set_index("quantity")
    outside = [
        f"{head} {_number(whole.loc[name, value], whole.loc[name, error] if error else 0.0)}"
        for name, head in (("grad_Wemb", "dL/dW_emb"), ("loss", "loss"))
        if name in whole.index
    ]
    return [*lines, "  " + ",  ".join(outside)]


def matrix_name(name: str) -> str:
    """A quantity of a `layer_table` as a column's head."""
    plain = name.removeprefix("encoder_")
    return _STREAM.get(plain, plain.replace("grad_", "dL/d"))


def _number(value: float, error: float) -> str:
    """With an error, as many decimals as its two leading digits have; else four digits."""
    if not error > 0:
        return f"{value:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    if decimals > 6 or abs(value) >= 1e6:
        return f"{value:.4g} +- {error:.2g}"
    return f"{value:.{decimals}f} +- {error:.{decimals}f}"


def _over_layers(table: pd.DataFrame, value: str) -> list[str]:
    """By how much the first layer's gradients differ from the last's, and which do not; of an encoder by itself."""
    said: dict[str, list[str]] = {}
    for name in matrices(table):
        norms = table[(table["quantity"] == name) & table[value].notna()].sort_values("layer")[value].to_numpy()
        if len(norms) > 1 and norms[-1] > 0:
            ratio = norms[0] / norms[-1]
            whose = ", encoder" if name.startswith("encoder_") else ""
            said.setdefault(whose, []).append(f"{matrix_name(name)} {ratio:.3g}{' (flat)' * _is_flat(ratio)}")
    return [
        f"Norms of the first layer over the last layer's{whose}: {', '.join(texts)}." for whose, texts in said.items()
    ]


def _is_flat(ratio: float) -> bool:
    return abs(math.log(ratio)) < _FLAT if ratio > 0 else False
