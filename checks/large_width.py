"""Whether a network is wide enough for its prediction to be judged: by what measured coefficients say it is off."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from checks.statistics import MARGIN
from theory import Stack
from theory.coverage import gaps
from theory.mean_field.attention.sampled import looks_at_itself
from theory.mean_field.inner_widths import attention_widths, feed_forward_widths, unit_moments
from theory.stack.groups import Matrices
from theory.stack.placements import COMPOSITIONS

TABLE = Path(__file__).parent / "data" / "large_width" / "coefficients.json"
"""The coefficients, as `make evidence PART=width-families` measures them."""

ALLOWED = 2 / 3 * MARGIN
"""Largest error that finite width may make of a number which is judged; the rest of the margin is for what is
neglected beside it."""

PER_ORDER = 80 * ALLOWED
"""The coefficient of a correction of which only the order is known: of L/d, of rows/(5 d), and at the output. That of
one token and Post-LN is 55/36 a layer (docs/finite_width.md)."""

BiasClass = Literal["queries of a source", "queries", "others"]
CLASSES: tuple[BiasClass, ...] = get_args(BiasClass)
"""Kinds of quantities, which finite width moves by different amounts: gradients of W^Q and W^K, by what they ask."""

REFERENCE_DEPTH, REFERENCE_SCALE = 3, 1.5
"""L and s of the stacks that the coefficients were measured with."""

PLAIN = 1.5
"""Power of the input's energy up to which that of units counts as plain: ReLU has 1, SiLU 1.17, a gate adds 1."""

STEEPEST = 2.25
"""Power up to which units without a norm were measured: that of a gated SiLU is 2.17."""

CERTAIN = 0.1
"""A known error beyond which it is named before a coefficient that is missing, whose part is not known."""

_ATTENTION: dict[str, dict[str, object]] = {
    "uniform": {},
    "queries": {"heads": 4},
    "linear queries": {"heads": 32, "attention_scale": "linear"},
}


def class_of(name: str) -> BiasClass:
    """The kind of a quantity, by its name."""
    if name.endswith(("_XQ", "_XK")):
        return "queries of a source"
    return "queries" if name.endswith(("_WQ", "_WK")) else "others"


def family(stack: Stack) -> str:
    """The family of a Stack: its norms, its units, its attention, and whether it attends to a source.

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


def reference_stacks(width: int) -> Iterator[tuple[str, Stack]]:
    """One stack of every family, which is that of the paper but for what makes the family."""
    for placement, ffn, kind, source in product([*COMPOSITIONS, "no norms"], ("plain", "gated"), _ATTENTION, (0, 4)):
        bare = placement == "no norms"
        # Energies of gated units with a source and no norms leave the range of every quadrature.
        if source and (kind == "linear queries" or (bare and ffn == "gated")):
            continue
        fields: dict[str, object] = {"placement": "pre" if bare else placement, "ffn": ffn, "source_tokens": source}
        fields |= {"normalization": "none"} if bare else {}
        fields |= {"activation": "silu"} if ffn == "gated" else {}
        fields |= ({"query_key_scale": REFERENCE_SCALE} | _ATTENTION[kind]) if kind != "uniform" else {}
        stack = Stack(width=width, depth=REFERENCE_DEPTH, tokens=4, vocab=16, **fields)  # type: ignore[arg-type]
        if not gaps(stack, "queries"):
            yield family(stack), stack


@lru_cache(maxsize=1)
def coefficients() -> dict[str, dict[str, dict[str, float]]]:
    """Per family and class c and its standard error: predictions are off by c/d, relatively, at the reference."""
    families: dict[str, dict[str, dict[str, float]]] = json.loads(TABLE.read_text(encoding="utf-8"))["families"]
    return families


def why_not_judged(stack: Stack, name: str = "loss") -> str:
    """Why the prediction of a quantity is shown and not judged; "" where it is judged.

    Either a rule is missing at every width, or a coefficient is, or the width, and then the reason says which it takes.

    Args:
        stack: the network.
        name: of the quantity, as in `theory.QUANTITIES`; gradients of queries and keys ask for more than the others.
    """
    stack = _of_one_depth(stack)
    if missing := gaps(stack, "queries"):
        return f"no rule: {missing[0].because}"
    worst = max(_asks(stack, name), key=lambda ask: ask.size)
    unknown = unmeasured(stack)
    if unknown and worst.size <= CERTAIN * stack.width:
        return f"no coefficient: {unknown}"
    if looks_at_itself(stack) and (order := _asked_scale(stack) ** 4) / stack.heads > ALLOWED / PER_ORDER:
        return f"not enough heads: own logits over sqrt(d/h) ask for h >= {math.ceil(order * PER_ORDER / ALLOWED)}"
    times = worst.size / (ALLOWED * stack.width)
    if times <= 1 + 1e-12:
        return ""
    return f"not wide enough: {worst.what} need {worst.counted} >= {math.ceil(worst.amount * times)}"


def in_large_width(stack: Stack, name: str = "loss") -> bool:
    """Whether the large-width prediction of a quantity is judged for this Stack, in every layer: `why_not_judged`."""
    return not why_not_judged(stack, name)


def implied_error(stack: Stack, name: str = "loss") -> float:
    """The largest relative error that finite width makes of a quantity, as the coefficients imply it."""
    return max(ask.size for ask in _asks(_of_one_depth(stack), name)) / stack.width


def _of_one_depth(stack: Stack) -> Stack:
    """The stack with as many layers in both parts as the deeper one has: coefficients were measured with one depth."""
    return replace(stack, depth=stack.most_layers, encoder_depth=0) if stack.encoder_depth else stack


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


class Ask(NamedTuple):
    """A correction, and what would have to be larger for it to be small.

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


def _asks(stack: Stack, name: str) -> list[Ask]:
    """The corrections, by what makes them.

    Corrections are O(L/d) in the first layers, c/d with c of the family and of what is inside branches, O(n/d) from the
    overlap of a matrix with its n inputs (the output matrix's gradient is off by 0.06 n/d at L = 1, V = 16; a fifth
    leaves room), and `output_correction`. Heads of any width have their own law, so d/h does not enter but for two
    cases. One matrix of queries and keys has its own logits in the exponent (docs/queries.md), and 1/d_k is left out
    where queries and keys are normalized or rotated (docs/attention.md).
    """
    width = stack.width
    asks = [
        Ask(PER_ORDER * stack.depth, f"{stack.depth} layers", "d", width),
        Ask(PER_ORDER * stack.rows / 5, f"{stack.rows} tokens", "d", width),
        Ask(PER_ORDER * output_correction(stack) * width, "the logits", "d", width),
    ]
    inner = _inner_asks(stack)
    shaped = stack.query_key_scale > 0.0 and (stack.query_key_norm == "head" or stack.rotary > 0.0)
    if shaped and class_of(name) != "others":
        of_head = stack.key_width
        inner.append(Ask(width / of_head, f"normalized or rotated heads of {of_head} coordinates", "d_k", of_head))
    if (row := coefficients().get(family(stack))) is not None:
        size = _family_size(stack, row, class_of(name))
        inner.append(Ask(size, f"stacks of the family '{family(stack)}'", "d", width))
    if inner:  # these are of the same numbers, and add up; the largest is named
        worst = max(inner, key=lambda ask: ask.size)
        asks.append(worst._replace(size=sum(ask.size for ask in inner)))
    return asks


def inner_sizes(stack: Stack) -> tuple[float, float]:
    """The relative corrections by units and by values, times d."""
    units, values, *_ = [ask.size for ask in _inner_asks(stack)] or (0.0, 0.0)
    return units, values


def _inner_asks(stack: Stack) -> list[Ask]:
    """What few or heavy-tailed coordinates inside branches add to the family's correction, where a norm is on the way.

    Only in a stream that is normalized corrections multiply from layer to layer (docs/finite_width.md). Elsewhere
    branches add up, and the sub-layer of most counts.
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
        Ask(layers * max(0.0, above_usual), units, "r d", stack.ffn_width),
        Ask(layers * attention.correction, values, "k d_k" if shared else "h d_k", of_values),
        Ask(dropped, f"branches with dropout {stack.dropout:g}", "(1 - p) d", (1 - stack.dropout) * stack.width),
    ]


def _is_bare(stack: Stack) -> bool:
    """Whether branches are given a stream, and add to it, that no norm touches."""
    composition = stack.composition
    normed = composition.input_norm or composition.stream_norm or composition.output_norm
    return not normed and not stack.is_idle


def _usual(stack: Stack) -> Stack:
    """The stack of the same norms that the coefficients of its family were measured with, but for its attention."""
    gated = ", gated, " in family(stack)
    return Stack(
        placement=stack.placement,
        normalization=stack.normalization,
        width=stack.width,
        depth=stack.depth,
        ffn="gated" if gated else "plain",
        activation="silu" if gated else "relu",
    )


def _family_size(stack: Stack, row: dict[str, dict[str, float]], kind: BiasClass) -> float:
    """|c| of the family at the stack's own L and s, and for queries and keys at its own n.

    From L = 3 to L corrections grow like the number of sub-layers passed, with that of the norm above them. Patterns of
    larger logits than at s = 1.5 feel a fluctuation of |x|² by s⁴. What queries and keys receive are differences of
    tokens, which layers align: there the growth is taken twice, and once more for more tokens than four. Without a norm
    on the way energies feed on each other, and c grows like the variance that a sub-layer adds.
    """
    size = abs(row.get(kind, row["others"])["c"]) * (1 + stack.depth) / (1 + REFERENCE_DEPTH)
    if stack.query_key_scale:
        size *= max(1.0, (_asked_scale(stack) / REFERENCE_SCALE) ** 4)
    if kind != "others":
        size *= max(1.0, (1 + stack.depth) / (1 + REFERENCE_DEPTH)) * max(
            1.0, max(stack.tokens, stack.source_tokens) / 4
        )
    if _is_bare(stack):
        usual = _usual(stack)  # which has no branch at all in a ReZero whose tau was given, and no coefficient
        kinds = (attention_widths, feed_forward_widths)
        size *= max(1.0, *(of(stack).fluctuation / (of(usual).fluctuation or 1.0) for of in kinds))
    return size


def _asked_scale(stack: Stack) -> float:
    """s, times the largest norm of what queries and keys are made of over √d, where no norm stands before them."""
    composition = stack.composition
    energy = float(stack.input_energies.max()) + (stack.positions != "none")
    if composition.input_norm:
        energy = 1.0
    elif not composition.stream_norm:  # normalized branches add up: 1 each
        energy += 2.0 * (stack.depth - 1)
    return stack.query_key_scale * max(1.0, energy) ** 0.5


def unmeasured(stack: Stack) -> str:
    """What makes a stack unlike those of its family that were measured; "" if nothing does.

    A gated unit squares the energy of its input. Without a norm on its way energies feed on themselves, and so do their
    fluctuations: the coefficient depends on every gain, and grows exponentially with the depth.
    """
    if (name := family(stack)) not in coefficients():
        return f"the family '{name}' is not measured"
    if stack.experts:
        return "experts are not measured"
    if stack.branches != "both":
        return "layers of one kind of branch are not measured"
    given = (stack.residual_scale, stack.branch_scale, stack.branch_gain) != (None, None, None)
    if given or stack.final_norm == "added":
        return "alpha, tau, beta and final norms of one's own are not measured"
    if stack.input_scaling != "none" or (stack.attention_factor, stack.feed_forward_factor) != (1.0, 1.0):
        return "inputs of branches scaled by the layer, and factors on one branch alone, are not measured"
    if stack.branch_scaling != "none" or stack.lower_share or stack.norm_gain != 1.0 or stack.normalization == "tanh":
        return "scaled branches, layers of two placements, gains of norms and tanh in their place are not measured"
    if stack.loss_share < 1.0 or stack.output_transform == "added" or stack.positions == "learned_segment":
        return "losses on a share of the positions, segments, and transforms before the output are not measured"
    if stack.layout == "parallel":
        return "parallel branches are not measured"
    shaped = stack.rotary or stack.query_key_norm != "none" or stack.head_width or stack.logit_softcap
    if stack.query_key_scale and shaped:
        return "rotated, normalized and capped queries and keys, and heads of other widths, are not measured"
    if stack.part(Matrices).non_default().keys() - {"initialization"} or stack.embedding_scale != 1.0:
        return "standard deviations of one's own are not measured"
    if stack.key_heads != stack.heads and stack.query_key_scale:
        return "random queries and keys whose heads share keys are not measured"
    if not _is_bare(stack) or ", plain, " in family(stack):
        return ""
    if unit_moments(stack).power > STEEPEST:
        return "units steeper than those of a gated SiLU were not measured without a norm"
    energies = stack.input_energies.max() + (stack.positions != "none")
    usual = stack.initialization in ("xavier_normal", "xavier_uniform", "fan_in") and stack.ffn_ratio <= 1
    if stack.depth <= REFERENCE_DEPTH and energies <= 1 and usual and not stack.dropout:
        return ""
    return "units that square energies were measured up to L = 3 without a norm, at usual gains, without dropout"
