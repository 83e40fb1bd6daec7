"""Tables about the layers of modules: activations, gradients, exponents, updates, and comparisons with theory."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from scipy import stats

from checks.fits import LEAST_POINTS, pooled_exponent, slope_weights
from checks.statistics import Estimate, agreement_word, standard_error
from checks.trust import Trust
from simulate.modules.probe import Probed
from theory import QUANTITIES, Stack, predict
from theory.mean_field.cost import quick_patterns

WORDS = ("agrees", "undecided", "differs", "not judged")
"""The possible results in the column `agreement` of the comparison with theory."""
TOTAL = "all"
"""The parameter name of rows about all parameters of a layer together."""

# Attention patterns that a prediction is averaged over; its error is part of the noise.
_PATTERNS = 512

_SQUARE = "grad_sq_"

ROLES: Mapping[str, tuple[str, ...]] = {
    "linear1.weight": ("W1",),
    "linear2.weight": ("W2",),
    "self_attn.out_proj.weight": ("WO",),
    "self_attn.in_proj_weight": ("WQ", "WK", "WV"),
}
"""The names in a `theory.Stack` of the parameters of a layer of `torch.nn.TransformerEncoder`."""


def checked_roles(roles: object) -> Mapping[str, tuple[str, ...]]:
    """Check a user's dictionary from parameter names to matrices of a network, and return it.

    Raises:
        ValueError: it is not a dict of names to tuples of known matrices.
    """
    if not isinstance(roles, Mapping):
        raise ValueError(f"roles must be a dict such as {{'up.weight': ('W1',)}}, got {roles!r}.")
    known = [name[len(_SQUARE) :] for name, of in QUANTITIES.items() if name.startswith(_SQUARE) and of.per_layer]
    for parameter, matrices in roles.items():
        if not isinstance(matrices, tuple | list) or not set(map(str, matrices)) <= set(known):
            raise ValueError(f"roles of {parameter!r} must be a tuple of {', '.join(known)}, got {matrices!r}.")
    return roles


def layer_gradients(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the squared gradient norms of modules, for every layer and random seed, per parameter and in total.

    Returns:
        Columns width, depth, seed, part, layer, parameter (`TOTAL` for the total), value.
    """
    rows = frame[(frame["quantity"] == "gradient") & (frame["layer"] > 0)]
    keys = ["width", "depth", "seed", "part", "layer"]
    single = rows[[*keys, "parameter"]].assign(value=np.square(rows["value"]))
    whole = single.groupby(keys, sort=False)["value"].sum().reset_index().assign(parameter=TOTAL)
    return pd.concat([whole, single], ignore_index=True)


def probe_exponents(frame: pd.DataFrame) -> pd.DataFrame:
    """Fit exponents of the gradient norms of modules in the depth and in the width, and slopes over the layers.

    Exponents in the depth (at the largest width) and in the width (at the largest depth) are those of the last layer.
    Rows against "layer" hold the slope of ln(gradient norm) over the layers of the deepest modules at the largest
    width. Errors come from the scatter over seeds: pooled over the fitted widths or depths, and for layers the scatter
    of one slope per seed. Intervals use Student's t, because few seeds estimate a variance badly.

    Returns:
        Columns part, parameter, against, exponent, low, high (the 95% interval). A row requires at least three widths,
        depths or layers.
    """
    gradients = layer_gradients(frame)
    rows = []
    for against, other in (("depth", "width"), ("width", "depth")):
        here = gradients[gradients[other] == gradients[other].max()]
        if against == "depth":
            # Layers that do not follow the depth have no exponent in it.
            here = here[here["part"].isin(_followed(gradients))]
        for (part, parameter), group in here.groupby(["part", "parameter"], sort=False):
            last = group[group["layer"] == group.groupby(against)["layer"].transform("max")]
            moments = last.groupby(against)["value"].agg(["count", "mean", "var"])
            count, mean, variance = moments.to_numpy(float).T
            if not (mean > 0).all():
                continue
            # The norm is a root, whose ln has a quarter of the variance.
            if fitted := pooled_exponent(
                moments.index.to_numpy(float), np.sqrt(mean), count, variance / (2 * mean) ** 2
            ):
                rows.append((part, parameter, against, *fitted))
    rows += _growth(gradients)
    return pd.DataFrame(rows, columns=["part", "parameter", "against", "exponent", "low", "high"])


def _followed(gradients: pd.DataFrame) -> set[str]:
    """Return the lists of layers that are longer in deeper modules."""
    lengths = gradients.groupby(["part", "depth"])["layer"].max().groupby("part")
    return {str(part) for part, by_depth in lengths if by_depth.is_monotonic_increasing and by_depth.is_unique}


def _growth(gradients: pd.DataFrame) -> list[tuple[str, str, str, float, float, float]]:
    """Fit slopes of ln(gradient norm) over the layers of the deepest and widest modules, from seeds."""
    here = gradients[gradients["depth"] == gradients["depth"].max()]
    here = here[here["width"] == here["width"].max()]
    rows = []
    for (part, parameter), group in here.groupby(["part", "parameter"], sort=False):
        norms = group.set_index(["seed", "layer"])["value"].unstack()
        if norms.shape[1] < LEAST_POINTS or len(norms) < 2 or not (norms > 0).all(axis=None):
            continue
        slopes = 0.5 * np.log(norms.to_numpy()) @ slope_weights(norms.columns.to_numpy(float))
        half = float(stats.t.ppf(0.975, len(slopes) - 1) * standard_error(slopes))
        mean = float(slopes.mean())
        rows.append((str(part), str(parameter), "layer", mean, mean - half, mean + half))
    return rows


def profile_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return activations and gradients of modules, averaged over random seeds, with one row for each size and layer.

    Returns:
        Columns width, depth, part, layer, energy (mean squared activation), energy_sem, gradient (root mean square of
        the norm over all parameters), gradient_sem.
    """
    keys = ["width", "depth", "part", "layer"]
    energies = frame[(frame["quantity"] == "hidden_energy") & (frame["layer"] > 0)].groupby(keys, sort=False)["value"]
    gradients = layer_gradients(frame)
    squares = gradients[gradients["parameter"] == TOTAL].groupby(keys, sort=False)["value"]
    table = pd.DataFrame({"energy": energies.mean(), "energy_sem": energies.sem()})
    table["gradient"] = np.sqrt(squares.mean())
    table["gradient_sem"] = squares.sem() / (2 * table["gradient"])
    return table.reset_index()


def against_theory(
    frame: pd.DataFrame, stack: Callable[[int, int], Stack], roles: Mapping[str, tuple[str, ...]] = ROLES
) -> pd.DataFrame:
    """Compare measured activations and gradients of modules with their predictions, one row for each number.

    Args:
        frame: the measured numbers, as in `simulate.Probed.frame`.
        stack: a function of a width and a depth that returns the Stack.
        roles: the Stack's names of a layer's parameters; one parameter may hold several matrices.

    Returns:
        Columns width, depth, part, layer, quantity, predicted, measured, sem, ratio (measured / predicted), noise (the
        standard error of the ratio, from seeds and attention samples; NaN for one seed), seeds, and agreement within
        3%: "agrees", "undecided", "differs", or "not judged" if the network is too narrow for its depth and classes, or
        theory is not exact for it. Quantities are hidden_energy, the mean squared activation of the layer's output, and
        the squared gradients of parameters with a role in the Stack.

    Raises:
        ValueError: the function does not return a Stack, or the Stack has fewer layers than the module.
    """
    rows = []
    for (width, depth), here in frame[frame["layer"] > 0].groupby(["width", "depth"]):
        network, most = stack(int(width), int(depth)), here["layer"].max()
        if not isinstance(network, Stack) or network.depth < most:
            at = f"at width {width}, depth {depth}"
            raise ValueError(f"stack must give a Stack with all {most} layers of the module {at}, got {network}.")
        prediction = predict(network, patterns=min(_PATTERNS, quick_patterns(network)))
        for key, values in here.groupby(["part", "layer", "quantity", "parameter"])["value"]:
            part, layer, quantity, parameter = key
            place = int(layer) - 1
            if quantity == "hidden_energy":
                # A normalized stream has energy 1 but for its epsilon; theory's energy is that of the residual sum.
                energy = float(prediction["hidden_energy"][place])
                normed = network.composition.stream_norm
                predicted, measured = energy / (energy + network.norm_epsilon) if normed else energy, values
                errors = [] if normed else ["hidden_energy"]
            elif quantity == "gradient" and parameter in roles:
                names = [_SQUARE + role for role in roles[parameter]]
                if not {*names} <= {*prediction}:
                    continue
                predicted, measured = sum(float(prediction[name][place]) for name in names), values**2
                errors = names
            else:
                continue
            mean, sem = float(measured.mean()), float(measured.sem())
            theirs = [float(prediction.errors[name][place]) for name in errors if name in prediction.errors]
            # What is 0 in theory, as behind factors that begin at 0, has no relative error.
            noise = float(np.hypot(sem, sum(theirs))) / predicted if predicted else 0.0
            name = parameter or quantity
            ratio = mean / predicted if predicted else float("inf") if mean else 1.0
            judged = not any(Trust.of(network, q).why for q in errors or ["hidden_energy"])
            word = _word(ratio, noise, len(measured), judged=judged)
            rows.append((width, depth, part, layer, name, predicted, mean, sem, ratio, noise, len(measured), word))
    columns = ["width", "depth", "part", "layer", "quantity", "predicted", "measured", "sem", "ratio", "noise", "seeds"]
    return pd.DataFrame(rows, columns=[*columns, "agreement"])


def _word(ratio: float, noise: float, seeds: int, *, judged: bool) -> str:
    if not judged or seeds < 2:
        return "undecided" if judged else "not judged"
    return agreement_word(Estimate(np.asarray(ratio), np.asarray(noise), seeds), 1.0)


def not_compared(frame: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Return the names of the parameters whose gradients were not compared with a prediction."""
    there = frame[(frame["quantity"] == "gradient") & (frame["layer"] > 0)]["parameter"].unique()
    return sorted(set(there) - set(table["quantity"]))


LEGEND = {
    "energy": "mean squared activation of the output", "keeps": "coefficient of the input in the output",
    "gradient": "norm of the loss gradient at the output", "logits": "standard deviation of attention logits",
    "entropy": "attention entropy / uniform entropy", "peak": "mean largest attention weight",
    "dead": "share of hidden units that are 0", "saturated": "share of saturated hidden units",
}  # fmt: skip
"""Meaning of every column of the layers' table."""

LAYER_COLUMNS = {
    "hidden_energy": "energy", "stream_coefficient": "keeps", "gradient_sq": "gradient", "logit_std": "logits",
    "attention_entropy": "entropy", "attention_peak": "peak", "dead_units": "dead", "saturated_units": "saturated",
}  # fmt: skip
"""Quantities of a layer, with their titles in the table."""


def layers_table(probed: Probed) -> pd.DataFrame:
    """Return a table with one row for each layer of a module: the mean activation, gradient and attention numbers.

    Returns:
        Rows are for the greatest width and depth. Columns part, layer, energy (mean squared activation of its output),
        keeps (coefficient of its input in its output), gradient (norm of the loss gradient at its output; for several
        modules the root mean square). For one module, or several of one size, also logits (standard deviation of
        attention logits), entropy (of attention, divided by the entropy of uniform attention), peak (mean over queries
        of the largest attention weight), dead and saturated (shares of hidden units).
    """
    frame = probed.frame[(probed.frame["layer"] > 0) & (probed.frame["parameter"] == "")]
    sizes = frame[["width", "depth"]].max()
    here = frame[(frame["width"] == sizes["width"]) & (frame["depth"] == sizes["depth"])]
    means = here.groupby(["part", "layer", "quantity"], sort=False)["value"].mean()
    rows = [(part, layer, what, value) for (part, layer, what), value in means.items()]
    if len(frame[["width", "depth"]].drop_duplicates()) == 1:
        rows += [
            (part, layer, what, value) for part, layer, name, what, value in probed.tests.rows if layer and not name
        ]
    table: dict[tuple[str, int], dict[str, float]] = {}
    for part, layer, what, value in rows:
        if title := LAYER_COLUMNS.get(what):
            table.setdefault((part, layer), {})[title] = value**0.5 if what == "gradient_sq" else value
    records = [{"part": part, "layer": layer, **numbers} for (part, layer), numbers in table.items()]
    return pd.DataFrame(records, columns=["part", "layer", *LAYER_COLUMNS.values()])
