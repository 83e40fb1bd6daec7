"""Two rows of two sequences that hold one word see more of the same words: beside the sum over words, written out."""

from dataclasses import replace

import numpy as np
import pytest

from gradbounds import Stack, TextLaw, noise_scale
from theory import predict
from theory.mean_field.attention import grouped
from theory.mean_field.attention.grouped import GroupedAttention
from theory.mean_field.attention.patterns import frequencies

TOKENS, LAW = 48, TextLaw.zipf(1.0, 512)
# Small logits, so that weights are even; and a stream that attention adds little to.
STACK = Stack(
    width=512, depth=1, tokens=TOKENS, vocab=512, heads=8, mask="causal", placement="pre", normalization="rms",
    output_projection="random", query_key_scale=0.1, embedding_scale=10.0, branches="attention",
)  # fmt: skip


def turned(stack):
    """What positions that rotate leave of products of keys in the mean: of all that two rows see, and of one's own.

    Of (n, n) rows, and of (n,) with the token itself, which is at no distance.
    """
    if not stack.rotary:
        return np.ones((TOKENS, TOKENS)), np.ones(TOKENS)
    places = np.arange(TOKENS)
    even = np.tril(np.ones((TOKENS, TOKENS))) / (places + 1.0)[:, None]
    phases = np.exp(1j * (places[:, None] - places)[..., None] * frequencies(stack))
    rows = np.einsum("ij,ijf->if", even, phases)
    return np.einsum("if,kf->ik", rows, rows.conj()).real / rows.shape[1], rows.real.mean(1)


def likelier(stack):
    """By how much more two sequences share of W^Q than if rows did not hold a word themselves, in squares.

    A row's gradient at its query is the covariance of values' products and keys over the words that it sees, of shares
    p. Of m words of which one is known, e, that is (1 − 1/m) times that of the others, and (e − p)(e − p)ᵀ (m − 1)/m².
    """
    law, seen = LAW.frequencies, np.arange(1.0, TOKENS + 1.0)
    kappa, triple = (law**2).sum(), (law**3).sum()
    covariance = np.diag(law) - np.outer(law, law)
    of_text, of_word = (seen - 2.0) / seen + seen**-2.0, (seen - 1.0) / seen**2
    of_text[0] = 0.0
    whole = (covariance**2).sum()
    both = law - 3.0 * law**2 + 2.0 * law * kappa + triple - kappa**2
    alone = (1.0 - 2.0 * law + kappa) ** 2
    pair = law**2 / kappa
    of_all, with_itself = turned(stack)
    known = of_text @ of_all @ of_text * whole + 2.0 * (of_text @ with_itself) * of_word.sum() * (pair @ both)
    known += of_word.sum() ** 2 * (pair @ alone)
    even = 1.0 - 1.0 / seen
    return known / (even @ of_all @ even * whole)


def raised(stack, monkeypatch):
    """The same by theory, of the same samples with and without, and of W^K."""
    shared = noise_scale(stack, text=LAW, patterns=2).product
    with monkeypatch.context() as patch:
        patch.setattr(grouped, "rows_of_words", lambda *_: np.ones((1, 1)))
        without = noise_scale(stack, text=LAW, patterns=2).product
    return {role: float(shared[role][0] / without[role][0]) for role in ("WQ", "WK")}


def test_rows_of_one_word(monkeypatch):
    """Within 10% of the sum."""
    assert list(raised(STACK, monkeypatch).values()) == pytest.approx([likelier(STACK)] * 2, rel=0.1)


def test_rows_of_one_word_where_positions_rotate(monkeypatch):
    """Positions turn all pairs of keys but that of both rows' own: as much more as by the sum, within 5%."""
    turning = replace(STACK, rotary=1.0, rotary_base=30.0)
    rotary, none = raised(turning, monkeypatch), raised(STACK, monkeypatch)
    more = likelier(turning) / likelier(STACK)
    assert more > 1.2
    assert rotary["WQ"] / none["WQ"] == pytest.approx(more, rel=0.05)
    if rotary["WK"] / none["WK"] != pytest.approx(more, rel=0.05):
        pytest.xfail(f"first rows weigh too much in W^K, which turning raises by {rotary['WK'] / none['WK']:.3g}")


def test_gradients_of_a_rows_keys_cancel_where_few_coordinates_turn(monkeypatch):
    """Weights of a row sum to 1: of 16 coordinates one pair turns, and the sum over keys is under 10% of squares."""
    stack = Stack(
        placement="pre", width=1024, head_width=32, heads=2, depth=2, tokens=16, vocab=64, mask="causal",
        query_key_scale=1.0, output_projection="random", embedding_scale=0.2, rotary=1 / 16,
    )  # fmt: skip
    rule, found = GroupedAttention._query_path, []

    def recorded(self, tokens, *given):
        out = rule(self, tokens, *given)
        sums = out[1] * tokens.pairs
        found.append(abs(sums.sum() / np.trace(sums, axis1=1, axis2=2).sum()))
        return out

    monkeypatch.setattr(GroupedAttention, "_query_path", recorded)
    predict(stack, text=TextLaw.zipf(1.0, 64), patterns=8)
    assert len(found) == 2 and max(found) < 0.1
