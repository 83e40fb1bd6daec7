"""How far finite width may take a first step from its large-width theory: measured coefficients, family by family."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from checks.large_width import implied_error, inner_sizes, unmeasured
from theory import Stack
from theory.stack.optimizers import Optimizer

TABLE = Path(__file__).parent / "data" / "large_width" / "first_steps.json"
"""The coefficients, as `make evidence PART=first-step-families` measures them."""

Number = Literal["gain", "curvature", "critical_rate", "logit_change_sq"]
NUMBERS: tuple[Number, ...] = get_args(Number)

DEPTH, TOKENS, VOCAB, HEADS, SCALE = 4, 8, 64, 8, 1.0
"""L, n, V, h and s of the stacks that the coefficients were measured with."""

SMALL = 0.05
"""Energy of inputs below which they count as small: the first branch is most of the stream, and fluctuates with it."""

SMALL_INPUTS, SMALL_GAIN = 0.02, 0.1
"""Deviation of small inputs, and every matrix's gain with them: entries of 0.02 at d = 256."""

CERTAIN = 2.0
"""Standard errors that a coefficient is taken more than it was measured."""

VALUES: dict[Number, float] = {"gain": 2.0, "curvature": 6.0, "critical_rate": -4.0, "logit_change_sq": 6.0}
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

_ANY_WIDTH = 64
"""Nothing that is asked of a reference depends on its width."""

_PLACEMENTS = ("post", "pre", "output")
"""Most of published models; Peri-LN is not measured."""


def family(stack: Stack, *, attention: str | None = None) -> str:
    """Its placement, units, attention (its own, if None), and whether its inputs are small."""
    of_stack = "queries" if stack.query_key_scale else "uniform"
    inputs = "small" if stack.embedding_scale**2 < SMALL and stack.embedding_norm == "none" else "unit"
    return f"{stack.placement}, {stack.ffn}, {attention or of_stack}, {inputs} inputs"


def reference_stacks(width: int) -> Iterator[Stack]:
    """One stack of every family that is measured, with keys that four heads share, as most models of today have."""
    for placement, ffn, attention in product(_PLACEMENTS, ("plain", "gated"), ("uniform", "queries")):
        fields: dict[str, object] = {"activation": "silu"} if ffn == "gated" else {}
        fields |= {"query_key_scale": SCALE} if attention == "queries" else {}
        yield Stack(
            placement=placement, ffn=ffn, width=width, depth=DEPTH, tokens=TOKENS, vocab=VOCAB,  # type: ignore[arg-type]
            heads=HEADS, kv_heads=2, output_projection="random", mask="causal", embedding_scale=SMALL_INPUTS,
            init_std=(SMALL_GAIN / width) ** 0.5, **fields,  # type: ignore[arg-type]
        )  # fmt: skip


@lru_cache(maxsize=1)
def coefficients() -> dict[str, dict[str, dict[str, list[float]]]]:
    """By family, optimizer and number c and its standard error: networks are off by c/d, relatively."""
    families: dict[str, dict[str, dict[str, list[float]]]] = json.loads(TABLE.read_text(encoding="utf-8"))["families"]
    return families


def is_measured(stack: Stack) -> bool:
    """Whether coefficients of its family are."""
    return family(stack) in coefficients()


def step_errors(stack: Stack, optimizer: Optimizer) -> dict[Number, float]:
    """The largest relative error that finite width makes of each number of a step, as coefficients imply it.

    From L = 4 to L they grow like the number of sub-layers passed, (1 + L)/5, and from fixed attention to s = 1 like
    s^2, the deviation of the logits; beyond like s^4. Few units add six times what they add to gradients. A coefficient
    of SGD is `VALUES` times d/(k d_k) and a rest. Both sizes are added, since the rest may have either sign elsewhere.
    Of a family that was not measured, or whose inputs are not small, all numbers have six times the error of squared
    gradients, an order.
    """
    spread = SPREAD.get(optimizer, 0.0) / stack.width
    if not is_measured(stack):
        return dict.fromkeys(NUMBERS, SQUARED * implied_error(stack) + spread * stack.rows)
    # Polar factors were measured at eight tokens, Newton-Schulz steps not at all.
    spread *= max(0, stack.rows - TOKENS) if optimizer in MEASURED else stack.rows
    reference = next(network for network in reference_stacks(_ANY_WIDTH) if family(network) == family(stack))
    pairs = zip(inner_sizes(stack), inner_sizes(reference), strict=True)
    units, few_values = (max(0.0, of_stack - measured) for of_stack, measured in pairs)
    inner, values, known = SQUARED * (units + few_values), 0.0, 0.0
    if stack.placement != "post":  # branches stand by themselves in a norm
        inner, values, known = SQUARED * units, value_ratio(stack), value_ratio(reference)
        if optimizer != "sgd":  # steps that do not grow with gradients may follow them less
            values, known = max(0.0, values - known), 0.0
    fixed, random = (_sizes(stack, optimizer, attention, known) for attention in ("uniform", "queries"))
    errors, layers = dict[Number, float](), (1 + stack.depth) / (1 + DEPTH)
    scale = asked_scale(stack)
    steep = max(1.0, scale**4)
    for name in NUMBERS:
        size = fixed[name] + (random[name] - fixed[name]) * min(1.0, scale**2)
        size = size * layers * steep + abs(VALUES[name]) * values * max(1.0, layers) * steep
        errors[name] = (size + inner) / stack.width + spread
    return errors


def value_ratio(stack: Stack) -> float:
    """d/(k d_k)."""
    return stack.width / (stack.key_heads * stack.key_width)


def not_measured(stack: Stack) -> str:
    """What makes a stack unlike those whose coefficients its errors are made of; "" if nothing does.

    Queries and keys that are turned or normalized, or shared by heads, count by the scale of their logits and the
    number of values; matrices drawn with deviations of their own by the energy of the inputs.
    """
    if not is_measured(stack):
        return unmeasured(stack)
    plain = {"rotary": 0.0, "query_key_norm": "none", "kv_heads": 0, "head_width": 0, "init_std": None}
    return unmeasured(replace(stack, **plain, embedding_scale=1.0))  # type: ignore[arg-type]


def asked_scale(stack: Stack) -> float:
    """The s of the logits; 1 where queries and keys are normalized."""
    return stack.query_key_scale and (1.0 if stack.query_key_norm != "none" else stack.query_key_scale)


def _sizes(stack: Stack, optimizer: Optimizer, attention: str, known: float) -> dict[Number, float]:
    """|c| of every number and two standard errors, with c less `VALUES` times the known d/(k d_k) of its networks."""
    row = coefficients()[family(stack, attention=attention)][_LIKE.get(optimizer, optimizer)]
    return {name: abs(row[name][0] - VALUES[name] * known) + CERTAIN * row[name][1] for name in NUMBERS}
