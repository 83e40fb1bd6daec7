"""`paper_checks.md`: what each line says, from verdicts made up for it."""

import re
from dataclasses import replace

import pytest

from checks.results import Results, committed_results
from checks.verdict import Setting, Subject, Verdict, sentence
from theory import Stack, predict
from tools.paper_page import PAGES
from tools.paper_sections import bound_by_width

markdown, rows_markdown, relaxed_markdown = PAGES.values()

HOLDS = Verdict(
    claim="T1", subject=Subject(placement="post", quantity="bound"), verdict="holds", claimed=sentence("at least 1"),
    predicted=2.0, measured=2.5, interval=(2.0, 3.0), agreement="agrees",
    setting=Setting(ranges=(("d", 64, 512), ("L", 6, 6))), note=sentence("a ratio"),
)  # fmt: skip
PRE = Subject(placement="pre", quantity="bound")


def page(*verdicts, command="a command", render=markdown):
    return render([Results(command, list(verdicts), [])])


def line(text, start):
    (found,) = [line for line in text.splitlines() if line.startswith(start)]
    return found


@pytest.mark.quick
def test_the_worst_word_decides_and_all_are_counted():
    fails = replace(HOLDS, verdict="fails", subject=PRE, measured=0.5, interval=(0.4, 0.6))
    said = line(page(HOLDS, fails, replace(HOLDS, verdict="undecided")), "| [T1]")
    assert "**fails** in 1, **holds** in 1, **undecided** in 1 of 3 rows" in said
    assert "| bound over norm (Pre-LN, bound): 0.5 [0.4, 0.6]; claimed at least 1 |" in said


def test_what_does_not_hold_stands_first():
    text = page(HOLDS, replace(HOLDS, claim="F1", verdict="fails"), replace(HOLDS, verdict="fails", subject=PRE))
    assert text.index("- **fails**: T1 (Pre-LN, bound), F1") < text.index("## The claims")
    many = [replace(HOLDS, verdict="fails", subject=Subject(quantity=f"{k}, bound")) for k in range(3)]
    assert "- **fails**: T1 (3 of 4 rows)" in page(HOLDS, *many)
    loose = [replace(HOLDS, verdict="holds, loose", loose=factor) for factor in (20.0, 3.0)]
    assert (
        "- **holds, loose**: T1 by x3 to x20 (at d = V = 512, L = 6, n = 8, by theory: x4040 in Post-LN and x5"
        in page(*loose)
    )
    assert "- **not tested**: L1, " in page(HOLDS)


def test_what_was_tried_at_another_size_is_no_verdict_on_the_experiment():
    """Its size stands behind every word, and it has a line of its own among what does not hold."""
    small = replace(HOLDS, claim="W1", verdict="fails", size="d = 64")
    own = replace(HOLDS, claim="F1", verdict="fails")
    text = page(own, small, replace(small, verdict="holds"), replace(small, claim="W6", verdict="holds"))
    assert "\n- **fails**: F1\n" in text
    said = "which judges no experiment of the paper's size: fails: W1 (1 of 2 rows); holds: W1 (1 of 2 rows), W6"
    assert f"\n- **tried at d = 64 alone**, {said}\n" in text
    assert "**fails** in 1, **holds** in 1 of 2 rows at d = 64 |" in line(text, "| [W1]")
    assert "| fails at d = 64 |" in text.partition("\n## W1")[2]
    assert "| **fails**; **fails** at d = 64 |" in line(page(own, replace(own, size="d = 64")), "| [F1]")


def test_no_number_of_the_committed_results_is_lost():
    """Whatever is put together or said once: each number of every row stands in its claim's section or settings."""
    text = rows_markdown(committed_results())
    for one in committed_results():
        for v in (v for v in one.verdicts if not v.relaxed):
            section = text.partition(f"\n## {v.claim}\n")[2].partition("\n## ")[0]
            ends, (low, high) = [*v.interval], v.interval
            resampled = v.bootstrap or v.interval
            if max(abs(resampled[0] - low), abs(resampled[1] - high)) > 0.1 * (high - low):
                ends += resampled
            for number in (f"{v.measured:.4g}", str(v.claimed), v.words, *(f"{end:.4g}" for end in ends)):
                assert number in section, (v.claim, v.part, number)
            notes = re.findall(r"\d+(?:\.\d+)?", str(v.note))
            assert set(notes) <= set(re.findall(r"\d+(?:\.\d+)?", section)), (v.claim, v.part)


def test_every_word_of_a_claim_is_in_the_short_page():
    """No verdict is behind a row of another word."""
    text = markdown(committed_results())
    for v in (v for results in committed_results() for v in results.verdicts if not v.relaxed):
        assert v.verdict in text.partition(f"\n## {v.claim}\n")[2].partition("\n## ")[0], (v.claim, v.part)


def test_the_bound_over_the_norm_is_shown_at_the_papers_width():
    stack = {"width": 128, "vocab": 128}
    predicted = float(predict(Stack(**stack))["grad_sq_W2"][-1])
    cell = {"text": "", "stack": stack, "grad_sq_W2": {"mean": predicted, "sem": 0.0}}
    other = cell | {"stack": stack | {"depth": 2}}
    heads, theory, samples, *_ = bound_by_width([Results("a command", [], [other, cell])])
    assert heads == ["d", "128", "512"]
    assert (theory[1], samples[2]) == (samples[1], "-")
    assert float(theory[2]) == pytest.approx(4040, rel=0.001)
    assert bound_by_width([Results("a command", [], [other])]) == []


def test_where_there_is_no_theory_there_is_a_dash():
    without = replace(HOLDS, predicted=float("nan"), agreement="undecided", subject=PRE)
    text = page(replace(HOLDS, agreement="beyond"), without)
    assert "| at least 1 | - | 2.5 [2, 3] | holds |" in line(text, "| Pre-LN, bound")
    assert "| at least 1 | 2 (not judged) | 2.5 [2, 3] | holds |" in line(text, "| Post-LN, bound")
    only = page(without, replace(without, subject=HOLDS.subject))
    assert (
        "| Pre-LN, bound | at least 1 | 2.5 [2, 3] | holds |" in only and "No theory stands beside these rows." in only
    )
    assert not any("nan" in render(committed_results()) for render in PAGES.values())


def test_an_ablation_is_no_verdict_on_the_paper():
    results = [Results("a command", [HOLDS, replace(HOLDS, verdict="fails", relaxed="without cross-attention")], [])]
    assert "**fails**" not in line(markdown(results), "| [T1]")
    assert "- T1: **fails**." in markdown(results).partition("## Relaxations")[2]
    assert "| without cross-attention | 2.500 ± 0.500 (2.000) fails |" in relaxed_markdown(results)
