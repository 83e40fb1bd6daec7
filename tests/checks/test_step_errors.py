"""What finite width is expected to do to a first step at most."""

from dataclasses import replace

import pytest

from checks.first_step import first_step
from checks.trust import NUMBERS, SPREAD, SQUARED, STEP_COEFFICIENTS, VALUES, Trust, coefficients, step_family
from tests.helpers.width_families import step_errors, step_references
from theory import Stack


def reference(name, width=256):
    (stack,) = (stack for stack in step_references(width) if step_family(stack) == name)
    return stack


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "polar"])
def test_the_measured_networks_have_their_coefficient(optimizer):
    """And two standard errors, over the width; that of SGD in two parts, as four heads share keys."""
    for stack in step_references(256):
        row, errors = coefficients(STEP_COEFFICIENTS)[step_family(stack)][optimizer], step_errors(stack, optimizer)
        for name in NUMBERS:
            c, sem = row[name]
            values = 4 * VALUES[name] if optimizer == "sgd" and stack.placement != "post" else 0.0
            stated = (abs(c - values) + 2 * sem + abs(values)) / 256
            assert errors[name] == pytest.approx(stated), (step_family(stack), name)
            assert errors[name] * 256 >= abs(c) + 2 * sem - 1e-12


def test_other_sizes():
    """1/d, (1 + L)/5, logits between none and s = 1 by s^2, beyond by s^4, and few values."""
    stack = reference("pre, gated, queries, small inputs")
    errors = step_errors(stack, "sgd")["curvature"]
    assert step_errors(replace(stack, width=1024), "sgd")["curvature"] == pytest.approx(errors / 4)
    assert step_errors(replace(stack, depth=9), "sgd")["curvature"] == pytest.approx(2 * errors)
    fixed = step_errors(replace(stack, query_key_scale=0.0), "sgd")["curvature"]
    half = step_errors(replace(stack, query_key_scale=0.5), "sgd")["curvature"]
    assert half == pytest.approx(0.75 * fixed + 0.25 * errors)
    assert step_errors(replace(stack, query_key_scale=2.0), "sgd")["curvature"] == pytest.approx(16 * errors)
    normalized = replace(stack, query_key_scale=0.1, query_key_norm="all")
    assert step_errors(normalized, "sgd")["curvature"] == pytest.approx(errors)
    shared = {k: step_errors(replace(stack, kv_heads=k), "sgd") for k in (1, 2, 4)}
    for name, per_ratio in (("gain", 2), ("curvature", 6), ("critical_rate", 4), ("logit_change_sq", 6)):
        assert shared[1][name] - shared[2][name] == pytest.approx(per_ratio * 4 / 256)
        assert shared[2][name] - shared[4][name] == pytest.approx(per_ratio * 2 / 256)
    longer = replace(stack, tokens=16)
    assert step_errors(longer, "sgd")["curvature"] == errors
    more = step_errors(longer, "polar")["gain"] - step_errors(stack, "polar")["gain"]
    assert more == pytest.approx(SPREAD["polar"] * 8 / 256)


def test_heads_of_their_own_keys_leave_an_error():
    """Of GPT-2's fields at d = 128 390 networks were off by 2.1% +- 0.6% (gain) and -4.1% +- 0.9% (rate)."""
    stack = Stack(
        placement="pre", width=128, depth=2, tokens=8, vocab=64, activation="gelu", query_key_scale=0.32, heads=4,
        mask="causal", output_projection="random", ffn_ratio=4.0, init_std=0.028, embedding_scale=0.02,
    )  # fmt: skip
    errors = step_errors(stack, "sgd")
    assert [f"{errors[name]:.1%}" for name in ("gain", "critical_rate")] == ["3.9%", "5.3%"], "docs/first_step.md"


def test_families_that_were_not_measured_have_an_order():
    stack = Stack(placement="pre", width=256, depth=2, tokens=4, vocab=16)
    assert step_errors(stack, "sgd") == dict.fromkeys(NUMBERS, SQUARED * Trust.of(stack).error)
    muon = step_errors(stack, "muon")["gain"] - step_errors(stack, "sgd")["gain"]
    assert muon == pytest.approx(SPREAD["muon"] * 4 / 256)


def test_a_step_has_an_error_of_every_number():
    """With fewer heads than were measured it has what norms remove of W^Q and W^K besides, at most 1/h."""
    stack = Stack(width=64, depth=1, tokens=2, vocab=8, heads=2, query_key_scale=1.0, embedding_scale=0.1)
    step, measured = first_step(stack, patterns=2), step_errors(stack, "sgd")
    assert tuple(step.implied_errors) == NUMBERS
    assert step.implied_error == max(step.implied_errors.values()) > 0
    assert step.no_coefficient == ""
    gain, curvature = (
        (1 / 2 - 1 / 8) * float((shares["WQ"] + shares["WK"]).sum())
        for shares in (step.gain_shares, step.curvature_shares)
    )
    besides = [step.implied_errors[name] - measured[name] for name in ("gain", "curvature", "critical_rate")]
    assert gain > 0 and besides == pytest.approx([gain, 2 * curvature, gain + 2 * curvature])
    turned = first_step(Stack(width=64, depth=1, tokens=2, vocab=8, layout="parallel", embedding_scale=0.1))
    assert turned.implied_errors == step_errors(turned.stack, "sgd")
    assert turned.no_coefficient == "parallel branches are not measured"
