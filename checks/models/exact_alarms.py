"""What exact tests of a module say against it: facts, each with the layers that it is true of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from checks.models.alarm import WHOLE_MODEL, Alarm, escaped
from simulate.modules.exact_tests import ExactTests

NORM = 0.5
"""The response to the scale of its input from which a norm is none: 0 of a norm, 1 of no norm."""
NORM_FAR, BACKWARD = 0.01, 0.1
"""Where a norm answers by less than the first, its gradient g at its input x has g·x = 0 but for rounding: from the
second on, over that of a random direction, its backward pass is another function's."""
EPSILON = 1.0
"""A norm's epsilon over what it divides, from which it divides by its epsilon."""
BIAS = 1.0
"""A bias whose entries are larger than its matrix's times the root of a row's length is no initialization."""
REPEATED = 0.1
"""The share of rows of a matrix that repeat others from which that is an alarm."""
LOGITS = 4.0
"""The standard deviation of attention's logits from which softmax is one key's."""
ONE_KEY = 0.5
"""The largest weight of a query, in the mean over queries, from which attention is to one key."""
LOGITS_BESIDE = 3.0
"""The factor to the median of the other layers from which a layer's logits differ."""
SCALE_BESIDE = 1.5
"""The factor of q·k over 1/sqrt(d_k) from which it is too large, where logits deviate by more than `SCALED`."""
SCALED = 2.0
"""T5 draws queries sqrt(d_k) smaller in place of a factor: in 16 healthy ones logits deviate by up to 1.2."""
KEY_SUM = 0.005
"""How far the weights of a query may be from 1, in sum over its keys: rounding each to bfloat16 makes 2^-9 at most."""
UNITS = 0.75
"""The share of units that are 0 at all tokens, or saturated, from which a layer is."""

# What is called a norm by its name alone may be something else with that name; none multiplies its input, though.
_MORE_THAN_LINEAR = 1.1
_LIKE_EPSILON = 0.1
# An epsilon's part in what a norm divides by that is said.
_FELT = 0.1
_SAME_SCALE = 0.01
_NAMED = 3


Place = tuple[str, int, str]
"""Part, layer and name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What is true of a layer; those that differ in the layer, and in numbers, alone are one alarm.

    Attributes:
        part: list of the layer.
        layer: its number, or `WHOLE_MODEL`.
        kind: of the alarm.
        what: in words, with a place {} for a number, where there is one.
        number: for that place.
        alarm: whether it is one, and not a note.
        digits: how many significant ones the number has.
    """

    part: str
    layer: int
    kind: str
    what: str
    number: float | None = None
    alarm: bool = True
    digits: int = 2


def exact_alarms(tests: ExactTests, *, trained: bool = False) -> tuple[list[Alarm], list[str]]:
    """Alarms, one a cause, and notes.

    Args:
        tests: as `simulate.modules.exact_tests` gives them.
        trained: whether weights have been trained; then biases, logits and copies may be as they are.
    """
    facts = [*_leaks(tests), *_norms(tests), *_copies(tests, trained), *_attention(tests, trained), *_units(tests)]
    facts += _unregistered(tests)
    facts += [] if trained else _biases(tests)
    layers = _layers(tests)
    alarms = _gathered((fact for fact in facts if fact.alarm), layers)
    return alarms, [said(note) for note in _gathered((fact for fact in facts if not fact.alarm), layers)]


def said(alarm: Alarm) -> str:
    """As a note."""
    return str(alarm).split(": ", 1)[1]


def values(tests: ExactTests, quantity: str) -> dict[Place, float]:
    """A quantity by part, layer and name."""
    return {(part, layer, name): value for part, layer, name, what, value in tests.rows if what == quantity}


def whole(tests: ExactTests, quantity: str) -> float:
    """A quantity of the whole; NaN where there is none."""
    return values(tests, quantity).get(("", 0, ""), float("nan"))


def _layers(tests: ExactTests) -> dict[str, set[int]]:
    layers: dict[str, set[int]] = {}
    for part, layer, *_ in tests.rows:
        if layer:
            layers.setdefault(part, set()).add(layer)
    return layers


def _gathered(facts: Iterable[Fact], layers: dict[str, set[int]]) -> list[Alarm]:
    groups: dict[tuple[str, str, str], list[Fact]] = {}
    for fact in facts:
        groups.setdefault((fact.part, fact.kind, fact.what), []).append(fact)
    alarms = []
    for (part, kind, what), members in groups.items():
        numbers = [fact.number for fact in members if fact.number is not None]
        if numbers:
            low, high = (f"{end:.{members[0].digits}g}" for end in (min(numbers), max(numbers)))
            what = what.format(low if low == high else f"{low} to {high}")
        named = sorted({fact.layer for fact in members})
        layer = named[0]
        if len(named) > 1:
            every = set(named) == layers.get(part)
            what += " [all layers]" if every else f" [layers {', '.join(map(str, named))}]"
            layer = WHOLE_MODEL if every else layer
        alarms.append(Alarm(part, layer, kind, what))
    return alarms


def _leaks(tests: ExactTests) -> Iterator[Fact]:
    later, earlier = values(tests, "sees_later"), values(tests, "sees_earlier")
    odd_layers = False
    for part, layers in _layers(tests).items():
        # What sees no other position at all, such as a layer without attention, is no witness.
        mixing = [at for at in later if at[:2] in {(part, k) for k in layers} and max(later[at], earlier[at]) > 0]
        seeing = [at for at in mixing if later[at] > 0]
        if seeing and len(seeing) < len(mixing):
            odd, what = (
                (seeing, "sees later positions ({} of the gradient), which other layers do not")
                if 2 * len(seeing) <= len(mixing)
                else ([at for at in mixing if at not in seeing], "does not see later positions, which other layers do")
            )
            odd_layers = True
            for at in odd:
                yield Fact(part, at[1], "leak", what, later[at] if "{}" in what else None)
        for at in seeing:
            if earlier[at] == 0:
                yield Fact(part, at[1], "leak", "sees later positions and no earlier one: is its mask turned round?")
    others = {at: value for at, value in values(tests, "sees_samples").items() if value > 0}
    inside = [at for at in others if at[1]]
    for at in inside or others:
        what = "sees other samples of the batch ({} of the gradient)"
        if tests.positions_first and whole(tests, "label_is_next_below") != 1:
            what += ": batch_first=False takes the batch's first axis for positions"
        if tests.batch_norm:
            what += ", as a batch norm in training does"
        yield Fact(at[0], at[1] or WHOLE_MODEL, "leak", what, others[at], alarm=not tests.batch_norm)
    ahead = whole(tests, "sees_later") > 0 and not odd_layers
    told = whole(tests, "label_is_next") == 1 or whole(tests, "label_is_next_below") == 1
    # Of several inputs the label is the next word of one.
    first = whole(tests, "next_words") == 0
    sees_label = values(tests, "sees_label").get(("", 0, ""), whole(tests, "sees_later") if first else 0.0)
    if told and sees_label > 0 and not odd_layers:
        yield Fact("", WHOLE_MODEL, "leak", "every position sees its own label, which is the next input")
    elif (
        ahead
        and later
        and not any(value > 0 for at, value in later.items() if at[1])
        and any(value > 0 for at, value in earlier.items() if at[1])
    ):
        yield Fact("", WHOLE_MODEL, "leak", "positions see later ones outside of the layers, and in no layer")
    begins, documents = (set(values(tests, what).values()) for what in ("block_begins", "document_begins"))
    if mixed := sorted(documents - begins):
        places = ", ".join(f"{place:.0f}" for place in mixed)
        what = f"inputs say that documents begin at {places}, and positions behind see those before: is that meant?"
        yield Fact("", WHOLE_MODEL, "leak", what, alarm=False)
    if whole(tests, "label_is_own") == 1:
        yield Fact("", WHOLE_MODEL, "leak", "the label of every position is its own input: are labels shifted?")
    yield from _labels(tests)


def _labels(tests: ExactTests) -> Iterator[Fact]:
    """Where in the inputs labels are, if not at the next position."""
    distance = whole(tests, "label_distance")
    if np.isfinite(distance):
        what = f"the label of every position is the input {abs(distance):.0f} places "
        what += (
            "on: are labels shifted more than once?" if distance > 0 else "before it: are they shifted the other way?"
        )
        yield Fact("", WHOLE_MODEL, "leak", what, alarm=False)
    padded = whole(tests, "labels_on_padding")
    if padded > 0:
        what = (
            f"{padded:.0f} of {whole(tests, 'labels'):.0f} labels are at positions where attention_mask is 0: is the "
        )
        what += "padding to count in the loss?"
        yield Fact("", WHOLE_MODEL, "leak", what, alarm=False)
    for fact, whose in (("next_sample", "next sample"), ("own_start", "same sample")):
        if whole(tests, f"ends_in_{fact}") == 1:
            what = (
                f"labels at the end of a sample are the first words of the {whose}: are they shifted sample by sample?"
            )
            yield Fact("", WHOLE_MODEL, "leak", what, alarm=False)


def _unregistered(tests: ExactTests) -> Iterator[Fact]:
    """One fact a layer, with the first of its tensors."""
    owners: dict[tuple[str, int], list[str]] = {}
    for (part, layer, name), shape in tests.unregistered:
        tensor = f"{name or 'a tensor that no attribute holds'} {shape}".replace(",)", ")")
        owners.setdefault((part, layer), []).append(tensor)
    for (part, layer), tensors in owners.items():
        names = escaped(", ".join(tensors[:_NAMED]))
        rest = f" and {len(tensors) - _NAMED} more" if len(tensors) > _NAMED else ""
        whom = "them" if len(tensors) > 1 else "it"
        what = f"uses {names}{rest}, not registered as parameters: the optimizer will not see {whom}"
        yield Fact(part, layer, "structure", what)


def _norms(tests: ExactTests) -> Iterator[Fact]:
    by_epsilon, divided, share = (values(tests, f"norm_{what}") for what in ("epsilon", "divided", "share"))
    says = values(tests, "norm_says")
    far, backward = values(tests, "norm_far"), values(tests, "norm_backward")
    large, rather, none, perhaps, disagreeing, by_far = (dict[Place, float]() for _ in range(6))
    for at, response in values(tests, "norm_response").items():
        normed = max(response, far.get(at, response)) < NORM_FAR
        if normed and backward.get(at, 0.0) > BACKWARD and share[at] < _FELT:
            disagreeing[at] = backward[at]
        like_epsilon = abs(by_epsilon[at] - response) < _LIKE_EPSILON
        if like_epsilon and share[at] > EPSILON:
            large[at] = divided[at]
        elif like_epsilon and share[at] > _FELT:
            rather[at] = share[at]
        elif response >= NORM and far.get(at, response) < NORM:
            by_far[at] = response
        elif response >= NORM:
            (none if says[at] == 1 or response > _MORE_THAN_LINEAR else perhaps)[at] = response
    what = "the epsilon of {} is larger than what it divides, {{}}"
    yield from _in_one(large, "norm", what)
    yield from _in_one(rather, "norm", "the epsilon of {} is {{}} of what it divides", alarm=False)
    what = "{} is no norm: it answers with {{}} to the scale of its input, and a norm with 0"
    yield from _in_one(none, "norm", what)
    yield from _in_one(perhaps, "norm", what, alarm=False)
    what = "backward of {} disagrees with its forward: g.x is {{}} of a random direction's, and must be 0 behind a norm"
    yield from _in_one(disagreeing, "norm", what)
    what = "{} divides by its epsilon: it answers with {{}} to the scale of its input, and as a norm to 10^4 times that"
    yield from _in_one(by_far, "norm", what)


def _in_one(named: dict[Place, float], kind: str, what: str, *, alarm: bool = True) -> Iterator[Fact]:
    """One fact of everything in a layer, with the largest number."""
    layers: dict[tuple[str, int], list[Place]] = {}
    for at in named:
        layers.setdefault(at[:2], []).append(at)
    for (part, layer), places in layers.items():
        names = escaped(", ".join(name for *_, name in places))
        yield Fact(part, layer, kind, what.format(names), max(named[at] for at in places), alarm)


def _copies(tests: ExactTests, trained: bool) -> Iterator[Fact]:
    # Matrices that are copied between the same places are copied for one reason.
    groups: dict[tuple[tuple[tuple[str, int], ...], bool], list[tuple[tuple[str, int, str], ...]]] = {}
    for places, by_torch in zip(tests.copies, tests.by_torch, strict=True):
        groups.setdefault((tuple(at[:2] for at in places), by_torch), []).append(places)
    for (owners, by_torch), copied in groups.items():
        part, first = owners[0]
        layers = sorted({layer for _, layer in owners})
        if len(layers) == 1 or len({owner for owner, _ in owners}) > 1:
            part, layer = max(owners, key=lambda place: place[1])
            names = "; ".join(
                " and ".join(
                    f"{name} of layer {number} of {of}" if number and (of, number) != (part, layer) else name
                    for of, number, name in places
                )
                for places in copied
            )
            yield Fact(part, layer, "copies", f"the same numbers are in {names}", None, not (by_torch or trained))
            continue
        names = ", ".join(dict.fromkeys(name for places in copied for *_, name in places))
        rest = [layer for layer in layers if layer != first]
        what = f"layers {', '.join(map(str, layers))} hold the same numbers, not draws of their own, in {names}"
        if by_torch:
            what += ": copies of one that was given, or frozen ones"
        what += _beside_draws(tests, part)
        yield Fact(part, rest[0] if len(rest) == 1 else WHOLE_MODEL, "copies", what, None, not (by_torch or trained))
    if not trained:
        for at, share in values(tests, "repeated_rows").items():
            if share > REPEATED:
                yield Fact(at[0], at[1], "copies", f"{{}} of the rows of {escaped(at[2])} repeat others", share)


def _beside_draws(tests: ExactTests, part: str) -> str:
    """What copies in a list's layers change, in words."""
    numbers = [
        values(tests, what).get((part, 0, ""), float("nan"))
        for what in ("copied_growth", "redrawn_growth", "redrawn_gradient")
    ]
    if not np.isfinite(numbers).all():
        return ""
    copied, redrawn, gradient = numbers
    return (
        f"; over the layers the energy of the stream becomes {copied:.3g} times as large, with draws of their own "
        f"{redrawn:.3g} times, and a first step of SGD on them would lower the loss {gradient:.2g} times as much"
    )


def _biases(tests: ExactTests) -> Iterator[Fact]:
    constant = values(tests, "bias_constant")
    large = {at: ratio for at, ratio in values(tests, "bias_over_matrix").items() if ratio > BIAS}
    what = "entries of {} are {{}} times their matrix's, times the root of a row's length"
    yield from _in_one({at: ratio for at, ratio in large.items() if not constant[at]}, "bias", what)
    equal = {at: ratio for at, ratio in large.items() if constant[at]}
    yield from _in_one(equal, "bias", what + "; all are equal, which may be meant", alarm=False)


def _attention(tests: ExactTests, trained: bool) -> Iterator[Fact]:
    low, high = values(tests, "key_sum_low"), values(tests, "key_sum_high")
    for at in low:
        furthest = max((low[at], high[at]), key=lambda total: abs(total - 1))
        if abs(furthest - 1) > KEY_SUM:
            what = "attention weights of a query do not add up to 1 over its keys, but to {}: is softmax over the keys?"
            yield Fact(at[0], at[1], "attention", what, furthest, digits=4)
    if trained:
        return
    sizes, peaks = values(tests, "logit_std"), values(tests, "attention_peak")
    yield from _scales(tests, sizes)
    for at, size in sizes.items():
        others = [value for other, value in sizes.items() if other[0] == at[0] and other != at]
        usual = float(np.median(others)) if len(others) > 1 else float("nan")
        # Slopes over positions make logits large, and none of them a key's alone.
        if size > LOGITS and peaks.get(at, 1.0) > ONE_KEY:
            yield Fact(at[0], at[1], "attention", "logits have the standard deviation {}: softmax is one key's", size)
        elif usual > 0 and (factor := max(size / usual, usual / max(size, 1e-30))) > LOGITS_BESIDE:
            what = "{} times" if size > usual else "1/{} of"
            # The first layer may be given a weaker stream than the others give.
            alarm = at[1] > 1 or size > usual
            yield Fact(at[0], at[1], "attention", f"logits of attention are {what} the other layers'", factor, alarm)


def _scales(tests: ExactTests, deviations: dict[Place, float]) -> Iterator[Fact]:
    """Logits that are neither q·k/sqrt(d_k) nor q·k/d_k: too large ones are an alarm where softmax feels it."""
    keys = values(tests, "key_size")
    for at, scale in values(tests, "logit_scale").items():
        root = keys[at] ** -0.5
        if min(abs(scale / root - 1), abs(scale / root**2 - 1)) < _SAME_SCALE:
            continue
        alarm = scale > SCALE_BESIDE * root and deviations.get((*at[:2], ""), 0.0) > SCALED
        what = f"logits are q.k times {{}}; 1/sqrt(d_k) would be {root:.3g}, as d_k = {keys[at]:.0f}"
        yield Fact(at[0], at[1], "attention", what, scale, alarm)
    what = "what q.k is multiplied by is not seen: something is added to logits, or done with them, before softmax"
    for at in [place for place in values(tests, "logits_unseen") if place in deviations]:
        yield Fact(at[0], at[1], "attention", what, alarm=False)


def _units(tests: ExactTests) -> Iterator[Fact]:
    for quantity, what in (
        ("dead_units", "{} of its units are 0 at all tokens"),
        ("saturated_units", "{} of its units are saturated"),
    ):
        for at, share in values(tests, quantity).items():
            if share > UNITS:
                yield Fact(at[0], at[1], "units", what, share)
