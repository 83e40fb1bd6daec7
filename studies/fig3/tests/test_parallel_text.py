"""Pairs of lines: what has an id, what is refused, and mini-batches."""

import numpy as np
import pytest

from studies.parallel_text import BEGIN, END, PADDING, UNKNOWN, ParallelText, read_pairs


@pytest.fixture(scope="module")
def text(parallel_files):
    return read_pairs(*parallel_files, vocab=40)


def test_words_have_ids_by_frequency(parallel_files):
    text = read_pairs(*parallel_files, vocab=10)
    assert (len(text), text.vocab, text.names) == (200, 10, ("text.src", "text.tgt"))
    assert all(ids[0] == BEGIN and ids[-1] == END for ids in text.targets)
    assert all(ids[-1] == END and BEGIN not in ids for ids in text.sources)
    counts = np.bincount(np.concatenate([ids[1:-1] for ids in text.targets]), minlength=10)
    assert counts[END + 1 :].argmax() in (0, 1), "the most frequent words, one of either language, come first"
    assert counts[UNKNOWN] > 0
    assert counts[PADDING] == 0
    assert len(read_pairs(*parallel_files, vocab=10, pairs=3)) == 3


def test_pieces(parallel_files):
    """Byte-pair encoding: as many ids as asked for, and none unknown."""
    text = read_pairs(*parallel_files, vocab=60, units="bpe")
    ids = np.concatenate([*text.targets, *text.sources])
    assert ids.max() < 60
    assert UNKNOWN not in ids


def test_lines_end_with_newlines_alone(tmp_path):
    """Unicode has more separators, which may stand within a sentence; Windows writes two characters."""
    (tmp_path / "a.src").write_bytes("ein haus\u2028gross\r\nzwei\r\n".encode())
    (tmp_path / "a.tgt").write_bytes(b"a house\nb house\x0c\n")
    text = read_pairs(tmp_path / "a.src", tmp_path / "a.tgt", vocab=11)
    assert [len(ids) for ids in text.sources] == [4, 2]


def test_minibatches(text):
    """Every pair once before any again, no mini-batch beyond its tokens, the same order for a seed."""
    seen, sizes = [], []
    for batch in text.batches(100, np.random.default_rng(0)):
        sizes.append(sum(len(text.targets[k]) - 1 for k in batch))
        seen += batch.tolist()
        if len(seen) >= len(text):
            break
    assert sorted(seen) == list(range(len(text)))
    assert max(sizes) <= 100
    again = next(text.batches(100, np.random.default_rng(0)))
    assert again.tolist() == seen[: len(again)]


def test_a_minibatch_is_full():
    """Three pairs of three target tokens each are nine: the begin of a sentence is no label."""
    ids = np.arange(4)
    text = ParallelText(sources=(ids,) * 6, targets=(ids,) * 6, vocab=8, digest="", names=("", ""))
    first, second = (batch for batch, _ in zip(text.batches(9, np.random.default_rng(0)), range(2), strict=False))
    assert len(first) == len(second) == 3
