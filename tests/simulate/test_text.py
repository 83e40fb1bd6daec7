"""Windows of real text."""

import numpy as np
import pytest

from simulate import read_windows


def write(tmp_path, content):
    path = tmp_path / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_windows_and_labels(tmp_path):
    text = read_windows(write(tmp_path, "b a a\nc a b  d e\n"), tokens=3, vocab=4)
    # a: 3 times; b twice; then c before d and e by appearance: ids 1, 2, 3; the others are unknown, 0
    assert text.ids.tolist() == [[2, 1, 1, 3], [3, 1, 2, 0]]
    assert text.first_occurrence().tolist() == [[0, 1, 1], [0, 1, 2]]
    assert text.source == "text.txt"


def test_windows_cover_the_text_once(tmp_path):
    text = read_windows(write(tmp_path, " ".join([f"w{i}" for i in range(50)])), tokens=7, vocab=100)
    assert text.ids.shape == (7, 8)
    assert np.unique(text.ids[:, :-1]).size == 49
    assert (text.ids[1:, 0] == text.ids[:-1, -1]).all(), "the label of a window's last word is the next one's first"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "^text must have at least tokens \\+ 1 = 4 words, but .* has 0"),
        ("one two three", "^text must have at least tokens"),
        (b"\xff\xfe broken", "^text must be UTF-8, but .* is not \\(byte 0\\)"),
    ],
)
def test_texts_that_cannot_be_used(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_windows(write(tmp_path, content), tokens=3, vocab=8)


def test_missing_files(tmp_path):
    with pytest.raises(ValueError, match="^text must be a readable file, got .*missing.txt': No such file"):
        read_windows(tmp_path / "missing.txt", tokens=3, vocab=8)
    with pytest.raises(ValueError, match="^text must be a readable file"):
        read_windows(tmp_path, tokens=3, vocab=8)
