"""Predictions and samples side by side, as data frames."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from checks.statistics import agreement, estimate
from simulate import Samples
from theory import Prediction, Stack, predict

# Beyond this depth-to-width ratio finite-width corrections of the first layers exceed the margin (docs/theory.md).
LARGE_WIDTH = 1 / 80


def prediction_of(samples: Samples) -> Prediction:
    """What theory says of the cell: from the Stack, and from the windows where the inputs are a text."""
    text = samples.cell.text
    return predict(samples.stack, None if text is None else text.ids)


def in_large_width(stack: Stack) -> bool:
    """Whether the large-width prediction is judged at its 3% margin for this Stack, in every layer."""
    return stack.depth / stack.width <= LARGE_WIDTH


def cell_fields(samples: Samples) -> dict[str, Any]:
    """The columns that name a cell in every frame."""
    return asdict(samples.stack) | {"text": "" if samples.cell.text is None else samples.cell.text.source}


def comparison(cells: Sequence[Samples]) -> pd.DataFrame:
    """One row per cell, quantity and layer: mean, standard error, prediction and whether they agree.

    `layer` is 0 for quantities of the whole network. `agreement` is "agrees", "undecided" or "differs" up to the 3%
    margin where L/d is at most `LARGE_WIDTH`, "beyond" where it is not and the large-width prediction is only shown.
    Quantities without a prediction have NaN and "".
    """
    rows: list[pd.DataFrame] = []
    for samples in cells:
        prediction = prediction_of(samples)
        within = in_large_width(samples.stack)
        for name, values in samples.items():
            if np.isnan(values).all():
                continue
            measured = estimate(values)
            known = name in prediction
            predicted = prediction[name] if known else np.full_like(measured.mean, np.nan)
            verdict = agreement(measured, predicted) if known else np.full_like(measured.mean, "", dtype=object)
            rows.append(
                pd.DataFrame(
                    {
                        "quantity": name,
                        "layer": np.arange(1, samples.stack.depth + 1) if values.ndim == 2 else 0,
                        "draws": measured.draws,
                        "mean": np.atleast_1d(measured.mean),
                        "sem": np.atleast_1d(measured.sem),
                        "predicted": np.atleast_1d(predicted),
                        "agreement": np.atleast_1d(verdict if within or not known else np.full_like(verdict, "beyond")),
                    }
                ).assign(**cell_fields(samples))
            )
    table = pd.concat(rows, ignore_index=True)
    names = list(cell_fields(cells[0]))
    return table[[*names, *(column for column in table.columns if column not in names)]]
