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


def log_probabilities(model, source, every):
    """Σ ln p of translations of one length with their ends."""
    inputs = torch.tensor([[BEGIN, *words] for words in every])
    labels = torch.tensor([[*words, END] for words in every])
    with torch.no_grad():
        logits = model(torch.tensor(source)[None].expand(len(every), -1), inputs).log_softmax(-1)
    return logits.gather(2, labels[..., None]).sum((1, 2)).numpy()


def best_of_all(model, source, search):
    """The translation of the largest score among all of up to so many words."""
    most = len(source) + search.longer - 1
    best = []
    for length in range(most + 1):
        every = list(product(WORDS, repeat=length))
        scores = log_probabilities(model, source, every) / (length + 1) ** search.length_penalty
        best.append((scores.max(), list(every[int(scores.argmax())])))
    return max(best)[1]


@pytest.mark.parametrize("penalty", [0.0, 0.4])
def test_a_beam_of_all_hypotheses_is_exhaustive_search(penalty):
    """Translations of up to three words, whose 4³ hypotheses the beam keeps; of every length one is the best."""
    search, seen = Search(beam=4**3, length_penalty=penalty, longer=1), set()
    for seed in range(12):
        model = toy(seed).eval()
        expected = [best_of_all(model, source, search) for source in SOURCES[:2]]
        assert translations(model, SOURCES[:2], search) == expected
        seen |= {len(words) for words in expected}
    assert seen == ({0, 1} if penalty == 0 else {0, 1, 2, 3})


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
            total[beam] += sum(log_probabilities(model, s, [w])[0] for s, w in zip(SOURCES, together, strict=True))
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
