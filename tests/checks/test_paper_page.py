"""`paper_checks.md`: what each line says, from verdicts made up for it."""

from dataclasses import replace

import pytest

from checks.paper_page import _after, markdown, relaxed_markdown
from checks.results import Results, committed_results
from checks.verdict import Verdict

HOLDS = Verdict(
    claim="T1", part="Post-LN, bound", verdict="holds", claimed="at least 1", predicted=2.0, measured=2.5,
    interval=(2.0, 3.0), agreement="agrees", setting="d = 64..512, L = 6", note="a ratio",
)  # fmt: skip


def page(*verdicts, command="a command"):
    return markdown([Results(command, list(verdicts), [])])


def line(text, start):
    (found,) = [line for line in text.splitlines() if line.startswith(start)]
    return found


@pytest.mark.quick
def test_the_worst_word_decides_and_all_are_counted():
    fails = replace(HOLDS, verdict="fails", part="Pre-LN, bound", measured=0.5, interval=(0.4, 0.6))
    said = line(page(HOLDS, fails, replace(HOLDS, verdict="undecided")), "| [T1]")
    assert "**fails** in 1, **holds** in 1, **undecided** in 1 of 3 rows" in said
    assert "Pre-LN, bound: 0.5 [0.4, 0.6], claimed at least 1" in said


def test_bounds_say_by_how_much_they_are_loose():
    loose = [replace(HOLDS, verdict="holds, loose", loose=factor) for factor in (20.0, 3.0)]
    said = line(page(*loose), "| [T1]")
    assert "**holds, loose** by x3 to x20" in said
    assert "the bound is x20 larger than the norm" in said


def test_the_largest_setting_comes_first_and_settings_are_listed_once():
    wide = replace(HOLDS, setting="d = 1024..2048, L = 6", measured=7.0)
    text = page(HOLDS, wide, replace(wide, part="Pre-LN, bound"))
    rows = [line for line in text.splitlines() if "-LN, bound | S" in line]
    assert [row.split(" | ")[4].split()[0] for row in rows] == ["7", "2.5", "7"]
    assert [row.split(" | ")[1] for row in rows] == ["S1", "S2", "S1"]
    assert "- **S1**: d = 1024..2048, L = 6 (C1)" in text
    assert text.count("`a command`") == 1
    assert text.count("A ratio.") == 1, "equal notes are one"


def test_where_there_is_no_theory_there_is_a_dash():
    row = line(page(replace(HOLDS, predicted=float("nan"), agreement="undecided")), "| Post-LN, bound")
    assert "| at least 1 | - | 2.5 [2, 3] | **holds** |" in row
    row = line(page(replace(HOLDS, agreement="beyond")), "| Post-LN, bound")
    assert "| at least 1 | 2 (beyond) | 2.5 [2, 3] | **holds** |" in row
    assert "nan" not in markdown(committed_results())


def test_an_ablation_is_no_verdict_on_the_paper():
    results = [Results("a command", [HOLDS, replace(HOLDS, verdict="fails", relaxed="without cross-attention")], [])]
    assert "**fails**" not in line(markdown(results), "| [T1]")
    assert "- T1: **fails**." in markdown(results).partition("## Relaxations")[2]
    assert "| without cross-attention | 2.500 ± 0.500 (2.000) fails |" in relaxed_markdown(results)


@pytest.mark.parametrize(
    ("above", "part", "shown"),
    [
        ("", "largest eigenvalue, Post over Pre-LN, d = 8", "largest eigenvalue, Post over Pre-LN, d = 8"),
        (
            "largest eigenvalue, Post over Pre-LN, d = 8",
            "largest eigenvalue, Post over Pre-LN, d = 4",
            "... d = 4",
        ),
        ("Post-LN, bound", "Post-LN, exponent", "Post-LN, exponent"),
        ("Post-LN, bound", "Post-LN, bound", "Post-LN, bound"),
    ],
)
def test_a_long_beginning_is_said_once(above, part, shown):
    assert _after(above, part) == shown
