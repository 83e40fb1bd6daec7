"""Plain words: the habits that CONTRIBUTING.md names become rarer, and commits have short subjects."""

import json

from tests.helpers.prose_counts import KINDS, TABLE, all_counts, counts
from tools.commit_subjects import wrong


def test_no_page_and_no_folder_gets_worse():
    most = json.loads(TABLE.read_text(encoding="utf-8"))
    more = {
        f"{name}: {kind}": f"{number}, at most {most.get(name, {}).get(kind, 0)}"
        for name, each in all_counts().items()
        for kind, number in each.items()
        if number > most.get(name, {}).get(kind, 0)
    }
    assert not more, "CONTRIBUTING.md has the rules; python -m tests.helpers.prose_counts lowers the table"


def test_each_habit_is_seen():
    text = (
        "Of ReLU all are 1. It stands beside what the head returns, behind a norm, unasked, in the place of one.\n"
        f"That is no fault.\n\n- {'word ' * 31}\n"
    )
    assert set(counts(text).values()) == {1}
    assert len(counts(text)) == len(KINDS) + 1
    assert not counts("```\nbeside\n```\n| beside |\n# beside\n$beside$ `beside`").total()


def test_commit_subjects():
    assert not any(
        map(wrong, ["docs: rewrite the manual", "theory/paper, checks: name the step", "probe: `x` is read"])
    )
    assert all(map(wrong, ["Rewrite the manual", "docs: " + "x" * 67, "docs: Rewrite", "docs:rewrite"]))
