"""Verdicts on the paper's pre-training: B1 to B3 from a table of runs, B4 from one of fine-tunings.

The smaller rate and the warm-up stand for Post-LN's in the paper, the larger rate without a warm-up for Pre-LN's. A row
judges only where the arm that should have trained, if the claim is true, did so in a majority of seeds; otherwise its
premise fails. Intervals are over seeds, 95%, by Student's t.

Of B4 both placements have to beat a network that was not pre-trained by `LEARNED`, in a majority of seeds. This, its
margin and the rest of the fine-tunings' design were fixed before any model was fine-tuned (presets/small.toml).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean

from checks.verdict import Setting, Subject, Verdict, Word, sentence
from studies.comparisons import (
    Comparison,
    TrainingRow,
    above_trained,
    end_of,
    lead,
    mean_over_seeds,
    paired,
    trained_in,
)
from theory.stack import TITLES

_ABOVE = "nats a hidden word above 95% of the loss of word frequencies"
_AHEAD = "ln of how many times fewer updates Pre-LN takes to Post-LN's end (below 0: the reverse)"


NO_WORSE = 0.01
"""How much smaller an accuracy may be to be called no worse."""

LEARNED = 0.02
"""By how much a pre-trained model has to beat one that is not: on 4000 examples chance gives 0.011."""


def judge(table: Sequence[TrainingRow], setting: Setting, size: str) -> list[Verdict]:
    """Every statement that a table has two seeds of.

    Args:
        table: the runs, as `row_of` has them, of one design.
        setting: the models and the text.
        size: of the models, where it is not the paper's.
    """
    return list(_verdicts(table, setting, size)) if table else []


def _verdicts(table: Sequence[TrainingRow], setting: Setting, size: str) -> Iterator[Verdict]:
    low, high = (end({run["peak"] for run in table}) for end in (min, max))
    no, long = (end({run["warmup"] for run in table}) for end in (min, max))

    def arm(placement: str, peak: float, warmup: int) -> list[TrainingRow]:
        wanted = placement, peak, warmup
        return [run for run in table if (run["placement"], run["peak"], run["warmup"]) == wanted]

    row = partial(_row, setting=setting, size=size)
    pre, warmed = arm("pre", high, no), arm("pre", high, long)
    if len(paired(pre, warmed)) > 1:
        part = f"{TITLES['pre']}, no warm-up, rate {high:g}: trains"
        yield row("B1", part, above_trained(pre, warmed), False, _ABOVE)
    # The paper does not say whether the larger rate that Post-LN failed at had its warm-up: both are judged.
    for with_it, warmup, better in (("with a", long, warmed), ("no", no, pre)):
        post = arm("post", high, warmup)
        if len(paired(post, better)) > 1:
            part = f"{TITLES['post']}, {with_it} warm-up, rate {high:g}: does not train, where {TITLES['pre']} does"
            yield row("B2", part, above_trained(post, better), True, _ABOVE)
    usual = arm("post", low, long)
    if len(paired(pre, usual)) > 1:
        part = f"{TITLES['pre']} without warm-up at {high:g}, {TITLES['post']} with one at {low:g}"
        yield row("B3", part, _ahead(pre, usual), True, _AHEAD)
    arms = {
        placement: [arm(placement, peak, warmup) for peak in (low, high) for warmup in (no, long)]
        for placement in ("pre", "post")
    }
    best = [min(kinds, key=lambda runs: sum(map(end_of, runs))) for kinds in arms.values()]
    # Of arms with unlike seeds the lowest is not the best.
    if len({len(runs) for kinds in arms.values() for runs in kinds}) == 1 and len(paired(*best)) > 1:
        words = " and ".join(
            f"{TITLES[runs[0]['placement']]} at {runs[0]['peak']:g} after {runs[0]['warmup']} updates of warm-up"
            for runs in best
        )
        note = ", each at the rate and warm-up at which it ends lowest here: " + words
        yield row("B3", f"{TITLES['pre']} and {TITLES['post']}, each at its best", _ahead(*best), True, _AHEAD, note)


def judge_downstream(table: Sequence[TrainingRow], setting: Setting, size: str) -> list[Verdict]:
    """B4, for every task that two seeds of both of the paper's arms were fine-tuned for.

    Args:
        table: of fine-tuned models, as `studies.bert.downstream.tuned_rows` has them.
        setting: the models and the text.
        size: of the models, where it is not the paper's.
    """
    verdicts = []
    for task in dict.fromkeys(row["task"] for row in table):
        rows = [row for row in table if row["task"] == task]
        drawn = {row["placement"]: fmean(row["accuracies"]) for row in rows if not row["pretrained"]}
        learned = [row for row in rows if row["pretrained"]]
        if len(drawn) < 2 or not learned:
            continue
        peaks, warmups = ({row[name] for row in learned} for name in ("peak", "warmup"))
        pre, post = (
            [row for row in learned if row["placement"] == placement and (row["peak"], row["warmup"]) == key]
            for placement, key in {"pre": (max(peaks), min(warmups)), "post": (min(peaks), max(warmups))}.items()
        )
        pairs = paired(pre, post)
        if len(pairs) < 2:
            continue
        helped = sum(
            all(fmean(row["accuracies"]) > drawn[row["placement"]] + LEARNED for row in pair) for pair in pairs
        )
        differences = [fmean(first["accuracies"]) - fmean(second["accuracies"]) for first, second in pairs]
        verdicts.append(
            _row(
                "B4",
                f"{TITLES['pre']} without warm-up beside {TITLES['post']} with one, fine-tuned: {task}",
                mean_over_seeds(differences, margin=-NO_WORSE, trained=helped),
                True,
                "accuracy of Pre-LN less that of Post-LN",
                setting=setting,
                size=size,
                margin=-NO_WORSE,
                premise=", where both beat networks that were not pre-trained in {} of {} seeds",
            )  # fmt: skip
        )
    return verdicts


def _row(
    claim: str,
    part: str,
    compared: Comparison,
    worse: bool,
    unit: str,
    note: str = "",
    *,
    setting: Setting,
    size: str,
    margin: float = 0.0,
    premise: str = ", where {} of {} runs that should have trained did",
) -> Verdict:
    word: Word = (
        "premise fails" if not compared.judges
        else "undecided" if compared.answer == "undecided"
        else "holds" if (compared.answer == "worse") == worse
        else "fails"
    )  # fmt: skip
    about = sentence(unit) + sentence(note)
    if not compared.judges:
        about += sentence(premise, compared.trained, compared.seeds)
    return Verdict(
        claim=claim, subject=Subject(quantity=part, kind="comparison"), verdict=word,
        claimed=sentence("above {:g}" if worse else "at most {:g}", margin), predicted=float("nan"),
        measured=compared.mean, interval=compared.interval, agreement="undecided", setting=setting, note=about,
        size=size,
    )  # fmt: skip


def _ahead(runs: list[TrainingRow], others: list[TrainingRow]) -> Comparison:
    """By how much some runs are ahead of others, where one of the two has trained: neither is a control."""
    pairs = paired(runs, others)
    trained = max(trained_in(group) for group in zip(*pairs, strict=True))
    return mean_over_seeds([lead(*pair) for pair in pairs], margin=0.0, trained=trained)
