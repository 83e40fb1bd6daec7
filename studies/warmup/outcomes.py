"""A finished training run of a translation model as a row, and the loss of word frequencies beside it."""

from typing import Any

import numpy as np
import pandas as pd

from studies.comparisons import outcome
from studies.parallel_text import END, ParallelText

KEPT_MATRICES = ("W1", "W2")
"""The matrices whose gradients a row has, those of Fig. 3(a, b)."""

THREE_RATES = ("critical", "hessian", "break_even")
"""Of a step, lists of a row."""


def measured_row(table: pd.DataFrame, unigram: float, start: int) -> dict[str, Any]:
    """A finished run as a row of a table of runs.

    Args:
        table: what was measured, as `Trained.table` and with "loss" and "rate" of every update.
        unigram: loss of the training text's word frequencies on the validation text.
        start: the update at which the longest warm-up ends; layers are kept before the first update, at the first
            measured update that is not before `start`, and at the end.

    Returns:
        `first` and `final`, the validation losses before the first update and after the last (NaN where a loss was not
        finite); `unigram` and `outcome`; lists over the
        measured updates: `updates`, `validation`, `summed`, the sum of all rates so far; over measured steps: `steps`,
        and the step's `critical`, `hessian`, `break_even` rates beside its own `rates`; and `layers`, for each kept
        update lists over layers of gradient norms and hidden energies, as "decoder W2" and "encoder energy".

    Raises:
        ValueError: a number stands there twice.
    """
    twice = table[table.duplicated(["update", "part", "layer", "matrix", "statistic"])]
    if len(twice):
        which = f"the {twice['statistic'].iloc[0]} of update {twice['update'].iloc[0]}"
        raise ValueError(
            f"table must have every number once, but has {which} twice, as where another version of gradbounds "
            "continued the run; delete the run's file and run it again."
        )
    whole = table[table["layer"] == 0]
    series = {name: rows.set_index("update")["value"] for name, rows in whole.groupby("statistic")}
    validation, rates = series["validation loss"], series["rate"].cumsum()
    finite = bool(np.isfinite(series["loss"]).all())
    first, final = float(validation.iloc[0]), float(validation.iloc[-1]) if finite else float("nan")
    updates = [int(update) for update in validation.index]
    steps = series.get("break-even rate", pd.Series(dtype=float))
    kept = [0, *(u for u in updates if u >= start), updates[-1]]
    ends = {name: float(f"{value:.6g}") for name, value in (("first", first), ("final", final), ("unigram", unigram))}
    return {
        **ends, "outcome": outcome(first, final, unigram),
        "updates": updates, "validation": _short(validation), "summed": _short([0.0, *rates][u] for u in updates),
        "steps": [int(step) for step in steps.index], "rates": _short(series["rate"][steps.index]),
        **{name: _short(series.get(f"{name.replace('_', '-')} rate", ())) for name in THREE_RATES},
        "layers": {str(u): _layers(table[table["update"] == u]) for u in (kept[0], kept[1], kept[-1])},
    }  # fmt: skip


def _layers(table: pd.DataFrame) -> dict[str, list[float]]:
    kept = table[((table["statistic"] == "gradient norm") & table["matrix"].isin(KEPT_MATRICES)) |
                (table["statistic"] == "hidden energy")]  # fmt: skip
    return {
        f"{part} {matrix or 'energy'}": _short(rows.sort_values("layer")["value"])
        for (part, matrix), rows in kept.groupby(["part", "matrix"])
    }


def _short(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def unigram_loss(text: ParallelText, validation: ParallelText) -> float:
    """Cross-entropy, nats a token, of a validation text under the target frequencies of a training text.

    Every id that can be a label is counted once more than it occurs, so that the loss is finite.
    """
    counts = np.ones(text.vocab)
    counts[[0, END - 1]] = 0.0  # padding and the beginning are never labels
    for ids in text.targets:
        counts += np.bincount(ids[1:], minlength=text.vocab)
    return float(-np.log(counts[np.concatenate([ids[1:] for ids in validation.targets])] / counts.sum()).mean())
