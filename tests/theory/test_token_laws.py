"""Measured token laws: sums, the tokenizer that a vocabulary tells, cards that are read back."""

import json

import numpy as np
import pytest

from theory.mean_field.text_law import TextLaw
from theory.mean_field.token_laws import KINDS, TOKENIZERS, token_law

ENGLISH = {"r50k": 0.00768, "llama2": 0.0071, "llama3": 0.0066, "qwen3": 0.0067, "gemma3": 0.0082, "o200k": 0.0066,
           "deepseek_v3": 0.0065}  # fmt: skip
"""Another count of the same eight kinds of prose, which cut and joined them by its own rules."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_frequencies_have_the_sum_1_and_fall(kind, tokenizer):
    law = token_law(kind, TOKENIZERS[tokenizer][0][0])
    assert law.tokenizer == tokenizer
    assert law.frequencies.sum() == pytest.approx(1.0)
    assert (np.diff(law.frequencies) <= 1e-15).all()
    assert 0 < law.kappa <= 1.05 * max(law.kappa_of_texts.values())


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_two_counts_of_english_agree(tokenizer):
    assert token_law("english", TOKENIZERS[tokenizer][0][1]).kappa == pytest.approx(ENGLISH[tokenizer], rel=0.04)


def test_kappa_of_an_unknown_tokenizer_does_not_depend_on_its_size():
    small, large = (token_law("english", vocab) for vocab in (33_000, 500_000))
    assert small.tokenizer == "" and small.kappa == large.kappa == pytest.approx(0.0070, rel=0.02)
    with pytest.raises(ValueError, match="at least 32,000"):
        token_law("english", 31_999)


def test_english_tokens_are_independent_and_mock_data_have_counted_labels():
    english = TextLaw.read("english", tokens=16, vocab=50_257)
    assert english.within == english.across == english.same_word_labels == english.other_word_labels
    # Of uniform integers joined by spaces every third token is a space; one of some 1000 labels follows it.
    mock = TextLaw.read("mock_digits", tokens=16, vocab=128_256)
    assert mock.across == pytest.approx(0.1152, rel=1e-3)
    assert mock.other_word_labels > mock.across > 5 * mock.same_word_labels


@pytest.mark.parametrize("card", [
    {"ranks": [[1, 0.5], [2, 0.25]]}, {"counts": [2, 1, 1]}, {"head": [50], "tail": [[2, 50]]},
])  # fmt: skip
def test_a_card_is_read_back(card, tmp_path):
    file = tmp_path / "card.json"
    file.write_text(json.dumps(card | {"same_word_labels": 0.6}))
    law = TextLaw.read(f"law:{file}", tokens=16, vocab=3)
    assert (law.across, law.same_word_labels, law.other_word_labels) == (0.375, 0.6, 0.375)


@pytest.mark.parametrize("card", [
    [], {}, {"ranks": 3}, {"ranks": [[1, "x"]]}, {"counts": [-1]}, {"counts": [1], "within": "x"},
    {"counts": [1, 1], "same_word_labels": 2}, {"ranks": [[0, 1]]}, {"ranks": [[-1, 1]]}, {"head": 1, "tail": 2},
])  # fmt: skip
def test_a_bad_card_is_refused(card):
    with pytest.raises(ValueError):
        TextLaw.of_card(card)
