"""Whether runs fail within their first updates, where what follows is not run: the rules of a grid with `prefix`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Literal

from gradbounds.studies.comparisons import STUCK, TrainingRow

Word = Literal["failed", "not failed", "open"]
ArmWord = Literal["fails", "has not failed", "undecided"]

LEAST_SEEDS = 3

# Relative: losses are recorded every 25 updates of 1000, between which the sum of rising rates grows by 5%.
_SAME_SUM = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What became of the runs of one placement, warm-up and largest rate before an update.

    Attributes:
        placement: of LayerNorm.
        warmup: T.
        peak: the largest rate.
        update: the last that all of its runs and their references recorded.
        seeds: each seed's word.
        equal_sums: of each seed the last update with a sum of rates that the reference has too, and how far its
            validation loss is above the reference's there, in nats a token; empty where there is none.
    """

    placement: str
    warmup: int
    peak: float
    update: int
    seeds: dict[int, Word]
    equal_sums: dict[int, tuple[int, float]]

    @property
    def word(self) -> ArmWord:
        """Of all seeds; of fewer than three it is undecided."""
        words = set(self.seeds.values())
        if len(self.seeds) < LEAST_SEEDS or len(words) > 1 or "open" in words:
            return "undecided"
        return "fails" if "failed" in words else "has not failed"

    def __str__(self) -> str:
        told = ", ".join(f"seed {seed} {word}" for seed, word in self.seeds.items())
        name = f"{self.placement} T = {self.warmup}, {self.peak:g}: "
        text = f"{name}{self.word} before update {self.update} ({told})"
        sums = ", ".join(f"{gap:+.2f} at {update}" for update, gap in self.equal_sums.values())
        return f"{text}; at equal sums of rates {sums}" if sums else text


def state(run: TrainingRow, reference: TrainingRow, update: int) -> Word:
    """Whether a run has failed at an update that both recorded.

    Args:
        run: with `updates`, `validation`, `unigram` and `outcome`.
        reference: of the same seed, that should have learned something by then.
        update: the update.
    """
    at = _at(run, update)
    if at is None or not isfinite(at):
        return "failed"
    bar = (1 - STUCK) * run["unigram"]
    if at < bar:
        return "not failed"
    beside = _at(reference, update)
    return "failed" if beside is not None and beside < bar else "open"


def _at(run: TrainingRow, update: int) -> float | None:
    """A run's validation loss at an update; None if a loss was not finite before."""
    return next((loss for at, loss in zip(run["updates"], run["validation"], strict=True) if at == update), None)


def arms(rows: Sequence[TrainingRow]) -> list[Arm]:
    """Every kind of run but the reference, which is Post-LN with the longest warm-up at the greatest rate.

    Args:
        rows: of finished runs, or of runs that were cut off, of reading (b).
    """
    longest, greatest = max(row["warmup"] for row in rows), max(row["peak"] for row in rows)
    references = {
        row["seed"]: row for row in rows
        if row["placement"] == "post" and row["warmup"] == longest and isclose(row["peak"], greatest)
    }  # fmt: skip
    kinds: dict[tuple[str, int, float], list[TrainingRow]] = {}
    for row in rows:
        if row["seed"] in references and row is not references[row["seed"]]:
            kinds.setdefault((row["placement"], row["warmup"], row["peak"]), []).append(row)
    judged = []
    for (placement, warmup, peak), runs in kinds.items():
        pairs = [(run, references[run["seed"]]) for run in runs]
        # A run whose loss was not finite has no later record, and needs none.
        lasts = [end for pair in pairs for run in pair if isfinite(run["final"]) for end in [run["updates"][-1]]]
        update = min(lasts, default=0)
        judged.append(
            Arm(
                placement=placement, warmup=warmup, peak=peak, update=update,
                seeds={run["seed"]: state(run, beside, update) for run, beside in pairs},
                equal_sums={run["seed"]: gap for run, beside in pairs if (gap := _at_equal_sums(run, beside))},
            )
        )  # fmt: skip
    return judged


def _at_equal_sums(run: TrainingRow, reference: TrainingRow) -> tuple[int, float] | None:
    """The last update whose sum of rates some update of the reference has, and how far the loss is above."""
    for update, loss, total in reversed(list(zip(run["updates"], run["validation"], run["summed"], strict=True))):
        for other, beside in zip(reference["summed"], reference["validation"], strict=True):
            if update and isclose(total, other, rel_tol=_SAME_SUM) and isfinite(loss):
                return update, loss - beside
    return None
