"""Real text as inputs: windows of token ids, in which repeated words share an embedding and labels are next words."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from theory.stack.documents import content_of

UNKNOWN = 0

TEXTS = {"lighthouse": Path(__file__).parent / "lighthouse.txt"}
"""Built-in texts, as paths by name: a short story of our own."""


@dataclass(frozen=True, slots=True, eq=False)
class TextWindows:
    """The consecutive windows of a text, as token ids.

    Attributes:
        ids: token ids of shape (windows, n + 1); the first n columns are inputs, the last n labels.
        digest: SHA-256 of the file, which identifies the text in cell keys.
        source: the file's name.
    """

    ids: NDArray[np.int64]
    digest: str
    source: str

    def batches(self, sequences: int) -> NDArray[np.int64]:
        """Return batches of a given number of consecutive windows; leftover windows are not used.

        The shape is (batches, sequences, n + 1).
        """
        count = len(self.ids) // sequences
        return self.ids[: count * sequences].reshape(count, sequences, -1)

    def first_occurrence(self, sequences: int = 1) -> NDArray[np.int64]:
        """Return, for every input token of a batch, the first position with the same token id.

        The shape is (batches, sequences * n).
        """
        words = self.batches(sequences)[:, :, :-1].reshape(len(self.ids) // sequences, -1)
        return np.argmax(words[:, :, None] == words[:, None, :], axis=2)


def read_windows(path: str | Path, *, tokens: int, vocab: int) -> TextWindows:
    """Read a text file as consecutive windows of token ids, with one id for each word.

    A word's label is the next word.

    Words are separated by whitespace. The vocab − 1 most frequent words have their own ids, with ties in order of
    appearance; all other words share id 0. A window starts every `tokens` words, and words after the last whole window
    are not used.

    Args:
        path: path of a UTF-8 file, or "lighthouse" for a built-in short story.
        tokens: number of words in a window's input.
        vocab: size of the vocabulary.

    Raises:
        ValueError: the file is missing, unreadable, not UTF-8, or shorter than one window.
    """
    path = TEXTS.get(str(path), path)
    raw = read_utf8("text", path)
    words = raw.decode("utf-8").split()
    count = (len(words) - 1) // tokens
    if count < 1:
        raise ValueError(
            f"text must have at least tokens + 1 = {tokens + 1} words, but {str(path)!r} has {len(words)}."
        )
    known = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common(vocab - 1), start=UNKNOWN + 1)}
    ids = np.array([known.get(word, UNKNOWN) for word in words[: count * tokens + 1]], dtype=np.int64)
    starts = np.arange(count)[:, None] * tokens + np.arange(tokens + 1)
    return TextWindows(ids=ids[starts], digest=hashlib.sha256(raw).hexdigest(), source=Path(path).name)


def read_utf8(name: str, path: str | Path) -> bytes:
    """Read a file and return its bytes, after a check that they are UTF-8 text.

    Raises:
        ValueError: the file is missing, unreadable or not UTF-8; the message begins with `name`.
    """
    raw = content_of(path, name)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be UTF-8, but {str(path)!r} is not (byte {error.start}).") from error
    return raw
