"""The probability that a token's squared norm exceeds 1 + ε times its mean (Xiong et al., 2020, Definition 1).

A variable Z ≥ 0 is (ε, δ)-bounded if P[(Z − EZ)/EZ ≤ ε] ≥ 1 − δ. The law of ‖x5‖² in Post-LN is exact at every width,
that of ‖x‖² in Pre-LN is approximate. Source: Xiong et al. (2020), Definition 1 and appendix G.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from theory.mean_field.finite_width.pre_norm import pre_stream
from theory.mean_field.kernels import Array
from theory.mean_field.prediction import predict
from theory.stack import Stack

# The trapezoidal rule over ln s is exact to rounding, since the integrand is smooth and falls off both ways.
_NODES = 800
_NEGLIGIBLE = 1e-20
_NEGLIGIBLE_ABOVE = 1e-100  # far upper tails are made there

# Beyond it scipy's noncentral chi-square gives out, and is a normal to three digits; only widths below 16 come there.
_LARGEST_NONCENTRALITY = 1e6


@dataclass(frozen=True, slots=True)
class PostEnergy:
    """The exact distribution of a token's squared norm before the last LayerNorm of a Post-LN layer.

    The squared norm ‖x5_{l,i}‖² has the same distribution in every layer, for every n and every input.

    LN gives ‖x3‖² = d exactly, so the pre-activations x3 W1 are d independent N(0, 1), h = ReLU(x3 W1) has ‖h‖² =
    chi-square with K degrees of freedom, K ~ Binomial(d, 1/2), and given h the entries of x5 = x3 + h W2 are
    independent N(x3, S), S = ‖h‖²/d: ‖x5‖²/S is noncentral chi-square with d degrees of freedom and noncentrality
    d/S.

    Attributes:
        width: d, at least 2.
    """

    width: int

    @property
    def mean(self) -> float:
        """The mean of a token's squared norm, 3d/2 at width d (Lemma 2 of Xiong et al., 2020)."""
        return 1.5 * self.width

    @property
    def variance(self) -> float:
        """The variance of a token's squared norm, 15 d/4 + 5/2 at width d.

        It is E[4 d S + 2 d S²] for the variance given S, plus d² Var S, with Var S = 5/(4 d).
        """
        return 3.75 * self.width + 2.5

    def sf(self, energy: ArrayLike) -> Array:
        """Return the probability that a token's squared norm exceeds a given value, for every value of an array.

        The relative accuracy holds down to about 1e-80.
        """
        shares, weights = hidden_energy_law(self.width)
        x, d = np.asarray(energy, dtype=float)[..., None], self.width
        few = shares < d / _LARGEST_NONCENTRALITY
        usual, small = shares[~few], shares[few]
        given = np.concatenate(
            [stats.norm.sf(x, d * (1 + small), np.sqrt(4 * d * small)), stats.ncx2.sf(x / usual, d, d / usual)], axis=-1
        )
        # With probability 2^-d no hidden unit is active, and x5 = x3.
        return np.asarray(given @ weights + 0.5**d * (x[..., 0] < d))

    def excess_probability(self, epsilon: ArrayLike) -> Array:
        """Return the probability that a token's squared norm exceeds 1 + ε times its mean, for every entry ε.

        It is δ(ε) of Definition 1, P[‖x5‖² > (1 + ε) E‖x5‖²].
        """
        return self.sf((1 + np.asarray(epsilon, dtype=float)) * self.mean)


@lru_cache(maxsize=16)
def hidden_energy_law(width: int) -> tuple[Array, Array]:
    """Return quadrature nodes and weights for the mean square ‖h‖²/d of d hidden ReLU units h.

    They leave out the value 0, so that the weights sum to 1 minus its probability.

    The law is a binomial mixture of chi-squares.

    Args:
        width: d.
    """
    active = np.arange(1, width + 1)
    probability = stats.binom.pmf(active, width, 0.5)
    low, high = (active[probability > least] for least in (_NEGLIGIBLE, _NEGLIGIBLE_ABOVE))
    ends = stats.chi2.ppf(_NEGLIGIBLE, low[0]), stats.chi2.isf(_NEGLIGIBLE_ABOVE, high[-1])
    active, probability = active[low[0] - 1 : high[-1]], probability[low[0] - 1 : high[-1]]
    log_s = np.linspace(np.log(ends[0] / width), np.log(ends[1] / width), _NODES)
    s, step = np.exp(log_s), log_s[1] - log_s[0]
    weights = stats.chi2.pdf(s[:, None] * width, active) @ probability * width * s * step
    kept = weights > _NEGLIGIBLE_ABOVE
    return s[kept], weights[kept]


def gaussian_tail_bound(width: int, epsilon: ArrayLike) -> Array:
    """Return Xiong et al.'s bound exp(−d ε²/8) on P[‖X‖² > (1 + ε) d] for X ~ N(0, I_d) and 0 < ε < 1.

    Source: Xiong et al. (2020), appendix G.
    """
    return np.exp(-width * np.asarray(epsilon, dtype=float) ** 2 / 8)


def gaussian_excess_probability(width: int, epsilon: ArrayLike) -> Array:
    """Return the exact probability P[‖X‖² > (1 + ε) d] for a Gaussian vector X ~ N(0, I_d)."""
    return np.asarray(stats.chi2.sf((1 + np.asarray(epsilon, dtype=float)) * width, width))


def pre_energy_variance(stack: Stack) -> Array:
    """Return the variance of a token's squared norm after each of L Pre-LN layers, divided by the width d.

    The result, (L,), is the leading order in 1/d.

    Raises:
        ValueError: the stack is not Pre-LN with one token; with more tokens, their mean fluctuates as much.
    """
    if stack.placement != "pre" or stack.tokens != 1 or stack.relaxed:
        raise ValueError(f"stack must be Pre-LN with tokens 1 in the paper's setting, got {stack.non_default()}.")
    return pre_stream(stack.depth).variance[2::2]


@dataclass(frozen=True, slots=True)
class PreEnergy:
    """The approximate distribution of one token's squared norm after the last Pre-LN layer, a gamma distribution.

    It has the mean and the variance of ‖x‖².

    Attributes:
        stack: a Pre-LN Stack with one token.
    """

    stack: Stack

    @property
    def mean(self) -> float:
        """The mean of one token's squared norm after the last layer.

        It is q_L d, with the mean squared activation q_L.
        """
        return float(predict(self.stack)["hidden_energy"][-1]) * self.stack.width

    def excess_probability(self, epsilon: ArrayLike) -> Array:
        """Return the approximate probability that a token's squared norm exceeds 1 + ε times its mean, for every ε.

        It is δ(ε) of Definition 1, P[‖x‖² > (1 + ε) E‖x‖²].
        """
        shape = self.mean**2 / (float(pre_energy_variance(self.stack)[-1]) * self.stack.width)
        return np.asarray(
            stats.gamma.sf((1 + np.asarray(epsilon, dtype=float)) * self.mean, shape, scale=self.mean / shape)
        )


def excess_probability(stack: Stack, epsilon: ArrayLike) -> Array:
    """Return the probability that a token's squared norm before the last LayerNorm exceeds 1 + ε times its mean.

    The probability is δ(ε) of Definition 1. It is exact for Post-LN and approximate for Pre-LN.

    Args:
        stack: the network.
        epsilon: the relative excess ε, of any shape.

    Raises:
        ValueError: the stack is neither Post-LN nor Pre-LN with one token.

    >>> round(float(excess_probability(Stack(width=512), 0.1)), 3)  # the paper's (0.1, 0.125)
    0.046
    """
    return (PostEnergy(stack.width) if stack.placement == "post" else PreEnergy(stack)).excess_probability(epsilon)
