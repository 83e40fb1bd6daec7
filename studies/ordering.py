"""Which pairs of sentences each update is trained on: a function of the text, the seed and the update alone."""

import numpy as np

from simulate.counts import check_count
from studies.parallel_text import Ids, ParallelText


class Order:
    """Mini-batches of sentences of like lengths, in random order, epoch after epoch.

    An epoch sorts its pairs by the target's length, then the source's, with ties at random, and cuts the list into
    mini-batches of at most `tokens` target tokens (or one longer pair). Sorted lengths are alike in every epoch, so
    that all have equally many mini-batches, and the one of an update is found without those before it.

    Args:
        text: the pairs.
        tokens: target tokens of a mini-batch, at most; a sentence's end is one, padding is none.
        seed: of the order.

    Raises:
        ValueError: tokens or seed is outside its range.
    """

    def __init__(self, text: ParallelText, *, tokens: int, seed: int) -> None:
        check_count("tokens", tokens, 1)
        check_count("seed", seed, 0)
        self._seed = seed
        self._targets = np.array([len(ids) - 1 for ids in text.targets])
        self._sources = np.array([len(ids) for ids in text.sources])
        self._cuts: list[int] = []
        count = 0
        for place, length in enumerate(np.sort(self._targets)):
            if place and count + length > tokens:
                self._cuts.append(place)
                count = 0
            count += int(length)
        self._epoch, self._batches = -1, list[Ids]()

    def __len__(self) -> int:
        """Mini-batches of an epoch."""
        return len(self._cuts) + 1

    def batch(self, update: int) -> Ids:
        """Indices of the pairs of an update, from 1."""
        check_count("update", update, 1)
        epoch, place = divmod(update - 1, len(self))
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            drawn = generator.permutation(len(self._targets))
            ordered = drawn[np.lexsort((self._sources[drawn], self._targets[drawn]))]  # the last key counts most
            batches = np.split(ordered, self._cuts)
            self._batches = [batches[k] for k in generator.permutation(len(batches))]
            self._epoch = epoch
        return self._batches[place]
