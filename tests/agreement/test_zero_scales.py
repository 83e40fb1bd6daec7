"""A factor of 0 is 0, and not the placement's own: networks, a slow twin and theory where τ or α is 0."""

from dataclasses import replace

import numpy as np
import pytest

from simulate import sample
from studies.training.train import train
from tests.helpers.agreement import off
from tests.helpers.twins.relaxed import deviation
from theory import Stack, predict

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


ABOVE = {"WO": ("WQ", "WK", "WV"), "W2": ("WR", "W1", "SR", "S1")}
"""The matrices of a branch that stand below its last one."""


@pytest.mark.parametrize(("zeros", "fields"), [
    (("WO", "W2"), {"placement": "pre"}), (("WO",), {"placement": "post"}),
    (("W2",), {"placement": "pre", "experts": 3, "shared_ratio": 1.0, "shared_gate": "sigmoid"}),
])  # fmt: skip
@pytest.mark.parametrize("engine", ["dense", "conditioned"])
def test_matrices_of_zeros_take_the_gradient_below_them(zeros, fields, engine):
    """What stands below has none, exactly; all else is what samples do, within 5% or 5 standard errors."""
    gains = {"WO": "projection_gain", "W2": "down_gain"}
    stack = Stack(
        width=64, depth=2, tokens=4, vocab=64, output_projection="random", query_key_scale=1.0, mask="causal",
        **fields, **{gains[role]: 0.0 for role in zeros},
    )  # fmt: skip
    samples, predicted = sample(stack, draws=64, seed=1, engine=engine), predict(stack, patterns=64)
    none = {f"grad_sq_{below}" for role in zeros for below in ABOVE[role]} & set(predicted)
    assert none == {name for name in predicted if name.startswith("grad_sq_") and not np.any(predicted[name])}
    for name in predicted:
        if name in none:
            assert not np.any(samples[name]), name
    for name in ("grad_sq_WO", "grad_sq_W2", "grad_sq_Wemb", "hidden_energy"):
        error = samples[name].std(0, ddof=1) / 8
        off_by = np.abs(samples[name].mean(0) - predicted[name])
        assert (off_by <= np.maximum(0.05 * predicted[name], 5 * error)).all(), name


def test_what_stands_below_moves_from_the_second_step_on():
    sizes = {"width": 16, "depth": 2, "tokens": 3, "vocab": 8}
    stack = Stack(placement="pre", output_projection="random", projection_gain=0.0, down_gain=0.0, **sizes)
    trained = train(stack, steps=2, learning_rate=0.1, draws=1, seed=0)
    for role in ("WV", "W1"):
        squares = np.asarray(trained[f"grad_sq_{role}"])[0]
        assert not np.any(squares[0]) and (squares[1] > 0).all(), role


def test_a_norm_of_zeros_is_refused():
    with pytest.raises(ValueError, match="^projection_gain and down_gain must be above 0 if norms after branches"):
        Stack(placement="peri", down_gain=0.0)
    assert predict(Stack(placement="peri", down_gain=0.0, norm_epsilon=1e-5, width=32))["grad_sq_W1"].max() == 0.0
