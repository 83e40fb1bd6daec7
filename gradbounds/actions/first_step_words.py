"""The printed table of predicted first optimizer steps, and how each number scales with width and depth."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gradbounds.actions.plan import batch_text
from gradbounds.grid import FIELDS, said, with_words
from theory.configurations import Note
from theory.configurations.comparisons import compared_step
from theory.stack import TITLES, Stack
from theory.stack.optimizers import NAMES, Optimizer

# Fields of which every table has a column.
_ALWAYS = ("width", "depth", "tokens")


def _varying(table: pd.DataFrame) -> list[str]:
    """Return the fields other than the placement that differ between networks, and always width, depth and tokens."""
    fields = [name for name in FIELDS if name != "placement" and name in table]
    return [name for name in fields if name in _ALWAYS or table[name].nunique(dropna=False) > 1]


def table_lines(table: pd.DataFrame) -> list[str]:
    """Return the table of first optimizer steps as text, with a legend and the reasons for missing numbers."""
    varying, has_draws = _varying(table), bool((table["draws"] > 0).any())
    named = with_words(table)
    shown = pd.DataFrame({"placement": [TITLES[name] for name in table["placement"]]} | {n: named[n] for n in varying})
    shown["optimizer"] = table["optimizer"].map(NAMES)
    shown["critical rate"] = [_number(value) for value in table["critical_rate"]]
    shown["off by up to"] = [
        f"{100 * error:.2g}%" + (" or more" if why else "") if np.isfinite(error) else "-"
        for error, why in zip(table["critical_rate_error"], table["no_coefficient"], strict=True)
    ]
    if has_draws:
        pairs = zip(table["sampled_rate"], table["sampled_sem"], strict=True)
        shown["networks"] = [f"{rate:.3g} +- {sem:.1g}" if np.isfinite(rate) else "-" for rate, sem in pairs]
        shown["ratio"] = [_number(value) for value in table["sampled_rate"] / table["critical_rate"]]
        shown["break-even"] = [_number(value) for value in table["break_even_rate"]]
    shown["most of the gain"] = table["most_of_the_gain"]
    shown["most of the curvature"] = table["most_of_the_curvature"]
    shown["updates"] = [_number(value) for value in table["update_ratio"]]
    shown["noise scale"] = ["none" if np.isinf(value) else _number(value) for value in table["noise_scale"]]
    tokens = " or ".join(map(str, dict.fromkeys(table["tokens"])))
    of_batch = batch_text(int(table["sequences"].max()), tokens, None)
    lines = [
        f"Step 1 of {of_batch}."
        + " A batch of text has other critical rates: --batch 64 --learning-rate R." * ("" in [*table["no_rule"]]),
        "critical rate: learning rate above which step 1 raises the quadratic (Gauss-Newton) loss, 2 g.u/u'Gu.",
    ]
    if has_draws:
        draws = int(table["draws"].max())
        lines.append(
            f"networks: critical rate from means over {draws} sampled networks; break-even: median learning "
            "rate at which "
            "step 1 leaves their loss unchanged."
        )
    lines.append("off by up to: largest expected error of the critical rate at this width.")
    # Two sequences share nothing where units are odd in the mean, as gated ones are.
    shared = "; none: the gradients of two such sequences have no common part" * bool(
        np.isinf(table["noise_scale"]).any()
    )
    lines += [
        "noise scale (theory): batch size above which a larger batch helps little, in sequences whose tokens all differ"
        f"{shared}.",
        "updates: largest / smallest relative update |u_W|/|W| over the matrices.",
        "",
        *shown.to_string(index=False).splitlines(),
    ]
    even = {(row.optimizer, row.relative_updates): row for row in table.itertuples() if row.relative_updates}
    if even:
        lines += [
            "",
            "Multipliers of the learning rate that give all matrices the same relative update:",
            *(f"{TITLES[row.placement]}, {NAMES[optimizer]}: {said_so}" for (optimizer, said_so), row in even.items()),
        ]
    return [
        *lines,
        *(f"\nThe error at this width is not known: {why}." for why in dict.fromkeys(table["no_coefficient"]) if why),
        *(f"\nTheory has no rule: {reason}" for reason in dict.fromkeys(table["no_rule"]) if reason),
    ]


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def exponent_lines(table: pd.DataFrame) -> list[str]:
    """Return lines with the exponents of the predicted critical learning rate in the width d and in the depth L."""
    lines = []
    for against, symbol, other, end in (("width", "d", "depth", "min"), ("depth", "L", "width", "max")):
        others = ["placement", "optimizer", *(name for name in _varying(table) if name != against)]
        if table["tokens"].nunique() == 1:
            others.remove("tokens")
        if against == "width" and (table["vocab"] / table["width"]).nunique() == 1:
            others = [name for name in others if name != "vocab"]
        for _, rows in table[table[other] == table[other].agg(end)].groupby(others, sort=False, dropna=False):
            ends = rows.sort_values(against).iloc[[0, -1]]
            first, last = ends["critical_rate"]
            if ends[against].nunique() < 2 or not np.isfinite([first, last]).all():
                continue
            low, high = ends[against]
            slope = np.log(last / first) / np.log(high / low)
            where = ", ".join(f"{name} {said(name, ends[name].iloc[0])}" for name in others[2:])
            lines.append(
                f"{TITLES[ends['placement'].iloc[0]]}, {NAMES[ends['optimizer'].iloc[0]]}, {where}: "
                f"{symbol}^{slope:.2f} from {symbol} = {low} to {high}"
            )
    return ["", "Exponents of the predicted critical rates:", *lines] if lines else []


def comparison_lines(notes: Sequence[Note], optimizers: Sequence[Optimizer], stack: Stack) -> list[str]:
    """State how predicted first steps compare with measured steps of the model's own PyTorch class."""
    sentences = [
        compared_step(str(note.value), optimizer, stack.embeddings)
        for note in notes
        if note.field == "model_type"
        for optimizer in optimizers
    ]
    return ["", *filter(None, sentences)] if any(sentences) else []
