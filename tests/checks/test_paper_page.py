"""`paper_checks.md`: what each line says, from verdicts made up for it."""

import re
from dataclasses import replace

import pytest

from checks.results import Results, committed_results
from checks.verdict import Sentence, Setting, Subject, Verdict, sentence
from theory import CLAIMS, Stack, predict
from tools.paper_page import PAGES
from tools.paper_sections import after, bound_by_width, merged, shown_command

markdown, rows_markdown, relaxed_markdown = PAGES.values()

HOLDS = Verdict(
    claim="T1", subject=Subject(placement="post", quantity="bound"), verdict="holds", claimed=sentence("at least 1"),
    predicted=2.0, measured=2.5, interval=(2.0, 3.0), agreement="agrees",
    setting=Setting(ranges=(("d", 64, 512), ("L", 6, 6))), note=sentence("a ratio"),
)  # fmt: skip
PRE = Subject(placement="pre", quantity="bound")


def at(width):
    return Setting(ranges=(("d", width, width),))


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


def test_what_decides_has_a_noun():
    """What a number is stands before it, in every claim: from the claim's own table, or in the row's part."""
    table = markdown(committed_results()).partition("## The claims")[2].partition("\n## ")[0]
    cells = [row.split(" | ")[-1] for row in table.splitlines() if row.startswith("| [")]
    measured = (
        r"norm|growth|exponent|squared length|distance|probability|share|eigenvalue|loss|ln of|accuracy|bound|curvature"
    )
    decided = [cell for cell in cells if "claimed" in cell]
    assert len(decided) > 30
    assert all(re.search(measured, cell.partition(": ")[0]) for cell in decided)
    small = line(page(replace(HOLDS, size="d = 64")), "| [T1]")
    assert "| bound over norm (Post-LN, bound) at d = 64: 2.5 [2, 3]; claimed at least 1 |" in small
    assert CLAIMS["T1"].measured_in("Pre-LN, exponent in d") != CLAIMS["T1"].measured_in("Pre-LN, bound")


def test_every_row_of_a_section_has_its_noun():
    """In a column where nouns differ, else once; and a bound that is loose beside an exponent says what is so large."""
    along = Subject(placement="post", quantity="exponent in d", kind="exponent", against="width")
    wide = replace(HOLDS, subject=along, verdict="holds, loose", loose=80.0)
    both = page(HOLDS, wide).partition("\n## T1")[2]
    assert "| Post-LN, bound | bound over norm | at least 1 | 2 | 2.5 [2, 3] | holds |" in both
    numbers = "exponent of the last layer's ‖dL/dW2‖ | at least 1 | 2 | 2.5 [2, 3]"
    assert f"| Post-LN, exponent in d | {numbers} | holds, loose by x80 (bound over norm) |" in both
    alike = page(HOLDS, replace(HOLDS, subject=PRE)).partition("\n## T1")[2]
    assert "| number |" not in alike and "Numbers: bound over norm." in alike
    assert "Post-LN, bound, bound over norm: claimed at least 1; theory 2;" in page(HOLDS)


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


def test_bounds_say_by_how_much_they_are_loose():
    loose = [replace(HOLDS, verdict="holds, loose", loose=factor) for factor in (20.0, 3.0)]
    said = line(page(*loose), "| [T1]")
    assert "**holds, loose** by x3 to x20" in said


def test_the_largest_setting_comes_first_and_settings_are_listed_once():
    wide = replace(HOLDS, setting=Setting(ranges=(("d", 1024, 2048), ("L", 6, 6))), measured=7.0)
    text = page(HOLDS, wide, replace(wide, subject=PRE), render=rows_markdown)
    rows = [line for line in text.partition("## T1")[2].splitlines() if line.endswith("| holds |")]
    assert [row.split(" | ")[4].split()[0] for row in rows] == ["7", "2.5", "7"]
    assert [row.split(" | ")[1] for row in rows] == ["1", "2", "1"]
    assert [row.split(" | ")[0] for row in rows] == ["| Post-LN, bound", "| ...", "| Pre-LN, bound"]
    assert "\n1. d = 1024..2048, L = 6\n" in text
    assert text.count("`a command`") == 1
    assert text.count("A ratio.") == 1, "equal notes are one"


def test_a_setting_names_its_command_unless_it_is_the_first():
    text = rows_markdown([Results("one", [HOLDS], []), Results("two", [replace(HOLDS, setting=at(64))], [])])
    assert "1. d = 64..512, L = 6\n2. d = 64 (command 2)\n" in text
    assert "1. `one`\n2. `two`\n" in text


def settings_of(text):
    return text.partition("\n## Settings\n")[2].partition("\n## ")[0].strip().splitlines()


def test_both_pages_number_settings_alike():
    """One setting tried by two commands has a number for each, also where the short page shows one row of the two."""
    small = replace(HOLDS, setting=at(8), claim="F1")
    both = [Results("one", [HOLDS, replace(small, setting=at(64))], []), Results("two", [small, HOLDS], [])]
    for committed in (both, committed_results()):
        listed, short = settings_of(rows_markdown(committed)), settings_of(markdown(committed))
        assert [line for line in listed if line[:1].isdigit()] == [line for line in short if line[:1].isdigit()]


def test_rows_whose_notes_say_another_thing_stand_apart():
    other = replace(HOLDS, setting=at(8), note=sentence("a ratio that grows"))
    assert "| ... | 2 | at least 1 | 2 | 2.5 [2, 3] | holds | 2 |" in page(HOLDS, other)
    assert "| Post-LN, bound | 1, 2 |" not in page(HOLDS, other)


def test_numbers_apart_by_slashes_are_those_of_the_notes():
    words = "d = {}: {:.3g}, all of {}"
    notes = [sentence(words, 8, 1.5, 3), sentence(words, 64, 2.0, 3), Sentence("none"), sentence(words, 8, 1.5, 3)]
    assert merged(notes) == (["1a", "1b", "2", "1a"], ["D = 8 / 64: 1.5 / 2, all of 3.", "None."])
    assert merged([sentence("x{} is 1", 5), sentence("x{} is 1.0", 5)])[1] == ["X5 is 1.", "X5 is 1.0."]


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


def test_rows_that_say_the_same_of_smaller_settings_stand_behind_the_largest():
    """Not those of another word or another part; and a row that is left alone is told in words."""
    smaller = [replace(HOLDS, setting=at(d), measured=float(d)) for d in (8, 16)]
    text = page(HOLDS, *smaller, replace(HOLDS, subject=PRE, measured=9.0)).partition("## T1")[2]
    rows = [line.split(" | ") for line in text.splitlines() if line.endswith("| holds |")]
    assert [(row[0], row[1], row[4].split()[0]) for row in rows] == [
        ("| Post-LN, bound", "1, 2, 3", "2.5"), ("| Pre-LN, bound", "1", "9"),
    ]  # fmt: skip
    assert "\n1. d = 64..512, L = 6\n2. d = 16\n3. d = 8\n" in text
    fails = replace(HOLDS, verdict="fails", setting=at(16), measured=0.25)
    assert "| ... | 2 | at least 1 | 2 | 0.25 [2, 3] | fails |" in page(HOLDS, fails)
    by_size = [
        replace(HOLDS, claim="H1", subject=Subject(quantity="a long name of a ratio", held=(("d", str(d)),)),
                setting=replace(at(d), more=f"{d} seeds"))
        for d in (8, 64)
    ]  # fmt: skip
    alone = page(*by_size).partition("## H1")[2]
    assert "A long name of a ratio, d = 64, and 1 smaller: claimed at least 1; theory 2; samples 2.5 [2, 3]" in alone
    assert "Settings 1, 2." in alone


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


def test_what_a_bound_is_loose_by_stands_with_its_sizes():
    note = sentence("in the tightest cell (d = {}, L = 6, V = {}, sigma_e = 1)", 64, 32)
    narrow = replace(HOLDS, verdict="holds, loose", loose=1400.0, note=note)
    along = Subject(placement="pre", quantity="exponent", against="width", held=(("V", "512"),))
    wide = replace(narrow, loose=146264.0, note=sentence("a ratio"), subject=along)
    assert "1400 (d = 64, V = 32) to 146000 (d = 512, V = 512) times the norm" in page(narrow, wide)


@pytest.mark.parametrize(
    ("against", "part", "shown"),
    [
        ("width", "Post-LN, exponent (L = 6, s = sqrt(d))", "Post-LN, exponent (s = sqrt(d))"),
        ("", "Post-LN, exponent, L = 6, s = sqrt(d)", "Post-LN, exponent, L = 6, s = sqrt(d)"),
    ],
)
def test_a_part_does_not_repeat_its_setting(against, part, shown):
    held = (("L", "6"), ("s", "sqrt(d)"))
    v = replace(HOLDS, subject=Subject(placement="post", quantity="exponent", against=against, held=held))
    assert (v.part, v.short_part) == (part, shown)


def test_folders_of_texts_are_not_shown():
    assert shown_command("reproduce --source ../a/b.de --out runs/c") == "`reproduce --source b.de --out runs/c`"
    assert shown_command("reproduce --source /home/a/b.de") == "`reproduce --source b.de`"


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
        ("Post-LN, bound", "Post-LN, bound", "..."),
    ],
)
def test_a_long_beginning_is_said_once(above, part, shown):
    assert after(above, part) == shown
