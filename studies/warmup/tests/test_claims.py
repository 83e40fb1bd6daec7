"""Outcomes of training runs, comparisons of them, and verdicts W1 to W9, on tables that are made up."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from checks.results import DATA, load_results, results
from studies.comparisons import compare, lead, median_time, outcome, time_to
from studies.kept_rows import read_rows
from studies.parallel_text import BEGIN, END, ParallelText
from studies.warmup.claims import judge
from studies.warmup.grid import PaperRates
from studies.warmup.outcomes import measured_row, unigram_loss
from studies.warmup.reproduce import grid_named

RATES = PaperRates(adam=((4e-3, 8e-3), (8e-3, 1.6e-2)), fixed=(8e-4, 1.6e-3), sgd=(2.5e-2,))
UPDATES = list(range(0, 601, 50))

# As the paper says, final losses by optimizer, placement and warm-up, where they are not 3. Without warm-up, and with a
# short one, they depend on the rate.
PAPER = {
    ("adam", "post", 1): lambda peak: 6.0 + 50 * peak, ("sgd", "post", 1): lambda peak: 6.5,
    ("adam", "post", 18): lambda peak: 3.2 + 100 * peak, ("adam", "post", "fixed"): lambda peak: 4.3,
    ("adam", "pre", 1): lambda peak: 2.5, ("adam", "pre", 18): lambda peak: 2.5, ("adam", "pre", 144): lambda peak: 2.5,
    ("radam", "pre", 1): lambda peak: 2.5,
}  # fmt: skip


def layers(slope, scale):
    norms = list(scale * np.exp(slope * np.arange(6)))
    return {f"{part} {name}": norms for part in ("encoder", "decoder") for name in ("W1", "W2", "energy")}


def made_up(ends, noise=0.01, seeds=3, after=0.2, uneven=0.02, too_large=()):
    generator = np.random.default_rng(0)
    rows = []
    asked = [(*one, reading) for one in product(["adam"], ["post", "pre"], (1, 18), (1e-3, 4e-3, 8e-3, 1.6e-2))
             for reading in "ab"]  # fmt: skip
    asked += [(*one, "both") for one in product(["adam"], ["post", "pre"], (144,), (1e-3, 4e-3, 8e-3, 1.6e-2))]
    asked += [
        (*one, reading) for one in product(["radam"], ["post", "pre"], (1, 144), (1e-3, 8e-3)) for reading in ["b"]
    ]
    asked += [(*one, "both" if one[2] == 144 else "b") for one in product(["sgd"], ["post"], (1, 144), (5e-3, 2.5e-2))]
    asked += [("adam", "post", 1, peak, "fixed") for peak in RATES.fixed]
    asked += too_large
    for (optimizer, placement, warmup, peak, reading), seed in product(asked, range(seeds)):
        kind = (optimizer, placement, "fixed" if reading == "fixed" else warmup)
        final = ends.get(kind, lambda peak: 3.0)(peak) + noise * generator.standard_normal()
        final = 7.0 if (optimizer, placement, warmup, peak, reading) in too_large else final
        # A straight line, and for Pre-LN a loss that comes down in half the time.
        done = np.minimum(1.0, np.array(UPDATES) / (300 if placement == "pre" else 600))
        row = {"optimizer": optimizer, "placement": placement, "warmup": warmup, "peak": peak, "reading": reading}
        row |= {"seed": seed, "first": 8.0, "final": final, "unigram": 5.0, "updates": UPDATES}
        row |= {"outcome": outcome(8.0, final, 5.0)}
        row |= {"validation": list(8 + (final - 8) * done), "summed": list(peak * np.array(UPDATES))}
        rows.append(row | {"layers": {"0": layers(0.2, 1.0), "150": layers(uneven, after), "600": layers(0.0, 0.1)}})
    return rows


def verdicts(table):
    """The words of every claim, without those of rates that are not the paper's, in one string."""
    found: dict[str, list[str]] = {}
    for v in judge(table, RATES, "made up"):
        if not v.relaxed:
            found.setdefault(v.claim, []).append(v.verdict)
    return {claim: " ".join(words) for claim, words in found.items()}


def test_what_the_paper_says_holds_where_it_is_so():
    found = verdicts(made_up(PAPER))
    assert found == {
        "W8": "holds holds", "W1": "holds holds holds holds", "W2": "holds holds", "W3": "holds holds holds holds",
        "W4": "holds holds holds holds", "W5": "holds holds holds holds", "W6": "holds holds holds",
        "W7": "holds holds holds holds", "W9": "holds holds fails",
    }  # fmt: skip
    # With a long warm-up nothing made up here depends on the rate, so that the last spread is no wider.


@pytest.mark.parametrize(
    ("contrary", "claim", "expected"),
    [
        ({("adam", "post", 1): 3.0}, "W1", "fails fails fails fails"),
        ({("sgd", "post", 1): 3.05}, "W2", "fails fails"),
        ({("adam", "post", 18): 3.0}, "W3", "fails fails fails fails"),
        ({("adam", "post", "fixed"): 7.0}, "W4", "fails premise fails premise fails holds"),
        ({("adam", "post", "fixed"): 3.0}, "W4", "holds holds holds fails"),
        ({("adam", "pre", 1): 4.0}, "W5", "holds holds fails fails"),
        ({("adam", "pre", 1): 6.0}, "W5", "fails fails fails fails"),
        ({("adam", "pre", 144): 4.0}, "W6", "fails holds holds"),
        ({("radam", "post", 1): 6.4}, "W7", "premise fails fails holds holds"),
        ({("adam", "pre", 144): 6.0}, "W6", "fails holds holds"),
        ({("radam", "pre", 1): 4.0}, "W7", "holds holds fails holds"),
        ({("radam", "pre", 1): 2.0}, "W7", "holds holds holds fails"),
        ({("adam", "post", 1): 6.0}, "W9", "fails fails fails"),
    ],
)
def test_planted_contraries_fail(contrary, claim, expected):
    planted = {kind: (lambda _, end=end: end) for kind, end in contrary.items()}
    assert verdicts(made_up({**PAPER, **planted}))[claim] == expected


@pytest.mark.parametrize(
    ("untrained", "claim", "expected"),
    [
        ([("adam", "post", 144)], "W1", "premise fails premise fails premise fails premise fails"),
        ([("sgd", "post", 144)], "W2", "premise fails premise fails"),
        ([("adam", "post", 144)], "W3", "holds holds premise fails premise fails"),
        ([("adam", "post", 18)], "W3", "premise fails premise fails holds holds"),
        ([("adam", "post", 144)], "W4", "premise fails holds holds premise fails"),
        ([("adam", "pre", 144)], "W5", "premise fails premise fails premise fails premise fails"),
        ([("adam", "pre", 144), ("adam", "post", 144)], "W6", "premise fails holds holds"),
        ([("adam", "post", 144), ("radam", "post", 1)], "W7", "premise fails premise fails holds holds"),
        ([("adam", "post", 144)], "W8", "premise fails premise fails"),
        ([("adam", "pre", 1)], "W9", "premise fails premise fails fails"),
    ],
)
def test_where_the_runs_that_should_have_trained_did_not_the_premise_fails(untrained, claim, expected):
    """Not the statement, whichever of the two runs ends lower."""
    ends = {kind: lambda _: 6.0 for kind in untrained}
    assert verdicts(made_up({**PAPER, **ends}))[claim] == expected


def test_a_rate_at_which_nobody_trains_changes_no_verdict():
    """Two rates too large, at which all runs end at 7: words, numbers and intervals stay, which they would not else."""
    kinds = {(row["optimizer"], row["placement"], row["warmup"], row["reading"]) for row in made_up(PAPER)}
    too_large = [(*kind, peak, reading) for *kind, reading in sorted(kinds) for peak in (3.2e-2, 6.4e-2)]
    table = made_up(PAPER, too_large=too_large)
    more = PaperRates(adam=(*RATES.adam, (3.2e-2, 6.4e-2)), fixed=(*RATES.fixed, 3.2e-2), sgd=(*RATES.sgd, 6.4e-2))
    without, found = ([v for v in judge(table, rates, "") if not v.relaxed] for rates in (RATES, more))
    assert [(v.part, v.verdict, v.measured, v.interval) for v in found] == [
        (v.part, v.verdict, v.measured, v.interval) for v in without
    ]
    assert all(
        "at 0.064 (premise fails)" in str(v.note) for v in found if v.claim in {"W1", "W2", "W5", "W6", "W7", "W8"}
    )
    unruled = judge([row | {"outcome": "trained"} for row in table], more, "")
    changed = [v.part for v, old in zip([v for v in unruled if not v.relaxed], without, strict=True)
               if v.verdict != old.verdict]  # fmt: skip
    assert len(changed) > 10


def test_a_majority_of_seeds_makes_a_premise():
    """Of three controls one does not train, and then two."""
    table = made_up(PAPER)
    for seeds, expected in (({0}, "holds"), ({0, 1}, "premise fails")):
        some = [
            row | {"outcome": "stuck"} if row["warmup"] == 144 and row["seed"] in seeds else row for row in table
        ]  # fmt: skip
        assert verdicts(some)["W1"] == " ".join([expected] * 4)
    (found,) = {str(v.note) for v in judge(some, RATES, "") if v.claim == "W2" and not v.relaxed}
    assert found == "nats a token, at the rate 0.025, where 1 of 3 runs that should have trained did"


def test_the_committed_verdicts_are_those_of_the_committed_runs():
    """Which have no outcome but that of their losses."""
    committed, rows = DATA / "warmup-small.json", read_rows(DATA / "warmup/warmup-small.json")
    assert all(row["outcome"] == outcome(row["first"], row["final"], row["unigram"]) for row in rows)
    before = load_results(committed)
    found = judge(rows, grid_named("small").paper, before.verdicts[0].setting, "d = 64")
    again = [v for v in found if not v.relaxed]
    text = results(again, [], before.command, date=before.date, commit=before.commit)
    assert text == committed.read_text(encoding="utf-8")


def test_gradients_that_stay_or_are_uneven_fail():
    assert verdicts(made_up(PAPER, after=2.0))["W8"] == "fails holds"
    assert verdicts(made_up(PAPER, uneven=-0.3))["W8"] == "holds fails"


def test_one_rate_that_fails_decides_and_is_shown():
    contrary = {("adam", "post", 1): lambda peak: 3.0 if peak == 8e-3 else 6.0}
    found = [v for v in judge(made_up({**PAPER, **contrary}), RATES, "made up") if v.claim == "W1" and not v.relaxed]
    assert {v.verdict for v in found} == {"fails"}
    assert all(abs(v.measured) < 0.1 for v in found)
    assert "at the rate 0.008; 3" in str(found[0].note)
    assert "at 0.004 (holds)" in str(found[0].note)


def test_rates_that_are_not_the_papers_judge_nothing():
    found = [v for v in judge(made_up(PAPER), RATES, "made up") if v.relaxed]
    assert {v.claim for v in found} == {"W1", "W2", "W5", "W7"}


def test_what_seeds_cannot_tell_is_undecided():
    unsure = {("adam", "post", 1): lambda peak: 3.1}
    assert verdicts(made_up({**PAPER, **unsure}, noise=0.5))["W1"].startswith("undecided undecided")
    assert judge(made_up(PAPER, seeds=1), RATES, "made up") == []


def test_the_interval_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1/√3, t of two degrees of freedom 4.302653."""
    ends = {0: 4.0, 1: 6.0, 2: np.nan, 9: 1.0}, {2: 6.0, 1: 4.0, 0: 3.0, 7: 1.0}
    rest = {"first": 9.0, "outcome": "trained"}
    runs, others = ([rest | {"seed": seed, "final": end} for seed, end in one.items()] for one in ends)
    found = compare(runs, others)  # the run that is not finite counts with 9
    assert (found.mean, found.seeds, found.answer, found.trained) == (2.0, 3, "undecided", 3)
    assert found.interval == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-6)
    with pytest.raises(ValueError, match="at least 2 seeds in common, got 1"):
        compare(runs, others[:1])
    with pytest.raises(ValueError, match="one row for every seed"):
        compare(runs + runs, others)


def test_equal_sums_of_rates_and_leads_by_hand():
    """Losses fall on lines: at the sum 3, which the slower has at its end, the faster one is at 8 - 3 and not at 2."""
    fast = {"final": 2.0, "first": 8.0, "validation": [8.0, 5.0, 2.0], "summed": [0.0, 3.0, 6.0], "updates": [0, 5, 10]}
    slow = {"final": 6.0, "first": 8.0, "validation": [8.0, 7.0, 6.0], "summed": [0.0, 1.5, 3.0], "updates": [0, 5, 10]}
    runs = [[one | {"seed": seed, "outcome": "trained"} for seed in (0, 1)] for one in (slow, fast)]
    assert compare(*runs).mean == 4.0
    assert compare(*runs, equal_rates=True).mean == pytest.approx(1.0)
    # The faster one is at 6 after 10/3 updates: three times ahead.
    assert lead(fast, slow) == pytest.approx(np.log(3))
    assert lead(slow, fast) == pytest.approx(-np.log(3))
    assert lead(fast, fast) == 0.0


def test_rows_of_runs():
    """A run of four updates, measured before, behind 2 and 4; the rate is 1, and the step's are 3, 4, 5 times it."""
    rows = [(u, "", 0, "", "loss", 9.0 - u) for u in range(1, 5)] + [(u, "", 0, "", "rate", 1.0) for u in range(1, 5)]
    rows += [(u, "", 0, "", "validation loss", 8.0 - u) for u in (0, 2, 4)]
    for u, factor in product((1, 2, 4), (3.0, 4.0, 5.0)):
        name = {3.0: "critical", 4.0: "hessian", 5.0: "break-even"}[factor]
        rows.append((u, "", 0, "", f"{name} rate", factor))
    rows += [(u, "decoder", layer, "W2", "gradient norm", 10 * u + layer) for u in (0, 2, 4) for layer in (2, 1)]
    rows += [(u, "decoder", layer, "WV", "gradient norm", 1.0) for u in (0, 2, 4) for layer in (2, 1)]
    rows += [(u, "encoder", 1, "", "hidden energy", 1.5) for u in (0, 2, 4)]
    table = pd.DataFrame(rows, columns=["update", "part", "layer", "matrix", "statistic", "value"])
    found = measured_row(table, unigram=5.0, start=2)
    assert (found["first"], found["final"], found["outcome"]) == (8.0, 4.0, "trained")
    assert (found["updates"], found["validation"], found["summed"]) == ([0, 2, 4], [8.0, 6.0, 4.0], [0.0, 2.0, 4.0])
    assert (found["steps"], found["rates"]) == ([1, 2, 4], [1.0] * 3)
    assert (found["critical"], found["hessian"], found["break_even"]) == ([3.0] * 3, [4.0] * 3, [5.0] * 3)
    assert found["layers"]["2"] == {"decoder W2": [21.0, 22.0], "encoder energy": [1.5]}
    assert list(found["layers"]) == ["0", "2", "4"]
    table.loc[(table["statistic"] == "loss") & (table["update"] == 4), "value"] = np.inf
    assert np.isnan(measured_row(table, unigram=5.0, start=2)["final"])
    with pytest.raises(ValueError, match="^table must have every number once, but has the rate of update 3 twice"):
        measured_row(pd.concat([table, table[table["statistic"].eq("rate")][2:3]]), unigram=5.0, start=2)


@pytest.mark.parametrize(
    ("final", "expected"),
    [(float("nan"), "diverged"), (float("inf"), "diverged"), (8.01, "diverged"), (5.5, "stuck"), (4.751, "stuck"),
     (4.749, "trained")],
)  # fmt: skip
def test_outcomes(final, expected):
    assert outcome(first=8.0, final=final, unigram=5.0) == expected


def test_times():
    assert time_to([0, 50, 100], [8.0, 4.0, 3.0], 4.0) == (50, True)
    assert time_to([0, 50, 100], [8.0, float("nan"), 5.0], 4.0) == (100, False)


def test_median_times_are_those_of_the_product_of_survivors():
    """By Kaplan and Meier, a factor for every time at which some get there of those still at risk."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        count, share = rng.integers(1, 12), rng.random()
        times, reached = 50 * rng.integers(1, 6, count), rng.random(count) < share
        surviving, median = 1.0, float("inf")
        for time in np.unique(times[reached]):
            surviving *= 1 - np.sum(reached & (times == time)) / np.sum(times >= time)
            if surviving <= 0.5 + 1e-12:
                median = float(time)
                break
        assert median_time(times, reached) == median


def test_the_unigram_loss_by_hand():
    """Labels 4, 4, 5, end of a vocabulary of six: counts with one more each 3, 2, 2, and 1 of unknown words."""
    text = ParallelText((np.array([4, END]),), (np.array([BEGIN, 4, 4, 5, END]),), 6, "", ("", ""))
    held = ParallelText((np.array([4, END]),), (np.array([BEGIN, 4, 1, END]),), 6, "", ("", ""))
    assert unigram_loss(text, held) == pytest.approx(-(np.log(3 / 8) + np.log(1 / 8) + np.log(2 / 8)) / 3)
