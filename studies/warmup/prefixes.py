"""Whether runs fail within their first updates, where what follows is not run: the rules of a grid with `prefix`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Literal

from checks.verdict import Sentence, Setting, Subject, Verdict, Word as VerdictWord, sentence
from studies.comparisons import STUCK, WORSE, Comparison, TrainingRow, mean_over_seeds
from theory.stack import TITLES

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
        above: of each seed the validation loss there, in nats a token above that below which a run has not failed; of
            one that is not finite the loss before the first update.
        equal_sums: of each seed the last update with a sum of rates that the reference has too, and how far its
            validation loss is above the reference's there, in nats a token; empty where there is none.
    """

    placement: str
    warmup: int
    peak: float
    update: int
    seeds: dict[int, Word]
    above: dict[int, float]
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
                above={run["seed"]: _above(run, update) for run in runs},
                equal_sums={run["seed"]: gap for run, beside in pairs if (gap := _at_equal_sums(run, beside))},
            )
        )  # fmt: skip
    return judged


def _above(run: TrainingRow, update: int) -> float:
    at = _at(run, update)
    return (run["first"] if at is None or not isfinite(at) else at) - (1 - STUCK) * run["unigram"]


def judge_prefixes(rows: Sequence[TrainingRow], setting: Setting) -> list[Verdict]:
    """W1, W3 and W5 as far as the beginnings of runs say something, of arms with all seeds.

    Arms that should fail (W1: no warm-up; W3: a short one at the greatest rate) have "holds" where they do; those that
    should not (W3: a short one at a smaller rate; W5: Pre-LN without any) have "fails" where they do. All else is
    undecided. W1 holds at equal sums of rates where the gap is above the margin of `compare`.

    Args:
        rows: as `arms` takes them.
        setting: the models and the text.
    """
    return sorted(_verdicts(rows, setting), key=lambda verdict: verdict.claim)


def _verdicts(rows: Sequence[TrainingRow], setting: Setting) -> Iterator[Verdict]:
    longest, greatest = max(row["warmup"] for row in rows), max(row["peak"] for row in rows)
    for arm in arms(rows):
        claim = {("post", 1): "W1", ("pre", 1): "W5"}.get((arm.placement, arm.warmup), "W3")
        if len(arm.seeds) < LEAST_SEEDS or (claim == "W3" and (arm.placement, arm.warmup) == ("pre", longest)):
            continue
        schedule = "no warm-up" if arm.warmup == 1 else f"warm-up {arm.warmup}"
        name = f"{TITLES[arm.placement]}, Adam, {schedule}, rate {arm.peak:g}"
        should = claim == "W1" or (claim == "W3" and isclose(arm.peak, greatest))
        counted = list(arm.seeds.values()).count("failed")
        beginning = f"{arm.update} updates"  # to which the verdict is held, as it is to a width elsewhere
        yield _verdict(
            claim, f"{name}: loss after {beginning}", mean_over_seeds(list(arm.above.values()), trained=0),
            ("holds" if should else "fails") if arm.word == "fails" else "undecided", setting,
            sentence("above {:g}" if should else "at most {:g}", 0.0), beginning,
            f"nats a token above 95% of the loss of word frequencies; {counted} of {len(arm.seeds)} seeds failed"
            + ("" if arm.word == "fails" else ", and a run that has not may fail later"),
        )  # fmt: skip
        if claim == "W1" and len(arm.equal_sums) >= LEAST_SEEDS:
            gap = mean_over_seeds([gap for _, gap in arm.equal_sums.values()], trained=0)
            at = max(update for update, _ in arm.equal_sums.values())
            yield _verdict(
                claim, f"{name}: worse than warm-up {longest} at equal sums of rates", gap,
                "holds" if gap.answer == "worse" else "undecided", setting, sentence("above {:g}", WORSE),
                beginning,
                f"nats a token, update {at} of one beside a later one of the other",
            )  # fmt: skip


def _verdict(
    claim: str,
    part: str,
    compared: Comparison,
    word: VerdictWord,
    setting: Setting,
    claimed: Sentence,
    size: str,
    note: str,
) -> Verdict:
    return Verdict(
        claim=claim, subject=Subject(quantity=f"{part}, reading (b)", kind="comparison"), verdict=word,
        claimed=claimed, predicted=float("nan"),
        measured=compared.mean, interval=compared.interval, agreement="undecided", setting=setting,
        note=sentence(note), size=size,
    )  # fmt: skip


def _at_equal_sums(run: TrainingRow, reference: TrainingRow) -> tuple[int, float] | None:
    """The last update whose sum of rates some update of the reference has, and how far the loss is above."""
    for update, loss, total in reversed(list(zip(run["updates"], run["validation"], run["summed"], strict=True))):
        for other, beside in zip(reference["summed"], reference["validation"], strict=True):
            if update and isclose(total, other, rel_tol=_SAME_SUM) and isfinite(loss):
                return update, loss - beside
    return None
