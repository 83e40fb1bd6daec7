"""The mean squared output of a layer's residual branches for one token, and its fluctuation at finite width."""

from dataclasses import dataclass
from functools import lru_cache

import sympy as sp


@dataclass(frozen=True, slots=True)
class BranchMoments:
    """The mean squared output of a residual branch and its fluctuations, for inputs of mean squared activation 1.

    The branch is a map x → f(x W...).

    Attributes:
        energy: b, the mean squared activation that the branch adds, forward as well as backward.
        spread: ω, d times the variance of the mean squared activation that its nonlinearity passes.
        shared: c, d times the covariance of the energies that it passes forward and backward.
        inner: whether a second matrix precedes the nonlinearity.
    """

    energy: sp.Expr
    spread: sp.Expr
    shared: sp.Expr
    inner: bool


def attention_branch() -> BranchMoments:
    """Return the mean squared output of attention on one token, and its fluctuation at finite width.

    The branch is x W^V: only W^V is random, and b = 1.
    """
    return BranchMoments(sp.Integer(1), sp.Integer(0), sp.Integer(0), inner=False)


@lru_cache(maxsize=1)
def feed_forward_branch() -> BranchMoments:
    """Return the mean squared output of the MLP ReLU(x W1) W2, and its fluctuation at finite width.

    They follow from the density of a pre-activation a ~ N(0, 1) and an independent gradient entry z ~ N(0, 1).
    Forward a hidden unit passes D a², backward D z², with D = 1 where a > 0.

    >>> feed_forward_branch()
    BranchMoments(energy=1/2, spread=5/4, shared=1/4, inner=True)
    """
    a = sp.Symbol("a", real=True)
    density = sp.exp(-(a**2) / 2) / sp.sqrt(2 * sp.pi)

    def active(power: int) -> sp.Expr:
        """Return E[D a^power] for a ~ N(0, 1) and D = 1 where a > 0."""
        return sp.integrate(a**power * density, (a, 0, sp.oo))

    def gaussian(power: int) -> sp.Expr:
        """Return E[z^power] for z ~ N(0, 1)."""
        return sp.integrate(a**power * density, (a, -sp.oo, sp.oo))

    # Backward it passes the same energy with the same spread, since D is independent of |a|.
    energy = active(2)
    return BranchMoments(
        energy, active(4) - energy**2, active(2) * gaussian(2) - energy * active(0) * gaussian(2), inner=True
    )


def energy_variance(branch: BranchMoments, stream: sp.Expr = sp.S.One) -> sp.Expr:
    """Return the variance that a branch adds to the mean squared activation of the residual stream, times the width.

    It is 4 q b + 2 b² + ω, from the cross term, the matrix, and the nonlinearity. The result holds forward, and for a
    gradient backward.

    Args:
        branch: moments of the branch.
        stream: q, mean squared activation of the residual stream.
    """
    return 4 * stream * branch.energy + 2 * branch.energy**2 + branch.spread
