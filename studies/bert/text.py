"""A text as windows of word ids for masked language models."""

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulate.counts import check_count
from simulate.text import read_utf8

Ids = NDArray[np.int64]

PADDING, UNKNOWN, CLASS, SEPARATOR, MASK = range(5)
"""The first ids of every vocabulary: [PAD], [UNK], [CLS], [SEP] and [MASK]."""

WORDS = MASK + 1
"""The first id that is a word."""

# As BERT's basic tokenizer: runs of letters and digits, and every other sign by itself.
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, eq=False)
class MaskedText:
    """Windows of a text, which follow each other.

    Attributes:
        ids: (windows, length): [CLS], words, [SEP]; the last window of a text is padded.
        vocab: number of ids.
        digest: SHA-256 of the file.
        name: of the file, for people.
        known: ids of words.
    """

    ids: Ids
    vocab: int
    digest: str
    name: str
    known: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.ids)


def read_masked_text(path: str | Path, *, length: int, vocab: int) -> MaskedText:
    """Windows of a text in small letters, over its most frequent words, ties in order of appearance.

    Args:
        path: of a UTF-8 file.
        length: of a window, [CLS] and [SEP] included.
        vocab: number of ids, the five of `PADDING` .. `MASK` included.

    Raises:
        ValueError: the file is missing, unreadable, not UTF-8 or has no words, the vocabulary is larger than the text
            has words, or an argument is outside its range.
    """
    check_count("length", length, 3)
    check_count("vocab", vocab, WORDS + 1)
    raw = read_utf8("text", path)
    lines = raw.decode("utf-8").lower().splitlines()
    counts = Counter(word for line in lines for word in _WORD.findall(line))
    if not counts:
        raise ValueError(f"text must have words, but {str(path)!r} has none.")
    if vocab > len(counts) + WORDS:
        raise ValueError(
            f"vocab must be at most {len(counts) + WORDS}, the {len(counts)} words of {str(path)!r} and {WORDS} ids of "
            f"their own, got {vocab}."
        )
    known = {word: rank for rank, (word, _) in enumerate(counts.most_common(vocab - WORDS), start=WORDS)}
    words = array("q")
    for line in lines:
        words.extend(known.get(word, UNKNOWN) for word in _WORD.findall(line))
    inside = length - 2
    windows = -(-len(words) // inside)
    ids = np.full((windows, length), PADDING, dtype=np.int64)
    padded = np.full(windows * inside, PADDING, dtype=np.int64)
    padded[: len(words)] = words
    ids[:, 0], ids[:, 1:-1], ids[:, -1] = CLASS, padded.reshape(windows, inside), SEPARATOR
    last = len(words) - (windows - 1) * inside  # words of the last window
    ids[-1, 1 + last :] = [SEPARATOR, *[PADDING] * (inside - last)]
    return MaskedText(ids=ids, vocab=vocab, digest=hashlib.sha256(raw).hexdigest(), name=Path(path).name, known=known)


def window_of(passages: Sequence[str], known: Mapping[str, int], length: int) -> list[int]:
    """One window: [CLS], and the words of each passage with a [SEP] behind them, padded.

    Where there is no room for all, the longest passage loses its last word, again and again, as in BERT.

    Args:
        passages: of text.
        known: ids of words in small letters.
        length: of the window.

    Raises:
        ValueError: the signs alone are longer.
    """
    check_count("length", length, 1 + len(passages))
    parts = [[known.get(word, UNKNOWN) for word in _WORD.findall(passage.lower())] for passage in passages]
    while 1 + len(parts) + sum(map(len, parts)) > length:
        max(parts, key=len).pop()
    ids = [CLASS, *(word for part in parts for word in [*part, SEPARATOR])]
    return ids + [PADDING] * (length - len(ids))


def held_out_windows(text: MaskedText, windows: int, *, seed: int) -> tuple[MaskedText, MaskedText]:
    """A text without so many of its windows, and those, drawn at random.

    Raises:
        ValueError: windows is not an integer from 1 to one less than the text has, or seed is negative.
    """
    check_count("seed", seed, 0)
    check_count("windows", windows, 1)
    if windows >= len(text):
        raise ValueError(f"windows must be fewer than the {len(text)} of {text.name!r}, got {windows}.")
    drawn = np.random.default_rng(seed).permutation(len(text))
    trained, kept = (replace(text, ids=text.ids[np.sort(part)]) for part in (drawn[windows:], drawn[:windows]))
    return trained, kept
