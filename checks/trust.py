"""Expected errors of large-width theory at finite width, and the numbers that are therefore not judged.

Coefficients were measured for families of networks: of predictions, and of the four numbers of a first step.
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
"""Coefficients c, as `make evidence PART=width-families` and `PART=first-step-families` measure them."""

ALLOWED = 2 / 3 * MARGIN
"""Largest error that finite width may make of a number which is judged; the rest of the margin is for what is
neglected beside it."""

PER_ORDER = 80 * ALLOWED
"""The coefficient of a correction of which only the order is known: of L/d, of rows/(5 d), and at the output. That of
one token and Post-LN is 55/36 a layer (docs/finite_width.md)."""

BiasClass = Literal["queries of a source", "queries", "others"]
CLASSES: tuple[BiasClass, ...] = get_args(BiasClass)
"""Kinds of quantities, which finite width moves by different amounts: gradients of W^Q and W^K, by what they ask."""

Number = Literal["gain", "curvature", "critical_rate", "logit_change_sq"]
NUMBERS: tuple[Number, ...] = get_args(Number)
"""The numbers of a first step."""

REFERENCE_DEPTH, REFERENCE_SCALE = 3, 1.5
"""L and s of the stacks that the coefficients of predictions were measured with."""

DEPTH, TOKENS, VOCAB, HEADS, SCALE = 4, 8, 64, 8, 1.0
"""L, n, V, h and s of the stacks that the coefficients of first steps were measured with."""

PLAIN, STEEPEST = 1.5, 2.25
"""Powers of the input's energy that the energy of units has: at most the first counts as plain, and at most the second
was measured without a norm. ReLU has 1, SiLU 1.17, a gated SiLU 2.17."""

CERTAIN = 0.1
"""A known error beyond which it is named before a coefficient that is missing, whose part is not known."""

SMALL = 0.05
"""Energy of inputs below which they count as small: the first branch is most of the stream, and fluctuates with it."""

SMALL_INPUTS, SMALL_GAIN = 0.02, 0.1
"""Deviation of small inputs, and every matrix's gain with them: entries of 0.02 at d = 256."""

SEMS = 2.0
"""Standard errors that a coefficient of a first step is taken more than it was measured."""

VALUES: dict[str, float] = {"gain": 2.0, "curvature": 6.0, "critical_rate": -4.0, "logit_change_sq": 6.0}
"""Part of SGD's coefficients, over d/(k d_k), with k d_k values. Small inputs leave the first branch f = v W^O, or its
norm, alone in the stream. Its square varies by V = 2 (1 + d/(k d_k))/d. Gradients below have 1/|f|^2, of mean 1 + V,
and the curvature its square, of mean 1 + 3 V."""

SQUARED = 6.0
"""The curvature is quadratic in products of energies of which squared gradients are means. With R such a product, a
log-normal one of mean 1 + mu/d and Var ln R = 4 mu/d, as in Post-LN at one token (docs/finite_width.md), R^2 has a mean
of 1 + 6 mu/d. Used where a family was not measured, and for what few units or values add to it."""

SPREAD: dict[Optimizer, float] = {"polar": 0.5, "muon": 7.0}
"""Of n/d: Gram matrices of n Gaussian rows scatter by sqrt(n/d), and these steps see products of two of them. A root
of eigenvalues of variance 2 n/d is off by n/(4 d), and the curvature by twice that. The polynomial of Newton-Schulz
steps swings where theory has equal values: 6.5 n/d was seen (tests/evidence/first-step-vocab.json)."""

MEASURED: tuple[Optimizer, ...] = ("sgd", "adam", "polar")
_LIKE: dict[Optimizer, Optimizer] = {"normalized": "sgd", "muon": "polar"}


class Trust(NamedTuple):
    """The expected error of one large-width prediction at finite width.

    Attributes:
        error: the largest relative error that finite width is expected to make, as coefficients imply it.
        why: why a prediction is shown and not judged, or a part of a first step's error is not known; "" if neither.
    """

    error: float
    why: str

    @classmethod
    def of(cls, stack: Stack, number: str = "loss", optimizer: Optimizer = "sgd") -> "Trust":
        """Return the expected error of theory for a network and a quantity.

        Args:
            stack: the network.
            number: a name in `theory.QUANTITIES`, of which gradients of queries and keys ask for more than the others,
                or one of `NUMBERS`.
            optimizer: that makes the first step, for one of `NUMBERS`.
        """
        if number in NUMBERS:
            return cls(_step_error(stack, number, optimizer), _unmeasured_step(stack))
        return _of_prediction(stack, class_of(number))


# Judges ask for every quantity of a cell, of which there are three kinds.
@lru_cache(maxsize=1024)
def _of_prediction(stack: Stack, kind: BiasClass) -> Trust:
    """Return the expected error of a kind of quantities, from the largest correction.

    The prediction is not judged if a rule or a coefficient is missing, or if the network is too narrow. The reason then
    states the required width.
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
    """Return the kind of a quantity by its name: gradients of W^Q and W^K, the same for a source, or others."""
    if name.endswith(("_XQ", "_XK")):
        return "queries of a source"
    return "queries" if name.endswith(("_WQ", "_WK")) else "others"


def family(stack: Stack) -> str:
    """Return the family of a network, for which coefficients were measured: norms, hidden units, attention, and source.

    Without a norm on their way, units whose energy grows like a square of their input's, as squared ReLU's, are like
    gated ones.
    With a source logits over d/h are taken for those over sqrt(d/h), whose coefficients are much the same.
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
    """Return the measured coefficients by family, and then by kind of quantity or by optimizer and number.

    Each has "c" and its "error". The relative error of theory is c/d at the reference.
    """
    families: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["families"]
    return families


class Correction(NamedTuple):
    """A relative correction of order 1/d, and the size that must be larger to reduce it.

    Attributes:
        size: d times the relative correction.
        what: makes it.
        counted: what it falls with, as a formula.
        amount: the value of that.
    """

    size: float
    what: str
    counted: str
    amount: float


def _corrections(stack: Stack, kind: BiasClass) -> list[Correction]:
    """Corrections by what makes them.

    Corrections are O(L/d) in the first layers, c/d with c of the family and of what is inside branches, O(n/d) from the
    overlap of a matrix with its n inputs (the output matrix's gradient is off by 0.06 n/d at L = 1, V = 16; a fifth
    leaves room), and `output_correction`. Heads of any width have their own law, so d/h does not enter but for two
    cases. One matrix of queries and keys has its own logits in the exponent (docs/attention.md), and 1/d_k is left out
    where queries and keys are normalized or rotated (docs/attention.md).
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
        size = _family_size(stack, row, kind)
        inner.append(Correction(size, f"stacks of the family '{family(stack)}'", "d", width))
    if inner:  # these are of the same numbers, and add up; the largest is named
        worst = max(inner, key=lambda correction: correction.size)
        corrections.append(worst._replace(size=sum(correction.size for correction in inner)))
    return corrections


def _inside_branches(stack: Stack) -> list[Correction]:
    """Return the corrections, beyond the family's, by few or heavy-tailed coordinates inside branches.

    They apply if a norm is on the way. Only in a normalized residual stream do corrections multiply from layer to layer
    (docs/finite_width.md). Elsewhere branches add up, and the largest sub-layer counts.
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
    """The order of the relative O(1/d) correction at the output: ((1 − ε)² + min(σ_e², 2 ln V))/(A d).

    The gradient there is W_embᵀ(p − t), and W_emb is not independent of p: its part along x_out, z·(p − t)/√d with z
    the logits, has the label's share (1 − ε)² σ_e² and the square of z·p, of mean σ_e² (1 − p·p) by Stein's lemma until
    the softmax saturates, and of order σ_e² 2 ln V beyond. The rest has σ_e² |p − t|², A = E|p − t|² being
    (1 − ε)²(1 − 1/V) + E p·p − 1/V, with E p·p near min(e^σ_e², V)/V. Without smoothing A is taken as at most 1; with
    targets spread over all classes it is small, and the correction large.
    """
    kept, vocab, energy = (1.0 - stack.label_smoothing) ** 2, stack.vocab, stack.output_scale**2
    spread = math.expm1(min(energy, math.log(vocab))) / vocab
    return (kept + min(energy, 2.0 * math.log(vocab))) / (min(1.0, kept * (1.0 - 1.0 / vocab) + spread) * stack.width)


def _family_size(stack: Stack, row: dict[str, dict[str, float]], kind: BiasClass) -> float:
    """|c| of the family at the stack's own L and s, and for queries and keys at its own n.

    From L = 3 to L corrections grow like the number of sub-layers passed, with that of the norm above them. Patterns of
    larger logits than at s = 1.5 feel a fluctuation of |x|² by s⁴. What queries and keys receive are differences of
    tokens, which layers align: there the growth is taken twice, and once more for more tokens than four. Without a norm
    on the way energies feed on each other, and c grows like the variance that a sub-layer adds.
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
    """Whether the residual stream passes no norm before, within and after the branches."""
    composition = stack.composition
    normed = composition.input_norm or composition.stream_norm or composition.output_norm
    return not normed and not stack.is_idle


def _usual(stack: Stack) -> Stack:
    """Return the network with the same norms by which its family was measured, except for its attention."""
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
    """s, times the largest norm of what queries and keys are made of over √d, where no norm stands before them."""
    composition = stack.composition
    energy = float(stack.input_energies.max()) + (stack.positions != "none")
    if composition.input_norm:
        energy = 1.0
    elif not composition.stream_norm:  # normalized branches add up: 1 each
        energy += 2.0 * (stack.depth - 1)
    return stack.query_key_scale * max(1.0, energy) ** 0.5


def unmeasured(stack: Stack) -> str:
    """Return the reason why a network is unlike the measured ones of its family; "" if it is like them.

    A gated unit squares the energy of its input. Without a norm on its way energies feed on themselves, and so do their
    fluctuations: the coefficient depends on every gain, and grows exponentially with the depth.
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
    """Return a network's family for first steps: placement, hidden units, attention, and whether inputs are small."""
    of_stack = "queries" if stack.query_key_scale else "uniform"
    inputs = "small" if stack.embedding_scale**2 < SMALL and stack.embedding_norm == "none" else "unit"
    return f"{stack.placement}, {stack.ffn}, {attention or of_stack}, {inputs} inputs"


@lru_cache(maxsize=16)
def step_reference(placement: str, ffn: str, attention: str, width: int = 64) -> Stack:
    """Return the network with which the coefficients of a family of first steps were measured.

    Four of its heads share keys. Errors take nothing from it that depends on its width.
    """
    fields: dict[str, Any] = {"activation": "silu"} if ffn == "gated" else {}
    fields |= {"query_key_scale": SCALE} if attention == "queries" else {}
    return Stack(
        placement=placement, ffn=ffn, width=width, depth=DEPTH, tokens=TOKENS, vocab=VOCAB,  # type: ignore[arg-type]
        heads=HEADS, kv_heads=2, output_projection="random", mask="causal", embedding_scale=SMALL_INPUTS,
        init_std=(SMALL_GAIN / width) ** 0.5, **fields,
    )  # fmt: skip


def _step_error(stack: Stack, number: str, optimizer: Optimizer) -> float:
    """Return the largest relative error at finite width of a number of a first step, from measured coefficients.

    From L = 4 to L it grows like the number of sub-layers passed, (1 + L)/5, and from fixed attention to s = 1 like
    s^2, the deviation of the logits; beyond like s^4. Few units add six times what they add to gradients. A coefficient
    of SGD is `VALUES` times d/(k d_k) and a rest. Both sizes are added, since the rest may have either sign elsewhere.
    If a family was not measured, or its inputs are not small, the error is six times that of squared gradients, an
    order.
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
    """Return the reason why a network is unlike those of measured first steps; "" if it is like them.

    Queries and keys that are turned or normalized, or shared by heads, count by the scale of their logits and the
    number of values; matrices drawn with deviations of their own by the energy of the inputs.
    """
    if step_family(stack) in coefficients(STEP_COEFFICIENTS):
        plain = {"rotary": 0.0, "query_key_norm": "none", "kv_heads": 0, "head_width": 0, "init_std": None}
        stack = replace(stack, **plain, embedding_scale=1.0)  # type: ignore[arg-type]
    return unmeasured(stack)
