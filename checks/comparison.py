"""Predictions and samples side by side, as data frames."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from checks.statistics import Estimate, agreement, estimate, log_variance
from simulate import Samples
from theory import NoRuleError, Prediction, Stack, predict
from theory.mean_field.attention.sampled import is_approximate, looks_at_itself

LARGE_WIDTH = 1 / 80
"""Largest finite-width correction, in units of its order, up to which a prediction is judged at its 3% margin."""


def prediction_of(samples: Samples) -> Prediction:
    """What theory says of the cell: from the Stack, and from the windows where the inputs are a text; or nothing."""
    text = samples.cell.text
    try:
        return _of_stack(samples.stack) if text is None else predict(samples.stack, text.ids)
    except NoRuleError:
        return Prediction(samples.stack, {})


# Every verdict asks again, and dropped attention weights take a second.
_of_stack = lru_cache(maxsize=4096)(predict)


def output_correction(stack: Stack) -> float:
    """The order of the relative O(1/d) correction at the output: (1 + min(σ_e², 2 ln V))/d.

    The gradient there is W_embᵀ(p − e_y), and W_emb is not independent of p: its part along x_out contributes the
    square of the logit gap, which is of order σ_e² until the softmax saturates and 2 ln V beyond.
    """
    return (1.0 + min(stack.output_scale**2, 2.0 * math.log(stack.vocab))) / stack.width


def in_large_width(stack: Stack) -> bool:
    """Whether the large-width prediction is judged for this Stack, in every layer.

    The corrections are O(L/d) in the first layers, O(n/d) from the overlap of a matrix with its n inputs (the output
    matrix's gradient is off by 0.06 n/d at L = 1, V = 16; a fifth leaves room), and `output_correction`. Heads of any
    width have their own law, so d/h does not enter but for one matrix of queries and keys over √d_k: its own logits
    s² √d_k |x|²/d are in the exponent, where |x|²/d varies by O(1/√d), which makes s⁴ d_k/d = s⁴/h. A rule that is not
    exact at any width is not judged either.
    """
    if is_approximate(stack) or (looks_at_itself(stack) and stack.query_key_scale**4 / stack.heads > LARGE_WIDTH):
        return False
    layers_and_tokens = max(stack.depth, stack.rows / 5) / stack.width
    return max(layers_and_tokens, output_correction(stack)) <= LARGE_WIDTH


def cell_fields(samples: Samples) -> dict[str, Any]:
    """The columns that name a cell in every frame."""
    return asdict(samples.stack) | {"text": "" if samples.cell.text is None else samples.cell.text.source}


def _with_error(measured: Estimate, prediction: Prediction, name: str) -> Estimate:
    """The estimate with the prediction's own sampling error added to its standard error, where it has one."""
    error = prediction.errors.get(name)
    return measured if error is None else Estimate(measured.mean, np.hypot(measured.sem, error), measured.draws)


def comparison(cells: Sequence[Samples]) -> pd.DataFrame:
    """One row per cell, quantity and layer: mean, standard error, prediction and whether they agree.

    `layer` is 0 for quantities of the whole network. `agreement` is "agrees", "undecided" or "differs" up to the 3%
    margin where `in_large_width`, "beyond" where the prediction is only shown.
    Quantities without a prediction, and networks without a rule, have NaN and "". `median` and `log_variance` (of the
    natural logarithm) tell of heavy tails: first layers at large L/d, where a mean is made by a few draws.
    """
    rows: list[pd.DataFrame] = []
    fields = pd.DataFrame([cell_fields(samples) for samples in cells])
    for number, samples in enumerate(cells):
        prediction = prediction_of(samples)
        within = in_large_width(samples.stack)
        for name, values in samples.items():
            if np.isnan(values).all():
                continue
            measured = estimate(values)
            known = name in prediction
            predicted = prediction[name] if known else np.full_like(measured.mean, np.nan)
            verdict = (
                agreement(_with_error(measured, prediction, name), predicted)
                if known
                else np.full_like(measured.mean, "", dtype=object)
            )
            rows.append(
                pd.DataFrame(
                    {
                        "cell": number,
                        "quantity": name,
                        "layer": np.arange(1, samples.stack.depth + 1) if values.ndim == 2 else 0,
                        "draws": measured.draws,
                        "mean": np.atleast_1d(measured.mean),
                        "sem": np.atleast_1d(measured.sem),
                        "median": np.atleast_1d(np.median(values, axis=0)),
                        "log_variance": np.atleast_1d(log_variance(values)),
                        "predicted": np.atleast_1d(predicted),
                        "agreement": np.atleast_1d(verdict if within or not known else np.full_like(verdict, "beyond")),
                    }
                )
            )
    # Fields join once for all rows: a column of its own per row and field would take longer than the statistics.
    table = pd.concat(rows, ignore_index=True).join(fields, on="cell").drop(columns="cell")
    names = list(fields.columns)
    return table[[*names, *(column for column in table.columns if column not in names)]]
