"""What is wrong with a whole module at initialization: its loss, growth over all layers, dtype and entries."""

import numpy as np
import pandas as pd

from checks.models.alarm import WHOLE_MODEL, Alarm
from checks.models.exact_alarms import whole
from checks.models.growth_theory import times
from simulate.modules.exact_tests import ExactTests
from simulate.modules.probe import Probed

LOSS = 2.0
"""The loss at the start over ln V, from which it is too large."""
KNOWN = 0.9
"""The loss over the entropy of the batch's labels below which a module knows them."""
STREAM = 10.0
"""The energy of the last layer's output over the first one's, either way and over the number of layers, from which the
stream grows too much. Branches of one energy behind norms give at most 1; those of attention grow, from a mean over
many tokens in the first layer to what tokens that have become alike have in common."""
GRADIENT = 5.0
"""The norm of the loss's gradient at the first layer's output over the last one's, either way and over the root of the
number of layers, likewise."""
DTYPE = 0.1
"""How far an output may be from that in single precision."""
ENTRIES = 6.0
"""The standard deviation of a matrix's entries, times the root of its shorter side, from which all layers get a note.

In 151 classes of transformers at their default sizes it is up to 2.9, and 5.1 in one (MiniCPM3); 0.02 at width 8192
gives 1.81, He's initialization 1.41 and that of `torch.nn.Linear` 0.58."""
ENTRIES_BESIDE = 3.0
"""The same number over the median of the layer's matrices, and over sqrt(2L), likewise: up to 1.5 in these classes.

Some draw most matrices of L layers sqrt(2L) smaller and one not, as CLIP does."""
# A parameter of fewer entries beside the largest of its layer is no matrix there: XLNet's biases have two axes.
_MATRIX = 0.01

NEIGHBOURS = 3
"""A layer is compared with two others at least."""


def of_the_whole(measured: Probed) -> list[Alarm]:
    """By thresholds of an initialization, and the dtype."""
    alarms = loss_alarms(measured.tests)
    for part, (energy, gradient) in ends_of(measured.frame).items():
        depth = len(profile(measured.frame, part, "hidden_energy"))
        limits = (("energy of the stream", energy, STREAM * depth), ("gradient", gradient, GRADIENT * depth**0.5))
        for what, growth, limit in limits:
            if max(growth, 1 / growth) > limit:
                where = "from the first to the last layer" if what != "gradient" else "from the last to the first layer"
                alarms.append(Alarm(part, WHOLE_MODEL, "growth", f"{what} {times(growth)} {where}"))
    if measured.dtype_change > DTYPE:
        what = f"in {measured.dtype} its output is {100 * measured.dtype_change:.2g}% from that in float32"
        alarms.append(Alarm("", WHOLE_MODEL, "dtype", what))
    return alarms


def loss_alarms(tests: ExactTests) -> list[Alarm]:
    """The loss at the start against a uniform guess, and against the labels' frequencies."""
    size, classes, known = (whole(tests, what) for what in ("cross_entropy", "classes", "label_entropy"))
    alarms = []
    if LOSS * np.log(classes) < size < np.inf:
        what = f"loss {size:.3g} at the start, where a uniform guess among {classes:.0f} has {np.log(classes):.3g}"
        alarms.append(Alarm("", WHOLE_MODEL, "loss", what))
    if size < KNOWN * known:
        what = (
            f"loss {size:.3g} at the start, where the labels' frequencies alone explain {known:.3g}: does it see them?"
        )
        alarms.append(Alarm("", WHOLE_MODEL, "loss", what))
    return alarms


def entry_notes(frame: pd.DataFrame) -> list[str]:
    """A line for every matrix whose entries are far from 1/sqrt(fan-in), or from the layer's others, in all layers."""
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
                f"entries of {name} of {part} have {size:.2g} times the standard deviation 1/sqrt(shorter "
                f"side) in all layers, {beside:.2g} times the layer's median matrix: is that meant?"
            )
    return lines


def profile(frame: pd.DataFrame, part: str, quantity: str) -> np.ndarray:
    """A quantity of one module over the layers of a list."""
    rows = frame[(frame["part"] == part) & (frame["layer"] > 0) & (frame["quantity"] == quantity)]
    return rows.sort_values("layer")["value"].to_numpy(dtype=float)


def parts_of(frame: pd.DataFrame) -> list[str]:
    """Lists of which a layer was measured."""
    return list(frame.loc[frame["quantity"] == "hidden_energy", "part"].unique())


def ends_of(frame: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Of every list of at least two layers: the energy's last over first, and the gradient norm's first over last."""
    ends = {}
    for part in parts_of(frame):
        energy, gradient = (profile(frame, part, quantity) for quantity in ("hidden_energy", "gradient_sq"))
        positive = all(len(of) > 1 and of[0] > 0 and of[-1] > 0 and np.isfinite(of).all() for of in (energy, gradient))
        if positive:
            ends[part] = (energy[-1] / energy[0], (gradient[0] / gradient[-1]) ** 0.5)
    return ends
