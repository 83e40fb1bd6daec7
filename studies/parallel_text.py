"""Two line-aligned texts as pairs of sequences of word ids, over one vocabulary, and mini-batches of them."""

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from simulate.counts import check_count
from simulate.text import read_utf8

Ids = NDArray[np.int64]
Units = Literal["words", "bpe"]

PADDING, UNKNOWN, BEGIN, END = range(4)
"""The first ids of every vocabulary: of nothing, of a rare word, and of the two ends of a sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class ParallelText:
    """Pairs of sentences.

    Attributes:
        sources: of every pair the ids of the source and an end.
        targets: of every pair a begin, the ids of the target, and an end: inputs are all but the last, labels all but
            the first.
        vocab: number of ids.
        digest: SHA-256 of both files and the kind of units.
        names: of the files, for people.
    """

    sources: tuple[Ids, ...]
    targets: tuple[Ids, ...]
    vocab: int
    digest: str
    names: tuple[str, str]

    def __len__(self) -> int:
        return len(self.sources)

    def batches(self, tokens: int, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Pairs in random order, in mini-batches of at most so many target tokens (or one longer pair), without end.

        Files may be ordered by length: a mini-batch is of random pairs, as one of a shuffled text is.
        """
        while True:
            batch: list[int] = []
            count = 0
            for pair in generator.permutation(len(self)):
                length = len(self.targets[pair]) - 1
                if batch and count + length > tokens:
                    yield np.array(batch)
                    batch, count = [], 0
                batch.append(int(pair))
                count += length
            yield np.array(batch)


def read_pairs(
    source: str | Path, target: str | Path, *, vocab: int, units: Units = "words", pairs: int | None = None
) -> ParallelText:
    """Pairs of lines of two files, over one vocabulary of both.

    Args:
        source: the file to translate from; UTF-8, a sentence a line.
        target: the file to translate to, line by line.
        vocab: number of ids, the four of `PADDING` .. `END` included.
        units: "words", the most frequent ones, or "bpe", byte-pair encoding learned from both files (sentencepiece).
        pairs: only the first so many; the vocabulary is of all.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, their lines are not equally many, or the vocabulary is larger
            than the text has words or pieces.
    """
    if pairs is not None and (isinstance(pairs, bool) or not isinstance(pairs, int) or pairs < 1):
        raise ValueError(f"pairs must be an integer of at least 1, or None for all, got {pairs!r}.")
    if units not in get_args(Units):
        raise ValueError(f"units must be {' or '.join(map(repr, get_args(Units)))}, got {units!r}.")
    raw = []
    for name, path in (("source", source), ("target", target)):
        raw.append(read_utf8(name, path))
        if not raw[-1].strip():
            raise ValueError(f"{name} must have lines of words, but {str(path)!r} is empty.")
    # Other separators, as U+2028, are part of a line: files are aligned by newlines.
    lines = [text.decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n") for text in raw]
    if len(lines[0]) != len(lines[1]):
        raise ValueError(
            f"source and target must have equally many lines, got {len(lines[0])} in {str(source)!r} and "
            f"{len(lines[1])} in {str(target)!r}."
        )
    kept = [(first, second) for first, second in zip(*lines, strict=True) if first.split() and second.split()]
    if not kept:
        raise ValueError(f"source and target must have a line of words in both, got none in {str(source)!r}.")
    encode = (_words if units == "words" else _pieces)([line for pair in kept for line in pair], vocab)
    sources = tuple(np.array([*encode(first), END]) for first, _ in kept[:pairs])
    targets = tuple(np.array([BEGIN, *encode(second), END]) for _, second in kept[:pairs])
    digest = hashlib.sha256(units.encode() + b"".join(hashlib.sha256(text).digest() for text in raw)).hexdigest()
    return ParallelText(sources, targets, vocab, digest, (Path(source).name, Path(target).name))


def held_out(text: ParallelText, pairs: int, *, seed: int) -> tuple[ParallelText, ParallelText]:
    """A text without so many of its pairs, and those, drawn at random; both in the ids of the whole text.

    Raises:
        ValueError: pairs is not an integer from 1 to one less than the text has, or seed is negative.
    """
    check_count("seed", seed, 0)
    check_count("pairs", pairs, 1)
    if pairs >= len(text):
        raise ValueError(f"pairs must be fewer than the text's {len(text)}, got {pairs}.")
    drawn = np.random.default_rng(seed).permutation(len(text))
    first, second = (
        replace(
            text,
            sources=tuple(text.sources[k] for k in chosen),
            targets=tuple(text.targets[k] for k in chosen),
        )
        for chosen in (np.sort(drawn[pairs:]), np.sort(drawn[:pairs]))
    )
    return first, second


def _words(lines: Sequence[str], vocab: int) -> Callable[[str], list[int]]:
    """From a line to ids of the most frequent words, ties in order of appearance.

    Raises:
        ValueError: there are not so many words.
    """
    counts = Counter(word for line in lines for word in line.split())
    if not END + 1 < vocab <= len(counts) + END + 1:
        raise ValueError(
            f"vocab must be from {END + 2} to {len(counts) + END + 1}, the {len(counts)} words of the text and "
            f"{END + 1} ids of their own, got {vocab}."
        )
    known = {word: rank for rank, (word, _) in enumerate(counts.most_common(vocab - END - 1), start=END + 1)}
    return lambda line: [known.get(word, UNKNOWN) for word in line.split()]


def _pieces(lines: Iterable[str], vocab: int) -> Callable[[str], list[int]]:
    """From a line to ids of byte-pair encoding, learned from the lines.

    Raises:
        ValueError: sentencepiece is not installed, or learns fewer or more pieces.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise ValueError("sentencepiece must be installed for bpe: pip install 'gradbounds[text]'") from error
    model = io.BytesIO()
    special: dict[str, Any] = {"pad_id": PADDING, "unk_id": UNKNOWN, "bos_id": BEGIN, "eos_id": END}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=vocab, model_type="bpe", minloglevel=2,
            num_threads=1, **special,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(f"vocab must be what the text can be split into, got {vocab}: {reason}") from error
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    encode: Callable[[str], list[int]] = processor.encode
    return encode
