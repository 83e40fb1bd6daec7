"""Whether runs of a prefix fail: words of single runs and of arms, by hand."""

import math

import pytest

from checks.verdict import Setting
from studies.warmup.prefixes import arms, judge_prefixes, state

UNIGRAM = 4.0
LEARNED, STUCK = 3.0, 3.9


def run(losses, placement="post", warmup=1, peak=1e-3, seed=0, sums=None):
    updates = [25 * k for k in range(len(losses))]
    sums = sums or [peak * update for update in updates]
    return {
        "placement": placement, "warmup": warmup, "peak": peak, "seed": seed, "updates": updates, "validation": losses,
        "first": losses[0], "final": losses[-1], "unigram": UNIGRAM, "summed": sums,
    }  # fmt: skip


def infinite(**fields):
    return run([7.0, 3.0], **fields) | {"final": math.nan}


def test_words():
    """By a run's own loss; or by its reference's, without which it may only be early."""
    reference = run([7.0, STUCK, LEARNED], warmup=4000)
    assert state(run([7.0, LEARNED, LEARNED]), reference, 50) == "not failed"
    assert state(run([7.0, LEARNED, STUCK]), reference, 50) == "failed", "it had learned, and lost it"
    assert state(run([7.0, STUCK, STUCK]), reference, 25) == "open"
    assert state(run([7.0, STUCK, STUCK]), run([7.0, 5.0, 5.0]), 50) == "open"
    assert state(infinite(), reference, 50) == "failed"


def references(losses=(7.0, STUCK, LEARNED)):
    return [run(list(losses), warmup=4000, seed=seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("losses", "seeds", "word", "update"),
    [
        ([7.0, STUCK, STUCK], 3, "fails", 50),
        ([7.0, STUCK, STUCK], 2, "undecided", 50),
        ([7.0, LEARNED, LEARNED], 3, "has not failed", 50),
        ([7.0, LEARNED], 3, "has not failed", 25),  # cut off
        ([7.0, STUCK], 3, "undecided", 25),
    ],
)
def test_arms(losses, seeds, word, update):
    """Of three seeds alike, at the last update that all recorded."""
    rows = references() + [run(losses, seed=seed) for seed in range(seeds)]
    (found,) = arms(rows)
    assert (found.word, found.update) == (word, update)
    rows[3] = run([7.0, *[STUCK if word == "has not failed" else LEARNED] * (len(losses) - 1)])
    if seeds == 3:
        assert arms(rows)[0].word == "undecided", "seeds differ"


def test_a_loss_that_is_not_finite_fails_at_every_later_update():
    rows = references() + [infinite(seed=0), *(run([7.0, STUCK, STUCK], seed=seed) for seed in (1, 2))]
    (found,) = arms(rows)
    assert (found.word, found.update) == ("fails", 50)
    assert "post T = 1, 0.001: fails before update 50 (seed 0 failed, " in str(found)


def test_equal_sums():
    """The last update with a sum that the reference has: not at 50, where the reference's is less."""
    rows = [*references(), run([7.0, 3.5, 2.0]), run([7.0, 2.0, 2.0], placement="pre", peak=5e-4)]
    for row in rows[:3]:
        row["summed"] = [0.0, 0.0063, 0.0251]
    post, pre = arms(rows)
    assert post.equal_sums == {0: (25, 0.5)}
    assert "at equal sums of rates +0.50 at 25" in str(post)
    assert pre.equal_sums == {0: (50, -1.0)}
    assert (pre.placement, pre.peak, pre.word) == ("pre", 5e-4, "undecided")


def three(losses, **fields):
    return [run([7.0, losses, losses + 0.01 * seed], seed=seed, **fields) for seed in range(3)]


def test_verdicts():
    """What should fail holds where it does, what should not fails where it does, and all else is undecided."""
    rows = [
        *references(), *three(STUCK), *three(STUCK, warmup=500), *three(STUCK, warmup=500, peak=5e-4),
        *three(LEARNED, placement="pre"), *three(LEARNED, placement="pre", warmup=4000),
    ]  # fmt: skip
    judged = judge_prefixes(rows, Setting(networks="6-6", ranges=(), more=""))
    assert [(v.claim, v.verdict) for v in judged] == [
        ("W1", "holds"), ("W1", "holds"), ("W3", "holds"), ("W3", "fails"), ("W5", "undecided"),
    ]  # fmt: skip
    assert judged[0].measured == pytest.approx(STUCK + 0.01 - 0.95 * UNIGRAM)
    assert "3 of 3 seeds failed" in str(judged[0].note)
    rows[3:6] = three(LEARNED)
    rows[-6:-3] = [run([7.0, STUCK, STUCK], placement="pre", seed=seed) for seed in range(3)]
    words = {(v.claim, "equal sums" in str(v.subject)): v.verdict for v in judge_prefixes(rows, judged[0].setting)}
    assert words["W1", False] == "undecided"
    assert words["W5", False] == "fails"
    assert judge_prefixes(rows[:4], judged[0].setting) == [], "one seed"
