"""The law of random text: how often token ids repeat, and how often the labels of two positions agree.

The frequencies of tokens in English prose, source code and mock data were measured with published tokenizers.
They are in `token_laws.json`, which `python -m bench.token_laws` made from packages with free licences.
The English law of a tokenizer is the mean over eight texts of rank-ordered frequencies, with independent tokens. This
rule was chosen after the first gradient norms of five public runs had been seen, by other counts of the same texts:
the mixture of the texts had norms that were 15% off (root mean square), this mean 6%. The counts here were made
without a look at norms.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theory.mean_field.kernels import Array
from theory.stack.documents import content_of, parsed, pieces_of

KINDS = ("english", "code", "mock_digits")
"""The kinds of text with a measured law; mock_digits are uniform integers below 32000 in decimal digits."""

TOKENIZERS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "r50k": ((50_000, 50_688),),
    "llama2": ((32_000, 32_064),),
    "llama3": ((100_256, 100_608), (128_000, 128_512)),
    "qwen3": ((151_643, 152_576),),
    "gemma3": ((255_000, 262_400),),
    "o200k": ((199_997, 201_216),),
    "deepseek_v3": ((128_800, 129_536),),
}
"""The ranges of vocabulary sizes, first and last, by which a tokenizer is recognized; padding is included."""

LEAST_VOCAB = 32_000
"""The smallest vocabulary for which an unknown tokenizer has an English law."""

_FILE = Path(__file__).with_name("token_laws.json")

MASKED, REPLACED = 0.15, (0.8, 0.1, 0.1)
"""BERT's share of masked words, and the shares of these that are replaced by [MASK], by a random id, and by none.

Source: Devlin et al. (2019), arXiv:1810.04805, appendix A.1.
"""

_ROUNDING = 1e-6
# The number of bytes, or positions, of a text that are counted at a time; memory is about one byte for each.
_PIECE = _SAMPLED = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class TokenLaw:
    """The measured law of a kind of text: token frequencies, and how often token ids and labels agree.

    Attributes:
        kind: one of `KINDS`.
        tokenizer: a key of `TOKENIZERS`; "" for the mean over all of them.
        frequencies: frequencies of token ids by rank, (tokens,), with sum 1.
        kappa_of_texts: probability that two positions have equal token ids, for each text that was counted.
        within: the same probability within a sequence of 1024 tokens.
        same_word_labels: probability that the labels of two positions with equal token ids agree.
        other_word_labels: probability that the labels of two positions with different token ids agree.
    """

    kind: str
    tokenizer: str
    frequencies: NDArray[np.float64]
    kappa_of_texts: Mapping[str, float]
    within: float
    same_word_labels: float
    other_word_labels: float

    @property
    def kappa(self) -> float:
        """The probability that two positions have equal token ids, the sum of squared frequencies."""
        return float(np.square(self.frequencies).sum())


def tokenizer_of(vocab: int) -> str:
    """Return the name of the measured tokenizer with a vocabulary of this size; "" if there is none."""
    return next((name for name, sizes in TOKENIZERS.items() if any(a <= vocab <= b for a, b in sizes)), "")


def token_law(kind: str, vocab: int) -> TokenLaw:
    """Return the law of a kind of text for a tokenizer with a vocabulary of this size.

    An unknown tokenizer gets the mean over all measured ones of rank-ordered frequencies, which for English has
    kappa = 0.0070: kappa does not depend on the size of the vocabulary from 32,000 tokens on.

    Args:
        kind: one of `KINDS`.
        vocab: size of the vocabulary.

    Raises:
        ValueError: there is no law of this kind, or the vocabulary has fewer than 32,000 tokens.
    """
    if kind not in KINDS:
        raise ValueError(f"text must be of one of the kinds {', '.join(KINDS)}, got {kind!r}.")
    if vocab < LEAST_VOCAB:
        raise ValueError(
            f"--text {kind} requires a vocabulary of at least {LEAST_VOCAB:,} tokens, got {vocab:,}: the repeats of a "
            "smaller tokenizer are not known. --text FILE counts a text of token ids."
        )
    tokenizer = tokenizer_of(vocab)
    stored = [_stored()[kind][name] for name in ([tokenizer] if tokenizer else TOKENIZERS)]
    ranks = [frequencies_of(law["ranks"]) for law in stored]
    frequencies = np.zeros(max(map(len, ranks)))
    for shares in ranks:
        frequencies[: len(shares)] += shares / len(ranks)

    def mean(name: str) -> float:
        return float(np.mean([law[name] for law in stored]))

    texts = stored[0]["kappa_of_texts"]
    kappas = {text: float(np.mean([law["kappa_of_texts"][text] for law in stored])) for text in texts}
    chances = mean("within_1024"), mean("same_word_labels"), mean("other_word_labels")
    return TokenLaw(kind, tokenizer, frequencies, kappas, *chances)


def frequencies_of(ranks: list[list[float]]) -> NDArray[np.float64]:
    """Return the frequencies of token ids by rank, from pairs of a number of ranks and the share of each rank.

    The frequencies have the sum 1, even if the shares have not.

    Raises:
        ValueError: the ranks are not such pairs.
    """
    try:
        counts, shares = zip(*ranks, strict=True)
        frequencies = np.repeat(np.asarray(shares, dtype=float), np.asarray(counts, dtype=int))
    except (TypeError, ValueError):
        raise ValueError("ranks must be pairs of a number of ranks and the share of each.") from None
    return frequencies / frequencies.sum()


@cache
def _stored() -> dict[str, dict[str, Any]]:
    return json.loads(_FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, eq=False)
class TextLaw:
    """A law of random text: token frequencies, and how often two positions have equal token ids and equal labels.

    Attributes:
        frequencies: frequency of every token id, (words,), with sum 1.
        within: probability that two positions of a sequence have the same token id.
        across: probability that positions of two different sequences have the same token id.
        same_word_labels: probability that two positions with the same token id have equal labels.
        other_word_labels: probability that two positions with different token ids have equal labels.
        labels_within: the same two probabilities for positions of one sequence; None if they do not differ.
        clumping: three covariances from ids that clump in sequences; None for independent ids. The first two are
            between the events that two pairs of positions have equal ids. In the first, the pairs share one position,
            and their other positions are in one sequence. In the second, both pairs lie between the same two sequences
            and share no position. The third is between the frequencies of the ids at two positions of one sequence.
    """

    frequencies: Array
    within: float
    across: float
    same_word_labels: float
    other_word_labels: float
    own_labels: Array | None = None
    labels_within: tuple[float, float] | None = None
    clumping: tuple[float, float, float] | None = None
    independent_labels: bool = False
    counted: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        law = np.asarray(self.frequencies, dtype=float)
        if law.ndim != 1 or not len(law) or not np.isfinite(law).all() or (law < 0).any():
            raise ValueError("frequencies must be numbers of at least 0, one for every token id.")
        if abs(law.sum() - 1.0) > _ROUNDING:
            raise ValueError(f"frequencies must have the sum 1, got {law.sum():g}; of_counts takes counts.")
        object.__setattr__(self, "frequencies", law)
        repeats = law if self.own_labels is None else np.asarray(self.own_labels, dtype=float)
        if repeats.shape != law.shape or not ((repeats >= 0) & (repeats <= 1)).all():
            raise ValueError("own_labels must be None or probabilities from 0 to 1, one for every token id.")
        object.__setattr__(self, "own_labels", repeats)
        for name in ("within", "across", "same_word_labels", "other_word_labels"):
            if not 0.0 <= (chance := getattr(self, name)) <= 1.0:
                raise ValueError(f"{name} must be a probability from 0 to 1, got {chance!r}.")
        if self.across > self.within + _ROUNDING:
            raise ValueError(
                f"across must be at most within = {self.within:g}, got {self.across:g}: a text repeats its own tokens "
                "at least as often as another's."
            )

    @property
    def key(self) -> tuple[object, ...]:
        """A hashable value that is equal for two laws of text exactly if the laws are equal."""
        return tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in astuple(self))

    @classmethod
    def of_frequencies(cls, frequencies: ArrayLike) -> TextLaw:
        """Return the law of independent token ids with given frequencies; a position's label is the next token id."""
        law = np.asarray(frequencies, dtype=float)
        same = min(1.0, float(np.square(law).sum()))
        return cls(law, same, same, same, same)

    @classmethod
    def of_counts(cls, counts: ArrayLike) -> TextLaw:
        """Return the law of text with independent token ids, from the number of times that each id occurs.

        Raises:
            ValueError: counts are not numbers of at least 0, or none is above 0.

        >>> TextLaw.of_counts([3, 1]).within
        0.625
        """
        numbers = np.asarray(counts, dtype=float)
        with np.errstate(over="ignore"):  # of a sum that is refused
            whole = numbers.sum()
        if numbers.ndim != 1 or not np.isfinite([*numbers, whole]).all() or (numbers < 0).any() or not whole > 0:
            raise ValueError(
                "counts must be numbers of at least 0, one for every id, one of them above 0, and of a finite sum."
            )
        return cls.of_frequencies(numbers / whole)

    @classmethod
    def zipf(cls, exponent: float, words: int) -> TextLaw:
        """Return the law of independent token ids with frequencies proportional to 1/k^exponent, k = 1, ..., words.

        Args:
            exponent: the exponent, at least 0.
            words: number of token ids.

        Raises:
            ValueError: the exponent is negative or not a number, or there are no token ids.
        """
        if not (np.isfinite(exponent) and exponent >= 0):
            raise ValueError(f"exponent must be a number of at least 0, got {exponent!r}.")
        if words < 1:
            raise ValueError(f"words must be an integer of at least 1, got {words!r}.")
        return cls.of_counts(np.arange(1.0, words + 1.0) ** -float(exponent))

    @classmethod
    def distinct(cls, words: int) -> TextLaw:
        """Return the law of text in which no token id repeats, and every id is equally likely as a label.

        Args:
            words: number of token ids.

        Raises:
            ValueError: there are no token ids.
        """
        return replace(cls.zipf(0.0, words), within=0.0, across=0.0, independent_labels=True)

    @classmethod
    def of_kind(cls, kind: str, vocab: int) -> TextLaw:
        """Return the measured law of a kind of text, such as English, for a tokenizer with a given vocabulary size.

        English tokens are independent: a batch mixes texts, whose labels agree less often than those of one text.
        Code and mock data have the probabilities of equal labels that were counted.

        Args:
            kind: a value of `KINDS`.
            vocab: size of the vocabulary.

        Raises:
            ValueError: there is no law of this kind, or the vocabulary is too small.
        """
        law = token_law(kind, vocab)
        if kind == "english":
            return cls.of_frequencies(law.frequencies)
        return cls(law.frequencies, max(law.within, law.kappa), law.kappa, law.same_word_labels, law.other_word_labels)

    @classmethod
    def of_card(cls, card: Any) -> TextLaw:
        """Return the law of text that a mapping describes, by `ranks` or `counts` of token ids.

        The mapping may also have probabilities. `ranks` are pairs of a number of ranks and the share of each, in the
        order of shares. Instead of `ranks` the mapping may have `head`, shares of the first ranks, and `tail`, pairs of
        a number of ranks and their whole share. The optional probabilities are `within`, `same_word_labels` and
        `other_word_labels`; the defaults are those of independent tokens.

        Args:
            card: the mapping.

        Raises:
            ValueError: the mapping has neither ranks nor counts, or a value is not a number or out of range.

        >>> TextLaw.of_card({"ranks": [[1, 0.5], [2, 0.25]], "same_word_labels": 0.6}).across
        0.375
        """
        try:
            if isinstance(card, dict) and {"head", "tail"} <= card.keys():
                tail = [[count, whole / count] for count, whole in card["tail"]]
                card = card | {"ranks": [[1, share] for share in card["head"]] + tail}
            law = (
                cls.of_frequencies(frequencies_of(card["ranks"])) if "ranks" in card else cls.of_counts(card["counts"])
            )
        except (TypeError, LookupError):
            raise ValueError(
                "law must be a JSON object with ranks, pairs of [number of ranks, share], or counts."
            ) from None
        chances = {name: card.get(name, getattr(law, name)) for name in ("same_word_labels", "other_word_labels")}
        try:
            return replace(law, within=max(float(card.get("within", law.within)), law.within), **chances)
        except TypeError:
            raise ValueError("within, same_word_labels and other_word_labels of a law must be probabilities.") from None

    @classmethod
    def of_text(cls, words: Sequence[object] | NDArray[np.integer], tokens: int) -> TextLaw:
        """Estimate the law of a given text by counting its words.

        Pairs within a sequence are counted in each sequence, pairs of two sequences over the whole text. The label of
        a word is the next word, so that labels of two equal words agree if the words after them do.

        Args:
            words: the words in their order, numbers or any other objects.
            tokens: length of a sequence.

        Raises:
            ValueError: the text is shorter than two sequences, or a sequence has one token.
        """
        return cls._of_ids(np.unique(np.asarray(words), return_inverse=True)[1], tokens)

    @classmethod
    def _of_ids(cls, ids: NDArray[np.integer], tokens: int) -> TextLaw:
        """Return the law of a text whose words are numbered from 0 and all occur, as `of_text`.

        Raises:
            ValueError: the text is shorter than two sequences, or a sequence has one token.
        """
        sequences = (len(ids) - 1) // tokens if tokens > 1 else 0
        if sequences < 2:
            raise ValueError(
                f"text must have two sequences of at least 2 tokens, and one token more, got {len(ids)} tokens and "
                f"tokens = {tokens}."
            )
        used, labels = ids[: sequences * tokens], ids[1 : sequences * tokens + 1]
        count, vocab = len(used), int(ids.max()) + 1
        numbers = np.bincount(used, minlength=vocab)
        inside, both = np.zeros(3), _Tally()
        size = max(1, _PIECE // tokens) * tokens  # whole sequences
        for start in range(0, count, size):
            piece, next_ones = used[start : start + size].astype(np.int64), labels[start : start + size]
            sequence, bigrams = np.arange(len(piece)) // tokens, piece * vocab + next_ones
            of_both = np.unique(bigrams, return_inverse=True)[1]
            inside += [
                _pairs(np.unique(sequence * (int(each.max()) + 1) + each, return_counts=True)[1])
                for each in (piece, next_ones, of_both)
            ]
            both.add(*np.unique(bigrams, return_counts=True))
        repeats = _pairs(numbers)
        equal_ids, equal_labels, equal_both = inside.tolist()
        pairs_within = count * (tokens - 1)
        within = equal_ids / pairs_within
        across = (repeats - equal_ids) / (count * (count - 1) - pairs_within)
        same = _pairs(both.counts)
        agreeing = _pairs(np.bincount(labels, minlength=vocab))
        others = count * (count - 1) - repeats
        return cls(
            numbers / count, within=max(within, across), across=across,
            same_word_labels=same / repeats if repeats else 0.0,
            other_word_labels=(agreeing - same) / others if others else 0.0,
            own_labels=np.bincount(used[used == labels], minlength=vocab) / np.maximum(numbers, 1),
            labels_within=(
                equal_both / equal_ids if equal_ids else 0.0,
                (equal_labels - equal_both) / max(pairs_within - equal_ids, 1.0),
            ),
            clumping=_clumping(used, tokens, numbers / count),
        )  # fmt: skip

    @classmethod
    def read(cls, given: str, *, tokens: int, vocab: int) -> TextLaw:
        """Return the law of text with a given name: a kind of text, zipf:A, counts:FILE, law:FILE, or a file's path.

        counts:FILE has numbers, law:FILE is JSON. The words of a text file are separated by white space and may be
        numbers; they are counted as in `of_text`.

        Args:
            given: the name.
            tokens: length of a sequence.
            vocab: number of different token ids, for zipf:A, and to choose the tokenizer of a kind of text.

        Raises:
            ValueError: the name is not a law or a file, or its content is not allowed.
        """
        kind, _, rest = given.partition(":")
        if given in KINDS:
            return cls.of_kind(given, vocab)
        if kind == "law":
            return cls.of_card(parsed(content_of(rest, "law"), "JSON"))
        try:
            if kind == "zipf":
                return cls.zipf(float(rest), vocab)
            numbers = content_of(rest, "counts").split() if kind == "counts" else None
            counts = None if numbers is None else [float(number) for number in numbers]
        except ValueError as error:
            if "convert" not in str(error):
                raise
            raise ValueError(
                f"text must be {', '.join(KINDS)}, zipf:A with a number A, counts:FILE of numbers, law:FILE of JSON, "
                f"or a file, got {given!r}."
            ) from None
        return cls.of_counts(counts) if counts is not None else cls._of_ids(_ids_of(given), tokens)

    def masked(self, share: float = MASKED) -> TextLaw:
        """Return the law of this text for masked language modelling, in which a label is the original token id.

        A position counts in the loss with the probability `share`. Its token id is replaced as `REPLACED` states.
        [MASK] has the rarest id of the text.

        Args:
            share: share of masked words, between 0 and 1.
        """
        mask, noise, kept = REPLACED
        words, original = len(self.frequencies), 1.0 - share * (mask + noise)
        agree, frequencies = np.array([self.within, self.across]), self.frequencies * original + share * noise / words
        frequencies[frequencies.argmin()] += share * mask
        within, across = (
            (share * mask) ** 2 + share * noise * (share * noise + 2.0 * original) / words + original**2 * agree
        ).tolist()
        counted = mask**2 + noise * (noise + 2.0 * kept) / words + kept**2 * agree
        # Equal ids that were kept have equal labels.
        same = agree + kept**2 * agree * (1.0 - agree) / counted
        other = (agree - same * counted) / (1.0 - counted)
        squares = [float(np.square(each).sum()) ** 2 for each in (self.frequencies, frequencies)]
        return TextLaw(
            frequencies, within, across, float(same[1]), float(other[1]), own_labels=0.0 * frequencies,
            labels_within=(float(same[0]), float(other[0])), independent_labels=True,
            clumping=self.clumping and (
                original**3 * (self.clumping[0] + squares[0]) + (share * mask) ** 3 - squares[1],
                original**4 * self.clumping[1], original**4 * self.clumping[2],
            ),
            counted=(share, *counted.tolist()),
        )  # fmt: skip

    def windows(self, count: int, tokens: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Sample windows of independent token ids, (count, tokens + 1), for the argument `windows` of `predict`."""
        shape = count, tokens + 1
        return np.asarray(generator.choice(len(self.frequencies), size=shape, p=self.frequencies), dtype=np.int64)


def _pairs(counts: NDArray[np.integer]) -> float:
    """Return the number of ordered pairs of two different positions with equal ids, from the count of every id."""
    numbers = counts.astype(float)
    return float((numbers * (numbers - 1.0)).sum())


def _clumping(ids: NDArray[np.integer], tokens: int, law: Array) -> tuple[float, float, float]:
    """Return `TextLaw.clumping` of consecutive sequences of token ids.

    The second covariance is sampled: a sequence is paired with the one a third of the text later.

    Args:
        ids: token ids of whole sequences, one after another, (sequences x tokens,).
        tokens: length of a sequence.
        law: frequency of every token id, (words,).
    """
    sequences = ids.reshape(-1, tokens)
    parts = np.array_split(sequences, -(-len(ids) // _PIECE))
    shares = np.concatenate([law[part].sum(1) for part in parts])
    twice = sum(
        np.bincount(keys % len(law), counts * (counts - 1.0), len(law))
        for keys, counts in (_counted(part, len(law)) for part in parts)
    )
    chosen = np.arange(0, len(sequences), max(1, len(ids) // _SAMPLED))
    (keys, counts), (others, their_counts) = (
        _counted(sequences[(chosen + shift) % len(sequences)], len(law)) for shift in (0, max(1, len(sequences) // 3))
    )
    common, at, at_others = np.intersect1d(keys, others, assume_unique=True, return_indices=True)
    here, there = counts[at].astype(float), their_counts[at_others].astype(float)
    equal, shared = (
        np.bincount(common // len(law), each, len(chosen)) for each in (here * there, here * there * (here + there))
    )
    pairs, square = tokens * (tokens - 1), float((law**2).sum()) ** 2
    apart = float((equal**2 - shared + equal).mean()) / pairs**2 - (float(equal.mean()) / tokens**2) ** 2
    first = float(law @ twice) / (len(sequences) * pairs) - square
    third = (float((shares**2).mean()) - tokens * float((law**3).sum())) / pairs - square
    return first, max(apart, 0.0), third


def _counted(sequences: NDArray[np.integer], vocab: int) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """Return the keys, sequence number · vocab + token id, of the ids in each sequence, and the counts of the ids."""
    return np.unique(np.arange(len(sequences))[:, None] * vocab + sequences, return_counts=True)


class _Tally:
    """A table of counts of integer keys that arrive in pieces.

    Attributes:
        keys: the keys.
        counts: count of each key.
    """

    def __init__(self) -> None:
        self.keys, self.counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    def add(self, keys: NDArray[np.int64], counts: NDArray[np.integer]) -> None:
        """Add the counts of one piece, in which each key occurs once."""
        self.keys, at = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        self.counts = np.bincount(at, weights=np.concatenate([self.counts, counts]), minlength=len(self.keys))


def _ids_of(path: str) -> NDArray[np.int32]:
    """Return the words of a text file as numbers in their alphabetical order.

    Raises:
        ValueError: the file cannot be read, or is not UTF-8.
    """
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # of which reading it says why
        return _ids_of_file(path, None)
    return _ids_of_file(path, (about.st_mtime_ns, about.st_size))


@lru_cache(maxsize=1)
def _ids_of_file(path: str, _: object) -> NDArray[np.int32]:
    """Return the numbered words of a text file, cached for repeated calls.

    Args:
        path: path of the file.
        _: a value that changes if the file does.
    """
    numbers: dict[str, int] = {}
    pieces = [
        np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int32) for words in _words(path)
    ]
    places = np.empty(len(numbers), dtype=np.int32)
    places[[numbers[word] for word in sorted(numbers)]] = np.arange(len(numbers))
    return places[np.concatenate([np.empty(0, dtype=np.int32), *pieces])]


def _words(path: str) -> Iterator[list[str]]:
    """Yield the words of a text file, piece by piece.

    Raises:
        ValueError: the file cannot be read, or is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    try:
        for piece in pieces_of(path, "text", _PIECE):
            text = rest + decoder.decode(piece)
            words = text.split()
            # The last word may go on in the next piece.
            rest = words.pop() if words and not text[-1].isspace() else ""
            yield words
        yield (rest + decoder.decode(b"", final=True)).split()
    except UnicodeDecodeError:
        raise ValueError(f"text must be UTF-8, and {path!r} is not.") from None
