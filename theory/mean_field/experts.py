"""Mixture-of-experts layers: the router's choice for every token, and the forward and backward pass.

A token u_i has the logits r_ie = w_e·u_i of its router, Gaussian with Cov(r_ie, r_jf) = s² Q_ij δ_ef at any number of
experts, which the recursion samples like attention weights. They give the weights p_ie of the k experts of the
largest scores, and 0 of the others, all independent of the experts' matrices. So f(u_i) = Σ_e p_ie F_e(u_i) has the
kernel S ∘ K, with S_ij = Σ_e p_ie p_je and K that of one expert's MLP. A gradient kernel G at the output is S ∘ G for
the MLPs, whose squared gradients are sums over experts. The router receives t_ie = g_i·F_e(u_i) and passes on a_if =
Σ_e t_ie ∂p_ie/∂r_if. Derived in docs/report.md.

In random text, pairs of tokens are averaged. All products of p and its derivatives for two tokens depend only on the
correlation of their logits, which is the cosine of the tokens. So a pair passes with the means of these products over
logits with its cosine (`MeanRouting`). The mean is exact for sums over many pairs in one layer. It leaves out that a
pair with the same experts is more alike in the layers above.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import expit, ndtr, softmax

from theory.mean_field.group_members import MemberLayout
from theory.mean_field.kernels import Array, KernelLayout, cholesky, eigen_root
from theory.mean_field.sublayers import Branch, BranchPullback, Overlaps, Recorded, SquaredNorms, feed_forward
from theory.stack import Stack
from theory.stack.weights import gain

COUNTED = 1024
"""The largest number of tokens of a representative whose experts are counted."""

# The angles between two tokens at which products of routings are averaged, and the number of sampled logits for each.
_ANGLES, _LOGITS, _MOST_LOGITS = np.linspace(0.0, 0.6 * np.pi, 17), 2**19, 2**15

# The cosines of tokens at which the largest load is averaged, and the sampled networks and their tokens for each.
_COSINES, _NETWORKS, _TOKENS = np.linspace(0.0, 0.9999, 17), 200, 16


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """The weights of the experts for every token, and their derivatives with respect to the router's logits.

    The weight p_ie of expert e for token i is 0 if the expert is not chosen. Its derivative with respect to the logit
    r_if is ∂p_ie/∂r_if = D_ie δ_ef − p_ie π_if.

    Attributes:
        weights: p, (batch, N, E).
        slopes: D, (batch, N, E).
        shares: π, (batch, N, E).
    """

    weights: Array
    slopes: Array
    shares: Array

    @property
    def overlap(self) -> Array:
        """The overlap S_ij = Σ_e p_ie p_je of the expert weights p of two tokens i and j, (batch, N, N)."""
        return np.asarray(self.weights @ self.weights.mT)

    def at_logits(self, output: Array, gradient: Array, overlaps: Overlaps[Array]) -> Array:
        """Return the inner products of two tokens' gradients with respect to the router's logits.

        They are E Σ_f a_if a_jf, (batch, N, N).

        Where a norm above removed the gradient's component along the residual stream, which contains Σ_e p_ie F_e, t
        varies less: Cov(t_ie, t_jf) = δ_ef K_ij G_ij − E1_ij p_ie K_ii p_if K_ij − E1_ji p_je K_ij p_jf K_jj + E2_ij
        p_ie K_ii p_jf K_jj, with E1 and E2 the overlaps.

        Args:
            output: K, kernel of one expert's output.
            gradient: G, gradient kernel at the sum of all experts' outputs.
            overlaps: overlaps with the removed component, as in `theory.mean_field.sublayers`.
        """
        p, slopes, shares, overlap = self.weights, self.slopes, self.shares, self.overlap
        crossed = slopes @ (p * shares).mT
        kernel = output * gradient * (slopes @ slopes.mT - crossed - crossed.mT + overlap * (shares @ shares.mT))
        if overlaps is None:
            return np.asarray(kernel)
        # What the logits change of the overlap of f with itself.
        along = slopes * p - shares * np.linalg.diagonal(overlap)[..., None]
        along = along * np.linalg.diagonal(output)[..., None]
        first = overlaps.first * output * ((along * p) @ slopes.mT - (along @ shares.mT) * overlap)
        return np.asarray(kernel - first - first.mT + overlaps.second * (along @ along.mT))


@dataclass(frozen=True, slots=True, eq=False)
class MeanRouting:
    """The means of products of two tokens' expert weights and their derivatives, over logits with the tokens' cosine.

    Attributes:
        overlap: mean of S, (batch, N, N).
        slopes: mean factor of K_ij G_ij in `Routing.at_logits`.
        first: mean factor of E1_ij K_ij K_ii there.
        second: mean factor of E2_ij K_ii K_jj there.
        balance: mean of E Σ_e c_ie π_je, with 1 for a chosen expert in c_i, and the softmax π_j of all logits.
    """

    overlap: Array
    slopes: Array
    first: Array
    second: Array
    balance: Array

    @classmethod
    def of(cls, stack: Stack, role: str, kernel: Array) -> MeanRouting:
        """Look up the means for every pair of tokens.

        Args:
            stack: the network.
            role: "WR" for the router, "SR" for the gate of the shared expert.
            kernel: kernel of the router's input.
        """
        sizes = np.sqrt(np.linalg.diagonal(kernel))
        angles = np.arccos(np.clip(kernel / sizes[..., :, None] / sizes[..., None, :], -1.0, 1.0))
        # One table for variances within 1%, whatever else the layers have.
        size = round(float(np.log(gain(stack, role) * np.mean(np.square(sizes)))), 2)
        means = _mean_products(_router(stack), role == "SR", size)
        return cls(*(np.interp(angles, _ANGLES, mean) for mean in means))

    def at_logits(self, output: Array, gradient: Array, overlaps: Overlaps[Array]) -> Array:
        """Return the mean inner products of two tokens' gradients at the router's logits, as `Routing.at_logits`."""
        kernel = output * gradient * self.slopes
        if overlaps is None:
            return np.asarray(kernel)
        sizes = np.linalg.diagonal(output)
        first = overlaps.first * output * self.first * sizes[..., None]
        return np.asarray(
            kernel - first - first.mT + overlaps.second * self.second * sizes[..., None] * sizes[..., None, :]
        )


@lru_cache(maxsize=64)
def _router(stack: Stack) -> Stack:
    # Return a network with the same experts, which is the same for all layers and widths.
    names = ("experts", "experts_per_token", "router_scores", "router_norm", "routed_scale")
    return Stack(**{name: getattr(stack, name) for name in names})


@lru_cache(maxsize=64)
def _mean_products(stack: Stack, shared: bool, size: float) -> Array:
    """Return the five means of `MeanRouting` at every angle between two tokens, (5, angles).

    Args:
        stack: the network.
        shared: whether the only expert is the shared one, whose gate is a sigmoid.
        size: logarithm of the logits' variance.
    """
    count = 1 if shared else stack.experts
    normals = np.random.default_rng(0).standard_normal((2, min(_MOST_LOGITS, _LOGITS // count + 1), count))
    logits_of_token, independent = np.exp(size / 2.0) * normals
    means = []

    def routed(logits: Array) -> tuple[Array, Array, Array, Array]:
        route = _shared(stack, logits, logits) if shared else routing(stack, logits)
        along = route.slopes * route.weights - route.shares * np.square(route.weights).sum(-1, keepdims=True)
        return route.weights, route.slopes, route.shares, along

    p, slope, share, along = routed(logits_of_token)
    for angle in _ANGLES:
        logits = np.cos(angle) * logits_of_token + np.sin(angle) * independent
        q, slope_of_q, share_of_q, along_q = routed(logits)
        overlap = (p * q).sum(-1, keepdims=True)
        # For each token pair, summed over experts.
        slopes = slope * slope_of_q - slope * q * share_of_q - p * share * slope_of_q + overlap * share * share_of_q
        first = along * p * slope_of_q - overlap * along * share_of_q
        balance = count * (p[::4] > 0) * softmax(logits[::4], axis=-1)  # a quarter suffices, within 1%
        means.append([count * np.mean(part) for part in (p * q, slopes, first, along * along_q, balance)])
    return np.array(means).T


@lru_cache(maxsize=8)
def _loads_by_cosine(experts: int, chosen: int) -> Array:
    """Return the fullest expert's mean share of tokens, and how many experts get few, at every cosine, (2, cosines).

    Given a network, logits have a part that all tokens share, whose variance is the cosine c, and a part of each
    token. The share of an expert is the probability that its logit is among the k largest. It is "few" below a tenth of
    an even share. The mean largest share over sampled networks has an error of 0.01.

    Args:
        experts: number of experts.
        chosen: number k of experts that each token uses.
    """
    generator, loads = np.random.default_rng(0), []
    shared, separate = (generator.standard_normal((_NETWORKS, count, experts)) for count in (1, _TOKENS))
    for cosine in _COSINES:
        common, spread = cosine**0.5 * shared, (1.0 - cosine) ** 0.5
        logits = common + spread * separate
        ordered = np.sort(np.concatenate([np.full_like(logits[..., :1], -np.inf), logits], axis=-1))
        of_others = np.where(logits < ordered[..., [-chosen]], ordered[..., [-chosen]], ordered[..., [-chosen - 1]])
        shares = ndtr((common - of_others) / spread).mean(1)
        loads.append((shares.max(-1).mean(), (shares < 0.1 * chosen / experts).sum(-1).mean()))
    return np.array(loads).T


def fullest_share(stack: Stack, cosine: Array) -> Array:
    """Return the fullest expert's mean share of tokens, where all pairs of tokens have a given cosine."""
    return np.interp(cosine, _COSINES, _loads_by_cosine(stack.experts, stack.experts_per_token)[0])


def rarely_chosen(stack: Stack, fullest: float) -> float:
    """Return the mean number of experts with less than a tenth of an even share of the tokens.

    Two networks of width 256 with 8 of 128 experts were sampled, with 32,768 tokens of captions. In layers 1, 2, 5 and
    8, 75, 96, 95 and 86 experts had less. The result is 68, 94, 80 and 71. Experts without any token were 2, 10, 19 and
    18. Their number depends on the few tokens that are least like the others, and theory lacks a rule for it.

    >>> round(rarely_chosen(Stack(placement="pre", experts=128, experts_per_token=8), 0.83))
    71

    Args:
        stack: the network.
        fullest: the fullest expert's share of the tokens.
    """
    return float(np.interp(fullest, *_loads_by_cosine(stack.experts, stack.experts_per_token)))


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """The experts of a layer, or its shared expert, with their weights and logits for all tokens.

    Attributes:
        kind: "W" for experts, "S" for the shared one.
        route: expert weights of all tokens, a `Routing`; for random text a `MeanRouting`.
        logits: logits of the router or gate, (batch, N, E); None without one, or where they are averaged.
        output: K, kernel of one expert's output.
        learned: whether there is a router or a gate.
    """

    kind: str
    route: Any
    logits: Array | None
    output: Array
    learned: bool


def routing(stack: Stack, logits: Array) -> Routing:
    """Choose the experts with the largest logits for every token, and return their weights and derivatives.

    Args:
        stack: the network.
        logits: logits of the router, (batch, N, E).
    """
    scores = softmax(logits, axis=-1) if stack.router_scores == "softmax" else expit(logits)
    others = logits.shape[-1] - stack.experts_per_token
    chosen = np.zeros(logits.shape)
    np.put_along_axis(chosen, np.argpartition(logits, others, axis=-1)[..., others:], 1.0, axis=-1)
    weights = shares = scores * chosen
    if stack.router_norm == "sum":
        weights = shares = weights / weights.sum(-1, keepdims=True)
    elif stack.router_scores == "softmax":
        shares = scores
    slopes = weights
    if stack.router_scores == "sigmoid":
        slopes = weights * (1.0 - scores)
        shares = slopes if stack.router_norm == "sum" else 0.0 * scores
    return Routing(stack.routed_scale * weights, stack.routed_scale * slopes, shares)


def _shared(stack: Stack, logits: Array | None, like: Array) -> Routing:
    """Return the weights of the shared expert, which all tokens use, from its gate's logits or without a gate.

    Args:
        stack: the network.
        logits: logits of the gate, (batch, N, 1); None without a gate.
        like: kernel of the tokens, for the shape.
    """
    if logits is None:
        ones = np.ones((*like.shape[:-1], 1))
        return Routing(ones, 0.0 * ones, 0.0 * ones)
    gate = expit(logits)
    return Routing(gate, gate * (1.0 - gate), 0.0 * gate)


def experts(stack: Stack, generator: np.random.Generator) -> Branch[Array]:
    """Return the forward and backward pass of experts: a weighted sum of the chosen and the shared experts.

    The sum over the chosen experts is Σ_e p_ie F_e(u_i).

    Args:
        stack: the network.
        generator: random generator of the routers' logits for every batch entry.
    """
    routed: Branch[Array] = feed_forward(stack, often=True)  # for random text, which asks for slopes too
    shared: Branch[Array] | None = feed_forward(stack, "S") if stack.shared_ratio else None

    def branch(tokens: KernelLayout[Array], kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        averaged = tokens.is_text
        root = kernel if averaged else cholesky(kernel)

        def sampled(role: str, count: int) -> Array:
            return gain(stack, role) ** 0.5 * (root @ generator.standard_normal((*kernel.shape[:-1], count)))

        logits = None if averaged else sampled("WR", stack.experts)
        route = MeanRouting.of(stack, "WR", kernel) if logits is None else routing(stack, logits)
        of_units, units_back, recorded = routed(tokens, kernel)
        parts = [(Routed("W", route, logits, of_units, learned=True), units_back)]
        if shared is not None:
            gated = stack.shared_gate == "sigmoid"
            gate = sampled("SR", 1) if gated and not averaged else None
            route = MeanRouting.of(stack, "SR", kernel) if gated and averaged else _shared(stack, gate, kernel)
            of_shared, shared_back, _ = shared(tokens, kernel)
            parts.append((Routed("S", route, gate, of_shared, learned=gated), shared_back))

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            below, energies = 0.0 * kernel, SquaredNorms()
            for part, back in parts:
                to_tokens, unit_energies = back(part.route.overlap * gradient, None)
                below, energies = below + to_tokens, energies | unit_energies
                if part.learned:
                    role = part.kind + "R"
                    at_logits = part.route.at_logits(part.output, gradient, overlaps)
                    # Of a weight that is always 1 this is zero, which rounding must not make negative.
                    energies[role] = tokens.positive_total(kernel * at_logits)
                    below = below + gain(stack, role) * at_logits
            return below, energies

        ways = [part for part, _ in parts]
        out = sum(part.route.overlap * part.output for part in ways)
        if averaged:
            if tokens.apart:  # a large batch, where the own parts of sequences average out
                across = np.asarray(tokens.total(kernel))[1] / (tokens.count**2 / 2) / tokens.diagonal(kernel)
                fullest = fullest_share(stack, across)
                balance = np.asarray(tokens.total(ways[0].route.balance))[1] / (tokens.count**2 / 2)
                recorded |= {"expert_load_max": fullest, "expert_balance": balance}
            return np.asarray(out), pullback, recorded
        loads = (
            _loads_of_groups(stack, tokens, kernel, generator)
            if isinstance(tokens, MemberLayout)
            else _loads(ways[0].route.weights, logits)
        )
        return np.asarray(out), pullback, recorded | loads | {"attended": ways}

    return branch


def _loads(weights: Array, logits: Array | None, sizes: Array | None = None) -> Recorded:
    """Return the largest expert's share of the tokens, the relative deviation of loads, and the balance.

    Each has one value for each entry of the batch.

    Args:
        weights: expert weights, (batch, N, E).
        logits: logits of the router, (batch, N, E).
        sizes: number of tokens that each row represents, (N,); None for 1.
    """
    sizes = np.ones(weights.shape[-2]) if sizes is None else sizes
    loads = ((weights > 0.0) * sizes[:, None]).sum(-2)
    scores = (softmax(logits, axis=-1) * sizes[:, None]).sum(-2)
    return {
        "expert_load_max": loads.max(-1) / sizes.sum(), "expert_load_deviation": loads.std(-1) / loads.mean(-1),
        "expert_balance": weights.shape[-1] * (loads * scores).sum(-1) / sizes.sum() ** 2,
    }  # fmt: skip


def _loads_of_groups(stack: Stack, tokens: MemberLayout, kernel: Array, generator: np.random.Generator) -> Recorded:
    """Return the loads of experts for groups of tokens.

    The loads are counted over all tokens, or over at most `COUNTED` of each representative.
    """
    smooth, alone = tokens.groups.smooth_and_own(tokens.pooled(kernel))
    # Whole tokens: of two groups of 5.5 one has 6 and one has 5, since loads of shares 5.5 / 6 would vary too little.
    sizes = np.diff(np.rint(tokens.groups.sizes.cumsum()), prepend=0.0)
    counts = np.minimum(sizes.astype(int), COUNTED)
    group = np.repeat(np.arange(len(sizes)), counts)
    common = eigen_root(smooth) @ generator.standard_normal((*smooth.shape[:-1], stack.experts))
    beside = np.sqrt(alone)[..., group, None] * generator.standard_normal((len(kernel), len(group), stack.experts))
    logits = gain(stack, "WR") ** 0.5 * (common[:, group] + beside)
    return _loads(routing(stack, logits).weights, logits, (sizes / counts)[group])
