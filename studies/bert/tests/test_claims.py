"""Verdicts B1 to B4 on tables that are made up, that there are none without runs, and the figure."""

from itertools import product

import numpy as np
import pytest

from studies.bert.claims import judge, judge_downstream
from studies.comparisons import outcome

UPDATES = list(range(0, 1001, 100))

# As the paper says: Post-LN fails at the larger rate, Pre-LN needs no warm-up there and is faster.
PAPER = {("post", 3e-3, 1): 6.5, ("post", 3e-3, 100): 6.5, ("post", 1e-3, 100): 3.0, ("pre", 3e-3, 1): 2.8}


def table(ends, seeds=3):
    generator = np.random.default_rng(0)
    rows = []
    for (placement, peak, warmup), seed in product(product(["post", "pre"], [1e-3, 3e-3], [1, 100]), range(seeds)):
        final = (
            ends.get((placement, peak, warmup), 2.9 if placement == "pre" else 3.2) + 0.01 * generator.standard_normal()
        )
        done = np.minimum(1.0, np.array(UPDATES) / (500 if placement == "pre" else 1000))
        rows.append({
            "placement": placement, "peak": peak, "warmup": warmup, "seed": seed, "first": 8.0, "final": final,
            "unigram": 5.7, "outcome": outcome(8.0, final, 5.7), "updates": UPDATES,
            "validation": list(8 + (final - 8) * done),
        })  # fmt: skip
    return rows


def words(rows):
    found: dict[str, list[str]] = {}
    for v in judge(rows, "made up", "d = 8"):
        found.setdefault(v.claim, []).append(v.verdict)
    return found


def test_what_the_paper_says_holds_where_it_is_so():
    assert words(table(PAPER)) == {"B1": ["holds"], "B2": ["holds", "holds"], "B3": ["holds", "holds"]}
    assert words(table(PAPER, seeds=1)) == words([]) == {}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        # Post-LN trains at the larger rate as well, or with its warm-up alone
        ({("post", 3e-3, 1): 3.0, ("post", 3e-3, 100): 3.1},
         {"B1": ["holds"], "B2": ["fails", "fails"], "B3": ["holds", "holds"]}),
        ({("post", 3e-3, 100): 3.1}, {"B1": ["holds"], "B2": ["fails", "holds"], "B3": ["holds", "holds"]}),
        # Pre-LN needs the warm-up there: it trains with one, and Post-LN is compared with nothing that has trained
        ({("pre", 3e-3, 1): 6.5}, {"B1": ["fails"], "B2": ["holds", "premise fails"], "B3": ["fails", "holds"]}),
        # neither placement trains at the larger rate, whatever the warm-up
        ({("pre", 3e-3, 1): 6.5, ("pre", 3e-3, 100): 6.5},
         {"B1": ["premise fails"], "B2": ["premise fails"] * 2, "B3": ["fails", "holds"]}),
        # and no arm trains anywhere
        ({key: 6.5 for key in product(["post", "pre"], [1e-3, 3e-3], [1, 100])},
         {"B1": ["premise fails"], "B2": ["premise fails"] * 2, "B3": ["premise fails", "premise fails"]}),
    ],
)  # fmt: skip
def test_where_it_is_not_so(changed, expected):
    assert words(table(PAPER | changed)) == expected


def test_the_best_of_each_placement_is_named():
    (_, note) = [str(v.note) for v in judge(table(PAPER | {("post", 1e-3, 1): 2.0}), "made up", "") if v.claim == "B3"]
    assert "Pre-LN at 0.003 after 1 updates of warm-up and Post-LN at 0.001 after 1 updates" in note
    fewer = [run for run in table(PAPER) if (run["placement"], run["peak"], run["seed"]) != ("post", 1e-3, 0)]
    assert [v.claim for v in judge(fewer, "made up", "")].count("B3") == 1, "an arm lacks a seed"


def tuned(pre, post, drawn=0.6, seeds=3):
    """Of two fine-tunings each, a little apart; the other arms are worse or better by far."""
    means = {("post", 1e-3, 100): post, ("pre", 3e-3, 1): pre, ("post", 1e-3, 1): 0.2, ("pre", 3e-3, 100): 0.99}
    rows = [
        {"task": task, "pretrained": True, "placement": placement, "peak": peak, "warmup": warmup, "seed": seed,
         "accuracies": [mean + 0.001 * seed - 0.02, mean + 0.001 * seed * (placement == "pre") + 0.02]}
        for task, ((placement, peak, warmup), mean), seed in product(["a", "b"], means.items(), range(seeds))
    ]  # fmt: skip
    drawns = [
        {"task": task, "pretrained": False, "placement": placement, "accuracies": [drawn - 0.1, drawn + 0.1]}
        for task, placement in product(["a", "b"], ["post", "pre"])
    ]
    return [*rows, *drawns]


@pytest.mark.parametrize(
    ("pre", "post", "drawn", "expected"),
    [
        (0.8, 0.8, 0.6, "holds"),
        (0.795, 0.8, 0.6, "holds"),
        (0.79, 0.8, 0.6, "undecided"),  # between them, by their seeds' interval
        (0.7, 0.8, 0.6, "fails"),
        (0.8, 0.5, 0.6, "premise fails"),  # what Post-LN has learned before is of no use
        (0.5, 0.8, 0.6, "premise fails"),
        (0.8, 0.8, 0.785, "premise fails"),  # better than those that were not pre-trained, by no more than chance
    ],
)
def test_downstream(pre, post, drawn, expected):
    """B4 for each task, of the paper's two arms alone."""
    verdicts = judge_downstream(tuned(pre, post, drawn), "made up", "d = 8")
    assert [(v.claim, v.verdict) for v in verdicts] == [("B4", expected)] * 2
    assert [str(v.subject.quantity)[-1] for v in verdicts] == ["a", "b"]
    assert verdicts[0].measured == pytest.approx(pre - post + 0.0005)
    half = 4.302652729911275 * 0.0005 / 3**0.5  # Student's t with two degrees of freedom
    assert verdicts[0].interval == pytest.approx((pre - post + 0.0005 - half, pre - post + 0.0005 + half))
    assert str(verdicts[0].claimed) == "above -0.01"


def test_no_downstream_verdict_without_two_seeds_and_networks_that_were_not_pre_trained():
    assert judge_downstream(tuned(0.8, 0.8, seeds=1), "made up", "") == judge_downstream([], "made up", "") == []
    alone = [row for row in tuned(0.8, 0.8) if row["pretrained"] or row["placement"] == "pre"]
    assert judge_downstream(alone, "made up", "") == []
