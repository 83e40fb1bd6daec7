"""Kernels of activations against adaptive quadrature and against the closed forms of the literature."""

import math

import numpy as np
import pytest
from scipy import integrate

from theory import Stack, predict
from theory.mean_field import activations
from theory.mean_field.activations import ACTIVATIONS
from theory.mean_field.kernels import MatrixLayout, Pair, PairLayout
from theory.stack import Activation
from theory.stack.activations import LEAK

PHI = {
    "relu": (lambda u: max(u, 0.0), lambda u: float(u > 0)),
    "leaky_relu": (lambda u: max(u, LEAK * u), lambda u: 1.0 if u > 0 else LEAK),
    "identity": (lambda u: u, lambda _: 1.0),
    "gelu": (
        lambda u: u * (1 + math.erf(u / 2**0.5)) / 2,
        lambda u: (1 + math.erf(u / 2**0.5)) / 2 + u * math.exp(-(u**2) / 2) / (2 * math.pi) ** 0.5,
    ),
    "silu": (lambda u: u / (1 + math.exp(-u)), lambda u: (1 + math.exp(-u) * (1 + u)) / (1 + math.exp(-u)) ** 2),
    "gelu_tanh": (
        lambda u: u * (1 + math.tanh((2 / math.pi) ** 0.5 * (u + 0.044715 * u**3))) / 2,
        lambda u: (
            (1 + math.tanh((2 / math.pi) ** 0.5 * (u + 0.044715 * u**3))) / 2
            + u
            / 2
            / math.cosh((2 / math.pi) ** 0.5 * (u + 0.044715 * u**3)) ** 2
            * (2 / math.pi) ** 0.5
            * (1 + 3 * 0.044715 * u**2)
        ),
    ),
    "relu_squared": (lambda u: max(u, 0.0) ** 2, lambda u: 2 * max(u, 0.0)),
    "tanh": (math.tanh, lambda u: 1 - math.tanh(u) ** 2),
}


def over_pair(function, first, second, correlation):
    """E f(u) f(v) in polar coordinates, where the kinks of ReLU lie on rays."""
    other = math.sqrt(1 - correlation**2)

    def integrand(radius, angle):
        u = radius * math.cos(angle)
        v = correlation * u + other * radius * math.sin(angle)
        return function(first * u) * function(second * v) * radius * math.exp(-(radius**2) / 2) / (2 * math.pi)

    turn = math.acos(correlation)  # where v changes sign
    kinks = sorted(
        [math.pi / 2, 3 * math.pi / 2, *((math.pi / 2 + math.pi - turn + k * math.pi) % (2 * math.pi) for k in (0, 1))]
    )
    edges = [0.0, *kinks, 2 * math.pi]
    parts = zip(edges[:-1], edges[1:], strict=True)
    return sum(integrate.dblquad(integrand, low, high, 0, 9, epsabs=1e-9)[0] for low, high in parts)


def test_every_activation_has_a_kernel():
    assert set(ACTIVATIONS) == set(PHI) == set(Activation.__args__)


@pytest.mark.parametrize("name", PHI)
@pytest.mark.parametrize(("first", "second", "correlation"), [(1.0, 1.0, 0.4), (0.6, 1.7, -0.7)])
def test_kernels_against_quadrature(name, first, second, correlation):
    off = correlation * first * second
    kernel = np.array([[[first**2, off], [off, second**2]]])
    for which, function in zip(("kernel", "slope_kernel"), PHI[name], strict=True):
        found = getattr(ACTIVATIONS[name], which)(MatrixLayout(2), kernel)[0, 0, 1]
        assert found == pytest.approx(over_pair(function, first, second, correlation), abs=1e-7)


@pytest.mark.parametrize("name", PHI)
def test_pairs_arrays_and_equal_tokens(name):
    """The two layouts agree, interpolated or not, and a token with itself gives the one-dimensional moment."""
    activation = ACTIVATIONS[name]
    pair = activation.kernel(PairLayout(2), Pair(1.3, 0.5))
    array = activation.kernel(MatrixLayout(2), np.array([[[1.3, 0.5], [0.5, 1.3]]]))[0]
    np.testing.assert_allclose([pair.diagonal, pair.off], array[0], rtol=1e-9)
    moment = integrate.quad(
        lambda u: PHI[name][0](1.3**0.5 * u) ** 2 * math.exp(-(u**2) / 2) / math.sqrt(2 * math.pi), -10, 10, points=[0]
    )[0]
    assert pair.diagonal == pytest.approx(moment, rel=1e-7)


def gelu_closed(first, second, covariance):
    """Kernel and slope kernel of exact GELU: Tsuchida et al. (2021), arXiv:2002.08517, as neural-tangents has them."""
    product = (1 + first) * (1 + second)
    rest = product - covariance**2
    angle = math.atan2(covariance, math.sqrt(rest))
    kernel = covariance / 4 + (
        (covariance**2 + first * second * rest) / (product * math.sqrt(rest)) + covariance * angle
    ) / (2 * math.pi)
    bracket = 1 / rest + (1 - first * second) / product + 1
    return kernel, 0.25 + (angle + covariance / math.sqrt(rest) * bracket) / (2 * math.pi)


def test_large_variances_are_refused():
    with pytest.raises(ValueError, match="^activation must be homogeneous .* standard deviation is 1e\\+03"):
        ACTIVATIONS["tanh"].kernel(PairLayout(2), Pair(1e6, 0.0))


def published(name, kernel):
    """The kernel of a ReLU (Cho and Saul, 2009) or GELU layer with standard weights, entry by entry."""
    out = np.empty_like(kernel)
    for i, j in np.ndindex(*kernel.shape):
        q, p, c = kernel[i, i], kernel[j, j], kernel[i, j]
        if name == "gelu":
            out[i, j] = gelu_closed(q, p, c)[0]
        else:
            angle = math.acos(min(1.0, c / math.sqrt(q * p)))
            out[i, j] = math.sqrt(q * p) / (2 * math.pi) * (math.sin(angle) + (math.pi - angle) * math.cos(angle))
    return out


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("name", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_forward_recursion_is_the_nngp_of_the_literature(placement, name, mask):
    """NNGP kernels of attention with zero keys (Hron et al., 2020: A K Aᵀ with uniform A), LayerNorm, ReLU or GELU.

    Composed here by hand over six layers from their published forms, without the recursion's rules.
    """
    stack = Stack(placement=placement, depth=6, tokens=5, activation=name, mask=mask)
    allowed = np.tril(np.ones((5, 5))) if mask == "causal" else np.ones((5, 5))
    weights = allowed / allowed.sum(1, keepdims=True)

    def norm(k):
        root = np.sqrt(np.diag(k))
        return k / root / root[:, None]

    kernel, energies, correlations = np.eye(5), [], []
    for _ in range(6):
        for branch in (lambda k: weights @ k @ weights.T, lambda k: published(name, k)):
            total = kernel + branch(kernel if placement == "post" else norm(kernel))
            kernel = norm(total) if placement == "post" else total
        energies.append(np.diag(total).mean())
        correlations.append((total.sum() - np.trace(total)) / 20)
    prediction = predict(stack)
    np.testing.assert_allclose(prediction["hidden_energy"], energies, rtol=1e-8)
    np.testing.assert_allclose(prediction["token_correlation"], correlations, rtol=1e-8)


@pytest.mark.parametrize("scale", [0.3, 3.0, 9.0, 15.0])
def test_hermite_series_are_quadratures(monkeypatch, scale):
    """Moments at both signs of a correlation, also where a series has thousands of terms or there is none."""
    functions = [moment.function for name in ("silu", "gelu", "gelu_tanh", "tanh")
                 for moment in (ACTIVATIONS[name].moment, ACTIVATIONS[name].slope_moment)]  # fmt: skip
    arguments = [(function, scale**2, 1.2 * scale**2, 0.9 * scale**2) for function in functions]
    series = [activations._moments.__wrapped__(*each) for each in arguments]
    monkeypatch.setattr(activations, "_hermite_series", lambda *_: np.full((1, 1), np.nan))
    quadratures = [activations._moments.__wrapped__(*each) for each in arguments]
    np.testing.assert_allclose(series, quadratures, rtol=5e-7, atol=1e-12)
