"""What became of training runs, and what is concluded, as lines of text."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from studies.comparisons import STUCK, TrainingRow, median_time, time_to

_KIND = ("optimizer", "placement", "warmup", "reading", "peak")


def outcome_lines(rows: Sequence[TrainingRow]) -> list[str]:
    """A line for each kind of run: its final loss, when it has learned more than how frequent words are, its outcomes.

    The loss is the mean over seeds. The time is the median by Kaplan and Meier of the first measured update at which
    the loss is below that of word frequencies by 5%: no number where fewer than half of the seeds get there.
    """
    kinds: dict[tuple[Any, ...], list[TrainingRow]] = {}
    for row in rows:
        kinds.setdefault(tuple(row[name] for name in _KIND), []).append(row)
    head = f"{'optimizer':9} {'placement':9} {'warm-up':>7} {'reading':7} {'rate':>7} {'final loss':>10} {'learns':>6}"
    lines = [f"{head}  outcomes"]
    for (optimizer, placement, warmup, reading, peak), runs in kinds.items():
        outcomes = [row["outcome"] for row in runs]
        counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
        times = [time_to(row["updates"], row["validation"], (1 - STUCK) * row["unigram"]) for row in runs]
        middle = median_time(*zip(*times, strict=True))
        learns = f"{middle:.0f}" if middle < float("inf") else "-"
        line = f"{optimizer:9} {placement:9} {warmup:7d} {reading:7} {peak:7g} {fmean(r['final'] for r in runs):10.3f}"
        lines.append(f"{line} {learns:>6}  {counts}")
    return lines
