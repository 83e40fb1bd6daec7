"""The derivation of every claim: a description in words, and a function that computes the result."""

from collections.abc import Callable
from dataclasses import dataclass

import sympy as sp

from theory.mean_field import finite_width
from theory.mean_field.concentration import PostEnergy, gaussian_excess_probability, gaussian_tail_bound
from theory.paper import (
    asymptotics,
    branch_kernels,
    layer_growth,
    layer_norm,
    lemmas,
    low_tail as reverse_markov,
    proof_chain as slack,
    sharp,
    theorem1,
)
from theory.stack import Stack


@dataclass(frozen=True, slots=True)
class Derivation:
    """One derivation of a claim: its description in words, and the function that computes the result.

    Attributes:
        words: the result and its derivation, in words.
        run: function that derives it.
    """

    words: str
    run: Callable[[], object]


def _uncentred_growth() -> sp.Expr:
    offset = sp.Symbol("a", positive=True)
    return sp.limit(layer_norm.uncentred_ratio(sp.Matrix([[1, 2, -3]]), offset) / offset, offset, sp.oo)


def _return_less_slope() -> tuple[sp.Expr, ...]:
    pairs = [branch_kernels.feed_forward_kernels(gated=gated) for gated in (False, True)]
    return tuple(sp.simplify(returned - sp.diff(h, branch_kernels.correlation)) for h, returned in pairs)


def _counterexample() -> tuple[sp.Expr, ...]:
    law = reverse_markov.counterexample(0.1, 0.125)
    return law.stated, law.actual, law.corrected


DERIVATIONS: dict[str, tuple[Derivation, ...]] = {
    "L1": (
        Derivation(
            "E||ReLU(X)||^2, by integrating the normal density over the positive half line",
            lambda: lemmas.relu_energy(lemmas.d, sp.Symbol("s", positive=True)),
        ),
    ),
    "L2a": (
        Derivation("||LN(x)||^2 of a vector of 3 symbolic entries", lambda: layer_norm.layer_norm_energy(3)),
        Derivation(
            "E_W||x + hW||^2 - ||x||^2 - ||h||^2 for symbolic x, h, W: a branch adds its energy",
            lambda: lemmas.residual_energy_gap(3),
        ),
        Derivation("E||x5||^2 from these two identities", lambda: lemmas.post_ln_energies()[1]),
    ),
    "L2b": (
        Derivation(
            "E||x||^2 after l layers if attention adds m d in each, by solving the recursion", lemmas.pre_ln_energy
        ),
        Derivation("lowest and highest energy: at m = 0 (added nothing) and m = 1 (identical tokens)",
                   lemmas.pre_ln_band),
        Derivation("excess of the lower bound / d at l = 1, if x_1 is the input of layer 1",
                   lemmas.pre_ln_index_excess),
    ),
    "L2c": (
        Derivation(
            "mean_i||x_i||^2 - ||mean x||^2 minus half the mean squared distance of tokens: 0, so m is in [0, 1]",
            lambda: lemmas.attention_gap(3, 2),
        ),
        Derivation("E||x2||^2 as a function of m", lambda: lemmas.post_ln_energies()[0]),
    ),
    "L3": (
        Derivation("share of a random direction's energy that J_LN keeps, at d = 3: 1 - 2/d",
                   lambda: layer_norm.energy_kept(3)),
        Derivation(
            "||J|| / (sqrt(d)/||x||) / a for x = a 1 + (1, 2, -3), as a grows: no bound",
            _uncentred_growth,
        ),
        Derivation("eigenvalue of the printed Jacobian along y for ||y||^2 = 8, / (sqrt(d)/||y||); it should be 0",
                   lambda: layer_norm.printed_jacobian_ratio(sp.Matrix([[2, -2, 0, 0]]))),
    ),
    "L4": (
        Derivation("eigenvalues of I - a^T a/||a||^2 for 3 symbolic entries, with multiplicities",
                   lambda: layer_norm.projection_eigenvalues(3)),
    ),
    "D1": (
        Derivation("exp(-d eps^2/8) at d = 512, eps = 0.1", lambda: float(gaussian_tail_bound(512, 0.1))),
        Derivation("exact tail of the chi-square distribution at d = 512, eps = 0.1",
                   lambda: float(gaussian_excess_probability(512, 0.1))),
        Derivation("delta(0.1) of ||x5||^2 in Post-LN at d = 512, by its exact distribution",
                   lambda: float(PostEnergy(512).excess_probability(0.1))),
    ),
    "D2": (
        Derivation("best exponent of Chernoff's bound: the minimum of -lambda t + lambda^2 nu^2/2",
                   lambda: reverse_markov.chernoff_exponents()[0]),
        Derivation("the exponent at the largest lambda, 1/b, minus -t/(2b), at t = nu^2/b + u",
                   lambda: reverse_markov.chernoff_exponents()[1]),
    ),
    "L5": (
        Derivation("(B - y)+ - (B - y) - (y - B)+ for a symbolic y", reverse_markov.positive_part_identity),
        Derivation("upper bound on P[Y <= a], with e = E[(Y - B)+] and EY the mean",
                   lambda: lemmas.low_tail_bound(sp.Symbol("EY"), sp.Symbol("e"))),
        Derivation("the same bound as Theorem 1 uses it: without e, at B = (1 + eps) EY, a = EY/10", theorem1.low_tail),
        Derivation("counterexample at eps = 0.1, delta = 1/8: stated, actual, corrected probability", _counterexample),
    ),
    "E1": (
        Derivation("P[E1 fails] by the union over d entries", theorem1.entry_failure),
        Derivation("true probability that E1 fails at d = 512", lambda: theorem1.entry_failure_value(512)),
    ),
    "T1": (
        Derivation("the bound for Post-LN, with its constants", lambda: theorem1.bound("post")),
        Derivation("the bound for Pre-LN", lambda: theorem1.bound("pre")),
        Derivation("the stated probability", theorem1.probability),
        Derivation("the probability that the proof's steps give for n positions",
                   reverse_markov.probability_over_positions),
        Derivation("largest n for which this probability is positive at eps = 0.1, delta = 0.125",
                   lambda: reverse_markov.largest_useful_length(0.1, 0.125)),
        Derivation("factor that each of the six steps loses at large width, Post-LN", lambda: slack.factors("post")),
        Derivation("the same, Pre-LN", lambda: slack.factors("pre")),
        Derivation("two-sided: bounds on lim E||dL/dW2||^2/d, Post-LN", lambda: sharp.bracket("post")),
        Derivation("the same, Pre-LN", lambda: sharp.bracket("pre")),
    ),
    "S1": (
        Derivation("E||dL/dW2||^2 of layer l / squared loss gradient, one token: L has cancelled",
                   asymptotics.pre_gradient_at_depth),
    ),
    "F1": (
        Derivation("1 - c of two tokens after a layer, divided by 1 - c before it, as tokens align",
                   asymptotics.post_alignment_rate),
        Derivation("factor per layer on the squared gradient, as tokens align", asymptotics.post_gradient_factor),
        Derivation("the same without the gradient through the branch: appendix F's factor, squared",
                   asymptotics.printed_gradient_factor),
        Derivation("at finite width: growth of the mean square per layer, times d",
                   lambda: finite_width.coefficients().mean),
        Derivation("at finite width: variance of the logarithm per layer, times d",
                   lambda: finite_width.coefficients().log_variance),
    ),
    "F2": (
        Derivation("energy per coordinate that a layer adds once tokens have aligned", asymptotics.pre_energy_slope),
        Derivation("exponent of 1 - c in l", asymptotics.pre_alignment_exponent),
        Derivation("exponent of E||dL/dW2||^2 in l", asymptotics.pre_gradient_exponent),
    ),
    "F3": (
        Derivation("E||J_LN(x5)||^2 of one token to the first order in 1/d", layer_norm.post_jacobian_square),
    ),
    "F4": (
        Derivation("radius around 1 of a branch's eigenvalues at l = 1536, by the circular law",
                   lambda: layer_norm.pre_eigenvalue_radius(1536)),
    ),
    "H2": (
        Derivation("exponent in d of each step's factor at fixed V/d; logarithms count as 0",
                   lambda: slack.growth("post")),
        Derivation("product of the factors, divided by bound / norm", lambda: slack.product_of_factors("post")),
    ),
    "G1": (
        Derivation("backward factors of plain and gated MLPs minus h'(c), for a symbolic kernel",
                   _return_less_slope),
        Derivation("gradient's factor per layer, units without a gate",
                   lambda: branch_kernels.aligned_factor(gated=False)),
        Derivation("factor per layer, gated units", lambda: branch_kernels.aligned_factor(gated=True)),
        Derivation("factor of a layer on the gap e = 1 - c of aligned tokens, units without a gate",
                   lambda: branch_kernels.gap_factor(gated=False)),
        Derivation("squared gradient of W^Q / gains for two tokens with the gap e, with G the gradient above",
                   branch_kernels.query_energy),
        Derivation("factor per layer of the gradients of W^Q and W^K, units without a gate",
                   lambda: branch_kernels.query_factor(gated=False)),
        Derivation("at gains 1: plain ReLU", lambda: branch_kernels.exact_factor("relu", gated=False)),
        Derivation("gated ReLU", lambda: branch_kernels.exact_factor("relu", gated=True)),
        Derivation("plain GELU", lambda: float(branch_kernels.exact_factor("gelu", gated=False))),
        Derivation("gated GELU", lambda: float(branch_kernels.exact_factor("gelu", gated=True))),
        Derivation("gated SiLU", lambda: layer_growth.layer_factor(Stack(ffn="gated", activation="silu"))),
    ),
}  # fmt: skip
"""The derivations by claim id; claims about models that are not tested here have none."""
