"""Validation losses of pre-training over the tokens read, as Fig. 5 of the paper has them over updates."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from figures.looks import PLACEMENTS
from figures.style import panels, style
from studies.comparisons import TrainingRow
from theory.stack import TITLES

# Of the smaller rate and the greater: unlike for the placements, whose colours are alike in grey.
_MARKERS = {"post": "o^", "pre": "sD"}


def pretraining_losses(runs: Sequence[TrainingRow]) -> Figure:
    """Left the paper's two arms: Post-LN, smaller rate, warm-up; Pre-LN, larger rate, none. Right all arms.

    Lines are means over seeds, bands go from the least seed to the greatest; a dotted line is word frequencies'.

    Args:
        runs: rows with placement, peak, warmup, updates, validation and unigram.
    """
    arms: dict[tuple[str, float, int], list[TrainingRow]] = {}
    for run in runs:
        arms.setdefault((run["placement"], run["peak"], run["warmup"]), []).append(run)
    peaks, warmups = ({key[place] for key in arms} for place in (1, 2))
    paper = ("post", min(peaks), max(warmups)), ("pre", max(peaks), min(warmups))
    with style():
        figure, axes = panels(2)
        for axis, title, keys in ((axes[0], "the paper's two arms", paper), (axes[1], "all arms", sorted(arms))):
            for key in (key for key in keys if key in arms):
                seeds, (placement, peak, warmup) = arms[key], key
                most = max(len(run["validation"]) for run in seeds)
                longest = max(seeds, key=lambda run: len(run["updates"]))
                # NaN behind the end of a run that was not finite.
                losses = np.array(
                    [[*run["validation"], *[np.nan] * (most - len(run["validation"]))] for run in seeds], dtype=float
                )
                schedule = "no warm-up" if warmup == min(warmups) else f"warm-up {warmup}"
                look = {
                    "color": PLACEMENTS[placement]["color"], "markersize": 4.5,
                    "marker": _MARKERS[placement][peak == max(peaks)],
                    "fillstyle": "none" if warmup == min(warmups) else "full",
                    "linestyle": ":" if warmup == min(warmups) else "-",
                }  # fmt: skip
                x = longest["updates"]
                axis.plot(x, np.nanmean(losses, axis=0), label=f"{TITLES[placement]}, {peak:g}, {schedule}", **look)
                low, high = np.nanmin(losses, axis=0), np.nanmax(losses, axis=0)
                axis.fill_between(x, low, high, alpha=0.2, linewidth=0, color=look["color"])
            words = float(np.mean([run["unigram"] for run in runs]))
            axis.axhline(words, color="#777777", linestyle=":", linewidth=1.4)
            axis.set_xlabel("update")
            axis.set_title(title)
            axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=1 + (len(keys) > 2))
        axes[0].set_ylabel("validation loss, nats a word\n(dotted: word frequencies)")
    return figure
