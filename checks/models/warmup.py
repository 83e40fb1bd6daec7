"""What became of training runs, and whether one kind of run ends worse than another: paired comparisons over seeds.

A table of runs has a row for every run, with the columns of `PAIRED_WITHIN`, placement, optimizer, warmup and seed, and
`first`, `final` and `unigram`: the validation loss before the first update and after the last (NaN where a loss was not
finite), and that of the training text's word frequencies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from checks.verdict import Word
from simulate.translation.parallel_text import END, ParallelText

Outcome = Literal["diverged", "stuck", "trained"]
Answer = Literal["worse", "not worse", "undecided"]

WORSE = 0.1
"""By how much, in nats a token, a validation loss has to be above the same seed's to be called worse."""

STUCK = 0.05
"""A loss that is not below the unigram loss by this share of it has learned no more than how frequent words are."""

PAIRED_WITHIN = ("peak", "reading")
"""What runs that are compared have in common, besides the seed."""

_LEVEL = 0.95


def unigram_loss(text: ParallelText, validation: ParallelText) -> float:
    """Cross-entropy, nats a token, of a validation text under the target frequencies of a training text.

    Every id that can be a label is counted once more than it occurs, so that the loss is finite.
    """
    counts = np.ones(text.vocab)
    counts[[0, END - 1]] = 0.0  # padding and the beginning are never labels
    for ids in text.targets:
        counts += np.bincount(ids[1:], minlength=text.vocab)
    logs = np.log(counts[np.concatenate([ids[1:] for ids in validation.targets])] / counts.sum())
    return float(-logs.mean())


def outcome(first: float, final: float, unigram: float) -> Outcome:
    """What became of a run, from its validation losses.

    Args:
        first: before the first update.
        final: after the last, NaN or infinite if a loss was.
        unigram: of word frequencies alone.
    """
    if not np.isfinite(final) or final > first:
        return "diverged"
    return "stuck" if final >= (1 - STUCK) * unigram else "trained"


def time_to(updates: Sequence[int], losses: Sequence[float], threshold: float) -> tuple[int, bool]:
    """When a run's validation loss is first at most a threshold.

    Returns:
        The update and True; or the last update measured and False for a run that never gets there (it is censored).
    """
    for update, loss in zip(updates, losses, strict=True):
        if loss <= threshold:
            return update, True
    return updates[-1], False


def median_time(times: ArrayLike, reached: ArrayLike) -> float:
    """The median of survival times by Kaplan and Meier; infinite where their curve does not come down to a half."""
    times, reached = np.asarray(times, dtype=float), np.asarray(reached, dtype=bool)
    surviving = 1.0
    for time in np.unique(times[reached]):
        surviving *= 1 - np.sum(reached & (times == time)) / np.sum(times >= time)
        if surviving <= 0.5 + 1e-12:
            return float(time)
    return float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Whether runs end worse than the same seeds' others.

    Attributes:
        mean: of the differences of final validation losses, in nats a token.
        interval: of the mean over seeds, 95%, by Student's t.
        seeds: compared.
        answer: "worse" if the interval is above `WORSE`, "not worse" if it is below.
    """

    mean: float
    interval: tuple[float, float]
    seeds: int
    answer: Answer


def compare(runs: pd.DataFrame, others: pd.DataFrame) -> Comparison:
    """Runs against others of the same seeds; a run that is not finite counts with its loss before the first update.

    That is less than it deserves: a difference that is found so would be larger with any number above it.

    Raises:
        ValueError: a seed has two rows in one of them, or fewer than two seeds are in both.
    """
    losses = []
    for frame in (runs, others):
        if frame["seed"].duplicated().any():
            raise ValueError("runs must have one row for every seed.")
        losses.append(frame.set_index("seed")["final"].where(np.isfinite(frame.set_index("seed")["final"])))
        losses[-1] = losses[-1].fillna(frame.set_index("seed")["first"])
    differences = (losses[0] - losses[1]).dropna().to_numpy()
    count = len(differences)
    if count < 2:
        raise ValueError(f"runs must have at least 2 seeds in common, got {count}.")
    mean = float(differences.mean())
    half = float(stats.t.ppf((1 + _LEVEL) / 2, count - 1) * differences.std(ddof=1) / np.sqrt(count))
    answer: Answer = "undecided"
    if mean - half > WORSE:
        answer = "worse"
    elif mean + half < WORSE:
        answer = "not worse"
    return Comparison(mean=mean, interval=(mean - half, mean + half), seeds=count, answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement of the paper that one comparison decides.

    Attributes:
        claim: its name.
        runs: what the runs have, by column; "none" and "longest" are values of `warmup`.
        others: what those have that they are compared with.
        expected: what the paper says of the runs.
    """

    claim: str
    runs: Mapping[str, Any]
    others: Mapping[str, Any]
    expected: Answer


def _without(optimizer: str, placement: str) -> dict[str, Any]:
    return {"optimizer": optimizer, "placement": placement, "warmup": "none"}


def _with(optimizer: str, placement: str) -> dict[str, Any]:
    return {**_without(optimizer, placement), "warmup": "longest"}


STATEMENTS = (
    Statement(claim="W1", runs=_without("adam", "post"), others=_with("adam", "post"), expected="worse"),
    Statement(claim="W2", runs=_without("sgd", "post"), others=_with("sgd", "post"), expected="worse"),
    Statement(claim="W5", runs=_without("adam", "pre"), others=_with("adam", "pre"), expected="not worse"),
    Statement(claim="W7", runs=_without("adam", "post"), others=_without("radam", "post"), expected="worse"),
    Statement(claim="W7", runs=_without("radam", "pre"), others=_without("adam", "pre"), expected="not worse"),
    Statement(claim="W7", runs=_without("adam", "pre"), others=_without("radam", "pre"), expected="not worse"),
)
"""W1, W2: without warm-up Post-LN fails, with Adam and with SGD. W5: Pre-LN needs none. W7: RAdam repairs Post-LN
without warm-up, and is neutral for Pre-LN. What is said of T and the rate, of speed and of gradients is not here."""


def judge(table: pd.DataFrame) -> pd.DataFrame:
    """Every statement at every rate and reading that a table has two seeds of.

    Returns:
        Columns claim, those of `PAIRED_WITHIN`, statement, mean, low, high, seeds, answer and verdict: "holds", "fails"
        or "undecided".
    """
    rows = []
    for statement in STATEMENTS:
        for place, cell in table.groupby(list(PAIRED_WITHIN)):
            runs, others = (_selected(cell, some) for some in (statement.runs, statement.others))
            if len(set(runs["seed"]) & set(others["seed"])) < 2:
                continue
            found = compare(runs, others)
            word: Word = "holds" if found.answer == statement.expected else "fails"
            if found.answer == "undecided":
                word = "undecided"
            said = f"{_words(statement.runs)} is {statement.expected} than {_words(statement.others)}"
            rows.append((statement.claim, *place, said, found.mean, *found.interval, found.seeds, found.answer, word))
    names = ["claim", *PAIRED_WITHIN, "statement", "mean", "low", "high", "seeds", "answer", "verdict"]
    return pd.DataFrame(rows, columns=names)


def _selected(cell: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """The runs of an optimizer and a placement, without warm-up or with the longest that the cell has, above none."""
    own = cell[(cell["optimizer"] == wanted["optimizer"]) & (cell["placement"] == wanted["placement"])]
    longest = own["warmup"].max()
    return own[own["warmup"] == 1] if wanted["warmup"] == "none" else own[(own["warmup"] == longest) & (longest > 1)]


def _words(some: Mapping[str, Any]) -> str:
    return f"{some['optimizer']}, {some['placement']}, {'no' if some['warmup'] == 'none' else 'longest'} warm-up"
