"""Interpolated expectations against the same ones, entry by entry."""

import numpy as np
import pytest

from theory.mean_field import gaussian_interpolation as interpolation
from theory.mean_field.activations import ACTIVATIONS
from theory.mean_field.gaussian import SoftmaxOverlap, cross_entropy
from theory.mean_field.gaussian_interpolation import pair_values, values_at

FUNCTIONS = {
    "gelu": ACTIVATIONS["gelu"].moment,
    "tanh, slope": ACTIVATIONS["tanh"].slope_moment,
    "softmax": SoftmaxOverlap(1.0, 64),
}


@pytest.mark.parametrize(("name", "ratio"), [
    ("gelu", 1.00001), ("gelu", 1.5), ("gelu", 8.0), ("tanh, slope", 8.0), ("softmax", 1.00001), ("softmax", 1.5),
])  # fmt: skip
def test_pairs(monkeypatch, name, ratio):
    """Energies that differ by a rounding, by an epsilon, or by a missing norm; equal and opposite tokens too."""
    generator = np.random.default_rng(0)
    variances = 0.9 * ratio ** -generator.random((1, 4))
    correlation = np.cos(np.pi * generator.random((1, 4, 4)))
    correlation[:, 0, 0], correlation[:, 0, 1] = 1.0, -1.0
    function = FUNCTIONS[name]
    root = np.sqrt(variances[..., :, None] * variances[..., None, :])
    v, w = np.broadcast_arrays(variances[..., :, None], variances[..., None, :])
    entries = zip(np.minimum(v, w).flat, np.maximum(v, w).flat, (correlation * root).flat, strict=True)
    one_by_one = np.array([function(*map(float, entry)) for entry in entries]).reshape(correlation.shape)
    few = pair_values(function, variances, correlation)
    np.testing.assert_allclose(few, one_by_one, rtol=1e-8, atol=1e-10)
    interpolated = interpolation._interpolated(
        function, variances, correlation, interpolation._nodes(variances), interpolation._angles(function)
    )
    np.testing.assert_allclose(interpolated, one_by_one, rtol=2e-6, atol=2e-6 * np.abs(one_by_one).max())
    monkeypatch.setattr(interpolation, "_nodes", lambda _: 1 if ratio == 1.5 else 2)
    if ratio > 1.1:
        coarse = interpolation._interpolated(function, variances, correlation, interpolation._nodes(v), 24)
        assert np.abs(coarse / one_by_one - 1).max() > 1e-4, "too few nodes are seen"


def test_many_pairs_are_interpolated(monkeypatch):
    calls = []

    def function(first, second, covariance):
        calls.append((first, second))
        return first * second + covariance

    generator = np.random.default_rng(1)
    variances, correlation = 1.0 + generator.random((500, 3)), 2 * generator.random((500, 3, 3)) - 1
    v, w = np.broadcast_arrays(variances[..., :, None], variances[..., None, :])
    monkeypatch.setattr(interpolation, "_AT_ONCE", 1000)
    found = pair_values(function, variances, correlation)
    np.testing.assert_allclose(found, v * w + np.sqrt(v * w) * correlation, rtol=0, atol=2e-6)
    assert len(calls) < correlation.size / 2


def test_variances_of_any_sizes_keep_their_digits():
    """The smallest and the largest differ by 10^17; for a slope of tanh, the largest alone has no short series."""
    variances, correlation = np.array([[1e-13, 1.0, 1e4]]), np.full((1, 3, 3), 0.3)
    found = pair_values(lambda v, w, c: c / (v * w) ** 0.5, variances, correlation)
    np.testing.assert_allclose(found, 0.3, rtol=1e-9)
    np.testing.assert_allclose(values_at(np.reciprocal, variances), 1 / variances, rtol=1e-9)
    function, nodes, cosines = FUNCTIONS["tanh, slope"], np.array([0.5, 1.0, 900.0]), np.array([-0.5, 0.5])
    assert np.isnan(function.table(nodes, cosines)).any(-1).sum() == 5
    expected = [[[function(v, w, c * (v * w) ** 0.5) for c in cosines] for v in nodes] for w in nodes]
    np.testing.assert_allclose(interpolation._table(function, nodes, cosines), expected, rtol=1e-6)


def test_values():
    variances = np.geomspace(0.5, 2.0, 60).reshape(2, 30)
    one_by_one = [[cross_entropy(float(v) ** 0.5, 100) for v in row] for row in variances]
    np.testing.assert_allclose(values_at(lambda v: cross_entropy(v**0.5, 100), variances), one_by_one, rtol=1e-6)
    np.testing.assert_array_equal(values_at(np.sqrt, np.array([4.0, 4.0])), 2.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_variances_that_an_epsilon_tells_apart(name):
    """One curve does for all of them, whatever the batch; of less alike ones there are three."""
    calls = []

    def function(first, second, covariance):
        calls.append((first, second))
        return FUNCTIONS[name](first, second, covariance)

    generator = np.random.default_rng(2)
    for factor, curves in ((1e-7, 1), (1e-5, 3)):
        calls.clear()
        for _ in range(2):
            variances = 0.8 * (1 + factor * generator.random((40, 3)))
            correlation = np.cos(np.pi * generator.random((40, 3, 3)))
            found = pair_values(function, variances, correlation)
        v, w = np.broadcast_arrays(variances[..., :, None], variances[..., None, :])
        expected = [
            FUNCTIONS[name](min(a, b), max(a, b), c * (a * b) ** 0.5)
            for a, b, c in zip(map(float, v.flat), map(float, w.flat), map(float, correlation.flat), strict=True)
        ]
        np.testing.assert_allclose(found.ravel(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
        assert len(calls) == curves * 33 * (1 if curves == 1 else 2)
