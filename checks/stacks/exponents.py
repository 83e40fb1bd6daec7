"""The verdicts on how the last layer's gradient norm scales with the width d and the depth L."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from checks.fits import LEAST_POINTS, PowerLaw, model_choice, power_law
from checks.series import Against
from checks.stacks.theorem1 import RECORDED, Array, LastLayer, factor_exponents, last_layers
from checks.statistics import CHANCE, Agreement, estimate, scalar_agreement
from checks.theory_and_samples import prediction_of
from checks.trust import output_correction
from checks.verdict import (
    EXPONENT_MARGIN,
    LOOSE,
    Sentence,
    Subject,
    Verdict,
    Word,
    by_key,
    names,
    sentence,
    setting,
    significant,
)
from simulate import Samples
from theory import CLAIMS, Stack, predict
from theory.coverage import is_exchangeable
from theory.paper.proof_chain import growth as symbolic_growth

DEPTH_EXPONENT = {placement: float(number) for placement, number in CLAIMS["T1"].numbers.items()}
"""Theorem 1's exponent of the last layer's gradient norm in L, by placement."""

# Of a local exponent at great depth; arrays of tokens take longer than pairs.
_DEEP = {True: 1000, False: 256}
_DEEP_PATTERNS = 256


def width_exponent(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge the gradient's growth with d in Theorem 1: the measured exponent against that of d √(ln d).

    At fixed V, the norm follows a power law, but the factor B = O(1 + √(V/d)) makes the bound deviate from one. At
    fixed V/d, the bound follows a power law times √(ln d), but the norm deviates from one, because labels coincide more
    often when V is small.

    Args:
        cells: sampled networks.

    Returns:
        One verdict per placement and series of at least three widths.
    """
    rows = []
    saturated = [s for s in cells if abs(s.stack.output_scale**2 / s.stack.width - 1) < 1e-6]
    for which, follows in ((cells, False), (saturated, True)):
        for proportional in (False, True):
            key = partial(_width_series, proportional=proportional, follows=follows)
            rows += [
                _width_row(_exponent(placement, "exponent in d", "width", fixed), series, widths)
                for placement, fixed, series, widths in _long_series(which, key, "width")
            ]
    return sorted(rows, key=lambda row: row.part)


def _exponent(placement: str, quantity: str, against: Against, fixed: tuple[tuple[str, str], ...]) -> Subject:
    return Subject(placement=placement, quantity=quantity, kind="exponent", against=against, held=fixed)


def _width_row(subject: Subject, series: list[Samples], widths: Array) -> Verdict:
    last = last_layers(series)
    measured = last.exponent(widths, last.measured)
    predicted = last.exponent(widths, last.predicted).exponent
    claimed = last.exponent(widths, widths * np.sqrt(np.log(widths))).exponent
    loose = float(last.bound[-1] / last.norm[-1].mean)
    below = claimed - measured.exponent > CHANCE * measured.sem
    note = sentence("bound over norm is x{} at d = {:.0f}", significant(loose), widths[-1])
    if series[0].stack.vocab * widths[-1] == series[-1].stack.vocab * widths[0]:
        note += sentence(" and grows: row H2")
    premise = True
    if series[0].stack.output_scale != series[-1].stack.output_scale:
        gradient = np.sqrt([float(prediction_of(s)["loss_gradient_sq"]) for s in series])
        gradient_exponent = last.exponent(widths, gradient).exponent
        # What the theorem assumes is false then, and says nothing of what it concludes.
        premise = gradient_exponent <= EXPONENT_MARGIN
        note += sentence(
            "; ||dL_i/dx_out,i|| itself grows like d^{:.3f} here (by theory), where the paper assumes O(1), so an "
            "exponent near 1 is no support for d sqrt(ln d)",
            gradient_exponent,
        )
    choice = model_choice(widths, last.measured, last.errors)
    note += sentence(
        "; d^a against d^a sqrt(ln d): {} (power of ln d {}); ",
        choice.model.replace("x", "d"),
        f"{significant(choice.log_power, 2)} +- {significant(choice.sem, 2)}",
    )
    note += _local_words(last, widths)
    # A slope over a finite grid cannot refute an order of growth; it can only show that it is not needed.
    word: Word = "premise fails" if not premise else "holds, loose" if below and loose > LOOSE else "undecided"
    return Verdict(
        claim="T1",
        subject=subject,
        verdict=word,
        claimed=sentence("at most {:.3f}", claimed),
        predicted=predicted,
        measured=measured.exponent,
        interval=measured.interval(),
        bootstrap=last.bootstrap(widths),
        agreement=exponent_agreement(measured, predicted, widths, series[0].stack),
        setting=setting(series),
        cells=names(series),
        loose=loose if word == "holds, loose" else None,
        note=note,
    )


def looseness_exponent(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claim H2: the exponent in d of the ratio bound / norm, at fixed V/d, where ‖W_emb‖₂ does not depend on d.

    Args:
        cells: sampled networks.

    Returns:
        One verdict per placement and series of at least three widths.
    """
    rows = []
    for placement, fixed, series, widths in _long_series(cells, partial(_width_series, proportional=True), "width"):
        last = last_layers(series)
        bound, norm = (last.exponent(widths, values) for values in (last.bound, last.measured))
        growth = bound.exponent - norm.exponent
        predicted = bound.exponent - last.exponent(widths, last.predicted).exponent
        low, high = norm.interval()
        reference = last.exponent(widths, np.sqrt(widths * np.log(100 * widths))).exponent
        note = sentence(
            "the bound is not tight: sqrt(d ln 100d) of slack ({:.3f} over this grid), sqrt(d) of it from bounding "
            "each entry of a rank-one matrix by a whole row",
            reference,
        )
        if all(RECORDED <= set(s) for s in series):
            grown, limits = factor_exponents(series), symbolic_growth(placement)
            note += sentence(
                "; the proof's six factors grow like d^a with a = {}, whose limits are {}; the fourth is "
                "2 sqrt(ln 100d)",
                ", ".join(f"{a:.3f}" for a in grown),
                ", ".join(map(str, limits)),
            )
        rows.append(
            Verdict(
                claim="H2",
                subject=_exponent(placement, "exponent in d of bound over norm", "width", fixed),
                verdict="holds" if bound.exponent - high > 0 else "undecided",
                claimed=sentence("above {}", 0),
                predicted=predicted,
                measured=growth,
                interval=(bound.exponent - high, bound.exponent - low),
                agreement=exponent_agreement(norm, bound.exponent - predicted, widths, series[0].stack),
                setting=setting(series),
                cells=names(series),
                note=note,
            )
        )
    return rows


def depth_exponent(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge the gradient's growth with L in Theorem 1: the measured exponent against the predicted one and its limit.

    Args:
        cells: sampled networks.

    Returns:
        One verdict per placement and series of at least three depths. The claim's exponent is compared with the
        recursion's limit.
    """
    rows = []
    for placement, fixed, series, depths in _long_series(cells, _depth_series, "depth"):
        last = last_layers(series)
        measured = last.exponent(depths, last.measured)
        predicted = last.exponent(depths, last.predicted).exponent
        claimed = DEPTH_EXPONENT[placement]
        limit = depth_limit(series[-1].stack)
        agreement = exponent_agreement(measured, predicted, depths, series[0].stack)
        right = abs(limit - claimed) <= EXPONENT_MARGIN
        rows.append(
            Verdict(
                claim="T1",
                subject=_exponent(placement, "exponent in L", "depth", fixed),
                verdict="fails" if not right else "holds" if agreement == "agrees" else "undecided",
                claimed=sentence("{:g} as L grows", claimed),
                predicted=predicted,
                measured=measured.exponent,
                interval=measured.interval(),
                bootstrap=last.bootstrap(depths),
                agreement=agreement,
                setting=setting(series),
                cells=names(series),
                note=sentence(
                    "the limit is the recursion's: its local exponent between L = 500 and 1000 is {:.3f}; ", limit
                )
                + _local_words(last, depths),
            )
        )
    return rows


def _local_words(last: LastLayer, x: Array) -> Sentence:
    if len(np.unique(x)) < len(x):
        return sentence("no local exponents: several cells at one place")
    _, slopes, _ = last.local(x)
    return sentence("local exponents from {:.3f} to {:.3f}", min(slopes), max(slopes))


def first_layer_exponent(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claim S1: the exponent in the depth L of the first layer's gradients in Pre-LN, -1/2 in the paper."""
    rows = []
    pre = [s for s in cells if s.stack.placement == "pre"]
    for _, fixed, series, depths in _long_series(pre, _depth_series, "depth"):
        laws = {role: _first_layer(series, depths, f"grad_sq_{role}") for role in ("W2", "W1", "WV")}
        measured, predicted = laws["W2"]
        claimed = float(CLAIMS["S1"].numbers["exponent"])
        off = abs(measured.exponent - claimed) > max(EXPONENT_MARGIN, CHANCE * measured.sem)
        right = abs(predicted - claimed) <= EXPONENT_MARGIN
        # The layers' correction is of the order of L/d, and bends the exponent by half of its change.
        bent = 1.6 * depths[-1] / series[-1].stack.width / 2 / np.log(depths[-1] / depths[0]) > EXPONENT_MARGIN
        others = ", ".join(f"{role} {law.exponent:.3f} ({theory:.3f})" for role, (law, theory) in laws.items())
        rows.append(
            Verdict(
                claim="S1",
                subject=_exponent("pre", "exponent of ||dL/dW2|| of layer 1 in L", "depth", fixed),
                verdict="fails" if off else "holds" if right else "undecided",
                claimed=sentence("{:g}", claimed),
                predicted=predicted,
                measured=measured.exponent,
                interval=measured.interval(),
                agreement="beyond"
                if bent
                else scalar_agreement(measured.exponent, predicted, measured.sem, EXPONENT_MARGIN),
                setting=setting(series),
                cells=names(series),
                note=sentence(
                    "of each matrix by samples (theory): {}; the recursion's limit is 0 at a fixed layer", others
                ),
            )
        )
    return rows


def _first_layer(series: list[Samples], depths: Array, name: str) -> tuple[PowerLaw, float]:
    """Return the measured and the predicted exponent of a quantity's root mean square in layer 1, weighted equally."""
    norms = [estimate(s[name][:, 0].astype(float)).root() for s in series]
    errors = np.array([float(n.sem / n.mean) for n in norms])
    laws = [
        power_law(depths, values, errors * values)
        for values in (
            np.array([float(n.mean) for n in norms]),
            np.sqrt([float(prediction_of(s)[name][0]) for s in series]),
        )
    ]
    return laws[0], laws[1].exponent


def exponent_agreement(measured: PowerLaw, predicted: float, x: Array, narrowest: Stack) -> Agreement:
    """Decide whether a measured exponent agrees with the predicted one, or the networks are too narrow to decide.

    The last layer's correction is of the order of `output_correction` at every depth. It bends the norm's exponent by
    half of its change, divided by the logarithm of the range of x.

    Args:
        measured: the fitted power law of the measured norms.
        predicted: the exponent in theory.
        x: (points,), the widths or depths, increasing.
        narrowest: the network with the smallest width.
    """
    if output_correction(narrowest) / 2 / np.log(x[-1] / x[0]) > EXPONENT_MARGIN:
        return "beyond"
    return scalar_agreement(measured.exponent, predicted, measured.sem, EXPONENT_MARGIN)


@lru_cache(maxsize=256)
def depth_limit(stack: Stack) -> float:
    """Return the predicted exponent in L of the last layer's gradient norm at very large L, used as the limit."""
    deep = _DEEP[is_exchangeable(stack)]
    ends = [
        float(predict(replace(stack, depth=depth), patterns=_DEEP_PATTERNS)["grad_sq_W2"][-1])
        for depth in (deep // 2, deep)
    ]
    return 0.5 * float(np.log2(ends[1] / ends[0]))


Series = tuple[str, tuple[tuple[str, str], ...]]
"""The key of a series: the placement, and the fixed sizes."""


def _long_series(
    cells: Sequence[Samples], key: Callable[[Samples], Series], against: Against
) -> Iterator[tuple[str, tuple[tuple[str, str], ...], list[Samples], Array]]:
    """Yield each series of at least three sizes: placement, fixed sizes, samples sorted by size, and sizes."""
    for (placement, fixed), group in by_key(cells, key):
        series = sorted(group, key=lambda s: getattr(s.stack, against))
        sizes = np.array([float(getattr(s.stack, against)) for s in series])
        if len(set(sizes)) >= LEAST_POINTS:
            yield placement, fixed, series, sizes


def _width_series(samples: Samples, *, proportional: bool, follows: bool = False) -> Series:
    """Return the key of a network's series in d: V fixed or proportional to d, sigma_e fixed or ~ √d."""
    s, vocab = samples.stack, str(samples.stack.vocab)
    if proportional:
        vocab = "d" if s.vocab == s.width else f"{s.vocab / s.width:.4g} d"
    scale = "sqrt(d)" if follows else f"{s.output_scale:.4g}"
    varied = [("sigma_e", scale)] if follows or s.output_scale != 1.0 else []
    return s.placement, (("V", vocab), ("L", str(s.depth)), ("n", str(s.tokens)), *varied)


def _depth_series(samples: Samples) -> Series:
    s = samples.stack
    return s.placement, (("d", str(s.width)), ("n", str(s.tokens)), ("V", str(s.vocab)))
