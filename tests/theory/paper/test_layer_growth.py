"""Closed forms, fixed points and exponents over the layers: against quadrature, and the recursion run deep."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import sympy as sp
from scipy import integrate, stats
from scipy.special import erf, expit

from theory import Stack, predict
from theory.mean_field.activations import ACTIVATIONS
from theory.paper import asymptotics, branch_kernels
from theory.paper.layer_growth import layer_factor, query_factor
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.weights import gain

PHI = {
    "relu": lambda u: np.maximum(u, 0.0),
    "gelu": lambda u: u * (1 + erf(u / np.sqrt(2))) / 2,
    "silu": lambda u: u * expit(u),
    "tanh": np.tanh,
    "identity": lambda u: u,
}
GAINS = {("fan_in", 1.0): (1.0, 1.0), ("xavier_normal", 2.5): (2 / 3.5, 5 / 3.5), ("he", 1.0): (2.0, 2.0)}


def mean(function):
    """E f(u) of a standard normal u, with a break at ReLU's kink."""
    return sum(
        integrate.quad(lambda u: function(u) * stats.norm.pdf(u), *half, epsabs=1e-12)[0] for half in ((-9, 0), (0, 9))
    )


@pytest.mark.parametrize("activation", PHI)
@pytest.mark.parametrize("gains", GAINS)
def test_factor_by_quadrature(activation, gains):
    """The two means by adaptive quadrature, the slope by a difference."""
    (first, second), phi, step = GAINS[gains], PHI[activation], 1e-6
    value = mean(lambda u: phi(np.sqrt(first) * u) ** 2)
    slope = first * mean(
        lambda u: ((phi(np.sqrt(first) * u + step) - phi(np.sqrt(first) * u - step)) / (2 * step)) ** 2
    )
    fields = {"width": 512, "activation": activation, "initialization": gains[0], "ffn_ratio": gains[1]}
    plain = np.sqrt((1 + second * value) / (1 + second * slope))
    gated = np.sqrt((1 + first * second * value) / (1 + first * second * (value + slope)))
    assert layer_factor(Stack(**fields)) == pytest.approx(plain, rel=1e-6)
    assert layer_factor(Stack(**fields, ffn="gated")) == pytest.approx(gated, rel=1e-6)


def test_exact_factors():
    for activation in ("relu", "gelu", "identity"):
        for ffn in ("plain", "gated"):
            exact = float(branch_kernels.exact_factor(activation, gated=ffn == "gated"))
            assert layer_factor(Stack(activation=activation, ffn=ffn)) == pytest.approx(exact, rel=1e-9)
    for gated in (False, True):
        h, returned = branch_kernels.feed_forward_kernels(gated=gated)
        assert sp.simplify(returned - sp.diff(h, branch_kernels.correlation)) == 0
    with pytest.raises(ValueError, match="^activation must be relu, gelu or identity"):
        branch_kernels.unit_moments("silu")


SETTLED = [
    {"ffn": "gated", "activation": "silu"},
    {"ffn": "gated", "activation": "gelu", "output_projection": "random", "ffn_ratio": 4.0},
    {"ffn": "gated", "initialization": "he", "normalization": "rms"},
    {"activation": "tanh", "initialization": "he"},
    {"dropout": 0.1},
    {"dropout": 0.3, "tokens": 2, "output_projection": "random"},
    {"dropout": 0.2, "ffn": "gated", "activation": "silu", "initialization": "he"},
    {"dropout": 0.2, "ffn": "gated", "tokens": 1},
]


@pytest.mark.parametrize("fields", SETTLED, ids=str)
def test_factor_is_the_recursions(fields):
    """Every matrix's, in the middle of 160 layers, where neither end is felt."""
    stack = Stack(depth=160, vocab=64, **fields)
    found = predict(stack)
    for name in (name for name in found if name.startswith("grad_sq_") and name != "grad_sq_Wemb"):
        assert np.sqrt(found[name][81] / found[name][80]) == pytest.approx(layer_factor(stack), rel=1e-7), name


@pytest.mark.parametrize(
    "fields",
    [{}, {"ffn": "gated", "output_projection": "random"}, {"activation": "tanh", "initialization": "he"}],
    ids=str,
)
def test_queries_and_keys_fall_with_the_gap_between_tokens(fields):
    """Over layers 14 to 16, where (1 - c)^2 is still above rounding; patterns are sampled."""
    stack = Stack(depth=20, tokens=3, vocab=64, query_key_scale=1.0, heads=4, **fields)
    found = predict(stack, patterns=32)
    for role in ("WQ", "WK"):
        measured = (found[f"grad_sq_{role}"][15] / found[f"grad_sq_{role}"][13]) ** 0.25
        assert measured == pytest.approx(query_factor(stack), rel=0.01)


def test_tokens_align_under_a_causal_mask():
    """A layer multiplies a gap by less than 1 for all built-in gains but of ReLU², which is refused where it does not.

    Closest are gated linear units.

    The mask's second eigenvalue is 1/2: the gap is multiplied by (1 + g_A/4)/(1 + g_A), and by what gradients are.
    """
    gaps = {}
    for activation, ffn, initialization, ratio, projection in product(
        ACTIVATIONS, ("plain", "gated"), INITIALIZATIONS, (0.25, 0.5, 1.0, 4.0), ("identity", "random")
    ):
        stack = Stack(
            activation=activation, ffn=ffn, initialization=initialization, ffn_ratio=ratio,
            output_projection=projection,
        )  # fmt: skip
        attended = gain(stack, "WV") * (gain(stack, "WO") if projection == "random" else 1.0)
        shared = (1 + attended / 4) / (1 + attended)
        gap = layer_factor(stack) ** -2 * shared
        if gap < 1.0:
            assert layer_factor(replace(stack, mask="causal")) == layer_factor(stack)
            gaps[activation, ffn, initialization, ratio, projection] = gap
        else:
            assert activation == "relu_squared"
            with pytest.raises(ValueError, match="keep tokens apart"):
                layer_factor(replace(stack, mask="causal"))
    gaps = {setting: gap for setting, gap in gaps.items() if setting[0] != "relu_squared"}
    assert max(gaps.values()) < 0.97
    assert max(gaps, key=gaps.get)[:3] == ("identity", "gated", "xavier_normal")


@pytest.mark.parametrize("fields", [{"mask": "causal"}, {"query_key_scale": 1.0, "heads": 4}], ids=str)
def test_attention_does_not_matter_once_tokens_align(fields):
    stack = Stack(depth=60, tokens=2, vocab=64, ffn="gated", **fields)
    found = np.sqrt(predict(stack, patterns=8)["grad_sq_W2"])
    assert found[41] / found[40] == pytest.approx(layer_factor(stack), rel=1e-3)


def test_deepnorm_is_flat():
    """Over all L layers together a factor of 1 − O(1/L), and the recursion's first layer is the last's."""
    gated = {"placement": "deepnorm", "ffn": "gated", "activation": "silu"}
    lost = [depth * np.log(layer_factor(Stack(depth=depth, **gated))) * depth for depth in (100, 400, 1600)]
    assert lost == pytest.approx([-1 / 256] * 3, rel=0.04)
    for depth in (12, 48):
        norms = np.sqrt(predict(Stack(depth=depth, vocab=64, **gated))["grad_sq_W2"])
        assert norms[0] / norms[-1] == pytest.approx(1.0, abs=2e-3)


POWERS = [
    ({"placement": "pre", "tokens": 1, "ffn": "gated"}, 2 / 3),
    ({"placement": "peri", "tokens": 1, "ffn": "gated"}, 3 / 4),
    ({"placement": "output", "tokens": 1, "ffn": "gated"}, 3 / 4),
]


@pytest.mark.parametrize(("fields", "exact"), POWERS, ids=str)
def test_exponent_of_one_token(fields, exact):
    """Between l = 200 and 400; corrections fall like 1/l."""
    found = predict(Stack(depth=400, vocab=64, **fields))["grad_sq_W2"]
    assert 0.5 * np.log2(found[199] / found[399]) == pytest.approx(exact, abs=0.003)


@pytest.mark.parametrize(
    ("function", "fields", "words"),
    [
        (layer_factor, {"placement": "pre"}, "placement must have one norm, on its one stream"),
        (layer_factor, {"placement": "residual"}, "placement must have one norm, on its one stream"),
        (layer_factor, {"normalization": "none"}, "placement must have one norm, on its one stream"),
        (layer_factor, {"norm_epsilon": 0.1}, "stack must have both"),
        (layer_factor, {"attention_dropout": 0.1}, "stack must have both"),
        (layer_factor, {"embeddings": "tied"}, "stack must have both"),
        (layer_factor, {"mask": "causal", "dropout": 0.1}, "stack must have both"),
        (
            layer_factor,
            {"mask": "given", "mask_rows": "[[1, 0], [1, 1]]", "tokens": 2},
            "stack must have both branches",
        ),
        (layer_factor, {"mask": "causal", "window": 1}, "stack must have both"),
        (layer_factor, {"query_key_scale": 1.0, "dropout": 0.1}, "query_key_scale must be 0 where"),
        *(
            (query_factor, {"query_key_scale": 1.0, "heads": 2} | fields, "a factor of W")
            for fields in (
                {"query_key_scale": 0.0},
                {"mask": "causal"},
                {"rotary": 1.0},
                {"tokens": 1},
                {"placement": "deepnorm"},
            )
        ),
        (layer_factor, {"source_tokens": 4}, "stack must have both"),
    ],
)
def test_what_has_no_closed_form(function, fields, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        function(Stack(**fields))


@pytest.mark.parametrize("tokens", [2, 8, 64])
def test_post_alignment(tokens):
    """A layer halves 1 − c, up to O(√(1 − c))."""
    gap = 1 - (predict(Stack(depth=30, tokens=tokens))["token_correlation"] / 1.5)
    assert (gap[1:] / gap[:-1])[-3:] == pytest.approx(float(asymptotics.post_alignment_rate()), abs=0.01)


def test_post_profiles_are_flat():
    """Once tokens have aligned, W1's, W2's and WV's gradients and their sum do not change from layer to layer."""
    assert asymptotics.post_gradient_factor() == 1
    prediction = predict(Stack(depth=60, tokens=8, vocab=100))
    for name in ("grad_sq_W1", "grad_sq_W2", "grad_sq_WV"):
        values = prediction[name][20:]
        assert np.ptp(values) / values.mean() < 1e-3, name
    law = np.sqrt(float(asymptotics.printed_gradient_factor())) ** np.arange(60)
    assert law[-1] < 1e-5, "what appendix F has for the first layer"


def test_pre_exponents():
    """Local exponents between l = 1000 and 2000 of L = 4000: corrections fall like l^(−1/3), from √(1 − c)."""
    prediction = predict(Stack(placement="pre", depth=4000, tokens=8, vocab=100))
    energy, correlation = prediction["hidden_energy"], prediction["token_correlation"]
    assert energy[2000] - energy[1999] == pytest.approx(float(asymptotics.pre_energy_slope()), rel=0.01)

    def local(values):
        return np.log2(values[1999] / values[999])

    gap = 1 - correlation / energy
    assert local(gap) == pytest.approx(float(asymptotics.pre_alignment_exponent()), abs=0.04)
    for name in ("grad_sq_W1", "grad_sq_W2", "grad_sq_WV"):
        assert local(prediction[name]) == pytest.approx(float(asymptotics.pre_gradient_exponent()), abs=0.04), name
