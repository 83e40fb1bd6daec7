"""The comparison of predictions with sampled networks, as data frames."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from checks.statistics import Estimate, agreement, estimate, log_variance
from checks.trust import Trust
from simulate import Samples
from theory import NoRuleError, Prediction, predict
from theory.mean_field.cost import is_grouped

PATTERNS = 4096
"""The number of attention samples of a prediction."""
# The number of attention samples of a prediction in which representatives replace groups of tokens.
_GROUPED = 64


def prediction_of(samples: Samples, patterns: int = PATTERNS) -> Prediction:
    """Return the predicted quantities of a sampled network, by name; empty if theory has no rule for the network.

    `patterns` is the number of attention samples, as in `predict`.
    """
    text = samples.cell.text
    try:
        if text is not None:
            return predict(samples.stack, text.ids, patterns=patterns)
        # Patterns of thousands of tokens would take days.
        if is_grouped(samples.stack):
            return _of_stack(samples.stack, patterns=min(patterns, _GROUPED), grouped=True)
        return _of_stack(samples.stack, patterns=patterns)
    except NoRuleError:
        return Prediction(samples.stack, {})


# Every verdict asks again, and dropped attention weights take a second.
_of_stack = lru_cache(maxsize=4096)(predict)


def checked_cells(cells: Any) -> list[Samples]:
    """Return samples as a list, after checking that every item is a `Samples` object.

    Args:
        cells: the sequence to check.

    Raises:
        ValueError: it is not a sequence, or an item is not a `Samples`.
    """
    listed = list(cells) if isinstance(cells, Iterable) else [cells]
    if other := [cell for cell in listed if not isinstance(cell, Samples)]:
        raise ValueError(
            "cells must be samples, as [gb.sample(stack, draws=64, seed=0)] or gb.Run.open(FOLDER).samples(), got "
            f"{type(cells).__name__} of {type(other[0]).__name__}."
        )
    return listed


def cell_fields(samples: Samples) -> dict[str, Any]:
    """Return the values that identify a sampled network in a data frame: all fields of the network, and its text."""
    return asdict(samples.stack) | {"text": "" if samples.cell.text is None else samples.cell.text.source}


def _rows(samples: Samples, patterns: int) -> Iterator[dict[str, Any]]:
    """Yield the columns of `comparison` for each quantity of one sampled network, as arrays over layers."""
    prediction = prediction_of(samples, patterns)
    for name, values in samples.items():
        if np.isnan(values).all():
            continue
        measured, known = estimate(values), name in prediction
        reason = Trust.of(samples.stack, name).why if known else ""
        predicted = prediction[name] if known else np.full_like(measured.mean, np.nan)
        verdict = np.full_like(measured.mean, "", dtype=object)
        if known:
            both = np.hypot(measured.sem, prediction.errors.get(name, 0.0))  # of samples and of the prediction
            verdict = agreement(Estimate(measured.mean, both, measured.draws), predicted)
        yield {
            "quantity": name,
            "layer": np.arange(1, values.shape[1] + 1) if values.ndim == 2 else 0,
            "draws": measured.draws,
            "mean": measured.mean,
            "sem": measured.sem,
            "median": np.median(values, axis=0),
            "log_variance": log_variance(values),
            "predicted": predicted,
            "agreement": np.full_like(verdict, "beyond") if reason else verdict,
            "reason": reason,
        }


def comparison(cells: Sequence[Samples], patterns: int = PATTERNS) -> pd.DataFrame:
    """Compare predictions with samples in a table, with one row for every network, quantity and layer.

    Args:
        cells: at least one sampled network, as returned by `sample` or by `samples()` of a run.
        patterns: number of attention samples of a prediction, or of sampled logits with tied embeddings, as in
            `predict`.

    Returns:
        Columns, after the fields of the Stack and `text`:

        - `quantity`: the quantity's name; `gradbounds.quantities` has its definition and unit.
        - `layer`: 1..L, or 0 for quantities of the whole network.
        - `draws`, `mean`, `sem`: number, mean and standard error of the samples.
        - `median`, `log_variance` (of the natural logarithm): both show heavy tails. In the first layers at large L/d,
          few draws dominate the mean.
        - `predicted`: the large-width mean; NaN if theory does not predict the quantity or has no rule for the network.
        - `agreement`: "agrees", "undecided" or "differs" up to a margin of 3% (`checks.statistics.agreement`, with the
          prediction's own sampling error); "beyond" if the prediction is shown but not judged; "" without one.
        - `reason`: why the prediction is not judged, from `Trust.of`; usually the network is not wide enough.

        A quantity that is NaN in every draw has no rows.

    Raises:
        ValueError: an item has fewer than two draws, or is not a `Samples`.

    Assumes d → ∞ in `predicted`, as `predict` does. Source: docs/verdicts.md.
    """
    cells = checked_cells(cells)
    fields = pd.DataFrame([cell_fields(samples) for samples in cells])
    rows = [{"cell": k} | row for k, samples in enumerate(cells) for row in _rows(samples, patterns)]
    # One frame for all, and fields join once: a frame per quantity would take longer than the statistics.
    columns = {
        name: np.concatenate([np.broadcast_to(row[name], np.shape(row["layer"]) or (1,)) for row in rows])
        for name in rows[0]
    }
    table = pd.DataFrame(columns).join(fields, on="cell").drop(columns="cell")
    names = list(fields.columns)
    return table[[*names, *(column for column in table.columns if column not in names)]]
