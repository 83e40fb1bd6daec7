"""A small parallel text of our own: sentences of a made-up language, and their words in another order."""

from pathlib import Path

import numpy as np

_SUBJECTS = "keeper ship gull boat storm child wave lamp night rope".split()
_VERBS = "sees follows leaves finds lifts hears".split()
_PLACES = "harbour rock tower beach island door".split()


def sentences(count, seed=0):
    """Pairs of lines; lengths differ, and common words are common."""
    draw = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        words = [
            word
            for _ in range(draw.integers(1, 4))
            for word in ("the", draw.choice(_SUBJECTS), draw.choice(_VERBS), "the", draw.choice(_PLACES))
        ]
        pairs.append((" ".join(word[::-1] for word in reversed(words)), " ".join([*words, "."])))
    return pairs


def write(folder: Path, count=200):
    files = folder / "text.src", folder / "text.tgt"
    for file, lines in zip(files, zip(*sentences(count), strict=True), strict=True):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files
