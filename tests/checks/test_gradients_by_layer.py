"""The table of every predicted and sampled number by layer, beside its rows taken one at a time."""

import numpy as np
import pandas as pd
import pytest

from checks.stacks.gradients_by_layer import layer_table, matrices
from gradbounds import Stack, predict, sample
from theory import QUANTITIES

STACK = Stack(placement="pre", width=64, depth=3, tokens=4, vocab=16, ffn="gated", activation="silu", ffn_ratio=2.0)
MIXED = Stack(
    placement="pre", width=64, depth=3, tokens=4, vocab=16, experts=4, experts_per_token=2, dense_layers=1,
    ffn_ratio=1.0,
)  # fmt: skip
"""Its dense layer has no router: a number that is NaN there."""


def one_at_a_time(prediction, samples):
    """Of every number a row, from which pandas leaves those that hold nothing."""
    rows = []
    for name in dict.fromkeys([*(prediction or ()), *(samples or ())]):
        per_layer, is_norm = QUANTITIES[name].per_layer, "grad_sq_" in name
        for layer in range(STACK.depth if per_layer else 1):
            known, mean, sem = np.nan, np.nan, np.nan
            if prediction is not None and name in prediction:
                known = float(np.atleast_1d(prediction[name])[layer])
                known = known**0.5 if is_norm else known
            if samples is not None and name in samples:
                values = np.asarray(samples[name], dtype=float).reshape(len(samples[name]), -1)[:, layer]
                mean = values.mean()
                sem = values.std(ddof=1) / len(values) ** 0.5
                mean, sem = (mean**0.5, sem / 2 / mean**0.5) if is_norm else (mean, sem)
            rows.append((name.replace("grad_sq_", "grad_"), (layer + 1) * per_layer, known, mean, sem))
    table = pd.DataFrame(rows, columns=["quantity", "layer", "predicted", "mean", "sem"])
    return table.dropna(subset=["predicted", "mean"], how="all").reset_index(drop=True)


@pytest.mark.parametrize("stack", [STACK, MIXED])
@pytest.mark.parametrize("of", ["theory", "samples", "both"])
def test_the_table_is_its_rows_one_at_a_time(stack, of):
    prediction = None if of == "samples" else predict(stack)
    samples = None if of == "theory" else sample(stack, draws=8, seed=0)
    table, twin = layer_table(prediction, samples), one_at_a_time(prediction, samples)
    pd.testing.assert_frame_equal(table[twin.columns], twin, check_dtype=False, rtol=1e-9)
    assert set(table["draws"]) <= {0, 8}
    norms = twin[(twin["layer"] > 0) & twin["quantity"].str.contains("grad_")]
    assert matrices(table) == list(norms["quantity"].unique())


def test_nothing_is_a_table_without_rows():
    empty = layer_table(None, None)
    assert empty.empty and {"quantity", "layer", "predicted", "mean"} <= set(empty.columns)
