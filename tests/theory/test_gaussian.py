"""Gaussian expectations against integrals computed another way, limits, and interpolation entry by entry."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from theory.mean_field import gaussian_interpolation as interpolation
from theory.mean_field.activations import ACTIVATIONS
from theory.mean_field.gaussian import SoftmaxOverlap, cross_entropy, relu_kernel, relu_slope_kernel, softmax_overlap
from theory.mean_field.gaussian_interpolation import correlation_curve, pair_values, values_at


def over_pair(function, correlation):
    """E f(u, v) over standard normals of the given correlation, by adaptive quadrature in polar coordinates."""
    s = np.sqrt(1 - correlation**2)

    def integrand(radius, angle):
        u = radius * np.cos(angle)
        v = correlation * u + s * radius * np.sin(angle)
        return function(u, v) * radius * np.exp(-(radius**2) / 2) / (2 * np.pi)

    return integrate.dblquad(integrand, 0, 2 * np.pi, 0, 12, epsabs=1e-9)[0]


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.3, 0.95])
def test_relu_kernels_are_their_integrals(correlation):
    energy = over_pair(lambda u, v: max(u, 0) * max(v, 0), correlation)
    # Sheppard's quadrant probability, an independent closed form for the slopes
    slope = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]]).cdf([0, 0])
    assert relu_kernel(correlation) == pytest.approx(energy, abs=1e-7)
    assert relu_slope_kernel(correlation) == pytest.approx(slope, abs=1e-7)
    assert relu_kernel(np.array([correlation]))[0] == pytest.approx(relu_kernel(correlation), rel=1e-12)


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("correlation", [-1.0, -0.4, 0.0, 1e-4, 0.6, 0.999, 1.0])
def test_overlap_of_two_classes_is_a_logistic_integral(scale, correlation):
    """V = 2: p_1 is the logistic function of a logit difference of variance 2 scale²."""
    deviation = np.sqrt(2) * scale

    def product(u, v):
        p, q = special.expit(deviation * u), special.expit(deviation * v)
        return p * q + (1 - p) * (1 - q)

    x = np.linspace(-9, 9, 601)
    density = stats.norm.pdf(x) * (x[1] - x[0])
    u, v = x[:, None], correlation * x[:, None] + np.sqrt(1 - correlation**2) * x[None, :]
    assert softmax_overlap(correlation, scale, 2) == pytest.approx(density @ product(u, v) @ density, abs=1e-8)


@pytest.mark.parametrize("scale", [1e-4, 0.03, 0.07, 0.3, 1.0])
@pytest.mark.parametrize("correlation", [-0.9, 0.01, 0.3, 0.9999])
def test_overlap_of_two_classes_of_very_different_logits(scale, correlation):
    """V = 2 beside logits of scale 6, with each of the rules for the smaller ones."""
    x = np.linspace(-9, 9, 601)
    density = stats.norm.pdf(x) * (x[1] - x[0])
    p = special.expit(np.sqrt(2) * scale * x[:, None])
    q = special.expit(np.sqrt(2) * 6 * (correlation * x[:, None] + np.sqrt(1 - correlation**2) * x[None, :]))
    expected = density @ (p * q + (1 - p) * (1 - q)) @ density
    assert softmax_overlap(correlation, scale, 2, 6.0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("vocab", "scale"), [(3, 1.0), (16, 1.0), (50, 8.0), (300, 2.0)])
@pytest.mark.parametrize("correlation", [-0.5, 0.2, 0.9, 1.0])
def test_overlap_against_sampled_softmaxes(vocab, scale, correlation):
    """False alarm 1e-5; an error of 20% of the overlap is missed with less than 1e-5 (asserted below)."""
    rng = np.random.default_rng(3)
    a = rng.standard_normal((min(40_000, 2_400_000 // vocab), vocab))
    b = correlation * a + np.sqrt(1 - correlation**2) * rng.standard_normal(a.shape)
    products = (special.softmax(scale * a, 1) * special.softmax(scale * b, 1)).sum(1)
    expected = softmax_overlap(correlation, scale, vocab)
    sem = stats.sem(products)
    assert abs(products.mean() - expected) < stats.norm.isf(5e-6) * sem
    assert 2 * stats.norm.isf(5e-6) * sem < 0.2 * expected or correlation < 0


def test_overlap_is_continuous_where_its_formula_changes():
    assert softmax_overlap(1.0 - 1e-12, 2.0, 30) == pytest.approx(softmax_overlap(1.0, 2.0, 30), abs=1e-9)


def test_overlap_beyond_its_reach_is_refused():
    with pytest.raises(ValueError, match="^output_scale must be smaller for tokens this alike"):
        softmax_overlap(0.99999999, 1000.0, 64)
    assert 0 < softmax_overlap(0.5, 1000.0, 64) < 1


def test_overlap_limits():
    for vocab in (2, 10, 10**6):
        assert softmax_overlap(0.0, 1.0, vocab) == pytest.approx(1 / vocab, rel=1e-8)
        assert softmax_overlap(1.0, 1e-5, vocab) == pytest.approx(1 / vocab, rel=1e-8)
    # a large vocabulary: E p·p' -> e^(scale² ρ)/V
    assert softmax_overlap(0.7, 1.0, 10**7) * 10**7 == pytest.approx(np.exp(0.7), rel=1e-5)
    # saturation: 1 − E p·p -> κ_V/scale with κ_V = V(V−1) ∫ φ² Φ^(V−2), the density of a tie at the top
    kappa = 50 * 49 * integrate.quad(lambda x: stats.norm.pdf(x) ** 2 * stats.norm.cdf(x) ** 48, -9, 9)[0]
    assert (1 - softmax_overlap(1.0, 300.0, 50)) * 300 == pytest.approx(kappa, rel=5e-3)


@pytest.mark.parametrize(("scale", "vocab"), [(1.0, 512), (0.1, 3), (8.0, 64)])
def test_overlap_curve_interpolates_the_overlap(scale, vocab):
    correlation = np.array([-0.9, -0.2, 0.0, 0.1, 0.55, 0.9, 0.99, 1.0])
    direct = [softmax_overlap(float(c), scale, vocab) for c in correlation]
    np.testing.assert_allclose(
        correlation_curve(SoftmaxOverlap(scale, vocab), 1.0)(correlation), direct, atol=1e-7 * max(direct)
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 5.0, 20.0])
def test_cross_entropy_of_two_classes(scale):
    """V = 2: E log(1 + e^x) with x the logit difference, N(0, 2 scale²)."""

    def integrand(x):
        return np.logaddexp(0, np.sqrt(2) * scale * x) * stats.norm.pdf(x)

    assert cross_entropy(scale, 2) == pytest.approx(integrate.quad(integrand, -12, 12, epsabs=1e-12)[0], abs=1e-9)


def test_cross_entropy_of_saturated_logits():
    """The largest of V normals, times the scale: E max = V ∫ x φ Φ^(V−1); log S − max is O(1) of it."""
    top = 64 * integrate.quad(lambda x: x * stats.norm.pdf(x) * stats.norm.cdf(x) ** 63, -9, 9)[0]
    assert cross_entropy(1500.0, 64) / 1500 == pytest.approx(top, rel=1e-3)
    with pytest.raises(ValueError, match="^output_scale must be at most 2000 for a prediction"):
        cross_entropy(1e30, 64)


def test_cross_entropy_of_a_large_vocabulary():
    assert cross_entropy(1.0, 10**8) == pytest.approx(np.log(10**8) + 0.5, abs=1e-6)


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
