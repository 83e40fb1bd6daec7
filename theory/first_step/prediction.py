"""Predict the first optimizer step: the loss decrease, the change of the logits, and the critical learning rate.

For a step θ − η u with u a function of the gradient g of the loss, the loss to second order, with the Gauss-Newton
matrix G, is

    ℓ − η g·u + η²/2 u'Gu,

which returns to ℓ at the critical learning rate 2 g·u/u'Gu. With r_i = (p_i − t_i)/P the gradient at the logits of
position i and w_i = (J u)_i the change of these logits for η = 1,

    g·u = Σ_i r_i·w_i,      u'Gu = (1/P) Σ_i w_i'(diag p_i − p_i p_i') w_i.

At large width w_i = Σ_j K_ij r_j + ζ_i, with K of `theory.first_step.tangent` (for u = g the tangent kernel) and ζ_i
of independent N(0, σ_e² E_ii/d) entries, E_ii the squared speed of the position's output. So only logits N(0, σ_e²
Q), labels and random attention weights are random, and they are sampled.

Source: this project.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theory.coverage import NoRuleError, holds_words, is_tied
from theory.first_step.motion import Steps, mean_kernel
from theory.first_step.output_matrix import OutputMatrix
from theory.first_step.outputs import (
    Outputs,
    counted_positions,
    curved_gradients,
    gram,
    mean_gram,
    pattern_count,
    sample_count,
    sampled_outputs,
    step_statistics,
)
from theory.first_step.rules import RULES, Rules
from theory.first_step.samples import SAMPLES
from theory.first_step.setting import check
from theory.first_step.tangent import Down, TwoPassSolution
from theory.first_step.tied_networks import TiedStep, sampled_tied_outputs, tied_statistics
from theory.mean_field.inputs import Inputs, checked_windows, word_inputs
from theory.mean_field.kernels import Array
from theory.stack import Stack, check_stack
from theory.stack.optimizers import LINEAR, Optimizer

# Networks on windows share samples as if there were so many.
_SHARING = 16


@dataclass(frozen=True, slots=True, eq=False)
class FirstStep:
    """The large-width prediction of one optimizer step at initialization, with its critical learning rate.

    The step is θ − η u with learning rate η.

    Means are over networks, at η = 1.

    Attributes:
        stack: the network.
        optimizer: name of the optimizer, which determines u from the gradient.
        matrices: roles of the matrices that are stepped.
        gain: E g·u, the loss's decrease per learning rate.
        gain_sem: standard error of the gain, because logits and labels are sampled.
        curvature: E u'Gu with the Gauss-Newton matrix.
        curvature_sem: standard error of the curvature.
        logit_change_sq: E of a logit's squared change, over positions that count and classes.
        critical_rate: 2 E g·u/E u'Gu.
        critical_rate_sem: standard error of the critical rate.
        critical_rate_median: the median over logits and labels of 2 g·u/u'Gu.
        gain_shares: share of each matrix in E g·u, by role: (L,), and for "Wemb" and "WH" ().
        curvature_shares: u'GU_W / u'Gu for the part U_W of the step in each matrix, in the limit V/d → 0; their sum is
            1.
        spread: share of u'Gu that is due to V/d, the logits' independent change ζ.
        relative_updates: |u_W|/|W| at η = 1, by role: (L,), and for "Wemb" and "WH" (): roots of means of squares.
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
    relative_updates: dict[str, Array]


def first_step(
    stack: Stack, optimizer: Optimizer = "sgd", *, matrices: Collection[str] | None = None, seed: int = 0,
    patterns: int | None = None, windows: NDArray[np.integer] | None = None,
) -> FirstStep:  # fmt: skip
    """Predict the first optimizer step of training at large width, for all matrices or chosen ones.

    Args:
        stack: the network, with one residual stream. With tied embeddings all token ids differ.
        optimizer: "sgd" has u = g, "normalized" u = g/‖g‖, "adam" u = sign g (ε → 0), "polar" the polar factor of
            each matrix's gradient and "muon" the Newton-Schulz steps of torch.optim.Muon instead of it, both times
            √max(1, d_out/d_in).
        matrices: roles of the matrices that the step updates, including "Wemb". The embedding tables "inputs",
            "positions" and "segments" are also allowed, with one row per token id or position. None for all matrices
            and no table.
        seed: random seed of the sampled logits and labels, and of attention samples.
        patterns: number of attention samples of every head if attention is random, at least 2; None for 4 to 16, more
            for few heads and layers. For a loss on a share of the positions, also the number of random choices of
            these.
        windows: token ids of shape (windows, n + 1), as in `predict`: equal ids share an input, and labels are the next
            ids. Means include the windows, and errors treat them as random samples. Embeddings must be untied. Without
            windows all token ids differ, and labels are independent.

    Raises:
        ValueError: the optimizer or a role is not known, there are fewer than 2 attention samples, all gradients of
            the matrices are 0, or windows have another length, ids that are not a class, or tied embeddings.
        NoRuleError: shared query and key matrices, dropout, an encoder, a second stream, tanh instead of norms, more
            than 64 tokens, V/d above 200, or tied embeddings with some further fields.

    Assumes d → ∞ at fixed L, n and V/d; corrections are O(L/d). Source: docs/first_step.md.

    >>> step = first_step(Stack(width=512, depth=2, tokens=8, vocab=16))
    >>> round(512 * step.critical_rate)  # d times the rate at two layers
    33
    """
    check_stack(stack)
    chosen = check(stack, optimizer, matrices)
    drawn, batches = pattern_count(stack, patterns), _batches(stack, windows)
    count = -(-drawn // len(batches)) * len(batches)
    sharing = drawn if windows is None else min(count, _SHARING)
    networks = [_networks(stack, optimizer, chosen, seed + k, sharing, batches[k % len(batches)]) for k in range(count)]
    return _summary(stack, optimizer, chosen, networks)


def moves_of_outputs(
    solution: TwoPassSolution, optimizer: Optimizer, chosen: Collection[str], outputs: Outputs, rules: Rules = RULES,
    multiplier: float = 1.0, adam_ratio: float | None = None,
) -> tuple[Array, Array, tuple[dict[str, Array], dict[str, Array]]]:  # fmt: skip
    """Return the change of the logits in one step, the variance of its random part, and squared weight changes.

    Squared norms of the weights are returned too.

    All positions must count in the loss.

    Args:
        solution: the network's forward and backward pass.
        optimizer: name of the optimizer.
        chosen: roles of the matrices that are stepped.
        outputs: softmax and gradients at the logits.
        rules: the optimizers' rules.
        multiplier: constant c by which the model multiplies its stored output matrix W; the Stack has c W. A step is
            linear in the gradient, which has a factor c, or has a fixed size. So the step of c W is c² or c times the
            step without a constant; all other matrices take the same step.
        adam_ratio: if given, the output matrix takes Adam's step times this number. Tied embeddings are this matrix.

    Raises:
        NoRuleError: `adam_ratio` is given, and embeddings are tied before an output transform.
    """
    of_output: tuple[Optimizer, float] = (
        (optimizer, multiplier**2 if optimizer in LINEAR else multiplier)
        if adam_ratio is None
        else ("adam", multiplier * adam_ratio)
    )
    if holds_words(solution.stack):
        step = TiedStep.of(solution, optimizer, chosen, outputs, rules, of_output)
        return *step.logits(solution, outputs), step.squared_updates(solution, optimizer)
    if adam_ratio is not None and is_tied(solution.stack):
        raise NoRuleError("theory has no rule for Muon and AdamW with tied embeddings before an output transform.")
    taken = _take_step(solution, optimizer, chosen, outputs, None, rules, of_output)
    return taken.moves(slice(None), outputs.r)[0], taken.speeds, _squared_updates(outputs, taken)


def _batches(stack: Stack, windows: NDArray[np.integer] | None) -> list[Inputs[Array] | None]:
    """Return the inputs of every batch of windows; [None] without windows, for words that all differ.

    Raises:
        ValueError: windows do not have n + 1 columns of classes, or embeddings are tied.
    """
    if windows is None:
        return [None]
    ids = checked_windows(stack, windows)
    if ids.max() >= stack.vocab:
        raise ValueError(f"windows must hold token ids below vocab = {stack.vocab}, got {ids.max()}.")
    if is_tied(stack):
        raise ValueError(
            "windows must be None for the first step of tied embeddings, whose tokens all differ there; `predict` and "
            "`noise_scale` take both."
        )
    inputs = word_inputs(stack, ids)
    return [inputs.part(slice(k, k + 1)) for k in range(len(inputs.kernel))]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step of all networks in one sample of attention weights.

    Attributes:
        solution: the network's forward and backward pass.
        optimizer: name of the optimizer.
        speeds: variances of the logits' random change at the positions that count.
        down: gradients of the backward pass.
        steps: steps of the matrices.
        coefficients: coefficients of the output tokens' motion on their gradients, (M or 1, N, N).
        output: the output matrix, if it is stepped; else None.
        of_output: optimizer of an untied output matrix, and the factor on its step.
    """

    solution: TwoPassSolution
    optimizer: Optimizer
    speeds: Array
    down: Down
    steps: list[Steps]
    coefficients: Array
    output: OutputMatrix | None
    of_output: tuple[Optimizer, float]

    def moves(self, part: slice, r: Array) -> tuple[Array, Array]:
        """Return the deterministic change of some networks' logits, and the output matrix's part of this change.

        Both have the shape (m, N, V).
        """
        at_words = self.down.tables["inputs"].gram
        at_words = at_words if len(at_words) == 1 else at_words[part]
        of_output = (
            np.zeros((1, 1, 1))
            if self.output is None
            else self.of_output[1] * self.output.moves(self.of_output[0], r, at_words)
        )
        c = self.coefficients if len(self.coefficients) == 1 else self.coefficients[part]
        return c * self.solution.stack.output_scale**2 @ r + of_output, of_output


def _take_step(
    solution: TwoPassSolution, optimizer: Optimizer, chosen: Collection[str], drawn: Outputs, kernel: Array | None,
    rules: Rules = RULES, of_output: tuple[Optimizer, float] | None = None,
) -> _Step:  # fmt: skip
    """Compute a step from sampled outputs.

    Args:
        solution: the network's forward and backward pass.
        optimizer: name of the optimizer.
        chosen: roles of the matrices that are stepped.
        drawn: softmax and gradients at the logits.
        kernel: Gram matrix of the gradients at the output tokens; None for that of the sampled outputs.
        rules: the optimizers' rules.
        of_output: optimizer of an untied output matrix, and the factor on its step; None for the same, and 1.
    """
    stack = solution.stack
    down = solution.down(gram(stack, drawn.r, drawn.r) if kernel is None else kernel)
    output = (
        OutputMatrix.of(stack, solution.output, solution.transform, rules, solution.inputs.words)
        if "Wemb" in chosen
        else None
    )
    words = (
        output.words(optimizer, drawn.r, down.tables["inputs"].gram) if output is not None and is_tied(stack) else None
    )
    steps = solution.steps(rules[optimizer], down, chosen, words)
    moved = solution.up(down, steps).motion
    speeds = np.diagonal(mean_kernel(moved.energy)) * stack.output_scale**2 / stack.width
    return _Step(
        solution, optimizer, speeds[drawn.counted], down, steps, moved.coefficients, output,
        of_output or (optimizer, 1.0),
    )  # fmt: skip


def _statistics(drawn: Outputs, taken: _Step) -> dict[str, Array]:
    parts = [
        step_statistics(piece, taken.moves(part, piece.r)[0], taken.speeds, normalized=taken.optimizer == "normalized")
        for part, piece in drawn.pieces()
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _inner_products_by_matrix(drawn: Outputs, taken: _Step) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return each matrix's part of g·u, and of u'Gu, by role.

    The latter is the product of U_W with the gradient of another loss, whose gradients at the logits are H_i w_i/P.
    """
    solution, crossed, of_outputs = taken.solution, list[Array](), np.zeros(2)
    for part, piece in drawn.pieces():
        w, of_output = taken.moves(part, piece.r)
        curved = curved_gradients(piece, w)
        crossed.append(gram(solution.stack, curved, piece.r))
        of_outputs += [(of_output * piece.r).sum(), (of_output * curved).sum()]
    kernel = np.concatenate(crossed)
    kernel = kernel.mean(0, keepdims=True) if len(taken.down.bottom.noise) == 1 else kernel
    both, at = [], taken.down.matrices
    for above, output in ((at, of_outputs[0]), (solution.down(kernel).matrices, of_outputs[1])):
        products = solution.inner_products_by_matrix(taken.steps, at, above)
        parts = {role: product.mean(-1) for role, product in products.items()}
        if taken.output is not None:
            # Tied, it moves the inputs, too.
            of_inputs = parts.pop("inputs").sum() if is_tied(solution.stack) else 0.0
            parts["Wemb"] = np.array(output / len(drawn.r) + of_inputs)
        both.append(parts)
    return both[0], both[1]


def _shares(parts: list[dict[str, Array]]) -> dict[str, Array]:
    """Return each matrix's share of the sum over matrices, from means over attention samples."""
    means = _mean(parts)
    whole = sum(float(value.sum()) for value in means.values())
    return {role: value / whole for role, value in means.items()}


def _mean(parts: list[dict[str, Array]]) -> dict[str, Array]:
    return {role: np.asarray(np.mean([part[role] for part in parts], axis=0)) for role in parts[0]}


def _squared_updates(drawn: Outputs, taken: _Step) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return E|u_W|² and |W|² by role; a normalized step's is still to be divided by |g|²."""
    squares, sizes = taken.solution.squared_updates(taken.optimizer, taken.steps, taken.down)
    if taken.output is not None:
        stack, at_words = taken.solution.stack, taken.down.tables["inputs"].gram
        squares["Wemb"] = np.array(
            taken.of_output[1] ** 2 * taken.output.squared_size(taken.of_output[0], drawn.r, at_words)
        )
        sizes["Wemb"] = np.array(stack.output_scale**2 * stack.vocab)
    return squares, sizes


@dataclass(frozen=True, slots=True, eq=False)
class _Networks:
    """The statistics of networks that share their attention samples, each with its own logits and labels.

    Attributes:
        each: statistics of every network, by name, from `step_statistics`.
        gain: mean g·u of the networks, exact for a linear step.
        curvature: mean u'Gu of the networks.
        gain_error: deviations of every network's g·u that are due to sampling.
        curvature_error: deviations of every network's u'Gu that are due to sampling.
        products: parts of g·u and of u'Gu, by role.
        updates: E|u_W|² and |W|², by role.
    """

    each: dict[str, Array]
    gain: float
    curvature: float
    gain_error: Array
    curvature_error: Array
    products: tuple[dict[str, Array], dict[str, Array]]
    updates: tuple[dict[str, Array], dict[str, Array]]


def _networks(
    stack: Stack, optimizer: Optimizer, chosen: tuple[str, ...], seed: int, patterns: int,
    inputs: Inputs[Array] | None,
) -> _Networks:  # fmt: skip
    """Return the statistics of networks with one attention sample.

    Args:
        stack: the network.
        optimizer: name of the optimizer.
        chosen: roles of the matrices that are stepped.
        seed: random seed of the attention sample.
        patterns: number of attention samples, among which the other samples are divided.
        inputs: inputs of the network; None for words that all differ.

    Raises:
        ValueError: all gradients are 0.
    """
    tied, linear, counted = holds_words(stack), optimizer in LINEAR, counted_positions(stack, seed)
    # With words signs are sampled of every network.
    samples, generator = SAMPLES // (patterns * (4 if tied and optimizer == "adam" else 1)), np.random.default_rng(seed)
    solution = TwoPassSolution.of(stack, seed, samples, inputs)
    exact = mean_gram(stack, solution.output, solution.inputs.same_label, counted) if linear and not tied else None
    if tied:
        drawn, coefficients = sampled_tied_outputs(solution, generator, patterns, counted), np.zeros(1)
        each, products, updates = tied_statistics(solution, optimizer, chosen, drawn)
    else:
        labels = None if solution.inputs.labels is None else solution.inputs.labels[0]
        count = sample_count(stack, linear=linear, patterns=patterns)
        drawn = sampled_outputs(stack, solution.output, generator, count, counted, given=labels)
        # The step of SGD is linear in the gradient, so that one kernel serves all samples.
        taken = _take_step(solution, optimizer, chosen, drawn, exact)
        each, coefficients = _statistics(drawn, taken), taken.coefficients
        products, updates = _inner_products_by_matrix(drawn, taken), _squared_updates(drawn, taken)
    if not each["change"].any():
        named = ", ".join(chosen)
        raise ValueError(f"matrices must have gradients that are not 0, got {named} of {stack.placement!r}.")
    gain, curvature = float(each["gain"].mean()), float(each["curvature"].mean())
    deviations, off = each["gain"] - gain, each["curvature"] - curvature
    if optimizer == "sgd" and exact is not None:
        output = stack.width / stack.output_scale**2 * solution.output * ("Wemb" in chosen)
        true_gain = float(((coefficients + output) * exact).sum())
        # The mean of g·g is exact; what it was off by in these samples is taken off u'Gu too.
        slope = float(deviations @ off) / max(float(deviations @ deviations), float(np.finfo(float).tiny))
        curvature, off = curvature - slope * (gain - true_gain), off - slope * deviations
        gain, deviations = true_gain, np.zeros_like(deviations)
    return _Networks(each, gain, curvature, deviations, off, products, updates)


def _summary(stack: Stack, optimizer: Optimizer, chosen: tuple[str, ...], networks: list[_Networks]) -> FirstStep:
    gains, curvatures = (np.array([getattr(group, name) for group in networks]) for name in ("gain", "curvature"))
    gain, curvature = float(gains.mean()), float(curvatures.mean())
    if len(networks) == 1:
        deviations, off = networks[0].gain_error, networks[0].curvature_error
    else:
        deviations, off = gains - gain, curvatures - curvature
    squares, sizes = (_mean([group.updates[k] for group in networks]) for k in (0, 1))
    whole = sum(float(part.sum()) for part in squares.values()) if optimizer == "normalized" else 1.0
    each = {name: np.concatenate([group.each[name] for group in networks]) for name in networks[0].each}
    if not each["curvature"].all():
        raise ValueError(
            "output_scale or embedding_scale must be smaller for a first step: the softmax gives one word the "
            f"probability 1 to within rounding, so that u'Gu is 0 there; got output_scale = {stack.output_scale:g}."
        )
    rate = 2 * gain / curvature
    return FirstStep(
        stack=stack,
        optimizer=optimizer,
        matrices=chosen,
        gain=gain,
        gain_sem=_sem(deviations),
        curvature=curvature,
        curvature_sem=_sem(off),
        logit_change_sq=float(each["change"].mean()),
        critical_rate=rate,
        critical_rate_sem=rate * _sem(deviations / gain - off / curvature),
        critical_rate_median=float(np.median(2 * each["gain"] / each["curvature"])),
        gain_shares=_shares([group.products[0] for group in networks]),
        curvature_shares=_shares([group.products[1] for group in networks]),
        spread=float(each["spread"].mean()) / curvature,
        # A squared update that is 0, as W^Q's of one token, comes out of either sign.
        relative_updates={role: np.sqrt(np.maximum(squares[role], 0) / sizes[role] / whole) for role in squares},
    )


def _sem(values: Array) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)
