"""The alarms and notes from exact tests of a module, such as leaked labels, wrong norms and copied weights."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from checks.models.alarm import WHOLE_MODEL, Alarm, escaped, value_range
from simulate.modules.exact_tests import ExactTests

NORM = 0.5
"""A module called a norm does not normalize if it responds this much to the scale of its input (a norm: 0)."""
NORM_FAR, BACKWARD = 0.01, 0.1
"""A norm that responds by less than the first number has g·x = 0, except for rounding, for the gradient g at its
input x. If g·x divided by its value for a random direction exceeds the second, the backward pass is wrong."""
EPSILON = 1.0
"""The ratio of a norm's epsilon to its input's mean square above which the norm divides by its epsilon."""
BIAS = 1.0
"""The limit of a bias entry divided by (matrix entry times sqrt(row length)): no initialization exceeds it."""
REPEATED = 0.1
"""The share of a matrix's rows that repeat other rows above which an alarm is raised."""
LOGITS = 4.0
"""The standard deviation of attention logits above which softmax selects a single key."""
ONE_KEY = 0.5
"""The largest attention weight of a query, averaged over queries, above which attention selects a single key."""
LOGITS_BESIDE = 3.0
"""The factor by which a layer's logits may differ from the median of the other layers."""
SCALE_BESIDE = 1.5
"""The factor of q·k times sqrt(d_k) above which it is too large, if logits have a standard deviation above `SCALED`."""
SCALED = 2.0
"""T5 initializes queries sqrt(d_k) times smaller instead of scaling logits: their standard deviation is up to 1.2 in 16
healthy T5 models."""
KEY_SUM = 0.005
"""The allowed error of a query's total attention weight, 1: rounding to bfloat16 changes it by at most 2^-9."""
UNITS = 0.75
"""The share of a layer's hidden units that may be 0 at all tokens, or saturated, without an alarm."""

# What is called a norm by its name alone may be something else with that name; none multiplies its input, though.
_MORE_THAN_LINEAR = 1.1
_LIKE_EPSILON = 0.1
# The least share of an epsilon in the number by which a norm divides, and the least change of attention weights, that
# are reported. Logits of a small standard deviation s change weights by the share s, since softmax(s z) is (1 + s z)/n.
_FELT = 0.1
_SAME_SCALE = 0.01
_NAMED = 3
SAME_NUMBERS = "have the same numbers in"  # in a note on layers that are copies


Place = tuple[str, int, str]
"""Part, layer and name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about one layer; statements that differ only in the layer and in numbers become one alarm.

    Attributes:
        part: the name of the list that contains the layer.
        layer: the layer's number, or `WHOLE_MODEL`.
        kind: the kind of alarm.
        what: the statement, with a placeholder {} for each of its numbers.
        number: the number for the placeholder, or several.
        alarm: whether it is an alarm; otherwise it is a note.
        digits: the number of significant digits shown.
    """

    part: str
    layer: int
    kind: str
    what: str
    number: float | tuple[float, ...] | None = None
    alarm: bool = True
    digits: int = 2


def exact_alarms(tests: ExactTests, *, trained: bool = False) -> tuple[list[Alarm], list[str]]:
    """Return the alarms and notes from a module's exact tests, with one alarm for each cause.

    Args:
        tests: the results of `simulate.modules.exact_tests`.
        trained: whether the weights are trained; then biases, logits and copies raise no alarm.
    """
    facts = [
        *_leaks(tests), *_norms(tests), *_copies(tests, trained), *_attention(tests, trained), *_units(tests),
        *_unregistered(tests), *([] if trained else _biases(tests)),
    ]  # fmt: skip
    layers = _layers(tests)
    alarms = _gathered((fact for fact in facts if fact.alarm), layers)
    return alarms, [said(note) for note in _gathered((fact for fact in facts if not fact.alarm), layers)]


def said(alarm: Alarm) -> str:
    """Return the text of an alarm without its kind, for use as a note."""
    return str(alarm).split(": ", 1)[1]


def values(tests: ExactTests, quantity: str) -> dict[Place, float]:
    """Return the results of one test of a module as a dictionary by list of layers, layer and parameter name."""
    return {(part, layer, name): value for part, layer, name, what, value in tests.rows if what == quantity}


def whole(tests: ExactTests, quantity: str) -> float:
    """Return the result of one test for the whole module; NaN if the test was not made."""
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
        numbers = [np.atleast_1d(fact.number) for fact in members if fact.number is not None]
        if numbers:
            what = what.format(*(value_range(of, members[0].digits) for of in zip(*numbers, strict=True)))
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
                (seeing, "sees later positions ({} of the gradient), unlike other layers: is its mask wrong?")
                if 2 * len(seeing) <= len(mixing)
                else (
                    [at for at in mixing if at not in seeing],
                    "does not see later positions, unlike other layers: is its mask wrong?",
                )
            )
            odd_layers = True
            yield from [Fact(part, at[1], "leak", what, later[at] if "{}" in what else None) for at in odd]
        what = "sees later positions and no earlier ones: is its mask transposed?"
        yield from (Fact(part, at[1], "leak", what) for at in seeing if earlier[at] == 0)
    others = {at: value for at, value in values(tests, "sees_samples").items() if value > 0}
    inside = [at for at in others if at[1]]
    for at in inside or others:
        what = "sees other samples of the batch ({} of the gradient)"
        if tests.positions_first and whole(tests, "label_is_next_below") != 1:
            what += ": batch_first=False treats the batch's first axis as positions"
        if tests.batch_norm:
            what += ", as expected from a batch norm in training mode"
        yield Fact(at[0], at[1] or WHOLE_MODEL, "leak", what, others[at], alarm=not tests.batch_norm)
    ahead = whole(tests, "sees_later") > 0 and not odd_layers
    lengths = values(tests, "positions")
    told = whole(tests, "label_is_next") == 1 or whole(tests, "label_is_next_below") == 1
    # Of several inputs the label is the next word of one.
    first = whole(tests, "next_words") == 0
    sees_label = values(tests, "sees_label").get(("", 0, ""), whole(tests, "sees_later") if first else 0.0)
    if told and sees_label > 0 and not odd_layers:
        yield Fact(
            "", WHOLE_MODEL, "leak", "every position sees its own label (the next input): is the causal mask missing?"
        )
    elif (
        ahead
        and any(layer for _, layer, _ in later)
        and not any(value > 0 for at, value in later.items() if at[1])
        # Every list is a witness, with the outputs' positions: a padded encoder, for one, seems to see nothing.
        and {lengths.get(at) for at in later} == {lengths.get(("", 0, ""))}
        and {at[0] for at, value in earlier.items() if at[1] and value > 0} == {at[0] for at in later if at[1]}
    ):
        yield Fact("", WHOLE_MODEL, "leak", "positions see later positions only outside of the layers")
    begins, documents = (set(values(tests, what).values()) for what in ("block_begins", "document_begins"))
    if mixed := sorted(documents - begins):
        places = ", ".join(f"{place:.0f}" for place in mixed)
        what = f"inputs mark document starts at {places}, but later positions see earlier documents: is that intended?"
        yield Fact("", WHOLE_MODEL, "leak", what, alarm=False)
    if whole(tests, "label_is_own") == 1:
        yield Fact("", WHOLE_MODEL, "leak", "the label of every position is its own input: shift the labels by one")
    yield from _labels(tests)


def _labels(tests: ExactTests) -> Iterator[Fact]:
    """Note where labels are in the inputs, if they are not the next token ids."""
    distance = whole(tests, "label_distance")
    if np.isfinite(distance):
        what = f"the label of every position is the input {abs(distance):.0f} positions "
        what += (
            "later: are labels shifted more than once?"
            if distance > 0
            else "earlier: are labels shifted in the wrong direction?"
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
            what = f"labels at the end of a sample are the first tokens of the {whose}: shift labels within each sample"
            yield Fact("", WHOLE_MODEL, "leak", what, alarm=False)


def _unregistered(tests: ExactTests) -> Iterator[Fact]:
    """Report the tensors that each layer uses without registering them as parameters, one fact per layer."""
    owners: dict[tuple[str, int], list[str]] = {}
    for (part, layer, name), shape in tests.unregistered:
        owners.setdefault((part, layer), []).append(f"{name or 'an unnamed tensor'} {shape}".replace(",)", ")"))
    for (part, layer), tensors in owners.items():
        names = escaped(", ".join(tensors[:_NAMED]))
        rest = f" and {len(tensors) - _NAMED} more" if len(tensors) > _NAMED else ""
        whom = "them" if len(tensors) > 1 else "it"
        what = f"uses {names}{rest}, not registered as parameters: the optimizer will not train {whom}"
        yield Fact(part, layer, "structure", what)


def _norms(tests: ExactTests) -> Iterator[Fact]:
    by_epsilon, divided, share = (values(tests, f"norm_{what}") for what in ("epsilon", "divided", "share"))
    says = values(tests, "norm_says")
    far, backward = values(tests, "norm_far"), values(tests, "norm_backward")
    large, rather = (dict[Place, tuple[float, float]]() for _ in range(2))
    none, perhaps, disagreeing, by_far = (dict[Place, float]() for _ in range(4))
    for at, response in values(tests, "norm_response").items():
        normed = max(response, far.get(at, response)) < NORM_FAR
        if normed and backward.get(at, 0.0) > BACKWARD and share[at] < _FELT:
            disagreeing[at] = backward[at]
        like_epsilon = abs(by_epsilon[at] - response) < _LIKE_EPSILON
        if like_epsilon and share[at] > EPSILON:
            large[at] = 1 + share[at], divided[at]
        elif like_epsilon and share[at] > _FELT:
            rather[at] = 1 + share[at], divided[at]
        elif response >= NORM and far.get(at, response) < NORM:
            by_far[at] = response
        elif response >= NORM:
            (none if says[at] == 1 or response > _MORE_THAN_LINEAR else perhaps)[at] = response
    what = "the epsilon of {} divides its output's mean square by {{}}, as if all inputs had the mean square {{}}"
    yield from _in_one(large, "norm", what)
    yield from _in_one(rather, "norm", what, alarm=False)
    what = "{} does not normalize: its output grows as input^{{}}, and a norm's output as input^0"
    yield from _in_one(none, "norm", what)
    yield from _in_one(perhaps, "norm", what, alarm=False)
    what = "backward pass of {} does not match its forward pass: g.x must be 0, and is {{}} of a random vector's"
    yield from _in_one(disagreeing, "norm", what)
    what = (
        "{} divides by its epsilon: its output grows as input^{{}}, and it normalizes only inputs 10^4 times as large"
    )
    yield from _in_one(by_far, "norm", what)


def _in_one(
    named: Mapping[Place, float | tuple[float, float]], kind: str, what: str, *, alarm: bool = True
) -> Iterator[Fact]:
    """Report all modules or parameters of a layer with the same fault as one fact, with the largest number."""
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
            yield Fact(part, layer, "copies", f"the same numbers occur in {names}", None, not (by_torch or trained))
            continue
        names = ", ".join(dict.fromkeys(name for places in copied for *_, name in places))
        rest = [layer for layer in layers if layer != first]
        what = f"layers {', '.join(map(str, layers))} {SAME_NUMBERS} {names}, instead of independent random numbers"
        if by_torch:
            what += " (copies of one layer, or frozen)"
        yield Fact(part, rest[0] if len(rest) == 1 else WHOLE_MODEL, "copies", what, None, not (by_torch or trained))
    if not trained:
        yield from (
            Fact(part, layer, "copies", f"{{}} of the rows of {escaped(name)} repeat other rows", share)
            for (part, layer, name), share in values(tests, "repeated_rows").items()
            if share > REPEATED
        )


def _biases(tests: ExactTests) -> Iterator[Fact]:
    drawn, equal = (
        {at: ratio for at, ratio in values(tests, what).items() if ratio > BIAS}
        for what in ("bias_over_matrix", "bias_constant")
    )
    what = "entries of {} are {{}} times as large as (matrix entry x sqrt(row length))"
    yield from _in_one(drawn, "bias", what)
    yield from _in_one(equal, "bias", what + "; they are equal or of one sign, which may be intentional", alarm=False)


def _attention(tests: ExactTests, trained: bool) -> Iterator[Fact]:
    low, high = values(tests, "key_sum_low"), values(tests, "key_sum_high")
    for at in low:
        furthest = max((low[at], high[at]), key=lambda total: abs(total - 1))
        if abs(furthest - 1) > KEY_SUM:
            what = "attention weights of a query add up to {} over its keys instead of 1: is the softmax over the keys?"
            yield Fact(at[0], at[1], "attention", what, furthest, digits=4)
    if trained:
        return
    sizes, peaks, kinds = (values(tests, what) for what in ("logit_std", "attention_peak", "kind"))
    yield from _scales(tests, sizes)
    scales: dict[str, dict[int, float]] = defaultdict(dict)
    for (part, layer, _), scale in values(tests, "logit_scale").items():
        scales[part][layer] = scale
    for at, size in sizes.items():
        # In a small copy of a model logits are small, and a wrong factor of one layer's q·k is a mistake all the same.
        scale_here, usual_scale = scales[at[0]].get(at[1], 1.0), float(np.median([*scales[at[0]].values()] or [1.0]))
        is_felt = abs(scale_here - usual_scale) > _SAME_SCALE * abs(usual_scale)
        # Attention in windows has other logits than global attention: a layer is compared with layers of its kind.
        alike = [other for other in sizes if other != at and (other[0], kinds.get(other)) == (at[0], kinds.get(at))]
        others = [sizes[other] for other in alike]
        usual = float(np.median(others)) if len(others) > 1 else float("nan")
        # Slopes over positions make logits large, and none of them a key's alone.
        if size > LOGITS and peaks.get(at, 1.0) > ONE_KEY:
            what = "attention logits have standard deviation {}: softmax selects one key, with {} of the weight"
            yield Fact(at[0], at[1], "attention", what, (size, peaks.get(at, 1.0)))
        elif (
            usual > 0
            and (is_felt or max(size, usual) > _FELT)
            and (factor := max(size / usual, usual / max(size, 1e-30))) > LOGITS_BESIDE
        ):
            what = "{} times" if size > usual else "1/{} of"
            # The first layer may be given a weaker stream than the others give.
            alarm = at[1] > 1 or size > usual
            yield Fact(at[0], at[1], "attention", f"attention logits are {what} the other layers'", factor, alarm)


def _scales(tests: ExactTests, deviations: dict[Place, float]) -> Iterator[Fact]:
    """Report logits that are neither q·k/sqrt(d_k) nor q·k/d_k: an alarm if they are large enough to change softmax."""
    keys = values(tests, "key_size")
    for at, scale in values(tests, "logit_scale").items():
        root = keys[at] ** -0.5
        if min(abs(scale / root - 1), abs(scale / root**2 - 1)) < _SAME_SCALE:
            continue
        alarm = scale > SCALE_BESIDE * root and deviations.get((*at[:2], ""), 0.0) > SCALED
        what = f"attention logits are q.k times {{}}, usual is 1/sqrt(d_k) = {root:.3g} for d_k = {keys[at]:.0f}"
        yield Fact(at[0], at[1], "attention", what, scale, alarm)
    what = "the factor of q.k was not measured, because an operation between q.k and the softmax changes the logits"
    unseen = [place for place in values(tests, "logits_unseen") if place in deviations]
    yield from (Fact(part, layer, "attention", what, alarm=False) for part, layer, *_ in unseen)


def _units(tests: ExactTests) -> Iterator[Fact]:
    for quantity, what in (
        ("dead_units", "{} of its hidden units are 0 for all tokens"),
        ("saturated_units", "{} of its hidden units are saturated"),
    ):
        shares = values(tests, quantity).items()
        yield from (Fact(at[0], at[1], "units", what, share) for at, share in shares if share > UNITS)
