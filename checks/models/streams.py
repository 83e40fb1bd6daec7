"""The checks of a module's residual connections, of its gradients at early layers, and of its number of layers."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Finding, escaped
from simulate.modules.probe import ROUNDED

NORMED_RESPONSE = 0.1
"""The largest response of a layer's output to the scale of its input that counts as a norm at the layer's end.

The response is 0 after a norm, and without one it is the input's share of the output.
"""

# So often is a layer named by mistake, if what it adds has a random direction.
_MISTAKE = 1e-6
_SURE = float(stats.norm.isf(_MISTAKE))
# The part of its neighbours' coefficient that a residual connection has at least, and a coefficient that is none: after
# a norm c = 1/scale, and branches of a hundred times the stream's energy give 0.1. Convolutions give some thousandths,
# more than their error says, because neighbouring positions are alike.
_KEPT, _NONE = 0.5, 0.1
_NEAR = 4
# Tokens behind a norm have the same energy but for its epsilon, and so have layers.
_SAME = 1e-3
# What is left of rounding in double precision.
_LESS = 1e-3


def coefficients(rows: pd.DataFrame, layers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficient of each layer's input in its output, and the error of this coefficient.

    Both are means over seeds, and NaN if unknown.
    """
    values, errors = (
        rows[rows["quantity"] == quantity].groupby("layer")["value"]
        for quantity in ("stream_coefficient", "coefficient_error")
    )
    of_mean = errors.apply(lambda v: float(np.sqrt((v**2).sum())) / len(v))
    return values.mean().reindex(layers).to_numpy(float), of_mean.reindex(layers).to_numpy(float)


def without_residual(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Find layers whose output does not contain their input although the nearest layers' outputs do.

    The coefficient c = <x, y>/<x, x> is 1 for y = x + b with any sizes of b and x; after a norm, it is 1 divided by the
    norm's scale. Its error is the projection of b on x, which is large for small embeddings. A layer is reported only
    if its c is below half of the nearest layers' c by more than chance explains.
    """
    values, errors = coefficients(rows, layers)
    for k, value in enumerate(values):
        near = [j for j in sorted(range(len(values)), key=lambda j: abs(j - k)) if j != k and np.isfinite(values[j])]
        near = near[:_NEAR]
        if len(near) < 2 or not np.isfinite(value):
            continue
        # The lower of two in the middle: the first layer's input may have another size, and so another coefficient.
        usual = sorted(near, key=lambda j: float(values[j]))[(len(near) - 1) // 2]
        kept, error = _KEPT * values[usual], np.hypot(errors[k], _KEPT * errors[usual])
        # What holds more of its input than they do, if with a minus, does not lack their residual connection.
        if _KEPT * abs(value) > values[usual] or values[usual] < _NONE:
            continue
        if kept > _SURE * _KEPT * errors[usual] and kept - value > _SURE * error:
            what = "its output contains {} of its input, the nearest layers' {}: is its residual connection missing?"
            yield Finding(int(layers[k]), "residual", what, (float(value), float(values[usual])), digits=2)


def no_residual_anywhere(frame: pd.DataFrame) -> list[str]:
    """Return a note for each list of layers in which no layer has a residual connection; this may be intended."""
    lines = []
    for part, rows in frame[frame["layer"] > 0].groupby("part", sort=False):
        highest = _no_coefficient(rows, sorted(rows["layer"].unique()))
        if np.isfinite(highest):
            lines.append(
                f"no residual connection was found in any layer of {part} (coefficient of the input: {highest:.2g})"
            )
    return lines


def _no_coefficient(rows: pd.DataFrame, layers: list[int]) -> float:
    """Return the largest size of a layer's coefficient c if chance explains the c of all layers; otherwise NaN."""
    values, errors = coefficients(rows, layers)
    none = len(layers) > 1 and np.isfinite(values).all() and (np.abs(values) < _SURE * errors).all()
    return float(np.abs(values).max()) if none else float("nan")


def independent(rows: pd.DataFrame, layers: list[int]) -> bool:
    """Return whether no layer's output contains the layer's input or changes its size with the size of the input."""
    asked = not rows[rows["quantity"] == "scale_response"].empty
    return asked and not _answers(rows) and bool(np.isfinite(_no_coefficient(rows, layers)))


def behind_norms(rows: pd.DataFrame) -> bool:
    """Return whether the outputs of most layers are normalized: equally large for all tokens and for any size of input.

    The result is true if this was not measured.
    """
    return not _answers(rows) and not _uneven(rows)


def residual_of_normed(rows: pd.DataFrame, layers: list[int]) -> bool:
    """Return whether residual connections add to the normalized residual stream: x = norm(x) + b instead of x = x + b.

    Then the output contains the input, does not scale with the input, and is not normalized: its tokens differ in size.
    Only layers after the first count, because the first may get a stream that is smaller than any branch.
    """
    later = rows[rows["layer"] > 1]
    if later[later["quantity"] == "scale_response"].empty or _answers(later) or not _uneven(rows):
        return False
    values, errors = coefficients(rows, layers)
    known = errors > 0
    return bool((values[known] / errors[known]).sum() > _SURE * known.sum() ** 0.5)


def _answers(rows: pd.DataFrame) -> bool:
    responses = rows[rows["quantity"] == "scale_response"]["value"]
    return len(responses) > 0 and abs(float(responses.median())) >= NORMED_RESPONSE


def _uneven(rows: pd.DataFrame) -> bool:
    """Return whether activations differ in size between tokens of most layers after the first, and between layers."""
    spreads = rows[(rows["quantity"] == "energy_spread") & (rows["layer"] > 1)]["value"]
    energies = rows[rows["quantity"] == "hidden_energy"]["value"]
    return len(spreads) > 0 and spreads.median() > _SAME and bool(energies.max() > (1 + _SAME) * energies.min())


def normed_residuals(frame: pd.DataFrame) -> list[str]:
    """Return a note for each list of layers whose residual connections add to the normalized residual stream.

    This may be intended.
    """
    lines: dict[str, None] = {}
    for (_, _, part), rows in frame[frame["layer"] > 0].groupby(["width", "depth", "part"], sort=False):
        if residual_of_normed(rows, sorted(rows["layer"].unique())):
            lines[
                f"residual connections of {part} carry the normalized residual stream, not the residual stream itself"
            ] = None
    return list(lines)


def detached(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Find the layers that stop the gradient on its way to the input, although earlier parameters are trainable."""
    arrives = rows[rows["quantity"] == "gradient_sq"].groupby("layer")["value"].max().reindex(layers).to_numpy(float)
    reached = [k for k, value in enumerate(arrives) if value > 0]
    if not reached:
        return
    # A layer that learns is used by another of its outputs than the one that is measured.
    learns = set(rows.loc[(rows["quantity"] == "gradient") & (rows["value"] > 0), "layer"])
    yield from (
        Finding(int(layers[k]), "detached", "no gradient reaches its output: is the output used?")
        for k in range(reached[-1] + 1, len(layers))
        if arrives[k] == 0 and layers[k] not in learns
    )
    first = reached[0]
    if first and learning(rows, layers[:first]):
        # An output that asks for a gradient and gets none is cut off by the next layer, another one by its own.
        cut = first if arrives[first - 1] == 0 else first - 1
        yield Finding(
            int(layers[cut]),
            "detached",
            "no gradient reaches the layers before it: is the residual stream detached here?",
        )


def unreached(rows: pd.DataFrame, layers: list[int]) -> set[int]:
    """Return the layers whose outputs get no gradient; the result is empty if no layer's output gets one."""
    arrives = rows[rows["quantity"] == "gradient_sq"].groupby("layer")["value"].max().reindex(layers)
    return {int(layer) for layer, value in arrives.items() if not value > 0} if (arrives > 0).any() else set()


def _gradients(rows: pd.DataFrame) -> pd.DataFrame:
    """Return weight and gradients of every parameter that ran and is not frozen, as maxima over seeds."""
    chosen = rows[rows["quantity"].isin(["weight", "gradient", "gradient_later", "frozen", "idle", "gradient_double"])]
    table = chosen.pivot_table("value", ["layer", "parameter"], "quantity", "max")
    table = table.reindex(columns=["weight", "gradient", "gradient_later", "frozen", "idle", "gradient_double"])
    return table[table["frozen"].isna() & (table["idle"].isna() | (table["gradient"] > 0))]


def never_learning(rows: pd.DataFrame) -> Iterator[Finding]:
    """Find the parameters that get no gradient in any layer, neither now nor after zero weights have been updated.

    There is one finding per cause. Numbered parts, such as the experts of a layer, count together, because few tokens
    may reach only some of them.
    """
    table = _gradients(rows)
    if table.empty:
        return
    gets = table["gradient"].fillna(0.0).add(table["gradient_later"].fillna(0.0)) > 0
    if not gets.any():
        arrives = (rows[rows["quantity"] == "gradient_sq"]["value"] > 0).any()
        why = "are they all multiplied by 0?" if arrives else "is its output unused or detached?"
        what = f"no parameter of its layers gets a gradient, now or in later steps: {why}"
        yield Finding(WHOLE_MODEL, "no gradient", what)
        return
    alike = table.index.get_level_values("parameter").str.replace(r"(^|\.)\d+(?=\.)", r"\1*", regex=True)
    half = table.index.get_level_values("layer").nunique() / 2
    silent = [
        n for n, of in gets.groupby(alike) if not of.any() and of.index.get_level_values("layer").nunique() >= half
    ]
    used = table["gradient"].notna().groupby(alike).any()
    for is_used, words in ((False, "no layer uses"), (True, "no layer has a gradient, now or in later steps, for")):
        if names := [name for name in silent if used[name] == is_used]:
            yield Finding(WHOLE_MODEL, "no gradient", f"{words} {escaped(', '.join(names))}")
    yield from _rounding(table, alike, half)


def _rounding(table: pd.DataFrame, alike: pd.Index, half: float) -> Iterator[Finding]:
    """Find weights whose gradient is only rounding error in every layer, as for a gate that is divided by itself.

    The test uses gradient times weight, because a small gradient in front of a large weight still matters. Biases are
    left out: the bias of keys has no gradient except rounding. In double precision rounding errors shrink, while a
    small gradient stays the same.
    """
    effect = table["gradient"] * table["weight"]
    share = effect / effect.groupby("layer").transform("max")
    less = table["gradient_double"] < _LESS * table["gradient"]
    judged = (effect > 0) & ~alike.str.contains(r"bias[^.]*$")
    for name, of in share[judged].groupby(alike[judged]):
        if of.index.get_level_values("layer").nunique() >= half and of.max() < ROUNDED and less[of.index].all():
            what = f"in every layer the gradient of {escaped(name)} is only a rounding error "
            what += "({} of the layer's largest gradient): is its output divided by itself?"
            yield Finding(WHOLE_MODEL, "no gradient", what, (float(of.max()),), digits=1)


def learning_later(frame: pd.DataFrame) -> list[str]:
    """Return a note for each list of layers that get a gradient only after some parameter, now 0, has been updated."""
    lines: dict[str, None] = {}
    if not (frame.loc[frame["quantity"] == "gradient_later", "value"] > 0).any():
        return []
    for _, here in frame.groupby(["width", "depth"], sort=False):
        for part, rows in here[here["layer"] > 0].groupby("part", sort=False):
            table = _gradients(rows)
            if table["gradient"].max() != 0 or not table["gradient_later"].max() > 0:
                continue
            others = _gradients(here[here["part"] != part].assign(layer=0))
            zeros = others[(others["weight"] == 0) & (others["gradient"] > 0)].index.get_level_values("parameter")
            names = ", ".join(zeros[:_NEAR]) + (", ..." if len(zeros) > _NEAR else "")
            first = "is 0 and must change first" if len(zeros) == 1 else "are 0 and must change first"
            lines[f"all layers of {part} get gradient 0 at the first step, because {names} {first}"] = None
    return list(lines)


def learning(rows: pd.DataFrame, layers: list[int]) -> bool:
    """Return whether any of the given layers has a trainable parameter."""
    here = rows[rows["layer"].isin(layers)]
    return bool((here["quantity"] == "weight").sum() > (here["quantity"] == "frozen").sum())


def wrong_depth(frame: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    """Find lists of layers that have the same length for every depth that the user requested."""
    counts = frame[frame["quantity"] == "layers"]
    for part, rows in counts.groupby("part", sort=False):
        if rows["depth"].nunique() > 1 and rows["value"].nunique() == 1:
            what = "has {} layers at every depth: does the factory use its argument `depth`?"
            finding = Finding(WHOLE_MODEL, "depth", what, (float(rows["value"].iloc[0]),))
            for where in rows[["width", "depth"]].drop_duplicates().itertuples(index=False):
                yield (int(where.width), int(where.depth)), str(part), finding


def other_depths(frame: pd.DataFrame) -> list[str]:
    """Return a note for each list whose number of layers differs from the depth that the user requested."""
    counts = frame[(frame["quantity"] == "layers") & (frame["value"] != frame["depth"])]
    unique = counts[["part", "depth", "value"]].drop_duplicates()
    return [f"{row.part} has {row.value:.0f} layers at depth {row.depth}" for row in unique.itertuples()]
