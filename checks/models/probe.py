"""A probed module judged: exponents with intervals, profiles over the layers, its class, and theory beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from checks.fits import LEAST_POINTS, power_law, slope_weights
from theory import Stack, predict

Kind = Literal["Post-like", "Pre-like", "neither", "undecided"]

TOTAL = "all"
"""Stands for all parameters of a layer together."""

# Attention patterns that a prediction is averaged over; its error is part of the noise.
_PATTERNS = 512

# Energies of a normalized stream are equal but for the norm's epsilon.
_SAME_ENERGY = 1.05
# An exponent in the depth that is 0 for practical purposes.
_FLAT = 0.25

ROLES: Mapping[str, tuple[str, ...]] = {
    "linear1.weight": ("W1",),
    "linear2.weight": ("W2",),
    "self_attn.out_proj.weight": ("WO",),
    "self_attn.in_proj_weight": ("WQ", "WK", "WV"),
}
"""What the parameters of a layer of `torch.nn.TransformerEncoder` are called in a `theory.Stack`."""


@dataclass(frozen=True, slots=True)
class Class:
    """Which of the paper's placements a module behaves like, and by what.

    Attributes:
        part: the list of layers.
        kind: the answer.
        evidence: in words.
    """

    part: str
    kind: Kind
    evidence: str


def layer_gradients(frame: pd.DataFrame) -> pd.DataFrame:
    """Squared gradient norms of every layer and seed, by parameter and of all together.

    Returns:
        Columns width, depth, seed, part, layer, parameter (`TOTAL` for all), value.
    """
    rows = frame[(frame["quantity"] == "gradient") & (frame["layer"] > 0)]
    keys = ["width", "depth", "seed", "part", "layer"]
    single = rows[[*keys, "parameter"]].assign(value=np.square(rows["value"]))
    whole = single.groupby(keys, sort=False)["value"].sum().reset_index().assign(parameter=TOTAL)
    return pd.concat([whole, single], ignore_index=True)


def probe_exponents(frame: pd.DataFrame) -> pd.DataFrame:
    """Exponents of the last layers' gradient norms: in the depth at the largest width, and the other way round.

    And, against "layer", what ln of the norm gains from layer to layer of the deepest modules at the largest width.
    Errors come from the scatter over seeds, pooled over the configurations of a fit, and intervals from Student's t:
    few seeds tell a variance badly.

    Returns:
        Columns part, parameter, against, exponent, low, high (95%); a row where there are three values.
    """
    gradients = layer_gradients(frame)
    rows = []
    for against, other in (("depth", "width"), ("width", "depth")):
        here = gradients[gradients[other] == gradients[other].max()]
        for (part, parameter), own in here.groupby(["part", "parameter"], sort=False):
            last = own[own["layer"] == own.groupby(against)["layer"].transform("max")]
            found = last.groupby(against)["value"].agg(["count", "mean", "var"])
            if len(found) < LEAST_POINTS or found["count"].min() < 2 or not (found["mean"] > 0).all():
                continue
            freedom = int((found["count"] - 1).sum())
            pooled = float(((found["count"] - 1) * found["var"] / found["mean"] ** 2).sum() / freedom)
            norm = np.sqrt(found["mean"].to_numpy())
            sem = norm * 0.5 * np.sqrt(max(pooled, 1e-12) / found["count"].to_numpy())
            fit = power_law(found.index.to_numpy(float), norm, sem)
            half = float(stats.t.ppf(0.975, freedom)) * fit.sem
            rows.append((part, parameter, against, fit.exponent, fit.exponent - half, fit.exponent + half))
    rows += _growth(gradients)
    return pd.DataFrame(rows, columns=["part", "parameter", "against", "exponent", "low", "high"])


def _growth(gradients: pd.DataFrame) -> list[tuple[str, str, str, float, float, float]]:
    """Slopes of ln of the norm over the layers of the deepest and widest modules; each seed has its own."""
    here = gradients[gradients["depth"] == gradients["depth"].max()]
    here = here[here["width"] == here["width"].max()]
    rows = []
    for (part, parameter), own in here.groupby(["part", "parameter"], sort=False):
        norms = own.pivot_table(index="seed", columns="layer", values="value")
        if norms.shape[1] < LEAST_POINTS or len(norms) < 2 or not (norms > 0).all(axis=None):
            continue
        slopes = 0.5 * np.log(norms.to_numpy()) @ slope_weights(norms.columns.to_numpy(float))
        half = float(stats.t.ppf(0.975, len(slopes) - 1) * stats.sem(slopes))
        mean = float(slopes.mean())
        rows.append((str(part), str(parameter), "layer", mean, mean - half, mean + half))
    return rows


def classes(frame: pd.DataFrame, exponents: pd.DataFrame) -> list[Class]:
    """What each list of layers behaves like: by the energies of the stream, and the exponent in the depth."""
    deepest = frame[(frame["depth"] == frame["depth"].max()) & (frame["width"] == frame["width"].max())]
    energies = deepest[(deepest["quantity"] == "hidden_energy") & (deepest["layer"] > 0)]
    found = []
    for part, rows in energies.groupby("part", sort=False):
        profile = rows.groupby("layer")["value"].mean().to_numpy()
        chosen = exponents[
            (exponents["part"] == part) & (exponents["parameter"] == TOTAL) & (exponents["against"] == "depth")
        ]
        if chosen.empty or not np.isfinite(profile).all():
            found.append(Class(str(part), "undecided", f"it takes {LEAST_POINTS} depths, two seeds and finite numbers"))
            continue
        exponent = chosen.iloc[0]
        spread = profile.max() / profile.min()
        rising = bool((np.diff(profile) > 0).all() and spread > _SAME_ENERGY)
        even = bool(spread <= _SAME_ENERGY)
        how = (
            "is the same in every layer" if even else "rises with every layer" if rising else "neither stays nor rises"
        )
        said = (
            f"the energy of the stream {how} ({profile[0]:.3g} to {profile[-1]:.3g}), and the last layer's gradient "
            f"goes like L^{exponent.exponent:.2f} [{exponent.low:.2f}, {exponent.high:.2f}]"
        )
        found.append(Class(str(part), _kind(even, rising, float(exponent.low), float(exponent.high)), said))
    return found


def _kind(even: bool, rising: bool, low: float, high: float) -> Kind:
    if even:
        if -_FLAT < low and high < _FLAT:
            return "Post-like"
        return "neither" if low > _FLAT or high < -_FLAT else "undecided"
    if rising:
        if high < 0:
            return "Pre-like"
        return "neither" if low > 0 else "undecided"
    return "neither"


def profile_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Over seeds, for every configuration and layer: the energy of the stream and the norm of the layer's gradient.

    Returns:
        Columns width, depth, part, layer, energy, energy_sem, gradient (root mean square), gradient_sem.
    """
    keys = ["width", "depth", "part", "layer"]
    energies = frame[(frame["quantity"] == "hidden_energy") & (frame["layer"] > 0)].groupby(keys, sort=False)["value"]
    gradients = layer_gradients(frame)
    squares = gradients[gradients["parameter"] == TOTAL].groupby(keys, sort=False)["value"]
    table = pd.DataFrame({"energy": energies.mean(), "energy_sem": energies.sem()})
    table["gradient"] = np.sqrt(squares.mean())
    table["gradient_sem"] = squares.sem() / (2 * table["gradient"])
    return table.reset_index()


def against_theory(frame: pd.DataFrame, stack: Callable[[int, int], Stack]) -> pd.DataFrame:
    """Large-width theory for the nearest Stack beside what was measured.

    Args:
        frame: as `simulate.Probed` has it.
        stack: of a width and a depth.

    Returns:
        Columns width, depth, part, layer, quantity, predicted, measured, sem, ratio, noise (of the ratio: one standard
        error, of seeds and of sampled attention patterns). Quantities are hidden_energy, of the layer's output, and the
        squared gradients of parameters that have a role in the Stack.
    """
    rows = []
    for (width, depth), here in frame[frame["layer"] > 0].groupby(["width", "depth"]):
        network = stack(int(width), int(depth))
        prediction = predict(network, patterns=_PATTERNS)
        for key, values in here.groupby(["part", "layer", "quantity", "parameter"])["value"]:
            part, layer, quantity, parameter = key
            place = int(layer) - 1
            if quantity == "hidden_energy":
                # A normalized stream has energy 1 but for its epsilon; theory's energy is that of the residual sum.
                energy = float(prediction["hidden_energy"][place])
                normed = network.composition.stream_norm
                predicted, measured = energy / (energy + network.norm_epsilon) if normed else energy, values
                errors = [] if normed else ["hidden_energy"]
            elif quantity == "gradient" and parameter in ROLES:
                names = [f"grad_sq_{role}" for role in ROLES[parameter]]
                predicted, measured = sum(float(prediction[name][place]) for name in names), values**2
                errors = names
            else:
                continue
            mean, sem = float(measured.mean()), float(measured.sem())
            theirs = [float(prediction.errors[name][place]) for name in errors if name in prediction.errors]
            noise = float(np.hypot(sem, sum(theirs))) / predicted
            name = parameter or quantity
            rows.append((width, depth, part, layer, name, predicted, mean, sem, mean / predicted, noise))
    columns = ["width", "depth", "part", "layer", "quantity", "predicted", "measured", "sem", "ratio", "noise"]
    return pd.DataFrame(rows, columns=columns)


def relative_to_last(table: pd.DataFrame) -> pd.DataFrame:
    """What of `against_theory` does not depend on inputs and loss: gradients over the last layer's own.

    The errors of two layers are taken for independent; those of one network are not, so that noise is overstated.
    """
    rows = table[table["quantity"] != "hidden_energy"]
    keys = ["width", "depth", "part", "quantity"]
    last = rows[rows["layer"] == rows.groupby(keys)["layer"].transform("max")]
    joined = rows[~rows.index.isin(last.index)].merge(last, on=keys, suffixes=("", "_last"))
    error = np.hypot(joined["noise"] / joined["ratio"], joined["noise_last"] / joined["ratio_last"])
    joined["predicted"] /= joined["predicted_last"]
    joined["measured"] /= joined["measured_last"]
    joined["ratio"] = joined["measured"] / joined["predicted"]
    joined["noise"] = joined["ratio"] * error
    joined["sem"] = joined["predicted"] * joined["noise"]
    return joined[table.columns]
