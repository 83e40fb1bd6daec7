"""Two tasks with free labels from the glosses of Debian's wordnet-base, as files of lines; the user installs it.

python -m tests.helpers.gloss_tasks FOLDER writes pos.tsv and senses.tsv: train or test, the class, one or two glosses.

A gloss is a synset's definition, without its examples. Left out are glosses that name a word class, and those that
several synsets share, so that none is in both parts of a file.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulate.runs.files import write_whole

FILES = {part: Path(f"/usr/share/wordnet/data.{part}") for part in ("adj", "adv", "noun", "verb")}
TRAINED, TESTED, SEED = 20_000, 4_000, 0
_CLASS = re.compile(
    r"\b(noun|verb|adjective|adverb|adjectival|adverbial|part of speech|participle)s?\b|\((n|v|a|r|adj|adv)\.?\)"
)


class Synset(NamedTuple):
    """A meaning: its word class, its words, and its gloss."""

    part: str
    words: frozenset[str]
    gloss: str


def synsets(files: dict[str, Path] = FILES) -> list[Synset]:
    every = []
    for part, file in files.items():
        for line in file.read_text(encoding="utf-8", errors="ignore").split("\n"):
            data, bar, gloss = line.partition(" | ")
            if not bar or line.startswith("  "):
                continue
            _, _, _, count, *rest = data.split(" ")
            words = {re.sub(r"\((a|p|ip)\)$", "", word.lower()) for word in rest[: 2 * int(count, 16) : 2]}
            every.append(Synset(part, frozenset(words), re.split(r'[;:,]?\s*"', gloss)[0].strip()))
    often = Counter(synset.gloss for synset in every)
    return [s for s in every if s.gloss and often[s.gloss] == 1 and not _CLASS.search(s.gloss.lower())]


def parts_of_speech(every: Sequence[Synset], generator: np.random.Generator) -> list[list[str]]:
    """Lines of the first task: which word class has the gloss? Equally many of each, in both parts of the file."""
    glosses = defaultdict(list)
    for synset in every:
        glosses[synset.part].append(synset.gloss)
    least = min(map(len, glosses.values()))
    tested = min(TESTED // len(glosses), least // 6)
    trained = min(TRAINED // len(glosses), least - tested)
    lines = []
    for part, texts in glosses.items():
        drawn = generator.permutation(len(texts))[: tested + trained]
        lines += [["test" if k < tested else "train", part, texts[i]] for k, i in enumerate(drawn)]
    return lines


def senses(every: Sequence[Synset], generator: np.random.Generator) -> list[list[str]]:
    """Lines of the second task: do two glosses belong to one word?

    "same" are two synsets of a word, one pair a word. "other" are the same pairs of one word class with their second
    glosses permuted, so that every gloss is as often in one class as in the other, and so is every word class; none
    shares a word. No word of a synset under train has a synset under test.
    """
    of_word = defaultdict(list)
    for place, synset in enumerate(every):
        for word in synset.words:
            of_word[synset.part, word].append(place)
    pairs = set()
    for key in sorted(of_word):
        if len(of_word[key]) > 1:
            first, second = generator.choice(of_word[key], 2, replace=False)
            if (second, first) not in pairs:
                pairs.add((int(first), int(second)))
    ordered = sorted(pairs)
    drawn = [ordered[k] for k in generator.permutation(len(ordered))]
    tested = drawn[: min(TESTED // 2, len(drawn) // 6)]
    seen = {word for pair in tested for place in pair for word in every[place].words}
    trained = [pair for pair in drawn[len(tested) :] if not seen & (every[pair[0]].words | every[pair[1]].words)]
    lines = []
    for part, chosen in (("train", trained[: TRAINED // 2]), ("test", tested)):
        for label, both in (("same", chosen), ("other", _permuted(every, chosen, generator))):
            lines += [[part, label, every[first].gloss, every[second].gloss] for first, second in both]
    return lines


def _permuted(
    every: Sequence[Synset], pairs: Sequence[tuple[int, int]], generator: np.random.Generator
) -> Iterator[tuple[int, int]]:
    by_class = defaultdict(list)
    for first, second in pairs:
        by_class[every[first].part].append((first, second))
    for group in by_class.values():
        seconds = [group[k][1] for k in generator.permutation(len(group))]

        def alike(k: int, place: int, group: list[tuple[int, int]] = group) -> bool:
            return bool(every[group[k][0]].words & every[place].words)

        while bad := [k for k, place in enumerate(seconds) if alike(k, place)]:
            for k in bad:
                other = int(generator.integers(len(group)))
                seconds[k], seconds[other] = seconds[other], seconds[k]
        yield from ((first, second) for (first, _), second in zip(group, seconds, strict=True))


def write_tasks(folder: Path) -> dict[str, int]:
    """Write both files, their lines in random order; how many lines each has."""
    every, sizes = synsets(), {}
    for place, (name, make) in enumerate((("pos", parts_of_speech), ("senses", senses))):
        generator = np.random.default_rng([SEED, place])
        lines = make(every, generator)
        text = "".join("\t".join(lines[k]) + "\n" for k in generator.permutation(len(lines)))
        write_whole(folder / f"{name}.tsv", text.encode())
        sizes[name] = len(lines)
    return sizes


if __name__ == "__main__":
    print(write_tasks(Path(sys.argv[1])))
