"""Training with and without warm-up: losses, what they end at against the rate, gradients, and rates of the steps."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from figures.style import legend_below, looks, of_placement, ordered, panels, style
from studies.comparisons import TrainingRow
from theory.stack import TITLES


def warmup_losses(runs: Sequence[TrainingRow], peak: float, sgd_peak: float) -> Figure:
    """Validation loss over the updates: Adam in both placements, with every warm-up and reading; RAdam and SGD.

    Lines are means over seeds, bands go from the least seed to the greatest.

    Args:
        runs: rows with optimizer, placement, warmup, peak, reading, updates, validation and unigram.
        peak: the rate of Adam and RAdam.
        sgd_peak: the rate of SGD.
    """
    panel = {
        **{f"{TITLES[p]}, Adam, rate {peak:g}": [("adam", p, peak)] for p in ("post", "pre")},
        f"RAdam, rate {peak:g}": [("radam", p, peak) for p in ("post", "pre")],
        f"SGD, rate {sgd_peak:g}": [("sgd", p, sgd_peak) for p in ("post", "pre")],
    }
    drawn = {title: curves for title, kinds in panel.items() if (curves := _curves(runs, kinds))}
    looks_of = _looks_of_kinds(runs)
    with style():
        figure, axes = panels(max(1, len(drawn)))
        for axis, (title, curves) in zip(axes, drawn.items(), strict=False):
            several = len({placement for placement, *_ in curves}) > 1
            for (placement, warmup, reading), seeds in curves.items():
                x, values = seeds[0]["updates"], _aligned(seeds)
                look, label = looks_of[warmup, reading], _said(warmup, reading)
                if several:  # then colour and dashes tell the placement, and the mark the warm-up
                    placed = {name: of_placement(placement)[name] for name in ("color", "linestyle")}
                    look, label = look | placed, f"{TITLES[placement]}, {label}"
                axis.plot(x, np.nanmean(values, axis=0), label=label, **({"markersize": 4} | look))
                axis.fill_between(
                    x, np.nanmin(values, axis=0), np.nanmax(values, axis=0), color=look["color"], alpha=0.2, linewidth=0
                )
            axis.axhline(next(iter(curves.values()))[0]["unigram"], color="#777777", linestyle=":", linewidth=1.4)
            axis.set_xlabel("update")
            axis.set_title(title)
        for axis in axes[:: 2 if len(axes) > 1 else 1]:
            axis.set_ylabel("validation loss, nats a token")
        legend_below(figure, 3, "means, shaded: least to most of the seeds; dotted: word frequencies")
    return figure


def _curves(
    runs: Sequence[TrainingRow], kinds: Sequence[tuple[str, str, float]]
) -> dict[tuple[str, int, str], list[TrainingRow]]:
    """The runs of a panel by placement, warm-up and reading."""
    return {
        (placement, warmup, reading): seeds
        for optimizer, placement, rate in kinds
        for (warmup, reading), seeds in _kinds(runs, optimizer, placement, rate).items() if reading != "fixed"
    }  # fmt: skip


def _looks_of_kinds(runs: Sequence[TrainingRow]) -> dict[tuple[int, str], dict[str, Any]]:
    """A look for each warm-up and reading, the same in every panel and figure, also where one of them lacks another."""
    kinds = sorted({(run["warmup"], run["reading"]) for run in runs}, key=lambda kind: (kind[1] == "fixed", kind))
    return dict(zip(kinds, looks(), strict=False))


def warmup_ends(runs: Sequence[TrainingRow]) -> Figure:
    """Adam's final validation loss against the rate, for each placement, with every warm-up and reading.

    Marks are means over seeds, bars go from the least seed to the greatest.

    Args:
        runs: rows with optimizer, placement, warmup, peak, reading, first and final.
    """
    of_adam = sorted((r for r in runs if r["optimizer"] == "adam"), key=_order)
    kinds = _looks_of_kinds(runs)
    with style():
        figure, axes = panels(2)
        for axis, placement in zip(axes, ("post", "pre"), strict=True):
            trained = [r for r in of_adam if r["placement"] == placement]
            shift = 1.0
            for (warmup, reading), look in kinds.items():
                ends: dict[float, list[float]] = {}
                for r in trained:
                    if (r["warmup"], r["reading"]) == (warmup, reading):
                        ends.setdefault(r["peak"], []).append(r["final"] if np.isfinite(r["final"]) else r["first"])
                rates = sorted(ends)
                if not rates:
                    continue
                middle = np.array([np.mean(ends[rate]) for rate in rates])
                low, high = (np.array([end(ends[rate]) for rate in rates]) for end in (min, max))
                axis.errorbar(
                    np.array(rates) * shift, middle, yerr=_bars(low, middle, high), capsize=2.5,
                    label=_said(warmup, reading), **({"markersize": 4.5} | look),
                )  # fmt: skip
                shift *= 1.02
            axis.set_xscale("log")
            rates = sorted({r["peak"] for r in trained if r["reading"] != "fixed"})
            axis.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=45)
            axis.minorticks_off()
            axis.set_xlabel(r"largest rate $\eta$")
            axis.set_title(f"{TITLES[placement]}, Adam")
        axes[0].set_ylabel("final loss, nats a token")
        legend_below(figure, 4, "means, bars: least to most of the seeds")
    return figure


def warmup_gradients(runs: Sequence[TrainingRow], peak: float) -> Figure:
    """Gradient norms of the decoder's W2 over the layers: before the first update, behind the warm-up, at the end.

    Of Adam with the longest warm-up; lines are geometric means over seeds, bars go from the least to the greatest.

    Args:
        runs: rows with optimizer, placement, warmup, peak and layers.
        peak: the rate.
    """
    longest = max(run["warmup"] for run in runs)
    with style():
        figure, axes = panels(2)
        for axis, placement in zip(axes, ("post", "pre"), strict=True):
            warmed = [
                r for kind, seeds in _kinds(runs, "adam", placement, peak).items() if kind[0] == longest for r in seeds
            ]
            for look, place in zip(ordered(3), range(3), strict=True):
                places = [list(r["layers"].items())[place] for r in warmed if len(r["layers"]) == 3]
                if not places:
                    continue
                norms = np.array([layers["decoder W2"] for _, layers in places])
                _norms(axis, norms, {0: "before the first update"}.get(place, f"after {places[0][0]} updates"), look)
            _logarithmic(axis)
            axis.set_xlabel("layer $l$ of the decoder")
            axis.set_title(f"{TITLES[placement]}, Adam, warm-up {longest}, rate {peak:g}")
        axes[0].set_ylabel(r"$\Vert\partial\mathcal{L}/\partial W^2\Vert$")
        legend_below(figure, 3, "geometric means, bars: least to most of the seeds")
    return figure


def _norms(axis: Axes, norms: np.ndarray, label: str, look: dict[str, Any]) -> None:
    middle = np.exp(np.log(norms).mean(axis=0))
    spans = _bars(norms.min(axis=0), middle, norms.max(axis=0))
    layers = np.arange(1, norms.shape[1] + 1)
    axis.errorbar(layers, middle, yerr=spans, capsize=2.5, label=label, **({"markersize": 4.5} | look))


def warmup_rates(runs: Sequence[TrainingRow], peak: float) -> Figure:
    """The rate of an update beside the rates at which its step would bring the loss of its mini-batch back.

    Of Adam at one rate; lines are medians over the seeds that measured them, with gaps where none has such a rate.

    Args:
        runs: rows with optimizer, placement, warmup, peak, reading, steps, rates, critical, hessian and break_even.
        peak: the largest rate of the schedules.
    """
    kinds = [("post", 1, "b"), ("post", max(run["warmup"] for run in runs), "both"), ("pre", 1, "b")]
    curves = {"rates": "the update's", "break_even": "break-even", "critical": "critical", "hessian": "of the Hessian"}
    with style():
        figure, axes = panels(len(kinds))
        for axis, (placement, warmup, reading) in zip(axes, kinds, strict=True):
            seeds = _kinds(runs, "adam", placement, peak).get((warmup, reading), [])
            for look, (name, label) in zip(looks(), curves.items(), strict=False):
                whole = [r for r in seeds if len(r["steps"]) == max(len(other["steps"]) for other in seeds)]
                if whole and whole[0]["steps"]:
                    # A line has a gap where no seed has the rate.
                    middle = pd.DataFrame([r[name] for r in whole]).median()
                    axis.plot(whole[0]["steps"], middle, label=label, **({"markersize": 4} | look))
            _logarithmic(axis)
            axis.set_xlabel("update")
            axis.set_title(f"{TITLES[placement]}, Adam, {_said(warmup, reading)}")
        axes[0].set_ylabel("learning rate")
        legend_below(figure, 4, "medians over the seeds")
    return figure


def _bars(low: np.ndarray, middle: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Lengths of bars, (2, values); of one seed they are zero but for rounding."""
    return np.maximum(0.0, np.array([middle - low, high - middle]))


def _logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high < 100 * low:  # with fewer than two powers of ten on the axis, more values have a number
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _said(warmup: int, reading: str) -> str:
    how = "no warm-up" if warmup == 1 else f"warm-up {warmup}"
    return {"both": how, "fixed": f"{how}, fixed"}.get(reading, f"{how} ({reading})")


def _order(run: TrainingRow) -> tuple[int, str]:
    return run["warmup"], run["reading"]


def _kinds(
    runs: Iterable[TrainingRow], optimizer: str, placement: str, peak: float
) -> dict[tuple[int, str], list[TrainingRow]]:
    """Runs of a rate, by warm-up and reading."""
    kinds: dict[tuple[int, str], list[TrainingRow]] = {}
    for run in sorted(runs, key=_order):
        if (run["optimizer"], run["placement"]) == (optimizer, placement) and np.isclose(run["peak"], peak):
            kinds.setdefault((run["warmup"], run["reading"]), []).append(run)
    return kinds


def _aligned(runs: Sequence[TrainingRow]) -> np.ndarray:
    """Losses of seeds, (seeds, updates); NaN behind the end of one that was not finite."""
    most = max(len(run["validation"]) for run in runs)
    return np.array([[*run["validation"], *[np.nan] * (most - len(run["validation"]))] for run in runs])
