"""Whether the stream of a probed module is whole: residual connections, gradients that arrive, all its layers."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Finding, escaped
from simulate.modules.probe import ROUNDED

NORMED_RESPONSE = 0.1
"""The response of a layer's output to the scale of its input below which a norm stands behind it: there it is 0, and
the input's share of the output without a norm."""

# So often is a layer named by mistake, if what it adds has a random direction.
_MISTAKE = 1e-6
_SURE = float(stats.norm.isf(_MISTAKE))
# The part of its neighbours' coefficient that a residual connection has at least.
_KEPT = 0.5
_NEAR = 4
# Tokens behind a norm have the same energy but for its epsilon, and so have layers.
_SAME = 1e-3
# What is left of rounding in double precision.
_LESS = 1e-3


def coefficients(rows: pd.DataFrame, layers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """How much of its input every layer's output holds, and the error: means over seeds; nan where it has none."""
    values = []
    for quantity in ("stream_coefficient", "coefficient_error"):
        by_layer = rows[rows["quantity"] == quantity].groupby("layer")["value"]
        mean = (
            by_layer.mean()
            if quantity == "stream_coefficient"
            else by_layer.apply(lambda v: float(np.sqrt((v**2).sum())) / len(v))
        )
        values.append(mean.reindex(layers).to_numpy(dtype=float))
    return values[0], values[1]


def without_residual(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Layers whose output does not hold their input, though the nearest layers' do.

    c = <x, y>/<x, x> is 1 for y = x + b, whatever the size of b and of x, and that over the norm's scale behind a norm.
    Its error is b's, projected; weak embeddings make it large, and a layer is named only where its c is below half of
    its neighbours' by more than chance makes.
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
        if kept > _SURE * _KEPT * errors[usual] and kept - value > _SURE * error:
            what = "its output holds {} of its input, its neighbours' {}: is its residual connection there?"
            yield Finding(int(layers[k]), "residual", what, (float(value), float(values[usual])), digits=2)


def no_residual_anywhere(frame: pd.DataFrame) -> list[str]:
    """A line for every list of which no layer has a residual connection; that may be meant."""
    lines = []
    for part, rows in frame[frame["layer"] > 0].groupby("part", sort=False):
        highest = _no_coefficient(rows, sorted(rows["layer"].unique()))
        if np.isfinite(highest):
            lines.append(
                f"no layer of {part} has a residual connection that can be seen (coefficients up to {highest:.2g})"
            )
    return lines


def _no_coefficient(rows: pd.DataFrame, layers: list[int]) -> float:
    """The largest coefficient of layers of which none has one that can be told from 0; NaN of others."""
    values, errors = coefficients(rows, layers)
    none = len(layers) > 1 and np.isfinite(values).all() and (np.abs(values) < _SURE * errors).all()
    return float(np.abs(values).max()) if none else float("nan")


def independent(rows: pd.DataFrame, layers: list[int]) -> bool:
    """Whether a layer's energy says nothing of the next one's: none holds its input, or answers to its scale."""
    asked = not rows[rows["quantity"] == "scale_response"].empty
    return asked and not _answers(rows) and bool(np.isfinite(_no_coefficient(rows, layers)))


def behind_norms(rows: pd.DataFrame) -> bool:
    """Whether most outputs are normed: they do not answer to the scale of their inputs, and tokens have one energy.

    True where nothing was asked.
    """
    return not _answers(rows) and not _uneven(rows)


def residual_of_normed(rows: pd.DataFrame, layers: list[int]) -> bool:
    """Whether residual connections hold the normed stream, x = norm(x) + b, and not the stream itself.

    The output holds its input, does not answer to its scale, and is not normed itself: tokens differ in energy. Told
    of the second layer and later ones, as the first may be given a stream that is weaker than any branch.
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
    """Whether energies differ between the tokens of most layers but the first, and between layers and draws."""
    spreads = rows[(rows["quantity"] == "energy_spread") & (rows["layer"] > 1)]["value"]
    energies = rows[rows["quantity"] == "hidden_energy"]["value"]
    return len(spreads) > 0 and spreads.median() > _SAME and bool(energies.max() > (1 + _SAME) * energies.min())


def normed_residuals(frame: pd.DataFrame) -> list[str]:
    """A line for every list whose residual connections hold the normed stream; that may be meant."""
    lines: dict[str, None] = {}
    for (_, _, part), rows in frame[frame["layer"] > 0].groupby(["width", "depth", "part"], sort=False):
        if residual_of_normed(rows, sorted(rows["layer"].unique())):
            lines[f"residual connections of {part} hold the normed stream, and not the stream itself"] = None
    return list(lines)


def detached(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Where the gradient stops on its way to the input, though parameters before would learn."""
    arrives = rows[rows["quantity"] == "gradient_sq"].groupby("layer")["value"].max().reindex(layers).to_numpy(float)
    reached = [k for k, value in enumerate(arrives) if value > 0]
    if not reached:
        return
    for k in range(reached[-1] + 1, len(layers)):
        if arrives[k] == 0:
            yield Finding(int(layers[k]), "detached", "no gradient arrives at its output: is that used?")
    first = reached[0]
    if first and learning(rows, layers[:first]):
        # An output that asks for a gradient and gets none is cut off by the next layer, another one by its own.
        cut = first if arrives[first - 1] == 0 else first - 1
        yield Finding(
            int(layers[cut]), "detached", "no gradient arrives at the layers before it: is it detached there?"
        )


def unreached(rows: pd.DataFrame, layers: list[int]) -> set[int]:
    """Layers at whose output no gradient arrives, while it does at others."""
    arrives = rows[rows["quantity"] == "gradient_sq"].groupby("layer")["value"].max().reindex(layers)
    return {int(layer) for layer, value in arrives.items() if not value > 0} if (arrives > 0).any() else set()


def _gradients(rows: pd.DataFrame) -> pd.DataFrame:
    """Of every parameter that is not frozen and ran: the largest weight, gradient and later gradient over seeds."""
    chosen = rows[rows["quantity"].isin(["weight", "gradient", "gradient_later", "frozen", "idle", "gradient_double"])]
    table = chosen.pivot_table("value", ["layer", "parameter"], "quantity", "max")
    table = table.reindex(columns=["weight", "gradient", "gradient_later", "frozen", "idle", "gradient_double"])
    return table[table["frozen"].isna() & (table["idle"].isna() | (table["gradient"] > 0))]


def never_learning(rows: pd.DataFrame) -> Iterator[Finding]:
    """Parameters that get no gradient in any layer, also not once what begins at 0 has moved: one finding a cause.

    Numbered parts, such as the experts of a layer, count together: few tokens may leave one of them out.
    """
    table = _gradients(rows)
    if table.empty:
        return
    gets = table["gradient"].fillna(0.0).add(table["gradient_later"].fillna(0.0)) > 0
    if not gets.any():
        arrives = (rows[rows["quantity"] == "gradient_sq"]["value"] > 0).any()
        why = "is a factor of 0 behind them all?" if arrives else "is its output used, and not detached?"
        yield Finding(WHOLE_MODEL, "no gradient", f"no parameter of its layers gets a gradient, or will: {why}")
        return
    alike = table.index.get_level_values("parameter").str.replace(r"(^|\.)\d+(?=\.)", r"\1*", regex=True)
    half = table.index.get_level_values("layer").nunique() / 2
    silent = [
        n for n, of in gets.groupby(alike) if not of.any() and of.index.get_level_values("layer").nunique() >= half
    ]
    used = table["gradient"].notna().groupby(alike).any()
    for names, words in (
        ([n for n in silent if not used[n]], "no layer uses"),
        ([n for n in silent if used[n]], "no layer has a gradient, or will have one, of"),
    ):
        if names:
            yield Finding(WHOLE_MODEL, "no gradient", f"{words} {escaped(', '.join(names))}")
    yield from _rounding(table, alike, half)


def _rounding(table: pd.DataFrame, alike: pd.Index, half: float) -> Iterator[Finding]:
    """Weights whose gradient is rounding in every layer, as that of a gate whose output is divided by itself.

    Sizes count beside gradients: behind a small factor gradients are small, and what its own makes of the loss is not.
    Biases are left out: that of keys has no gradient but rounding. In double precision rounding is less, and a small
    gradient the same.
    """
    effect = table["gradient"] * table["weight"]
    share = effect / effect.groupby("layer").transform("max")
    less = table["gradient_double"] < _LESS * table["gradient"]
    judged = (effect > 0) & ~alike.str.contains(r"bias[^.]*$")
    for name, of in share[judged].groupby(alike[judged]):
        if of.index.get_level_values("layer").nunique() >= half and of.max() < ROUNDED and less[of.index].all():
            what = f"in every layer the gradient of {escaped(name)} is rounding ({{}} of the layer's largest)"
            what += ": is what it makes divided by itself?"
            yield Finding(WHOLE_MODEL, "no gradient", what, (float(of.max()),), digits=1)


def learning_later(frame: pd.DataFrame) -> list[str]:
    """A line for every list that gets its first gradient once something that is 0 behind it has moved."""
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
            first = "is 0 and moves first" if len(zeros) == 1 else "are 0 and move first"
            lines[f"all layers of {part} get gradient 0 at the first step: {names} {first}"] = None
    return list(lines)


def learning(rows: pd.DataFrame, layers: list[int]) -> bool:
    """Whether a parameter of these layers is not frozen."""
    here = rows[rows["layer"].isin(layers)]
    return bool((here["quantity"] == "weight").sum() > (here["quantity"] == "frozen").sum())


def wrong_depth(frame: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    """Lists that have the same number of layers at every depth that was asked for."""
    counts = frame[frame["quantity"] == "layers"]
    for part, rows in counts.groupby("part", sort=False):
        if rows["depth"].nunique() > 1 and rows["value"].nunique() == 1:
            finding = Finding(WHOLE_MODEL, "depth", "has {} layers whatever the depth", (float(rows["value"].iloc[0]),))
            for where in rows[["width", "depth"]].drop_duplicates().itertuples(index=False):
                yield (int(where.width), int(where.depth)), str(part), finding


def other_depths(frame: pd.DataFrame) -> list[str]:
    """A line for every list and depth that has another number of layers than was asked for."""
    counts = frame[(frame["quantity"] == "layers") & (frame["value"] != frame["depth"])]
    unique = counts[["part", "depth", "value"]].drop_duplicates()
    return [f"{row.part} has {row.value:.0f} layers at depth {row.depth}" for row in unique.itertuples()]
