"""The judgement of claims in a file: each compares a weighted sum of logarithms of means with an interval.

A value, a ratio, a growth, an exponent and an order of networks are all Σ w ln E[q] over quantities and networks.
Theory computes this number from its means. Samples give it with an error by the delta method, because different
networks are sampled independently.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from checks.fits import log_contrast, slope_weights
from checks.statistics import MARGIN, Agreement, Estimate, chance_limit, scalar_agreement
from checks.trust import Trust
from checks.verdict import EXPONENT_MARGIN, LOOSE, Setting, Subject, Verdict, Word, interval_of, sentence, sizes
from theory import QUANTITIES, Claim, NoRuleError, Stack, predict
from theory.first_step.prediction import first_step
from theory.stack.optimizers import OPTIMIZERS
from theory.stack.registry import nearest

GROWTH_MARGIN = 0.01
"""The relative margin of a growth per layer."""
MARGINS = {"value": MARGIN, "bound": MARGIN, "ratio": MARGIN, "exponent": EXPONENT_MARGIN, "growth": GROWTH_MARGIN}
"""The allowed distance of a number from the claimed one, by kind: relative, and absolute for exponents.

A comparison has no margin.
"""

STEPS = ("gain", "curvature", "critical_rate", "logit_change_sq")
"""The numbers of a first step that a claim with an optimizer may concern."""

_UNDECIDED = (
    "neither surely inside nor surely outside the claimed range with its margin; more random networks may decide"
)

# The number of attention samples of a prediction, and its time limit in seconds.
_PATTERNS, _SECONDS = 1024, 120.0

_COLUMN = re.compile(r"([A-Za-z_0-9]+)(?:\[(-?[0-9]{1,6})\])?")


class Network(NamedTuple):
    """A kind of random network, and the optimizer whose first step is measured ("" for none)."""

    stack: Stack
    optimizer: str


Columns = dict[tuple[str, int | None], float]
"""The weights of ln E[q], by the name of the quantity q and the index of its layer."""
Means = Mapping[str, NDArray[Any]]
"""Numbers by quantity name: means in theory, or draws of networks along the first axis."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The tested number of a claim: a weighted sum of logarithms of means, Σ w ln E[q], plus a constant."""

    terms: tuple[tuple[Network, Columns], ...]
    constant: float

    def of_theory(self, means: Callable[[Network], Means]) -> float:
        """Compute the tested number of a claim from predictions, given a function that returns a network's means."""
        parts = [
            weight * math.log(float(means(network)[name] if layer is None else means(network)[name][layer]))
            for network, columns in self.terms
            for (name, layer), weight in columns.items()
        ]
        return self.constant + math.fsum(parts)

    def of_samples(self, samples: Callable[[Network], Means]) -> Estimate:
        """Estimate the tested number of a claim from samples, given a function that returns a network's draws."""
        parts = []
        for network, columns in self.terms:
            draws = samples(network)
            values = [draws[name] if layer is None else draws[name][:, layer] for name, layer in columns]
            parts.append(log_contrast(np.stack(values, 1), list(columns.values())))
        mean, error = sum(float(p.mean) for p in parts), math.hypot(*(float(p.sem) for p in parts))
        return Estimate(np.asarray(self.constant + mean), np.asarray(error), min(p.draws for p in parts))


def variants(claim: Claim) -> list[Claim]:
    """Return a claim once for each setting in which it is tested: its source's own setting and the variants of it."""
    return [
        replace(claim, setting="the source's setting" if claim.variants else claim.setting),
        *(
            replace(claim, network={**claim.network, **changes}, setting=name)
            for name, changes in claim.variants.items()
        ),
    ]


def networks(claim: Claim) -> list[Network]:
    """Return every kind of network that a claim is about, in all settings in which the claim is tested.

    Raises:
        ValueError: a network, a quantity or a number of the claim is invalid.
    """
    kinds = (network for each in variants(claim) for part in contrasts(each) for network, _ in part.terms)
    return list(dict.fromkeys(kinds))


def contrasts(claim: Claim) -> list[Contrast]:
    """Return the numbers of a claim that are tested: usually one, and one for each pair of neighbours in an ordering.

    Raises:
        ValueError: a network, a quantity or a number of the claim is invalid.
    """
    if claim.kind not in (*MARGINS, "comparison"):
        raise ValueError(f"kind of claim {claim.id!r} must be {', '.join(MARGINS)} or comparison, got {claim.kind!r}.")
    low, high = (0.0, math.inf) if claim.kind == "comparison" else claim.interval
    if low > high or (claim.kind != "exponent" and high <= 0):
        raise ValueError(
            f"numbers of claim {claim.id!r} must be in order, and above 0 but for exponents, got {low, high}."
        )
    stacks, steps = _series(claim)
    if claim.against == "layer":
        depth = stacks[0].depth
        low, high = claim.layers or (1, depth)
        if not 1 <= low < high <= depth:
            raise ValueError(f"layers of claim {claim.id!r} must lie in 1 to {depth}, got {low} to {high}.")
        at = np.arange(low, high + 1)
        slopes = slope_weights(np.log(at) if claim.kind == "exponent" else at)
        shares = {int(layer): float(slope) for layer, slope in zip(at, slopes, strict=True)}
        return [_contrast(claim, [(stacks[0], shares)])]
    if claim.kind == "comparison":
        pairs = zip(stacks, stacks[1:], strict=False)
        return [_contrast(claim, [(first, {0: 1.0}), (second, {0: -1.0})]) for first, second in pairs]
    return [_contrast(claim, [(stack, {0: float(w)}) for stack, w in zip(stacks, steps, strict=True)])]


def _series(claim: Claim) -> tuple[list[Stack], NDArray[np.float64]]:
    """Return the networks of a claim, and the weights of the logarithms of their numbers.

    Raises:
        ValueError: the number of networks or values is wrong, or `against` is not a field of a Stack.
    """
    if claim.kind in ("ratio", "comparison"):
        least, most = (2, 2) if claim.kind == "ratio" else (2, 32)
        if not least <= len(claim.networks) <= most:
            raise ValueError(
                f"networks of claim {claim.id!r} must be from {least} to {most}, got {len(claim.networks)}."
            )
        return [_stack(claim, fields) for fields in claim.networks.values()], np.array([1.0, -1.0])
    if claim.kind in ("value", "bound") or claim.against == "layer":
        return [_stack(claim, {})], np.ones(1)
    if claim.against not in Stack.__dataclass_fields__:
        raise ValueError(f"against of claim {claim.id!r} must be 'layer' or a field of a Stack, got {claim.against!r}.")
    given = [value if isinstance(value, Mapping) else {claim.against: value} for value in claim.at]
    x = [fields.get(claim.against, 0) for fields in given]
    if len(set(x)) < 3 or not all(isinstance(value, int | float) and value > 0 for value in x):
        raise ValueError(f"at of claim {claim.id!r} must have at least 3 values of {claim.against} above 0, got {x}.")
    return [_stack(claim, fields) for fields in given], slope_weights(np.log(x) if claim.kind == "exponent" else x)


def _stack(claim: Claim, fields: Mapping[str, Any]) -> Stack:
    try:
        return Stack(**{**claim.network, **fields})
    except (TypeError, ValueError) as error:
        raise ValueError(f"network of claim {claim.id!r}: {error}") from error


def _contrast(claim: Claim, parts: Sequence[tuple[Stack, dict[int, float]]]) -> Contrast:
    """Build a claim's contrast from weights by network and layer; layer 0 means the layers that quantities name.

    Raises:
        ValueError: the claim's optimizer is unknown.
    """
    if claim.optimizer and claim.optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer of claim {claim.id!r} must be one of {', '.join(OPTIMIZERS)}.")
    terms, constant = [], 0.0
    for stack, shares in parts:
        columns: Columns = {}
        for column, power in claim.quantity.items():
            name, layer = _column(claim, column, stack)
            for at, weight in shares.items():
                index = at - 1 if claim.against == "layer" and layer is None else layer
                if name == "critical_rate":
                    constant += weight * power * math.log(2.0)
                    columns[("curvature", None)] = columns.get(("curvature", None), 0.0) - weight * power
                key = "gain" if name == "critical_rate" else name, index
                columns[key] = columns.get(key, 0.0) + weight * power
        terms.append((Network(stack, claim.optimizer), columns))
    return Contrast(tuple(terms), constant)


def _column(claim: Claim, column: str, stack: Stack) -> tuple[str, int | None]:
    """Parse a column such as "grad_sq_W2[1]" into the quantity's name and the index of its layer.

    Raises:
        ValueError: the quantity or the layer does not exist.
    """
    matched = _COLUMN.fullmatch(column)
    name = matched[1] if matched else ""
    known = STEPS if claim.optimizer else tuple(QUANTITIES)
    if not matched or name not in known:
        first = ", ".join(known[:4])
        raise ValueError(
            f"quantity of claim {claim.id!r} must be of {first} and others, got {column[:60]!r}.{nearest(name, known)}"
        )
    of_layers = not claim.optimizer and QUANTITIES[name].per_layer
    layer = None if matched[2] is None else int(matched[2])
    if of_layers and layer is None and claim.against == "layer":
        return name, None
    if of_layers != (layer is not None) or (layer is not None and not 1 <= abs(layer) <= stack.depth):
        layers = f"a layer, as {name}[1] or {name}[-1]," if of_layers else "no layer"
        raise ValueError(f"quantity of claim {claim.id!r} must have {layers} up to {stack.depth}, got {column[:60]!r}.")
    return name, None if layer is None else layer - (layer > 0)


def theory_of(network: Network) -> Means:
    """Predict the quantities of a network, or of its first step, by name; empty if theory has no rule for it."""
    try:
        if network.optimizer:
            step = first_step(network.stack, network.optimizer)  # type: ignore[arg-type]
            return {name: np.asarray(getattr(step, name)) for name in STEPS}
        return predict(network.stack, patterns=_PATTERNS, max_time=_SECONDS)
    except NoRuleError:
        return {}


def judge(claim: Claim, samples: Callable[[Network], Means], theory: Callable[[Network], Means]) -> Verdict:
    """Judge a claim in one setting from samples and theory, by the rule for this kind of claim.

    The claim fails if samples are outside the claimed interval by more than the margin of `MARGINS` and by more than
    chance explains in all but 6e-5 of cases, and if theory (if it has a rule) is outside by more than the margin. It
    holds if the samples' 95% interval and theory are inside the interval, widened by the margin.

    Raises:
        ValueError: the claim is not about networks, or a quantity is not above 0.
    """
    parts = contrasts(claim)
    pairs = [(part.of_samples(samples), _predicted(part, theory)) for part in parts]
    exact = claim.kind == "exponent"
    low, high = (0.0, math.inf) if claim.kind == "comparison" else claim.interval
    if not exact and claim.kind != "comparison":
        low, high = (math.log(end) if end > 0 else -math.inf for end in (low, high))
    margin = MARGINS.get(claim.kind, 0.0)
    margin = margin if exact else math.log1p(margin)
    words = [_word(measured, known, (low, high), margin) for measured, known in pairs]
    order: tuple[Word, ...] = ("fails", "undecided", "holds")
    (measured, known), word = min(
        zip(pairs, words, strict=True), key=lambda row: (order.index(row[1]), float(row[0][0].mean))
    )
    shown: Callable[[float], float] = float if exact else math.exp
    loose = None
    if word == "holds" and claim.claimed is None and claim.kind in ("bound", "value"):
        loose = max(math.exp(min(high - float(measured.mean), 700.0)) if high < math.inf else 0.0,
                    math.exp(min(float(measured.mean) - low, 700.0)) if low > -math.inf else 0.0)  # fmt: skip
        word = "holds, loose" if loose > LOOSE else word
    every = [network.stack for part in parts for network, _ in part.terms]
    return Verdict(
        claim=claim.id,
        subject=Subject(quantity=subject_words(claim)),
        verdict=word,
        claimed=sentence("{}", claimed_words(claim)),
        predicted=shown(known),
        measured=shown(float(measured.mean)),
        interval=(shown(interval_of(measured)[0]), shown(interval_of(measured)[1])),
        agreement=_agreement(claim, parts, measured, known, margin),
        setting=Setting(ranges=sizes(*every), draws=(measured.draws, measured.draws)),
        loose=loose if word == "holds, loose" else None,
        note=sentence(_UNDECIDED if word == "undecided" else ""),
        relaxed=claim.setting,
    )


def _predicted(part: Contrast, theory: Callable[[Network], Means]) -> float:
    """Return a contrast's number in theory; NaN if theory has no rule for a network or a quantity."""
    try:
        return part.of_theory(theory)
    except (KeyError, ValueError):
        return math.nan


def _word(measured: Estimate, known: float, ends: tuple[float, float], margin: float) -> Word:
    mean, limit = float(measured.mean), float(chance_limit(measured.sem, measured.draws))
    if not math.isfinite(mean):
        raise ValueError("quantity must be above 0 in the mean: its logarithm is judged.")
    low, high = ends[0] - margin, ends[1] + margin
    without = math.isnan(known)
    if max(low - mean, mean - high) > 0 and max(ends[0] - mean, mean - ends[1]) > limit:
        return "fails" if without or not low <= known <= high else "undecided"
    inside = interval_of(measured) if margin else (mean - limit, mean + limit)
    return "holds" if low <= inside[0] and inside[1] <= high and (without or low <= known <= high) else "undecided"


def _agreement(claim: Claim, parts: Sequence[Contrast], measured: Estimate, known: float, margin: float) -> Agreement:
    """Decide whether samples and theory agree; "beyond" (not judged) where finite width may cause a difference."""
    trusted = not claim.optimizer and not any(
        Trust.of(network.stack, name).why for part in parts for network, columns in part.terms for name, _ in columns
    )
    if math.isnan(known) or not trusted:
        return "beyond"
    return scalar_agreement(float(measured.mean), known, float(measured.sem), margin or MARGIN)


def claimed_words(claim: Claim) -> str:
    """Return the number or numbers that a claim states, as text for tables."""
    if claim.kind == "comparison":
        return " > ".join(claim.networks)
    if claim.claimed is not None:
        return f"{claim.claimed:.4g}"
    ends = [f"at least {claim.at_least:.4g}" if claim.at_least is not None else "",
            f"at most {claim.at_most:.4g}" if claim.at_most is not None else ""]  # fmt: skip
    return " and ".join(filter(None, ends))


def subject_words(claim: Claim) -> str:
    """Describe in words the number that is measured to test a claim."""
    powers = " ".join(f"{name}" if power == 1 else f"{name}^{power:g}" for name, power in claim.quantity.items())
    step = f" of the first {claim.optimizer} step" if claim.optimizer else ""
    over = f" {'over layers' if claim.against == 'layer' else f'in {claim.against}'}" if claim.against else ""
    between = f" {' over '.join(claim.networks)}" if claim.kind == "ratio" else ""
    return f"{claim.kind}{over} of {powers}{step}{between}"
