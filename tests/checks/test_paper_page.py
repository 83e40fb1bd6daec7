"""`paper_checks.md`: the text of each line, from verdicts made up for it."""

from dataclasses import replace

import pytest

from checks.results import Results, committed_results
from checks.verdict import Setting, Subject, Verdict, sentence
from tools.paper_page import page as markdown

HOLDS = Verdict(
    claim="T1", subject=Subject(placement="post", quantity="bound"), verdict="holds", claimed=sentence("at least 1"),
    predicted=2.0, measured=2.5, interval=(2.0, 3.0), agreement="agrees",
    setting=Setting(ranges=(("d", 64, 512), ("L", 6, 6))), note=sentence("a ratio"),
)  # fmt: skip
PRE = Subject(placement="pre", quantity="bound")


def page(*verdicts):
    return markdown([Results("a command", list(verdicts), [])])


def line(text, start):
    (found,) = [line for line in text.splitlines() if line.startswith(start)]
    return found


@pytest.mark.quick
def test_the_worst_word_decides_and_all_are_counted():
    fails = replace(HOLDS, verdict="fails", subject=PRE, measured=0.5, interval=(0.4, 0.6))
    text = page(HOLDS, fails, replace(HOLDS, verdict="undecided"), replace(HOLDS, claim="F1"))
    said = line(text, "| T1 |")
    assert "**fails** in 1, **holds** in 1, **undecided** in 1 of 3 rows" in said
    assert "| bound over norm (Pre-LN, bound): 0.5 [0.4, 0.6]; claimed at least 1 |" in said
    assert line(text, "- **fails**") == "- **fails**: T1"
    assert line(text, "- **holds**") == "- **holds**: F1"
    loose = page(*(replace(HOLDS, verdict="holds, loose", loose=factor) for factor in (20.0, 3.0)))
    assert "**holds, loose** by x3 to x20" in line(loose, "| T1 |")
    assert "by x3 to x20." in " ".join(loose.split())


def test_another_size_gives_no_verdict_on_the_experiment():
    """Its size is printed after every word, and it has a list of its own."""
    small = replace(HOLDS, claim="W1", verdict="fails", size="d = 64")
    own = replace(HOLDS, claim="F1", verdict="fails")
    text = page(own, small, replace(small, verdict="holds"), replace(small, claim="W6", verdict="holds"))
    first, second = text.partition("## The claims")[0].split("tested at d = 64, which")
    assert "- **fails**: F1\n" in first
    assert "W1" not in first
    assert "- **mixed**: W1\n- **holds**: W6\n" in second
    assert "**fails** in 1, **holds** in 1 of 2 rows at d = 64 |" in line(text, "| W1 |")
    assert "| **fails**; **fails** at d = 64 |" in line(page(own, replace(own, size="d = 64")), "| F1 |")


def test_dropped_assumptions_and_untested_claims():
    """A row without an assumption of the paper is no verdict on it; no number is printed as NaN."""
    text = page(HOLDS, replace(HOLDS, verdict="fails", relaxed="without cross-attention"))
    assert "**fails**" not in text
    assert line(text, "| L1 |").endswith("| **not tested here** | - |")
    assert "nan" not in markdown(committed_results())
