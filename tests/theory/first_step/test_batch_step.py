"""The step of a batch of text: the positions that represent it, and the scale of its tangent kernel."""

import numpy as np
import pytest

from theory import Stack
from theory.first_step.batch_step import BatchStep, batch_step
from theory.mean_field.text_law import TextLaw

STACK = Stack(
    placement="pre", width=64, depth=2, tokens=2, vocab=256, heads=2, mask="causal", output_projection="random",
    query_key_scale=1.0, embedding_scale=0.02, activation="gelu", ffn_ratio=4.0,
)  # fmt: skip
LAW = TextLaw.zipf(1.0, 256)


def test_a_small_batch_has_at_most_twice_its_positions():
    """Half of the positions carry labels, so that a batch of 2 tokens is represented by 4 of the 64 positions."""
    step, four, eight = (batch_step(STACK, "sgd", 1, LAW, positions=count) for count in (64, 4, 8))
    assert (step.gain, step.curvature) == (four.gain, four.curvature) == (eight.gain, eight.curvature)
    more = batch_step(STACK, "sgd", 2, LAW, positions=8)
    assert more.gain != batch_step(STACK, "sgd", 2, LAW, positions=4).gain


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_is_rescaled_as_a_linear_model_is(optimizer):
    """A Jacobian twice as large has a tangent kernel 4 times as large; a sign keeps its size."""
    jacobian, residual = np.random.default_rng(0).standard_normal((2, 6, 6))

    def step(times):
        gradient = times * jacobian.T @ residual[0]
        update = gradient if optimizer == "sgd" else np.sign(gradient)
        moved = times * jacobian @ update
        sizes = {"W1": np.array([np.linalg.norm(update)])}
        return BatchStep(
            optimizer, float(gradient @ update), float(moved @ moved), float(np.square(moved).mean()), sizes
        )

    found, expected = step(1.0).rescaled(4.0), step(2.0)
    for name in ("gain", "curvature", "critical_rate", "logit_change_sq", "logit_move"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    assert found.relative_updates["W1"] == pytest.approx(expected.relative_updates["W1"])
