"""The alarms about a whole module at initialization: loss, growth over the layers, data type, and weights."""

import numpy as np
import pandas as pd
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Alarm
from checks.models.exact_alarms import whole
from simulate.modules.exact_tests import ExactTests
from simulate.modules.probe import Probed

LOSS = 2.0
"""The limit of the initial loss divided by ln V, the loss of a uniform guess."""
KNOWN = 0.9
"""The loss divided by the entropy of the batch's labels, below which the module must see its labels."""
INSIGHT = 5.0
"""The number of standard errors by which the loss must also be below the loss of random labels.

A batch with two labels is often guessed by chance."""
STREAM = 10.0
"""The limit of the growth (or decay) of the mean squared activation from the first to the last layer, divided by the
number of layers. Branches of equal size after norms give at most 1. Attention branches grow, because tokens become
alike and their mean then shrinks less."""
GRADIENT = 5.0
"""The limit of the growth (or decay) of the loss gradient's norm from the last to the first layer's output, divided by
the square root of the number of layers."""
DTYPE = 0.1
"""The allowed relative difference between an output and the output in single precision."""
ENTRIES = 6.0
"""The standard deviation of a matrix's entries times sqrt(shorter side), above which a note is given if it holds in all
layers.

It is at most 2.9 in 151 classes of transformers at their default sizes, except MiniCPM3 (5.1). Entries of 0.02 at width
8192 give 1.81, He's initialization 1.41 and the default of `torch.nn.Linear` 0.58."""
ENTRIES_BESIDE = 3.0
"""The same number divided by the median of the layer's matrices and by sqrt(2L), above which a note is given: it is at
most 1.5 in these classes.

Some models, such as CLIP, initialize all but one matrix of a layer sqrt(2L) times smaller."""
# A parameter of fewer entries beside the largest of its layer is no matrix there: XLNet's biases have two axes.
_MATRIX = 0.01

NEIGHBOURS = 3
"""The number of measured layers that a comparison needs."""
# The quantile of Student's t by which the steps from layer to layer must agree.
_AGREED = 0.99
# The fewest layers whose steps this quantile can tell from scatter: with two steps it is 31.8.
_FEWEST_LAYERS = 4
# The change of a growth factor below which it is said to be 1.
_SAME = 0.02


def times(growth: float) -> str:
    """Describe a growth factor in words, such as "grows 3.2 times"."""
    if abs(growth - 1) < _SAME:
        return "stays the same"
    return f"grows {growth:.3g} times" if growth >= 1 else f"falls {1 / growth:.3g} times"


def whole_model_alarms(measured: Probed) -> list[Alarm]:
    """Return the alarms about a newly initialized module's loss, its growth over the layers, and its data type."""
    alarms = loss_alarms(measured.tests)
    for part, (energy, gradient) in ends_of(measured.frame).items():
        energies, squares = (profile(measured.frame, part, of) for of in ("hidden_energy", "gradient_sq"))
        depth = len(energies)
        limits = (
            ("mean squared activation of the residual stream", "first to the last", energy, energies, STREAM * depth),
            ("gradient norm", "last to the first", gradient, squares**0.5, GRADIENT * depth**0.5),
        )
        for what, way, growth, values, limit in limits:
            if least_growth(values) > limit or max(growth, 1 / growth) > limit**2:
                text = f"{what} {times(growth)} from the {way} layer (limit: {limit:.3g} times)"
                alarms.append(Alarm(part, WHOLE_MODEL, "growth", text))
    if measured.dtype_change > DTYPE:
        change, limit = (f"{100 * share:.2g}%" for share in (measured.dtype_change, DTYPE))
        what = f"output in {measured.dtype} differs by {change} from the output in float32 (limit: {limit})"
        alarms.append(Alarm("", WHOLE_MODEL, "dtype", what))
    return alarms


def least_growth(values: np.ndarray) -> float:
    """Return a lower bound, by a heuristic, on the growth or decay that all layers of a list have in common.

    The bound is the 99% quantile of Student's t for the mean step of the logarithm from layer to layer, as if steps
    were independent. Exponential growth has equal steps, and doubling the depth squares it. Growth by a power of the
    depth, as of branches that point the same way, has steps that shrink. A jump at one layer is a difference of this
    layer. Branches of equal size that all point the same way multiply the stream's mean square by at most L². Growth
    above the square of the limit, 100 L², is thus an alarm without this bound. Up to three layers return their growth.

    >>> [round(least_growth(np.array(of))) for of in ([1, 9, 80, 730], [1, 20, 200, 730], [1, 1, 730, 730], [1, 730])]
    [623, 1, 1, 730]
    """
    steps = np.diff(np.log(np.maximum(values, np.finfo(float).tiny)))
    if len(values) < _FEWEST_LAYERS:
        return float(np.exp(abs(steps.sum())))
    chance = stats.t.ppf(_AGREED, len(steps) - 1) * len(steps) ** 0.5 * steps.std(ddof=1)
    return float(np.exp(max(abs(steps.sum()) - chance, 0.0)))


def loss_alarms(tests: ExactTests) -> list[Alarm]:
    """Return alarms if the initial loss is far above that of a uniform guess, or below the entropy of the labels."""
    size, classes, known = (whole(tests, what) for what in ("cross_entropy", "classes", "label_entropy"))
    alarms = []
    if LOSS * np.log(classes) < size < np.inf:
        what = f"loss {size:.3g} at the start; a uniform guess among {classes:.0f} classes has {np.log(classes):.3g}"
        alarms.append(Alarm("", WHOLE_MODEL, "loss", what))
    if size < KNOWN * known and whole(tests, "label_insight") > INSIGHT:
        what = (
            f"loss {size:.3g} at the start is below the entropy of the batch's labels, {known:.3g}: does the "
            "module see its labels?"
        )
        alarms.append(Alarm("", WHOLE_MODEL, "loss", what))
    return alarms


def entry_notes(frame: pd.DataFrame) -> list[str]:
    """Return a note for each matrix whose entries are unusually large in all layers.

    Entries are unusual if their standard deviation times sqrt(shorter side) is above `ENTRIES`, or far above that of
    the layer's other matrices (`ENTRIES_BESIDE`).
    """
    chosen = frame[frame["quantity"].isin(["weight", "entries", "shortest"])]
    table = chosen.pivot_table("value", ["part", "layer", "parameter"], "quantity").reindex(
        columns=["weight", "entries", "shortest"]
    )
    table = table[table["entries"] >= _MATRIX * table.groupby(["part", "layer"])["entries"].transform("max")]
    sizes = table["weight"] * np.sqrt(table["shortest"] / table["entries"])
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    by_layer = sizes.groupby(["part", "layer"])
    others = (sizes / by_layer.transform("median")).where(by_layer.transform("size") >= NEIGHBOURS, 1.0)
    by_name = pd.DataFrame({"size": sizes, "beside": others}).groupby(["part", "parameter"])
    least, usual, depths = by_name.min(), by_name.median(), frame.groupby("part")["layer"].max()
    lines = []
    for part, name in least.index:
        size, beside = least.loc[(part, name)]
        if size > ENTRIES or beside > ENTRIES_BESIDE * (2 * depths[part]) ** 0.5:
            size, beside = usual.loc[(part, name)]
            lines.append(
                f"entries of {name} of {part} have standard deviation {size:.2g}/sqrt(shorter side) in all "
                f"layers, {beside:.2g} times the layer's median matrix: is that intended?"
            )
    return lines


def profile(frame: pd.DataFrame, part: str, quantity: str) -> np.ndarray:
    """Return one quantity of a module for all layers of a list, in order, as an array of shape (layers,)."""
    rows = frame[(frame["part"] == part) & (frame["layer"] > 0) & (frame["quantity"] == quantity)]
    return rows.sort_values("layer")["value"].to_numpy(dtype=float)


def parts_of(frame: pd.DataFrame) -> list[str]:
    """Return the names of a module's lists of layers in which at least one layer was measured."""
    return list(frame.loc[frame["quantity"] == "hidden_energy", "part"].unique())


def ends_of(frame: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the growth of activations and gradients between the first and the last layer of each list of layers.

    A list is left out if it has one layer only, or if a value is not finite, or 0 in the first or last layer.

    Returns:
        By list: mean squared activation of the last layer / first layer, and gradient norm of the first / last layer.
    """
    ends = {}
    for part in parts_of(frame):
        energy, gradient = (profile(frame, part, quantity) for quantity in ("hidden_energy", "gradient_sq"))
        positive = all(len(of) > 1 and of[0] > 0 and of[-1] > 0 and np.isfinite(of).all() for of in (energy, gradient))
        if positive:
            ends[part] = (energy[-1] / energy[0], (gradient[0] / gradient[-1]) ** 0.5)
    return ends
