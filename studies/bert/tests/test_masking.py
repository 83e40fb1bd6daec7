"""How many words are hidden, what stands in their place, and that a window's draw is its own."""

import numpy as np
import pytest
from scipy import stats

from studies.bert.masking import masked
from studies.bert.text import CLASS, MASK, PADDING, SEPARATOR, UNKNOWN, WORDS

VOCAB = 1000
ALARM = 1e-6
"""Of each count below: the draws are seeded, so that the suite is red always or never."""


@pytest.fixture(scope="module")
def windows():
    ids = np.random.default_rng(1).integers(WORDS, VOCAB, (400, 64))
    ids[:, 0], ids[:, -2], ids[:, -1], ids[:, 5] = CLASS, SEPARATOR, PADDING, UNKNOWN
    return ids


def counts(ids):
    """Of words, hidden ones, and of these [MASK], others, and unchanged: each with its number of trials and share."""
    shown, chosen = masked(ids, vocab=VOCAB, seed=[0])
    words = ids >= WORDS
    assert not (chosen & ~words).any()
    assert np.array_equal(shown[~chosen], ids[~chosen])
    hidden, total = shown[chosen], int(chosen.sum())
    other = (hidden != MASK) & (hidden != ids[chosen])
    # A random word is the hidden one itself once in so many.
    random = 0.1 * (1 - 1 / (VOCAB - WORDS))
    assert (hidden[other] >= WORDS).all()
    return {
        "chosen": (total, int(words.sum()), 0.15), "mask": (int((hidden == MASK).sum()), total, 0.8),
        "random": (int(other.sum()), total, random), "kept": (int((hidden == ids[chosen]).sum()), total, 0.2 - random),
    }  # fmt: skip


def alarms(ids):
    return [name for name, count in counts(ids).items() if stats.binomtest(*count).pvalue < ALARM]


def test_shares_are_bert_s(windows):
    """Binomial tests, a false alarm in 4e-6; each of three planted errors is seen."""
    assert alarms(windows) == []


def test_random_words_are_all_words_alike(windows):
    """Pearson's test over eight ranges of ids, a false alarm in 1e-6."""
    shown, chosen = masked(windows, vocab=VOCAB, seed=[2])
    drawn = shown[chosen & (shown != MASK) & (shown != windows)]
    assert stats.chisquare(np.histogram(drawn, bins=8, range=(WORDS, VOCAB))[0]).pvalue > ALARM


def test_a_seed_is_a_draw(windows):
    first, again, other = (masked(windows[0], vocab=VOCAB, seed=[0, seed]) for seed in (3, 3, 4))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[1], other[1])
