"""Tables of one network's gradients by layer and matrix, predicted and sampled."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checks.statistics import Estimate, estimate
from theory import QUANTITIES, Prediction

if TYPE_CHECKING:
    import pandas as pd

    from simulate import Samples

_SQUARE, _NORM = "grad_sq_", "grad_"

_NUMBERS = ("layer", "predicted", "predicted_sem", "mean", "sem", "draws")
_ERRORS = {"predicted": "predicted_sem", "mean": "sem"}


# The columns of a table by name, as a data frame has them; pandas takes as long to load as theory to predict.
Columns = Mapping[str, NDArray[Any]]


def layer_table(prediction: Prediction | None, samples: "Samples | None") -> "pd.DataFrame":
    """Return a table with one row for every quantity and layer of a network, predicted and sampled.

    Gradient norms are root mean squares.

    Args:
        prediction: the large-width means of a network; None if theory has no rule.
        samples: at least two draws of the same network; None to show theory only.

    Returns:
        Columns quantity (`grad_W2` is the root of the mean of `grad_sq_W2`; other names are those of
        `theory.QUANTITIES`), layer (0 for a quantity of the whole network), predicted, predicted_sem (the error of
        theory if it uses random samples, else 0), mean, sem, draws. Missing numbers are NaN, with 0 draws.
    """
    import pandas as pd

    return pd.DataFrame(layer_columns(prediction, samples))


def layer_columns(prediction: Prediction | None, samples: "Samples | None") -> dict[str, NDArray[Any]]:
    """Return the columns of `layer_table`."""
    quantities, columns = list[str](), {name: list[NDArray[Any]]() for name in _NUMBERS}
    for name in dict.fromkeys([*(prediction or ()), *(samples or ())]):
        known = _predicted(prediction, name)
        measured = estimate(samples[name].astype(float)) if samples is not None and name in samples else None
        if _SQUARE in name:
            known, measured = known and known.root(), measured and measured.root()
        count = max(np.size(estimated.mean) for estimated in (known, measured) if estimated is not None)
        quantities += [name.replace(_SQUARE, _NORM)] * count
        columns["layer"].append(np.arange(1, count + 1) if QUANTITIES[name].per_layer else np.zeros(1, int))
        for column, estimated in (("predicted", known), ("mean", measured)):
            for value, numbers in ((column, "mean"), (_ERRORS[column], "sem")):
                each = np.nan if estimated is None else getattr(estimated, numbers)
                columns[value].append(np.broadcast_to(each, count))
        columns["draws"].append(np.full(count, 0 if measured is None else measured.draws))
    whole = {name: np.concatenate(parts or [np.empty(0)]) for name, parts in columns.items()}
    there = ~(np.isnan(whole["predicted"]) & np.isnan(whole["mean"]))
    kept = {name: values[there] for name, values in whole.items()}
    return {"quantity": np.array(quantities, dtype=object)[there], **kept}


def _predicted(prediction: Prediction | None, name: str) -> Estimate | None:
    if prediction is None or name not in prediction:
        return None
    mean = np.asarray(prediction[name], dtype=float)
    return Estimate(mean, np.asarray(prediction.errors.get(name, np.zeros_like(mean)), dtype=float), 0)


def matrices(table: Columns) -> list[str]:
    """Return the names of all gradient norms in a table of layers, in the order of the table."""
    per_layer = np.asarray(table["quantity"])[np.asarray(table["layer"]) > 0]
    return [str(name) for name in dict.fromkeys(per_layer) if _NORM in str(name)]
