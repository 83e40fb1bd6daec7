"""A text as windows: which words have ids, where windows end, and what is refused."""

import numpy as np
import pytest

from studies.bert.text import CLASS, PADDING, SEPARATOR, UNKNOWN, WORDS, held_out_windows, read_masked_text


@pytest.fixture(scope="module")
def masked_text(parallel_files):
    return read_masked_text(parallel_files[1], length=16, vocab=20)


def test_words_and_signs_have_ids_by_frequency(tmp_path):
    """Small letters, signs by themselves, rare words one id; the last window is padded behind its [SEP]."""
    (tmp_path / "a.txt").write_text("The cat, the dog.\nthe CAT, a bird!\n", encoding="utf-8")
    text = read_masked_text(tmp_path / "a.txt", length=6, vocab=WORDS + 3)
    the, cat, comma = WORDS, WORDS + 1, WORDS + 2
    assert text.ids.tolist() == [
        [CLASS, the, cat, comma, the, SEPARATOR],
        [CLASS, UNKNOWN, UNKNOWN, the, cat, SEPARATOR],
        [CLASS, comma, UNKNOWN, UNKNOWN, UNKNOWN, SEPARATOR],
    ]
    last = read_masked_text(tmp_path / "a.txt", length=10, vocab=WORDS + 3).ids[-1]
    assert last.tolist() == [CLASS, comma, UNKNOWN, UNKNOWN, UNKNOWN, SEPARATOR, *[PADDING] * 4]


def test_windows_are_held_out(masked_text):
    trained, kept = held_out_windows(masked_text, 7, seed=1)
    rows = sorted(map(tuple, np.concatenate([trained.ids, kept.ids])))
    assert rows == sorted(map(tuple, masked_text.ids))
    assert (len(kept), kept.vocab) == (7, masked_text.vocab)
    assert not np.array_equal(held_out_windows(masked_text, 7, seed=2)[1].ids, kept.ids)
