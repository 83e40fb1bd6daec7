"""Which words of a window are to be guessed, and what stands in their place.

Source: Devlin et al. (2019), appendix A.1.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from studies.bert.text import MASK, WORDS, Ids

CHOSEN = 0.15
"""The share of words that are to be guessed, each independently of the others."""

HIDDEN, REPLACED = 0.8, 0.1
"""Of those, the shares that become [MASK] and a random word; the others stay."""


def masked(windows: Ids, *, vocab: int, seed: Sequence[int]) -> tuple[Ids, NDArray[np.bool_]]:
    """Windows with some of their words hidden, and which words are to be guessed.

    Never chosen are [PAD], [UNK], [CLS] and [SEP]. Every window is a block of random numbers of its own: what is hidden
    in it depends on `seed` and its row alone, so give one window at a time where rows may stand elsewhere.

    Args:
        windows: ids, (windows, length).
        vocab: number of ids; a random word is any of them but the first five.
        seed: of the random numbers.

    Returns:
        Ids and a mask, both (windows, length).
    """
    generator = np.random.default_rng(seed)
    chosen = (generator.random(windows.shape) < CHOSEN) & (windows >= WORDS)
    what, words = generator.random(windows.shape), generator.integers(WORDS, vocab, windows.shape)
    replaced = np.where(what < HIDDEN, MASK, np.where(what < HIDDEN + REPLACED, words, windows))
    return np.where(chosen, replaced, windows), chosen
