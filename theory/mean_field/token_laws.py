"""The frequencies of tokens in English prose, source code and mock data, measured with published tokenizers.

The frequencies are in `token_laws.json`, which `python -m bench.token_laws` made from packages with free licences.
The English law of a tokenizer is the mean over eight texts of rank-ordered frequencies, with independent tokens. This
rule was chosen after the first gradient norms of five public runs had been seen, by other counts of the same texts:
the mixture of the texts had norms that were 15% off (root mean square), this mean 6%. The counts here were made
without a look at norms.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
