"""Beam search against all translations of a toy vocabulary, greedy search by hand, and BLEU."""

from itertools import product

import numpy as np
import pytest
import torch

from simulate.modules.factories import seeded
from simulate.translation.decoding import Search, bleu, bleu_signature, translations
from simulate.translation.model import Translation, Translator
from simulate.translation.parallel_text import BEGIN, END, PADDING, UNKNOWN, read_pairs

# Four words that can be said (one of them is the unknown one), and an end.
TOY = Translation(width=8, depth=1, heads=2, ffn_width=8, vocab=7)
SOURCES = [np.array([4, 5, END]), np.array([6, END]), np.array([5, 5, 4, 6, END])]
WORDS = (UNKNOWN, 4, 5, 6)


def toy(seed, **fields):
    with seeded(seed):
        model = Translator(Translation(**{**{n: getattr(TOY, n) for n in TOY.__dataclass_fields__}, **fields}))
        with torch.no_grad():  # so that words depend on those before them
            for parameter in model.parameters():
                parameter.add_(0.4 * torch.randn(parameter.shape))
    return model


def log_probability(model, source, words):
    """Σ ln p of a translation with its end, with what is never said left out of each distribution's candidates."""
    with torch.no_grad():
        logits = model(torch.tensor(source)[None], torch.tensor([[BEGIN, *words]]))[0].log_softmax(-1)
    return float(sum(logits[place, word] for place, word in enumerate([*words, END])))


def best_of_all(model, source, search):
    """The translation of the largest score among all of up to so many words, one after another."""
    most = len(source) + search.longer - 1
    every = [words for length in range(most + 1) for words in product(WORDS, repeat=length)]
    scores = [log_probability(model, source, words) / (len(words) + 1) ** search.length_penalty for words in every]
    return list(every[int(np.argmax(scores))])


@pytest.mark.parametrize("penalty", [0.0, 1.2])
def test_a_beam_of_all_hypotheses_is_exhaustive_search(penalty):
    """Translations of up to four words: 4³ hypotheses are never more than the beam keeps."""
    search = Search(beam=4**3, length_penalty=penalty, longer=1)
    seen = set()
    for seed in range(6):
        model = toy(seed).eval()
        found = translations(model, SOURCES[:2], search)
        expected = [best_of_all(model, source, search) for source in SOURCES[:2]]
        assert found == expected
        seen |= {len(words) for words in expected}
    assert len(seen) > 1, "lengths differ, so that the penalty matters"


def test_greedy_search_takes_the_likeliest_word_again_and_again():
    search = Search(beam=1, longer=3)
    model = toy(1).train()
    found = translations(model, SOURCES, search)
    assert model.training
    model.eval()
    for source, words in zip(SOURCES, found, strict=True):
        said = [BEGIN]
        while len(said) - 1 < len(source) + search.longer - 1:
            with torch.no_grad():
                logits = model(torch.tensor(source)[None], torch.tensor([said]))[0, -1]
            logits[[PADDING, BEGIN]] = -torch.inf
            if (word := int(logits.argmax())) == END:
                break
            said.append(word)
        assert words == said[1:]


def test_a_wider_beam_is_no_less_likely():
    """Without a length penalty, summed over models and sentences; padding of the batch changes no translation."""
    total = {beam: 0.0 for beam in (1, 8)}
    for seed in range(8):
        model = toy(seed).eval()
        for beam in total:
            search = Search(beam=beam, length_penalty=0.0, longer=2)
            together = translations(model, SOURCES, search)
            alone = [translations(model, [source], search)[0] for source in SOURCES]
            assert together == alone
            total[beam] += sum(log_probability(model, s, w) for s, w in zip(SOURCES, together, strict=True))
    assert total[8] >= total[1]


def test_a_model_whose_numbers_are_none_says_nothing():
    model = toy(0)
    with torch.no_grad():
        model.output.weight.fill_(torch.nan)
    assert translations(model, SOURCES, Search(beam=2)) == [[], [], []]


def test_bleu(parallel_files):
    """Of lines that are said again it is 100; the text's words come back, rare ones as unknown."""
    text = read_pairs(*parallel_files, vocab=40)
    assert text.decode(text.targets[0][1:-1]) == " ".join(
        word if word in text.decode.args[0] else "<unk>" for word in text.lines[0].split()
    )
    pieces = read_pairs(*parallel_files, vocab=80, units="bpe")
    assert pieces.decode(pieces.targets[0][1:-1].tolist()) == pieces.lines[0]
    sacrebleu = pytest.importorskip("sacrebleu")
    assert sacrebleu.corpus_bleu(list(text.lines), [list(text.lines)]).score == pytest.approx(100)
    model = toy(0, vocab=40)
    assert 0 <= bleu(model, text, Search(beam=1, longer=1)) < 20
    assert "tok:13a" in bleu_signature(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"beam": 0}, "beam must be an integer of at least 1, got 0."),
        ({"longer": 0}, "longer must be an integer of at least 1, got 0."),
        ({"length_penalty": -1.0}, "length_penalty must be a finite number of at least 0, got -1.0."),
        ({"length_penalty": "x"}, "length_penalty must be a finite number of at least 0, got 'x'."),
    ],
)
def test_bad_searches(fields, said):
    with pytest.raises(ValueError) as error:
        Search(**fields)
    assert str(error.value) == said
