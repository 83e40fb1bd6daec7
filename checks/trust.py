"""The expected errors of predictions at finite width, which decide which predictions are tested with samples.

The estimates use coefficients that were measured for families of networks, for predictions and for the four numbers of
a first step.
"""

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from checks.statistics import MARGIN
from theory import Stack
from theory.coverage import gaps
from theory.mean_field.attention.sampled import looks_at_itself
from theory.mean_field.inner_widths import attention_widths, feed_forward_widths, unit_moments
from theory.stack.groups import Matrices
from theory.stack.optimizers import Optimizer

COEFFICIENTS, STEP_COEFFICIENTS = (
    Path(__file__).parent / "data" / "large_width" / name for name in ("coefficients.json", "first_steps.json")
)
"""The files of coefficients c, as measured by `make evidence PART=width-families` and `PART=first-step-families`."""

ALLOWED = 2 / 3 * MARGIN
"""The largest error by finite width of a number that is judged; the rest of the margin is for neglected corrections."""

PER_ORDER = 80 * ALLOWED
"""The assumed coefficient of a correction of which only the order is known: L/d, rows/(5 d), or the output's.

For one token and Post-LN, the exact coefficient is 55/36 per layer (docs/finite_width.md).
"""

BiasClass = Literal["queries of a source", "queries", "others"]
"""The kinds of quantities that finite width changes by different amounts.

Gradients of W^Q and W^K have one kind with a source and one without; all other quantities have the third.
"""

Number = Literal["gain", "curvature", "critical_rate", "logit_change_sq"]
NUMBERS: tuple[Number, ...] = get_args(Number)
"""The numbers of a first step."""

REFERENCE_DEPTH, REFERENCE_SCALE = 3, 1.5
"""L and s of the networks with which the coefficients of predictions were measured."""

DEPTH, TOKENS, VOCAB, HEADS, SCALE = 4, 8, 64, 8, 1.0
"""L, n, V, h and s of the networks with which the coefficients of first steps were measured."""

PLAIN, STEEPEST = 1.5, 2.25
"""Limits of the exponent with which the energy of units grows with their input's energy.

At most the first counts as plain, and at most the second was measured without a norm. ReLU has 1, SiLU 1.17, a gated
SiLU 2.17.
"""

CERTAIN = 0.1
"""The known relative error above which it is reported instead of a missing coefficient of unknown effect."""

SMALL = 0.05
"""The energy of inputs below which they count as small: the first branch then dominates the stream, and fluctuates with
it.
"""

SMALL_INPUTS, SMALL_GAIN = 0.02, 0.1
"""The standard deviation of small inputs, and the gain of every matrix with them: entries of 0.02 at d = 256."""

SEMS = 2.0
"""The number of standard errors that is added to a measured coefficient of a first step."""

VALUES: dict[str, float] = {"gain": 2.0, "curvature": 6.0, "critical_rate": -4.0, "logit_change_sq": 6.0}
"""The part of SGD's coefficients that is proportional to d/(k d_k), with k d_k values, by number.

With small inputs, the stream consists only of the first branch f = v W^O, or its norm. Its square has the relative
variance V = 2 (1 + d/(k d_k))/d. Gradients below contain 1/|f|^2, with mean 1 + V, and the curvature contains its
square, with mean 1 + 3 V.
"""

SQUARED = 6.0
"""The factor between the curvature's error and the error of squared gradients.

The curvature is quadratic in products of energies, and squared gradients are means of such products. For a log-normal
product R with mean 1 + mu/d and Var ln R = 4 mu/d, as in Post-LN with one token (docs/finite_width.md), R^2 has the
mean 1 + 6 mu/d. The factor is used if a family was not measured, and for the contribution of few units or values.
"""

SPREAD: dict[Optimizer, float] = {"polar": 0.5, "muon": 7.0}
"""The coefficient of n/d in the error of steps that are computed from singular values, by optimizer.

Gram matrices of n Gaussian rows scatter by sqrt(n/d), and these steps contain products of two of them. The root of
eigenvalues with variance 2 n/d is off by n/(4 d), and the curvature by twice that. The polynomial of Newton-Schulz
steps oscillates where theory has equal values: 6.5 n/d was measured (tests/evidence/first-step-vocab.json).
"""

MEASURED: tuple[Optimizer, ...] = ("sgd", "adam", "polar")
_LIKE: dict[Optimizer, Optimizer] = {"normalized": "sgd", "muon": "polar"}


class Trust(NamedTuple):
    """The expected relative error of one predicted number at a network's width, and the reason if it is not judged.

    Attributes:
        error: the largest expected relative error by finite width, from measured coefficients.
        why: the reason why a prediction is only shown, not judged, or why a part of a first step's error is unknown; ""
            if neither.
    """

    error: float
    why: str

    @classmethod
    def of(cls, stack: Stack, number: str = "loss", optimizer: Optimizer = "sgd") -> "Trust":
        """Estimate the relative error of one predicted number for a network of finite width.

        Args:
            stack: the network.
            number: a name in `theory.QUANTITIES` (gradients of queries and keys have larger errors), or one of
                `NUMBERS`.
            optimizer: the optimizer of the first step, for one of `NUMBERS`.
        """
        if number in NUMBERS:
            return cls(_step_error(stack, number, optimizer), _unmeasured_step(stack))
        return _of_prediction(stack, class_of(number))


# Judges ask for every quantity of a cell, of which there are three kinds.
@lru_cache(maxsize=1024)
def _of_prediction(stack: Stack, kind: BiasClass) -> Trust:
    """Return the `Trust` in a kind of predicted quantities, from the largest correction.

    The reason names a missing rule, a missing coefficient, or the width that would be sufficient.
    """
    if stack.encoder_depth:  # coefficients were measured with parts of one depth
        stack = replace(stack, depth=stack.most_layers, encoder_depth=0)
    worst, why = max(_corrections(stack, kind), key=lambda correction: correction.size), ""
    error, times = worst.size / stack.width, worst.size / (ALLOWED * stack.width)
    if missing := gaps(stack, "queries"):
        why = f"no rule: {missing[0].because}"
    elif error <= CERTAIN and (unknown := unmeasured(stack)):
        why = f"no coefficient: {unknown}"
    elif looks_at_itself(stack) and (order := _stream_scale(stack) ** 4) / stack.heads > ALLOWED / PER_ORDER:
        why = f"not enough heads: own logits over sqrt(d/h) ask for h >= {math.ceil(order * PER_ORDER / ALLOWED)}"
    elif times > 1 + 1e-12:
        why = f"not wide enough: {worst.what} need {worst.counted} >= {math.ceil(worst.amount * times)}"
    return Trust(error, why)


def class_of(name: str) -> BiasClass:
    """Return which of the kinds of finite-width error a quantity has, by its name."""
    if name.endswith(("_XQ", "_XK")):
        return "queries of a source"
    return "queries" if name.endswith(("_WQ", "_WK")) else "others"


def family(stack: Stack) -> str:
    """Return the name of a network's family: its norms, hidden units, attention, and whether it has cross-attention.

    Without norms, units whose energy grows like the square of their input's energy, as for squared ReLU, count as
    gated. With a source, logits divided by d/h count as logits divided by sqrt(d/h), whose coefficients are nearly
    equal.
    """
    placement = "no norms" if stack.normalization == "none" else stack.placement
    ffn = "gated" if _is_bare(stack) and unit_moments(stack).power > PLAIN else stack.ffn
    attention = "uniform"
    if stack.query_key_scale:
        linear = stack.attention_scale == "linear" and not stack.source_tokens
        attention = "linear queries" if linear else "queries"
    return ", ".join([placement, ffn, attention] + (["source"] if stack.source_tokens else []))


@lru_cache(maxsize=2)
def coefficients(file: Path = COEFFICIENTS) -> dict[str, Any]:
    """Load the measured coefficients c of finite-width errors c / d, by family of networks and kind of quantity.

    The relative error of a network at the reference is c/d.
    """
    return json.loads(file.read_text(encoding="utf-8"))["families"]


class Correction(NamedTuple):
    """A relative correction of order 1/d to a prediction, with its cause and the size that would reduce it.

    Attributes:
        size: d times the relative correction.
        what: the cause of the correction, in words.
        counted: the size whose growth reduces the correction, as a formula.
        amount: the value of `counted` for this network.
    """

    size: float
    what: str
    counted: str
    amount: float


def _corrections(stack: Stack, kind: BiasClass) -> list[Correction]:
    """Return the relative corrections of a network's quantities, by cause.

    Corrections are O(L/d) in the first layers, c/d with c from the family and from widths inside branches, and
    `output_correction`. The overlap of a matrix with its n inputs gives O(n/d): the output matrix's gradient is off by
    0.06 n/d at L = 1, V = 16, and a fifth of `PER_ORDER` is above this. Theory is exact for heads of any width, so d/h
    does not enter, except in two cases (docs/attention.md). The first is one matrix for queries and keys, which puts a
    token's logit with itself into the exponent. The second is 1/d_k, which theory omits if queries and keys are
    normalized or rotated.
    """
    width = stack.width
    corrections = [
        Correction(PER_ORDER * stack.depth, f"{stack.depth} layers", "d", width),
        Correction(PER_ORDER * stack.rows / 5, f"{stack.rows} tokens", "d", width),
        Correction(PER_ORDER * output_correction(stack) * width, "the logits", "d", width),
    ]
    inner = _inside_branches(stack)
    shaped = stack.query_key_scale > 0.0 and (stack.query_key_norm == "head" or stack.rotary > 0.0)
    if shaped and kind != "others":
        of_head = stack.key_width
        inner.append(
            Correction(width / of_head, f"normalized or rotated heads of {of_head} coordinates", "d_k", of_head)
        )
    if (row := coefficients().get(family(stack))) is not None:
        inner.append(Correction(_family_size(stack, row, kind), f"stacks of the family '{family(stack)}'", "d", width))
    if inner:  # these are of the same numbers, and add up; the largest is named
        worst = max(inner, key=lambda correction: correction.size)
        corrections.append(worst._replace(size=sum(correction.size for correction in inner)))
    return corrections


def _inside_branches(stack: Stack) -> list[Correction]:
    """Return the corrections from few or heavy-tailed coordinates inside branches, beyond the family's own.

    The result is empty without norms. Corrections multiply from layer to layer only in a normalized stream
    (docs/finite_width.md). Otherwise branches add up, and the largest sub-layer counts.
    """
    if _is_bare(stack):
        return []
    layers = max(1.0, (1 + stack.depth) / (1 + REFERENCE_DEPTH)) if stack.composition.stream_norm else 1.0
    attention, feed_forward = attention_widths(stack), feed_forward_widths(stack)
    usual = _usual(stack)
    shared, of_values = stack.key_heads < stack.heads, stack.key_heads * stack.key_width
    units = f"{stack.ffn_width} hidden units of '{stack.activation}'"
    values = f"values of {of_values} coordinate{'s' * (of_values > 1)}{', which heads share,' * shared}"
    dropped = max(attention.dropout_correction, feed_forward.dropout_correction)
    dropped *= (1 + stack.depth) / 2 if stack.composition.stream_norm else 1.0  # of both branches
    above_usual = feed_forward.correction - feed_forward_widths(usual).correction
    return [
        Correction(layers * max(0.0, above_usual), units, "r d", stack.ffn_width),
        Correction(layers * attention.correction, values, "k d_k" if shared else "h d_k", of_values),
        Correction(dropped, f"branches with dropout {stack.dropout:g}", "(1 - p) d", (1 - stack.dropout) * stack.width),
    ]


def output_correction(stack: Stack) -> float:
    """Return the order of the relative 1/d correction at the output: ((1 − ε)² + min(σ_e², 2 ln V)) / (A d).

    The gradient at the output is W_embᵀ(p − t), and W_emb depends on p. Its component along x_out is z·(p − t)/√d with
    logits z. Its square contains the contribution (1 − ε)² σ_e² of the label and the square of z·p. The latter has mean
    σ_e² (1 − p·p) by Stein's lemma until the softmax saturates, and is of order σ_e² 2 ln V beyond. The other
    components have σ_e² |p − t|², with A = E|p − t|² = (1 − ε)²(1 − 1/V) + E p·p − 1/V and E p·p near min(e^σ_e², V)/V.
    A is limited to 1. With targets spread over all classes, A is small and the correction large.
    """
    kept, vocab, energy = (1.0 - stack.label_smoothing) ** 2, stack.vocab, stack.output_scale**2
    spread = math.expm1(min(energy, math.log(vocab))) / vocab
    return (kept + min(energy, 2.0 * math.log(vocab))) / (min(1.0, kept * (1.0 - 1.0 / vocab) + spread) * stack.width)


def _family_size(stack: Stack, row: dict[str, dict[str, float]], kind: BiasClass) -> float:
    """Return |c| of a family at a stack's own L and s, and for queries and keys at its own n.

    From L = 3 to L, corrections grow like the number of sub-layers passed, 1 + L. With logits larger than at s = 1.5,
    fluctuations of |x|² change attention weights, and corrections grow like s⁴. Gradients of queries and keys depend on
    differences of tokens, which layers align. For these gradients, the growth with L enters twice, and more than four
    tokens multiply the result by n/4. Without norms, fluctuations of the energy multiply from layer to layer, and c
    grows like the variance that one sub-layer adds.
    """
    size = abs(row.get(kind, row["others"])["c"]) * (1 + stack.depth) / (1 + REFERENCE_DEPTH)
    if stack.query_key_scale:
        size *= max(1.0, (_stream_scale(stack) / REFERENCE_SCALE) ** 4)
    if kind != "others":
        size *= max(1.0, (1 + stack.depth) / (1 + REFERENCE_DEPTH)) * max(
            1.0, max(stack.tokens, stack.source_tokens) / 4
        )
    if _is_bare(stack):
        usual = _usual(stack)  # which has no branch at all in a ReZero whose tau was given, and no coefficient
        kinds = (attention_widths, feed_forward_widths)
        size *= max(1.0, *(of(stack).fluctuation / (of(usual).fluctuation or 1.0) for of in kinds))
    return size


def _is_bare(stack: Stack) -> bool:
    """Return whether the stream meets no norm before, inside or after branches, and branches are not 0."""
    composition = stack.composition
    return not (composition.input_norm or composition.stream_norm or composition.output_norm or stack.is_idle)


def _usual(stack: Stack) -> Stack:
    """Return the stack with the same norms and units with which the family's coefficients were measured."""
    gated = ", gated, " in family(stack)
    return Stack(
        placement=stack.placement,
        normalization=stack.normalization,
        width=stack.width,
        depth=stack.depth,
        ffn="gated" if gated else "plain",
        activation="silu" if gated else "relu",
    )


def _stream_scale(stack: Stack) -> float:
    """Return s, times the largest norm of the inputs of queries and keys divided by √d, if no norm precedes them."""
    composition = stack.composition
    energy = float(stack.input_energies.max()) + (stack.positions != "none")
    if composition.input_norm:
        energy = 1.0
    elif not composition.stream_norm:  # normalized branches add up: 1 each
        energy += 2.0 * (stack.depth - 1)
    return stack.query_key_scale * max(1.0, energy) ** 0.5


def unmeasured(stack: Stack) -> str:
    """Return how a network differs from the networks whose finite-width errors were measured; "" if it does not.

    A gated unit squares the energy of its input. Without norms, energies and their fluctuations feed on themselves: the
    coefficient depends on every gain, and grows exponentially with the depth.
    """
    name, shares_keys = family(stack), stack.key_heads != stack.heads
    given = (stack.residual_scale, stack.branch_scale, stack.branch_gain) != (None, None, None)
    scaled = stack.branch_scaling != "none" or stack.lower_share or stack.norm_gain != 1.0
    shaped = stack.rotary or stack.query_key_norm != "none" or stack.head_width or stack.logit_softcap
    squares = _is_bare(stack) and ", plain, " not in name
    energies = stack.input_energies.max() + (stack.positions != "none")
    usual = stack.initialization in ("xavier_normal", "xavier_uniform", "fan_in") and stack.ffn_ratio <= 1
    shallow = stack.depth <= REFERENCE_DEPTH and energies <= 1 and usual and not stack.dropout
    reasons = (
        (name not in coefficients(), f"the family '{name}' is not measured"),
        (stack.experts, "experts are not measured"),
        (stack.branches != "both", "layers of one kind of branch are not measured"),
        (stack.depth_mixing != "none", "depth mixing is not measured"),
        (given or stack.final_norm == "added", "explicit alpha, tau, beta and final norms are not measured"),
        (
            stack.input_scaling != "none" or (stack.attention_factor, stack.feed_forward_factor) != (1.0, 1.0),
            "inputs of branches scaled by the layer, and factors on one branch alone, are not measured",
        ),
        (
            scaled or stack.normalization == "tanh",
            "scaled branches, layers of two placements, gains of norms and tanh in their place are not measured",
        ),
        (
            stack.loss_share < 1.0 or stack.output_transform == "added" or stack.positions == "learned_segment",
            "losses on a share of the positions, segments, and transforms before the output are not measured",
        ),
        (stack.layout == "parallel", "parallel branches are not measured"),
        (
            stack.query_key_scale and shaped,
            "rotated, normalized and capped queries and keys, and heads of other widths, are not measured",
        ),
        (
            stack.part(Matrices).non_default().keys() - {"initialization"} or stack.embedding_scale != 1.0,
            "explicit standard deviations, such as 0.02, are not measured",
        ),
        (stack.query_key_scale and shares_keys, "random queries and keys whose heads share keys are not measured"),
        (
            squares and unit_moments(stack).power > STEEPEST,
            "units steeper than those of a gated SiLU were not measured without a norm",
        ),
        (
            squares and not shallow,
            "units that square energies were measured up to L = 3 without a norm, at usual gains, without dropout",
        ),
    )
    return next((reason for unlike, reason in reasons if unlike), "")


def step_family(stack: Stack, attention: str | None = None) -> str:
    """Return the name of a network's family for first steps: placement, hidden units, attention and size of inputs."""
    of_stack = "queries" if stack.query_key_scale else "uniform"
    inputs = "small" if stack.embedding_scale**2 < SMALL and stack.embedding_norm == "none" else "unit"
    return f"{stack.placement}, {stack.ffn}, {attention or of_stack}, {inputs} inputs"


@lru_cache(maxsize=16)
def step_reference(placement: str, ffn: str, attention: str, width: int = 64) -> Stack:
    """Return the network on which the finite-width errors of a family's first steps were measured.

    Groups of four of its eight heads share keys. The error estimate does not depend on its width.
    """
    fields: dict[str, Any] = {"activation": "silu"} if ffn == "gated" else {}
    fields |= {"query_key_scale": SCALE} if attention == "queries" else {}
    return Stack(
        placement=placement, ffn=ffn, width=width, depth=DEPTH, tokens=TOKENS, vocab=VOCAB,  # type: ignore[arg-type]
        heads=HEADS, kv_heads=2, output_projection="random", mask="causal", embedding_scale=SMALL_INPUTS,
        init_std=(SMALL_GAIN / width) ** 0.5, **fields,
    )  # fmt: skip


def _step_error(stack: Stack, number: str, optimizer: Optimizer) -> float:
    """Return the largest relative error that finite width is expected to cause in a number of a first step.

    From L = 4 to L, the error grows like the number of sub-layers passed, (1 + L)/5. From fixed attention to s = 1 it
    grows like s^2, and beyond like s^4. Few units add six times their contribution to gradients. A coefficient of SGD
    is `VALUES` times d/(k d_k) plus a rest; the sizes of both are added, because the rest may have either sign in other
    networks. If a family was not measured, or its inputs are not small, the error is six times that of squared
    gradients, which is right in its order of magnitude only.
    """
    spread = SPREAD.get(optimizer, 0.0) / stack.width
    if step_family(stack) not in coefficients(STEP_COEFFICIENTS):
        return SQUARED * Trust.of(stack).error + spread * stack.rows
    # Polar factors were measured at eight tokens, Newton-Schulz steps not at all.
    spread *= max(0, stack.rows - TOKENS) if optimizer in MEASURED else stack.rows
    reference = step_reference(stack.placement, stack.ffn, "queries" if stack.query_key_scale else "uniform")
    inside, usual = (
        [correction.size for correction in _inside_branches(network)] or [0.0] * 2 for network in (stack, reference)
    )
    units, few_values = (max(0.0, inside[k] - usual[k]) for k in range(2))
    inner, values, known = SQUARED * (units + few_values), 0.0, 0.0
    if stack.placement != "post":  # branches stand by themselves in a norm
        inner = SQUARED * units
        values, known = (network.width / (network.key_heads * network.key_width) for network in (stack, reference))
        if optimizer != "sgd":  # steps that do not grow with gradients may follow them less
            values, known = max(0.0, values - known), 0.0
    scale = stack.query_key_scale and (1.0 if stack.query_key_norm != "none" else stack.query_key_scale)
    rows = (coefficients(STEP_COEFFICIENTS)[step_family(stack, attention)] for attention in ("uniform", "queries"))
    sizes = (row[_LIKE.get(optimizer, optimizer)][number] for row in rows)
    fixed, random = (abs(c - VALUES[number] * known) + SEMS * error for c, error in sizes)
    layers, steep = (1 + stack.depth) / (1 + DEPTH), max(1.0, scale**4)
    size = (fixed + (random - fixed) * min(1.0, scale**2)) * layers * steep
    size += abs(VALUES[number]) * values * max(1.0, layers) * steep
    return (size + inner) / stack.width + spread


def _unmeasured_step(stack: Stack) -> str:
    """Return the reason why a stack differs from the stacks with which first steps were measured; "" if it does not.

    Rotated, normalized or shared queries and keys enter by the scale of their logits and the number of values, and
    explicit standard deviations of matrices by the energy of the inputs.
    """
    if step_family(stack) in coefficients(STEP_COEFFICIENTS):
        plain = {"rotary": 0.0, "query_key_norm": "none", "kv_heads": 0, "head_width": 0, "init_std": None}
        stack = replace(stack, **plain, embedding_scale=1.0)  # type: ignore[arg-type]
    return unmeasured(stack)
