"""Tasks from glosses of a made-up WordNet: what a gloss is, equal classes, and that no word is in both parts."""

from collections import Counter

import numpy as np
import pytest

from tests.helpers.gloss_tasks import Synset, parts_of_speech, senses, synsets


@pytest.fixture(scope="module")
def every():
    """A hundred words of each class, each with three synsets, some of which have two words."""
    generator = np.random.default_rng(0)
    return [
        Synset(
            part, frozenset({f"{part}{word}", f"{part}{generator.choice([word, (word + 1) % 100])}"}),
            f"{part} {word} {k}",
        )
        for part in ("noun", "verb") for word in range(100) for k in range(3)
    ]  # fmt: skip


def test_glosses_without_examples_and_word_classes(tmp_path):
    lines = [
        "  1 a licence",
        '00001740 03 n 02 Entity 0 being(a) 0 001 @ 1 n 0000 | that which is; its "own"; "an example"  ',
        "00001741 03 n 01 other 0 000 | a noun of its own  ",
        "00001742 03 n 01 twin 0 000 | the same  ",
        "00001743 03 n 01 brother 0 000 | the same  ",
    ]
    (tmp_path / "data.noun").write_text("\n".join(lines), encoding="utf-8")
    assert synsets({"noun": tmp_path / "data.noun"}) == [
        Synset("noun", frozenset({"entity", "being"}), "that which is; its")
    ]


def test_equally_many_of_each_part_of_speech(every):
    lines = parts_of_speech(every[:450], np.random.default_rng(1))
    assert Counter((part, label) for part, label, _ in lines) == {
        ("train", "noun"): 125, ("train", "verb"): 125, ("test", "noun"): 25, ("test", "verb"): 25,
    }  # fmt: skip
    assert len({gloss for *_, gloss in lines}) == len(lines)
    assert all(gloss.startswith(label) for _, label, gloss in lines)


def test_pairs_share_a_word_or_none(every):
    words = {synset.gloss: synset.words for synset in every}
    lines = senses(every, np.random.default_rng(1))
    assert len(lines) > 100
    for _, label, first, second in lines:
        assert first != second
        assert bool(words[first] & words[second]) == (label == "same")
        assert first.split()[0] == second.split()[0]
    for part in ("train", "test"):
        sides = [
            Counter(line[side] for line in lines if line[:2] == [part, label])
            for side in (2, 3)
            for label in ("same", "other")
        ]
        assert sides[0] == sides[1]
        assert sides[2] == sides[3]
    both = [
        set().union(*(words[gloss] for part, _, *pair in lines if part == name for gloss in pair))
        for name in ("train", "test")
    ]
    assert not both[0] & both[1]
