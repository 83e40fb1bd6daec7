"""A factor of 0 is 0, and not the placement's own: networks, a slow twin and theory where τ or α is 0."""

from dataclasses import replace

import numpy as np
import pytest

from simulate import sample
from tests.helpers.agreement import off
from tests.helpers.twins.relaxed import deviation
from theory import Stack, predict
from theory.stack import stack as described

ZEROS = pytest.mark.parametrize("name", ["branch_scale", "residual_scale"])


def zeroed(name, placement="post", width=16):
    return Stack(**{"placement": placement, "width": width, "depth": 2, "tokens": 4, "vocab": 16, name: 0})


@pytest.mark.parametrize("placement", ["post", "pre", "keel"])
@ZEROS
def test_the_network_is_the_slow_one(name, placement):
    assert deviation(zeroed(name, placement)) < 1e-9


@pytest.mark.parametrize(("placement", "engine", "width"), [("post", "dense", 128), ("pre", "conditioned", 256)])
@ZEROS
def test_theory_is_what_samples_do(name, placement, engine, width):
    """Within 3% or 4 standard errors, as `test_relaxations`; with the placement's own factor some number is not."""
    stack = zeroed(name, placement, width)
    samples, own = sample(stack, draws=64, seed=1, engine=engine), replace(stack, **{name: None})
    worst, names = off(samples, predict(stack))
    assert worst <= 1, names
    assert off(samples, predict(own), common=True)[0] > 1


@pytest.mark.parametrize("engine", ["dense", "conditioned"])
@pytest.mark.parametrize("placement", ["post", "pre", "peri", "residual", "unnormed"])
def test_matrices_of_branches_that_add_nothing_have_no_gradient(placement, engine):
    """Exactly, in networks and in theory; the stream stays what it was, and the output matrix has its gradient."""
    stack = zeroed("branch_scale", placement, width=32)
    samples, predicted = sample(stack, draws=2, seed=1, engine=engine), predict(stack)
    for matrix in ("WV", "W1", "W2"):
        assert np.all(samples[f"grad_sq_{matrix}"] == 0)
        assert np.all(predicted[f"grad_sq_{matrix}"] == 0)
    assert np.all(samples["grad_sq_Wemb"] > 0)
    # Post-LN's norms are of a stream that was not changed since.
    np.testing.assert_allclose(samples["hidden_energy"][:, 1], samples["attention_energy"][:, 1], rtol=1e-5)


def test_a_zero_read_as_the_own_factor_is_seen(monkeypatch):
    """The fault that this file is about: planted, the twin sees it."""
    given = described.partial
    monkeypatch.setattr(described, "partial", lambda constant, value: given(constant, value or 1.0))
    assert deviation(zeroed("branch_scale")) > 1e-4
