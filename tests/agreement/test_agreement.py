"""Prediction against samples, and planted errors that this comparison sees."""

import pytest

from checks import comparison
from checks.experiment import TEXT
from checks.trust import Trust
from simulate import sample
from simulate.network import transformer as network
from simulate.network.transformer import F, gain
from theory import QUANTITIES, Stack


def differing(stack, *, draws, seed=0, text=None):
    """Names and layers of what is farther from its prediction than 3% and than 4 standard errors."""
    table = comparison([sample(stack, draws=draws, seed=seed, text=text)])
    predicted = table[table["predicted"].notna()]
    names = {name for name, q in QUANTITIES.items() if q.predicted and q.in_paper}
    assert set(predicted["quantity"]) == names, "a predicted quantity was not compared"
    assert not predicted["agreement"].isin(["", "beyond"]).any()
    odd = predicted[predicted["agreement"] == "differs"]
    return list(zip(odd["quantity"], odd["layer"], strict=True))


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_every_quantity_of_every_layer(placement):
    """48 numbers per placement; false alarm of each 6e-5, and less where 3% exceeds 4 standard errors (most).

    At 512 draws the standard errors are at most 1.2%, so an error of 9% in any number is missed with less than 1e-3.
    """
    stack = Stack(placement=placement, width=512, depth=6, tokens=8, vocab=512)
    assert not Trust.of(stack).why
    assert differing(stack, draws=512) == []


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_real_text(placement):
    """Repeated words and next-word labels, predicted in n x n form; rates as above."""
    stack = Stack(placement=placement, width=384, depth=2, tokens=16, vocab=128)
    assert differing(stack, draws=256, text=TEXT) == []


@pytest.mark.parametrize("scale", [0.1, 4.0])
def test_output_scales(scale):
    """False alarm of each number 6e-5."""
    assert differing(Stack(width=512, depth=2, tokens=4, vocab=8, output_scale=scale), draws=256) == []


PLANTED = {
    "LayerNorm dropped": ("layer_norm", lambda x, epsilon: x),
    "residual dropped": ("residual", lambda x, branch, in_place: branch),
    "variance 2/d": ("gain", lambda stack, role: 2 * gain(stack, role)),
    "sum instead of mean loss": (
        "sequence_loss", lambda logits, labels, _: F.cross_entropy(logits.mT, labels, reduction="none").sum(1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("error", [None, *PLANTED])
def test_planted_errors_differ(monkeypatch, placement, error):
    if error is not None:
        monkeypatch.setattr(network, *PLANTED[error])
    found = differing(Stack(placement=placement, width=256, depth=2, tokens=4, vocab=64), draws=192)
    assert bool(found) == (error is not None), found
