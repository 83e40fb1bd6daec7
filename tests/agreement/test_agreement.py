"""Prediction against samples; errors that this comparison sees are in `tests/mutants.toml`."""

import pytest

from checks.theory_and_samples import comparison
from checks.trust import Trust
from simulate import sample
from theory import QUANTITIES, Stack


def differing(stack, *, draws):
    """Names and layers of what is farther from its prediction than 3% and than 4 standard errors."""
    table = comparison([sample(stack, draws=draws, seed=0)])
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


@pytest.mark.parametrize("scale", [0.1, 4.0])
def test_output_scales(scale):
    """False alarm of each number 6e-5."""
    assert differing(Stack(width=512, depth=2, tokens=4, vocab=8, output_scale=scale), draws=256) == []
