"""Experts in one optimizer step: the MLPs of a layer, each with the tokens that its router sends to it.

The choice of experts is held fixed, as in the Gauss-Newton matrix. So f(u_i) = Σ_e p_ie F_e(u_i) is a sum of
independent MLPs with a factor p_ie on the output of every token and on its gradient, and expert e has the tokens with
p_ie > 0 only. A step moves f(u_i) by Σ_ej p_ie C^e_ij p_je g_j, where C^e follows from the Gram matrix p_ie p_je g_i·g_j
of the expert's own gradients. Experts without tokens do not move.

The router's logits r_if receive a_if = Σ_e t_ie ∂p_ie/∂r_if, with t_ie = g_i·F_e(u_i) Gaussian. Its step, and the
motion of its input, change p, and f(u_i) by Σ_e ṗ_ie F_e(u_i), which is random to all layers above but for a part of
order 1/√d along g.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theory.first_step.motion import Gradients, MatrixGradient, Steps, TokenMotion, mean_kernel
from theory.first_step.rules import Branch, MatrixUse, Rule, sign_rule
from theory.first_step.units import FeedForward
from theory.mean_field.experts import Routed
from theory.mean_field.kernels import Array, MatrixLayout, eigen_root
from theory.stack import Stack
from theory.stack.weights import gain, weight_shapes

# Sampled gradients at the router's logits of all experts.
_DRAWS = 16


@dataclass(slots=True, eq=False)
class ExpertUnits(Branch):
    """The experts of a layer, with their gradients and the change of their weighted sum in one optimizer step.

    Attributes:
        stack: the network.
        given: kernel of the branch's input, (1, N, N).
        routed: the sampled weights of the experts for all tokens.
        seed: random seed of the samples.
        samples: largest number of samples for each expert.
        parts: for every used expert its tokens' indices, products of their weights, and MLP.
        uses: the router, and the matrices of one expert.
    """

    stack: Stack
    given: Array
    routed: Routed
    seed: int
    samples: int
    parts: list[tuple[Any, Array, FeedForward]] = field(init=False)
    uses: list[MatrixUse] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = []
        for expert, weights in enumerate(self.routed.route.weights[0].T):
            chosen = np.flatnonzero(weights)
            if len(chosen):
                at = np.ix_(chosen, chosen)
                seed = self.seed * self.stack.experts + expert
                mlp = FeedForward(self.stack, MatrixLayout(len(chosen)), self.given[:, *at], seed, self.samples)
                self.parts.append(((..., *at), np.outer(weights, weights)[at], mlp))
        seen = np.ones((1, self.stack.rows))
        router = MatrixUse("WR", weight_shapes(self.stack)["WR"], self.stack.width * self.given, seen)
        self.uses = [router, *self.parts[0][2].uses]

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        at_logits = self.routed.route.at_logits(self.routed.output, noise, None)
        below = gain(self.stack, "WR") * at_logits
        gradients = {role: MatrixGradient.without_overlaps(g) for role, g in (("WR", at_logits), ("W2", noise))}
        for k, (at, weights, mlp) in enumerate(self.parts):
            of_expert, _, matrices = mlp.down(noise[at] * weights, part[at])
            below[at] += of_expert
            gradients |= {f"{k} {role}": gradient for role, gradient in matrices.items()}
        return below, part, gradients

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        c, energy = np.zeros((2, *gradients["W2"].gram.shape))
        for k, (at, weights, mlp) in enumerate(self.parts):
            given = TokenMotion(moved.coefficients[at], moved.overlaps[at], moved.energy[at])
            own = _of(k, gradients)
            motion = mlp.up(given, own, _of(k, steps))
            alone = motion.energy - motion.coefficients @ own["W2"].gram @ motion.coefficients.mT
            c[at] += weights * motion.coefficients
            energy[at] += weights * alone
        by_logits = gain(self.stack, "WR") * self.routed.route.at_logits(self.routed.output, 1.0, None)
        c = c + by_logits * moved.coefficients + steps.get("WR", 0.0)
        energy = energy + by_logits * moved.energy + steps.get("WR remainder", 0.0)
        return TokenMotion(c, moved.overlaps, energy + c @ gradients["W2"].gram @ c.mT)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        steps = self._router_steps(rule, gradients) if "WR" in matrices else Steps()
        for k, (at, weights, mlp) in enumerate(self.parts):
            own = mlp.steps(rule, _of(k, gradients), matrices)
            steps |= {f"{k} {role}": c for role, c in own.items()}
            if "W2" in own:
                steps.setdefault("W2", np.zeros_like(gradients["W2"].gram))[at] += weights * own["W2"]
        return steps

    def _router_steps(self, rule: Rule, gradients: Gradients) -> Steps:
        route, output, d = self.routed.route, self.routed.output, self.stack.width
        p, slopes, shares = route.weights, route.slopes, route.shares
        root = eigen_root(mean_kernel(output * gradients["W2"].gram))
        t = root @ np.random.default_rng([3, self.seed]).standard_normal((_DRAWS, *p.shape[1:]))
        a = slopes * t - shares * (p * t).sum(-1, keepdims=True)
        rows = self.uses[0].rows
        if rule is sign_rule:
            squares = (a * (rows @ a)).sum(-2, keepdims=True)
            over = np.where(squares > 0, (2 / np.pi * d) ** 0.5 / np.sqrt(np.where(squares > 0, squares, 1.0)), 0.0)
            c = rows[..., None] * over.mean(0)
            moved = rows @ a * over
        else:
            c = rule(self.uses[0], gradients["WR"].gram)
            moved = mean_kernel(c) @ a
            c = c[..., None]
        of_p = slopes * moved - p * (shares * moved).sum(-1, keepdims=True)
        by = lambda x, y: x[..., :, None, :] * y[..., None, :, :]
        crossed = by(slopes, p * shares)
        m = by(slopes, slopes) - crossed - crossed.swapaxes(-2, -3) + route.overlap[..., None] * by(shares, shares)
        return {
            "WR": output * (m * c).sum(-1),
            "WR remainder": d * output * (of_p @ of_p.mT).mean(0),
        }

    def deviation(self, deltas: Array, steps: Steps) -> Array:
        beyond = np.zeros_like(deltas)
        for k, (at, weights, mlp) in enumerate(self.parts):
            chosen, w = at[-1][0], np.sqrt(np.diagonal(weights))
            beyond[:, chosen] += w * mlp.deviation(deltas[:, chosen] * w, _of(k, steps))
        return beyond

    def squared_sizes(self, optimizer, steps, gradients):
        sums = {}
        for k, (_, _, mlp) in enumerate(self.parts):
            for role, sizes in mlp.squared_sizes(optimizer, _of(k, steps), _of(k, gradients)).items():
                sums[role] = sums.get(role, 0.0) + np.array(sizes)
        return sums

    def inner_products_by_matrix(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        products: dict[str, Array] = {}
        if "WR" in steps:
            products["WR"] = (steps["WR"] * others["W2"].gram).sum((-2, -1))
        for k, (_, _, mlp) in enumerate(self.parts):
            own = mlp.inner_products_by_matrix(_of(k, steps), _of(k, gradients), _of(k, others))
            products |= {role: products.get(role, 0.0) + product for role, product in own.items()}
        return products


def _of(k: int, entries: dict[str, Any]) -> dict[str, Any]:
    # Return the entries of one expert.
    return {key.removeprefix(f"{k} "): value for key, value in entries.items() if key.startswith(f"{k} ")}
