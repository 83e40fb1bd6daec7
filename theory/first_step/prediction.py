"""The first step: what it gains, how the loss curves along it, how far logits move, and the critical rate.

For a step θ − η u with u a function of the gradient g of the loss, the loss to second order, with the Gauss-Newton
matrix G, is

    ℓ − η g·u + η²/2 u'Gu,

back at its start at the critical rate 2 g·u/u'Gu. With r_i = (p_i − t_i)/P the gradient at the logits of position i and
w_i = (J u)_i how far these move for η = 1,

    g·u = Σ_i r_i·w_i,      u'Gu = (1/P) Σ_i w_i'(diag p_i − p_i p_i') w_i.

At large width w_i = Σ_j K_ij r_j + ζ_i, with K of `theory.first_step.tangent` (for u = g the tangent kernel) and ζ_i of
independent N(0, σ_e² E_ii/d) entries, E_ii the squared speed of the position's output. So only logits N(0, σ_e² Q) and
labels are random, and they are sampled.

Source: this project.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from theory.first_step.rules import LINEAR, OPTIMIZERS, RULES, Met, Optimizer
from theory.first_step.tangent import Walk
from theory.mean_field.attention.sampled import is_fluctuating
from theory.mean_field.inputs import attention_pattern, gaussian_inputs, loss_positions, sampled_labels
from theory.mean_field.kernels import Labelled, cholesky
from theory.mean_field.prediction import NoRuleError
from theory.mean_field.recursion import output_gradient
from theory.stack import Stack
from theory.stack.weights import weight_shapes

Array = NDArray[np.float64]

MOST_ROWS = 64
"""Tokens of all sequences that a prediction is for: means of four slopes are n⁴ numbers a sample."""

_LARGEST_SHARE = 4.0  # of V/d, up to which the law of the logits' change has been compared with networks
_SEED = 0
# Samples of logits and labels: so many numbers, no fewer and no more than these; of rules that ask for each its own C
# as many as fit.
_NUMBERS, _FEWEST, _MOST = 2**20, 256, 2**13
_KERNELS, _FEWEST_KERNELS, _MOST_KERNELS = 2**16, 16, 512


@dataclass(frozen=True, slots=True, eq=False)
class FirstStep:
    """Large-width theory of one step θ − η u at initialization.

    Means are over networks, at η = 1.

    Attributes:
        stack: the network.
        optimizer: what u is of the gradient.
        matrices: roles of what is stepped.
        gain: E g·u, the loss's decrease per rate.
        gain_sem: its standard error, for logits and labels are sampled.
        curvature: E u'Gu with the Gauss-Newton matrix.
        curvature_sem: its standard error.
        logit_change_sq: E of a logit's squared change, over positions that count and classes.
        critical_rate: 2 E g·u/E u'Gu.
        critical_rate_sem: its standard error.
        critical_rate_median: the median over logits and labels of 2 g·u/u'Gu.
        gain_shares: share of each matrix in E g·u, by role: (L,), and of "Wemb" ().
        curvature_shares: of u'GU_W for the part U_W of the step in each matrix, in u'Gu as V/d → 0; they sum to 1.
        spread: share of u'Gu that is due to V/d, the logits' independent change ζ.
    """

    stack: Stack
    optimizer: Optimizer
    matrices: tuple[str, ...]
    gain: float
    gain_sem: float
    curvature: float
    curvature_sem: float
    logit_change_sq: float
    critical_rate: float
    critical_rate_sem: float
    critical_rate_median: float
    gain_shares: dict[str, Array]
    curvature_shares: dict[str, Array]
    spread: float


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Samples of what is random: p (M, P, V) and r (M, N, V) of positions that count, r of all."""

    p: Array
    r: Array
    counted: NDArray[np.bool_]


def first_step(
    stack: Stack, optimizer: Optimizer = "sgd", *, matrices: Collection[str] | None = None, seed: int = _SEED
) -> FirstStep:
    """Large-width theory of the first step of training, from all matrices or some.

    Args:
        stack: the network, of one stream, with fixed attention and embeddings of its own.
        optimizer: "sgd" has u = g, "normalized" u = g/|g|, "muon" the polar factor of each matrix's gradient and
            "newton-schulz" what torch.optim.Muon has in its place, both times √max(1, d_out/d_in).
        matrices: roles that are stepped, "Wemb" included; all of them, if None. The inputs are not.
        seed: of the sampled logits and labels.

    Raises:
        ValueError: an unknown optimizer or role, or matrices whose gradients are all 0.
        NoRuleError: attention is random, embeddings are tied, something is dropped, there is a source or a second
            stream, more than 64 tokens, or V/d is above 4.

    Assumes d → ∞ at fixed L, n and V/d; corrections are O(L/d). Source: docs/first_step.md.

    >>> step = first_step(Stack(width=512, depth=2, tokens=8, vocab=16))
    >>> round(512 * step.critical_rate)  # d times the rate at two layers
    33
    """
    _check(stack, optimizer)
    chosen = _chosen(stack, matrices)
    walk, linear = Walk.of(stack), optimizer in LINEAR
    drawn = _draw(stack, walk.output, np.random.default_rng(seed), linear=linear)
    # The step of SGD is linear in the gradient, so that one kernel serves all samples.
    kernel = _mean_gram(stack, walk) if linear else _gram(stack, drawn.r, drawn.r)
    gradients = walk.down(kernel)
    steps = walk.steps(RULES[optimizer], gradients, chosen)
    moved = walk.up(gradients, steps)
    own = _output_step(stack, walk, optimizer, drawn.r) if "Wemb" in chosen else np.zeros((1, 1, 1))
    w = (moved.coefficients * stack.output_scale**2 + own) @ drawn.r
    # What the logits move by at random: variances of every position that counts.
    speeds = np.diagonal(_mean(moved.energy)) * stack.output_scale**2 / stack.width
    if not w.any():
        raise ValueError(
            f"matrices must have gradients that are not 0, got {', '.join(chosen)} of {stack.placement!r}."
        )
    each = _each(drawn, w, speeds[drawn.counted], normalized=optimizer == "normalized")
    shares = _shares(stack, walk, drawn, w, gradients, steps, own)
    exact = float((moved.coefficients + own / stack.output_scale**2).ravel() @ kernel.ravel()) if linear else None
    return _summary(stack, optimizer, chosen, each, shares, exact if optimizer == "sgd" else None)


def _check(stack: Stack, optimizer: Optimizer) -> None:
    """Refuse what there is no theory of.

    Raises:
        ValueError: the optimizer is unknown.
        NoRuleError: the stack has no rule.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.")
    if is_fluctuating(stack) or stack.embeddings == "tied" or stack.dropout or stack.attention_dropout:
        raise NoRuleError(
            "stack must have fixed attention, untied embeddings and no dropout for a prediction of its first step, "
            f"got {stack.non_default()}."
        )
    if stack.source_tokens or stack.composition.second_stream:
        raise NoRuleError(
            "stack must be one stream without a source for a prediction of its first step, got placement "
            f"{stack.placement!r} with {stack.source_tokens} source tokens."
        )
    if stack.rows > MOST_ROWS or stack.vocab > _LARGEST_SHARE * stack.width:
        raise NoRuleError(
            f"tokens of all sequences must be at most {MOST_ROWS} and vocab at most {_LARGEST_SHARE:g} * width for a "
            f"prediction of the first step, got {stack.rows} and {stack.vocab / stack.width:g}."
        )


def _chosen(stack: Stack, matrices: Collection[str] | None) -> tuple[str, ...]:
    """Roles that are stepped.

    Raises:
        ValueError: there is none, or one that the stack does not have.
    """
    known = (*weight_shapes(stack), "Wemb")
    if matrices is None:
        return known
    if isinstance(matrices, str) or not matrices or not set(matrices) <= set(known):
        raise ValueError(f"matrices must be some of {', '.join(known)}, got {matrices!r}.")
    return tuple(role for role in known if role in matrices)


def _draw(stack: Stack, output: Array, generator: np.random.Generator, *, linear: bool) -> _Drawn:
    """Logits and labels of as many networks as are worth it."""
    n, vocab = stack.rows, stack.vocab
    count = int(np.clip(_NUMBERS // (n * vocab), _FEWEST, _MOST))
    if not linear:
        count = min(count, int(np.clip(_KERNELS // n**2, _FEWEST_KERNELS, _MOST_KERNELS)))
    logits = stack.output_scale * cholesky(output) @ generator.standard_normal((count, n, vocab))
    p, labels, counted = softmax(logits, axis=-1), sampled_labels(stack, count, generator), loss_positions(stack) > 0
    certain = np.eye(vocab)[labels] * (1.0 - stack.label_smoothing)
    r = (p - certain - stack.label_smoothing / vocab) * counted[:, None] / counted.sum()
    return _Drawn(p[:, counted], r, counted)


def _gram(stack: Stack, first: Array, second: Array) -> Array:
    """The symmetric part of the products of two fields of gradients at the output tokens, (M, N, N)."""
    product = first @ second.mT * stack.output_scale**2
    return np.asarray((product + product.mT) / 2)


def _mean_gram(stack: Stack, walk: Walk) -> Array:
    """The same of r with itself, its mean: exact, (1, N, N)."""
    tokens = Labelled(stack.rows, attention_pattern(stack), stack.sequences)
    return np.asarray(output_gradient(stack, tokens, walk.output[None], gaussian_inputs(stack).same_label))


def _output_step(stack: Stack, walk: Walk, optimizer: Optimizer, r: Array) -> Array:
    """C of the output matrix."""
    met = Met("Wemb", (stack.width, stack.vocab), stack.width * walk.output[None])
    return RULES[optimizer](met, r @ r.mT)


def _each(drawn: _Drawn, w: Array, speeds: Array, *, normalized: bool) -> dict[str, Array]:
    """Of every sample: g·u, u'Gu, what of it is due to the random part, and a logit's squared change, (M,) each."""
    gain, counted = (drawn.r * w).sum((-2, -1)), w[:, drawn.counted]
    average = (drawn.p * counted).sum(-1)
    seen = ((drawn.p * counted**2).sum(-1) - average**2).mean(-1)
    spread = ((1.0 - (drawn.p**2).sum(-1)) * speeds).mean(-1)
    change = (counted**2).mean((-2, -1)) + speeds.mean()
    # u = g/|g|, with |g|² = g·g of what is stepped.
    size = gain if normalized else np.ones(1)
    return {
        "gain": gain / size**0.5, "curvature": (seen + spread) / size, "spread": spread / size, "change": change / size,
    }  # fmt: skip


def _shares(
    stack: Stack, walk: Walk, drawn: _Drawn, w: Array, gradients: list[dict[str, Array]],
    steps: list[dict[str, Array]], own: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:  # fmt: skip
    """Each matrix's part of g·u and of u'Gu, as shares of the sums over matrices.

    The latter is the product of U_W with the gradient of another loss, whose gradients at the logits are H_i w_i/P.
    """
    curved = np.zeros_like(w)
    counted = w[:, drawn.counted]
    average = (drawn.p * counted).sum(-1, keepdims=True)
    curved[:, drawn.counted] = drawn.p * (counted - average) / drawn.counted.sum()
    crossed = _gram(stack, curved, drawn.r)
    crossed = crossed.mean(0, keepdims=True) if len(gradients[0]["total"]) == 1 else crossed
    found = []
    for above, output in ((gradients, drawn.r), (walk.down(crossed), curved)):
        parts = dict[str, list[float]]()
        for k, taken in enumerate(steps):
            for met in walk.places[k][1].mets:
                if met.role in taken:
                    total = float((taken[met.role] * above[k][met.role]).sum((-2, -1)).mean())
                    parts.setdefault(met.role, []).append(total)
        arrays = {role: np.array(value) for role, value in parts.items()}
        if own.any():
            arrays["Wemb"] = np.array(((own @ drawn.r) * output).sum((-2, -1)).mean())
        whole = sum(float(value.sum()) for value in arrays.values())
        found.append({role: value / whole for role, value in arrays.items()})
    return found[0], found[1]


def _summary(
    stack: Stack, optimizer: Optimizer, chosen: tuple[str, ...], each: dict[str, Array],
    shares: tuple[dict[str, Array], dict[str, Array]], exact: float | None,
) -> FirstStep:  # fmt: skip
    gains, curvatures = each["gain"], each["curvature"]
    gain, curvature = float(gains.mean()), float(curvatures.mean())
    own, off = gains - gain, curvatures - curvature
    if exact is not None:
        # The mean of g·g is exact; what it was off by in these samples is taken off u'Gu too.
        slope = float(own @ off) / max(float(own @ own), float(np.finfo(float).tiny))
        curvature, off = curvature - slope * (gain - exact), off - slope * own
        gain, own = exact, np.zeros_like(own)
    rate = 2 * gain / curvature
    return FirstStep(
        stack=stack,
        optimizer=optimizer,
        matrices=chosen,
        gain=gain,
        gain_sem=_sem(own),
        curvature=curvature,
        curvature_sem=_sem(off),
        logit_change_sq=float(each["change"].mean()),
        critical_rate=rate,
        critical_rate_sem=rate * _sem(own / gain - off / curvature),
        critical_rate_median=float(np.median(2 * gains / curvatures)),
        gain_shares=shares[0],
        curvature_shares=shares[1],
        spread=float(each["spread"].mean()) / curvature,
    )


def _sem(values: Array) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def _mean(kernel: Array) -> Array:
    return np.asarray(kernel.reshape(-1, *kernel.shape[-2:]).mean(0))
