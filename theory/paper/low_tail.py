"""Check the step in the proof of Theorem 1 that applies Lemma 5 where the lemma's assumption does not hold.

Lemma 5 requires Y ≤ B always; here is its form if Y ≤ B holds only with high probability.

Source: Xiong et al. (2020), Lemma 5 (Lemma 4.2 of the appendix) and the proof of Theorem 1, appendix E.
"""

from dataclasses import dataclass

import numpy as np
import sympy as sp
from numpy.typing import NDArray
from sympy import stats

from theory.paper.lemmas import a, low_tail_bound, n, top
from theory.paper.theorem1 import ALPHA, delta, epsilon, low_tail, probability


def positive_part_identity() -> sp.Expr:
    """Check the identity of positive parts on which the corrected form of Lemma 5 rests.

    The result is (B − y)₊ − (B − y) − (y − B)₊ for a symbolic y: zero.

    >>> positive_part_identity()
    0
    """
    y = sp.Symbol("y", real=True)
    return sp.simplify((sp.Max(top - y, 0) - (top - y) - sp.Max(y - top, 0)).rewrite(sp.Piecewise))


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A two-point distribution for which the proof of Theorem 1 states a wrong probability.

    The law of Y is (ε, δ)-bounded, as the theorem assumes.

    Attributes:
        values: the points of the law, in units of E Y.
        probabilities: their probabilities.
        stated: the proof's bound on P[Y ≤ α₀ EY], in addition to δ: ε/(1 − α₀ + ε).
        actual: P[Y ≤ α₀ EY].
        corrected: the bound with the right numerator, ε EY + E[(Y − B)₊], B = (1 + ε) EY.
    """

    values: tuple[sp.Expr, ...]
    probabilities: tuple[sp.Expr, ...]
    stated: sp.Expr
    actual: sp.Expr
    corrected: sp.Expr

    def sample(self, draws: int, seed: int) -> NDArray[np.float64]:
        """Return independent samples from the counterexample's distribution, divided by its mean."""
        rng = np.random.default_rng(seed)
        return rng.choice(np.array(self.values, dtype=float), draws, p=np.array(self.probabilities, dtype=float))


def counterexample(epsilon_value: float, delta_value: float) -> Counterexample:
    """Return a two-point distribution for which the proof of Theorem 1 states a wrong probability.

    Y = c EY with probability 1 − δ and a large value otherwise, with c = α₀/2.

    Y exceeds (1 + ε) EY with probability δ, as Definition 1 allows, and is otherwise below α₀ EY, where the proof
    puts at most ε/(1 − α₀ + ε). The probability that the theorem states, 0.99 − δ − ε/(0.9 + ε), then exceeds the
    true one.

    Args:
        epsilon_value: ε.
        delta_value: δ.

    Raises:
        ValueError: δ leaves no point above (1 + ε) EY, or the law is not (ε, δ)-bounded.

    >>> found = counterexample(0.1, 0.125)  # the paper's pair
    >>> found.stated, found.actual
    (1/10, 7/8)
    """
    epsilon_value, delta_value = (sp.nsimplify(value, rational=True) for value in (epsilon_value, delta_value))
    low = ALPHA / 2
    high = (1 - (1 - delta_value) * low) / delta_value
    if high <= 1 + epsilon_value:
        raise ValueError(f"delta must leave mass above 1 + epsilon, got {delta_value} at epsilon {epsilon_value}.")
    law = stats.FiniteRV("Y", {low: 1 - delta_value, high: delta_value})
    if stats.E(law) != 1 or stats.P(law > 1 + epsilon_value) > delta_value:
        raise ValueError(f"delta must give a law of mean 1 that is (epsilon, delta)-bounded, got {delta_value}.")
    limit = 1 + epsilon_value
    excess = stats.E(sp.Max(law - limit, 0))
    at = {top: limit, a: ALPHA}
    return Counterexample(
        values=(low, high),
        probabilities=(1 - delta_value, delta_value),
        stated=low_tail().subs(epsilon, epsilon_value),
        actual=stats.P(law <= ALPHA),
        corrected=low_tail_bound(sp.Integer(1), excess).subs(at),
    )


def probability_over_positions() -> sp.Expr:
    """Return the probability that Theorem 1's proof gives if the loss is a mean over n positions.

    Every event must hold at each position.

    >>> sp.simplify(probability_over_positions().subs(n, 1) - probability())
    0
    """
    return 1 - n * (1 - probability())


def largest_useful_length(epsilon_value: float, delta_value: float) -> int:
    """Return the largest number of positions for which Theorem 1's proof gives a probability above 0.

    The probability is `probability_over_positions`; the result is 0 if no number has it.

    Args:
        epsilon_value: ε.
        delta_value: δ.

    >>> largest_useful_length(0.1, 0.125)  # at the paper's pair
    4
    """
    failure = 1 - probability().subs({epsilon: sp.nsimplify(epsilon_value), delta: sp.nsimplify(delta_value)})
    return max(0, int(sp.ceiling(1 / failure)) - 1)


def chernoff_exponents() -> tuple[sp.Expr, sp.Expr]:
    """Return the exponents in the two cases of Chernoff's bound in Proposition 1 of the paper.

    The second is the slack at t = ν²/b + u.

    Both follow from E exp(λ(X − EX)) ≤ exp(λ² ν²/2), |λ| < 1/b. P[X ≥ EX + t] ≤ exp(−λ t + λ² ν²/2) has its least
    exponent at λ = t/ν², if that is allowed. Beyond t = ν²/b it is taken at the end λ = 1/b; its value there minus
    −t/(2b) is negative at t = ν²/b + u.

    >>> chernoff_exponents()
    (-t**2/(2*nu**2), -u/(2*b))
    """
    t, rate, nu, b, u = sp.symbols("t lambda nu b u", positive=True)
    exponent = -rate * t + rate**2 * nu**2 / 2
    (best,) = sp.solve(exponent.diff(rate), rate)
    beyond = exponent.subs(rate, 1 / b) + t / (2 * b)
    return sp.simplify(exponent.subs(rate, best)), sp.simplify(beyond.subs(t, nu**2 / b + u))
