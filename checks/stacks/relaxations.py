"""The effects of dropped assumptions on gradient norms, exponents and layers, and how Post-LN's gradients grow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from checks.fits import PowerLaw, log_contrast, slope_weights
from checks.series import Against, exponent_series
from checks.stacks.exponents import DEPTH_EXPONENT, depth_limit, exponent_agreement
from checks.stacks.profiles import post_profile, pre_profile
from checks.stacks.theorem1 import Array, LastLayer, last_layers
from checks.statistics import CHANCE, estimate, scalar_agreement
from checks.theory_and_samples import PATTERNS, prediction_of
from checks.verdict import EXPONENT_MARGIN, Subject, Verdict, Word, by_key, interval_of, names, sentence, setting
from simulate import Samples
from theory import Stack, predict
from theory.paper.layer_growth import layer_factor
from theory.stack import TITLES
from theory.stack.placements import COMPOSITIONS

RELAXATIONS: dict[str, Mapping[str, Any]] = {
    "four times as many units": {"ffn_ratio": 4.0},
    "GELU": {"activation": "gelu"},
    "SiLU": {"activation": "silu"},
    "tanh": {"activation": "tanh"},
    "leaky ReLU": {"activation": "leaky_relu"},
    "no nonlinearity": {"activation": "identity"},
    "gated units (SwiGLU)": {"ffn": "gated", "activation": "silu"},
    "He initialization": {"initialization": "he"},
    "PyTorch initialization": {"initialization": "pytorch"},
    "random W^O": {"output_projection": "random"},
    "RMSNorm": {"normalization": "rms"},
    "no norm": {"normalization": "none"},
    "norm with epsilon 0.1": {"norm_epsilon": 0.1},
    "dropout 0.1": {"dropout": 0.1},
    "attention dropout 0.1": {"attention_dropout": 0.1},
    "causal mask": {"mask": "causal"},
    "inputs correlated by 0.5": {"input_correlation": 0.5},
    "sinusoidal positions": {"positions": "sinusoidal"},
    "learned positions": {"positions": "learned"},
    "tied embeddings": {"embeddings": "tied"},
    "Zipf labels": {"labels": "zipf"},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "loss on the last token": {"loss_on": "last"},
    "batch of 4 sequences": {"sequences": 4},
    "as Vaswani et al. (2017)": {
        "ffn_ratio": 4.0, "output_projection": "random", "positions": "sinusoidal", "dropout": 0.1,
        "label_smoothing": 0.1,
    },
    "GPT-2's shape (GELU, 4d, causal)": {
        "ffn_ratio": 4.0, "activation": "gelu", "output_projection": "random", "positions": "learned",
        "mask": "causal",
    },
    "LLaMA's shape (SwiGLU, RMSNorm, causal)": {
        "ffn_ratio": 2.5, "ffn": "gated", "activation": "silu", "output_projection": "random", "mask": "causal",
        "normalization": "rms",
    },
    "as torch.nn": {
        "ffn_ratio": 4.0, "output_projection": "random", "initialization": "pytorch", "dropout": 0.1,
        "norm_epsilon": 1e-5,
    },
}  # fmt: skip
"""Assumptions that are dropped one at a time, and then together as in well-known architectures, without queries and
keys.
"""

UNRELAXED = "nothing"
"""The name of a base network without dropped assumptions."""

_LETTER: dict[Against, str] = {"width": "d", "depth": "L"}

LEAST_DEPTH = 12
"""The smallest depth that is judged: with fewer layers, tokens are not yet aligned, and the slope has few points."""
LARGEST_DEPTH_OVER_WIDTH = 1 / 200
MARGIN = 0.03
"""The allowed relative error of the ratio of gradients at the ends of the upper half of the layers."""


def relaxation_name(stack: Stack, base: Stack | None = None) -> str:
    """Describe in words how a network differs from a base network, by default the paper's: such as "causal mask"."""
    before = {} if base is None else base.relaxed
    changed = {name: value for name, value in stack.relaxed.items() if before.get(name) != value}
    changed |= {name: getattr(stack, name) for name in before if name not in stack.relaxed}
    listed = ", ".join(f"{name} = {value}" for name, value in changed.items()) or UNRELAXED
    return next((name for name, fields in RELAXATIONS.items() if fields == changed), listed)


def relaxation_table(cells: Sequence[Samples], base: Stack) -> pd.DataFrame:
    """Return a table of the measured and predicted effects of each dropped assumption, for each LayerNorm placement.

    Args:
        cells: samples of the grids of `gradbounds sweep --preset relax`.
        base: the network, of either placement, whose assumptions are dropped.

    Returns:
        Columns placement, relaxation, and NAME, NAME_sem and NAME_predicted for each of these names: effect (‖∂L/∂W2‖
        of the last layer divided by the base's), profile (the first layer's norm divided by the last's), and the
        exponents width and depth. NaN means that there is no such series.
    """
    rows: dict[tuple[str, str], dict[str, float]] = {}
    at_base = [s for s in cells if (s.stack.width, s.stack.depth) == (base.width, base.depth)]
    plain = {s.stack.placement: s for s in at_base if _without_own_values(s.stack).relaxed == base.relaxed}
    for s in at_base:
        row = rows.setdefault((s.stack.placement, relaxation_name(s.stack, base)), {})
        first, last = _norm(s, 0), _norm(s, -1)
        row |= _ratio("profile", first, last)
        if s.stack.placement in plain:
            row |= _ratio("effect", last, _norm(plain[s.stack.placement], -1))
    for against in ("width", "depth"):
        for series in exponent_series(_with_branches(cells), against):
            stack = series[0].stack
            _, _, fit, predicted = _exponents(series, against)
            row = rows.setdefault((stack.placement, relaxation_name(stack, base)), {})
            row |= {against: fit.exponent, f"{against}_sem": fit.sem, f"{against}_predicted": predicted}
    columns = ["effect", "profile", "width", "depth"]
    wanted = [name + end for name in columns for end in ("", "_sem", "_predicted")]
    ordered = sorted(rows, key=lambda key: (list(TITLES).index(key[0]), _place(key[1])))
    frame = pd.DataFrame([{"placement": p, "relaxation": r} | rows[p, r] for p, r in ordered])
    return frame.reindex(columns=["placement", "relaxation", *wanted])


def relaxation_rows(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claims T1, F1 and F2 for networks that drop assumptions of the paper.

    The claims state exponents in d and L, and growth over the layers. The claim on L is about a limit, which the
    recursion gives. It holds if that limit is the paper's and samples agree with the recursion over their depths.
    """
    rows = []
    for against in _LETTER:
        for series in exponent_series(_with_branches(cells), against):
            stack = series[0].stack
            x, last, fit, predicted = _exponents(series, against)
            agreement = exponent_agreement(fit, predicted, x, stack)
            if against == "width":
                claim = last.exponent(x, x * np.sqrt(np.log(x))).exponent
                word: Word = "holds" if claim - fit.exponent > CHANCE * fit.sem else "undecided"
                faster = abs(predicted - 0.5) > EXPONENT_MARGIN
                claimed = sentence("at most {:.3f}", claim)
                note = sentence(
                    "the norm grows faster than sqrt(d) over these widths, while the softmax grows sure of words"
                    if faster
                    else "the norm grows like sqrt(d) at fixed V"
                )
            else:
                limit, claim = depth_limit(series[-1].stack), DEPTH_EXPONENT[stack.placement]
                claimed = sentence("{:g} as L grows", claim)
                note = sentence("the recursion's local exponent at great depth is {:.3f}", limit)
                right = abs(limit - claim) <= EXPONENT_MARGIN
                word = "fails" if not right else "holds" if agreement == "agrees" else "undecided"
            rows.append(
                Verdict(
                    claim="T1",
                    subject=Subject(
                        placement=stack.placement,
                        quantity=f"exponent in {_LETTER[against]}",
                        kind="exponent",
                        against=against,
                    ),
                    verdict=word,
                    claimed=claimed,
                    predicted=predicted,
                    measured=fit.exponent,
                    interval=fit.interval(),
                    agreement=agreement,
                    setting=setting(series),
                    cells=names(series),
                    relaxed=relaxation_name(stack),
                    note=note,
                )
            )
    for name, group in by_key(_with_branches(cells), lambda s: relaxation_name(s.stack)):
        rows += [replace(v, relaxed=name) for v in (*post_profile(group), *pre_profile(group))]
    return sorted(rows, key=lambda v: _place(v.relaxed))


def _place(name: str) -> int:
    """Return a relaxation's rank in tables: the paper's setting first, then `RELAXATIONS` in order, then others."""
    order = [UNRELAXED, *RELAXATIONS]
    return order.index(name) if name in order else len(order)


def _without_own_values(stack: Stack) -> Stack:
    """Return the stack with α, τ and β unset where their values are the placement's defaults."""
    composition, depth = COMPOSITIONS[stack.placement], stack.depth
    values: dict[str, Any] = {
        "residual_scale": composition.residual,
        "branch_scale": composition.branch,
        "branch_gain": composition.gain,
    }
    left: dict[str, Any] = {name: None for name, of in values.items() if getattr(stack, name) == of(depth)}
    return replace(stack, **left)


def _with_branches(cells: Sequence[Samples]) -> list[Samples]:
    """Return the samples of networks whose branches are not 0; with τ = 0, gradients are 0 and have no exponent."""
    return [s for s in cells if not s.stack.is_idle]


def _norm(samples: Samples, layer: int) -> tuple[float, float, float]:
    """Return the root mean square of ‖∂L/∂W2‖ in one layer, its relative standard error, and its prediction."""
    norm = estimate(samples["grad_sq_W2"][:, layer].astype(float)).root()
    mean = float(norm.mean)
    return mean, float(norm.sem) / mean if mean else 0.0, float(np.sqrt(prediction_of(samples)["grad_sq_W2"][layer]))


def _ratio(name: str, over: tuple[float, float, float], under: tuple[float, float, float]) -> dict[str, float]:
    """Return a ratio of two norms as three table entries: value, standard error and prediction.

    The error is 0 for the ratio of a norm to itself; all entries are NaN if the denominator is 0.
    """
    if under[0] == 0.0:
        return dict.fromkeys((name, f"{name}_sem", f"{name}_predicted"), float("nan"))
    value, error = over[0] / under[0], 0.0 if over == under else float(np.hypot(over[1], under[1]))
    return {name: value, f"{name}_sem": value * error, f"{name}_predicted": over[2] / under[2]}


def _exponents(series: Sequence[Samples], against: Against) -> tuple[Array, LastLayer, PowerLaw, float]:
    """Return the widths or depths of a series, its last layers, and the measured and the predicted exponent."""
    x = np.array([float(getattr(s.stack, against)) for s in series])
    last = last_layers(series)
    return x, last, last.exponent(x, last.measured), last.exponent(x, last.predicted).exponent


def layer_growth(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claim G1: the factor per layer by which ‖∂L/∂W^{2,l}‖ grows in the upper half of the layers.

    The closed form is a limit. The claim fails if the recursion has another limit, or if samples have another slope
    than a recursion that has reached the limit. It holds if recursion and samples both have the limit's slope in these
    layers.

    Args:
        cells: sampled networks.

    Returns:
        One verdict for each Post-LN network that is deep and wide enough and has a closed form.
    """
    return [verdict for s in cells if (verdict := _verdict(s)) is not None]


def _verdict(s: Samples) -> Verdict | None:
    depth, width = s.stack.depth, s.stack.width
    if s.stack.placement != "post" or depth < LEAST_DEPTH or depth > width * LARGEST_DEPTH_OVER_WIDTH:
        return None
    try:
        limit = float(np.log(layer_factor(s.stack)))
    except ValueError:  # a field without a closed form
        return None
    layers = np.arange(1, depth + 1)
    upper = layers > depth // 2
    weights = np.zeros(depth)
    weights[upper] = slope_weights(layers[upper]) / 2  # of the squared norm, for the norm
    slope = log_contrast(s["grad_sq_W2"], weights)
    predicted = float(weights @ np.log(prediction_of(s)["grad_sq_W2"]))
    margin = MARGIN / (upper.sum() - 1)
    agreement = scalar_agreement(float(slope.mean), predicted, float(slope.sem), margin)
    there = abs(predicted - limit) <= margin
    word: Word = "holds" if there and agreement == "agrees" else "undecided"
    # The slope per layer in theory, in the middle of a network ten times as deep.
    deep, middle = replace(s.stack, depth=10 * depth), 5 * depth
    below, above = predict(deep, patterns=PATTERNS)["grad_sq_W2"][middle - 1 : middle + 1]
    if abs(0.5 * float(np.log(above / below)) - limit) > margin or (there and agreement == "differs"):
        word = "fails"
    return Verdict(
        claim="G1",
        subject=Subject(
            placement="post",
            quantity="ln of the growth of ||dL/dW2|| per layer, upper half",
            kind="growth",
            against="layer",
        ),
        verdict=word,
        claimed=sentence("{:.4g}", limit),
        predicted=predicted,
        measured=float(slope.mean),
        interval=interval_of(slope),
        agreement=agreement,
        setting=setting([s]),
        cells=names([s]),
        relaxed=relaxation_name(s.stack),
        note=sentence(
            "least-squares slope of ln(root mean square) over l = {}; the claim is our own closed form, a limit; "
            "below 0 gradients grow towards the input",
            f"{layers[upper][0]}..{depth}",
        ),
    )
