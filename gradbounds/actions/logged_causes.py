"""The usual causes of a logged step 1 that is not as predicted, each with the loss and norm that it would cause."""

import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from gradbounds.actions.first_line import FirstLine
from gradbounds.actions.log_line import LogLine
from gradbounds.actions.log_names import plain
from gradbounds.actions.logged_as import Reading
from theory import Stack
from theory.first_step.batch_step import ERRORS

BEYOND = 2.58
"""The deviation, in standard deviations, above which a number is not as predicted: 1% of runs exceed it in each."""
THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
# Usual loss scales of half precision, and usual weights of auxiliary losses.
_LOSS_SCALES, _WEIGHTS = [2**k for k in range(7, 33)], (1.0, 0.1, 0.01, 0.001)
UNLIKELY = 2.0 * math.log(20.0)
"""The difference of `Cause.surprise` from the likeliest cause's above which a cause is not printed: 20 times."""
# How much less often than other causes a rare one is assumed: a squared norm, a fitted number, or two causes at once.
_RARE = 50.0
# The standard deviation of the loss's fall in step 1 from theory: 9 of 10 are within the error of gains, 30%.
_OF_FALL = ERRORS["gain"] / 1.645
TRAINED = 0.5
"""The share of ln V below which a loss belongs to trained weights; the loss of fresh weights is ln V or more."""
DRAWN_BY = "weights are initialized by"
"""The first words of a cause in which other code draws the weights."""
WITH_TEXT = ", with a text (--text FILE) in which two tokens are equal with probability "
"""The words between a cause and the probability of equal tokens in the text with which it explains a log."""
_FACTORS = {"half": 0.5, "twice": 2.0}
# A number, or one of the tested factors of all weights' standard deviation.
_NUMBERS = re.compile(r"\b\d[\d.]*|\bhalf\b(?= their)|\btwice\b(?= their)")

# What a repeated step 1 shows under a cause, by words of the cause.
_REPEATED = {
    "one device's gradient": "if the norm is of one device's gradient, one device with the whole batch has the "
    "predicted norm",
    "gradient is added up": "if the gradient is added up, half as many of these steps or devices halve the norm",
    "norm is squared": "if the norm is squared, twice the loss gives 4 times the norm",
    "devices share": "if shared parameters are counted, half as many devices divide the norm by 1.4",
    "their standard deviation": "if weights have twice (half) their standard deviation, logged norms of dL/dWQ and "
    "dL/dWK divided by that of dL/dWV are 3 to 8 times (a third to an eighth of) their prediction",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A usual reason why a logged step 1 is not as predicted, with the loss and gradient norm that it would cause.

    Attributes:
        words: description of the cause.
        line: loss and norm that the cause predicts; the norm is NaN if the loss alone refutes the cause.
        tried: how many values of a number were tried; the description contains the nearest.
        is_fitted: whether a free number or a second cause, other than a text, lets it explain many logs; or whether a
            text is unlike all measured ones.
        text_off: root of −2 ln of the text's prior probability, divided by that of the likeliest text.
        is_usual: whether the text repeats tokens as usual texts do.
        codes: number of codes that may initialize the weights, for a cause that names one of them; else 1.
    """

    words: str
    line: FirstLine
    tried: int = 1
    is_fitted: bool = False
    text_off: float = 0.0
    is_usual: bool = True
    codes: int = 1

    def offs(self, logged: LogLine) -> tuple[float, ...]:
        """Return how many standard deviations the logged loss, norm and matrices are from this cause's predictions.

        The norm is compared by its logarithm, and matrices by the proportions of their norms.
        """
        loss = 0.0 if logged.loss is None else (logged.loss - self.line.loss) / self.line.loss_deviation
        norm = math.nan if logged.norm is None else logged.norm / self.line.norm
        return loss, 0.0 if math.isnan(norm) else math.log(norm) / self.line.log_deviation, *self.line.matrices

    def contradicts(self, logged: LogLine, *, at_rate_0: bool = False) -> bool:
        """Return whether the logged fall of the loss is not as predicted at the logged rate, nor at rate 0 if allowed.

        Some frameworks log the next step's rate, while a warm-up begins with rate 0.
        """
        fall, error = self.fall(logged)
        is_off = abs((logged.fall or 0.0) - fall) > BEYOND * error
        noise = 2.0**0.5 * self.line.loss_deviation
        return is_off and not (at_rate_0 and abs(logged.fall or 0.0) < BEYOND * noise)

    def fall(self, logged: LogLine) -> tuple[float, float]:
        """Return the predicted fall of the loss from step 1 to step 2, and its standard deviation; NaN if unknown.

        AdamW's fall is proportional to the norm, so that the logged norm decides between texts. The two batches' losses
        differ by at most the root of 2 times the deviation of the loss over networks, labels and texts.
        """
        if math.isnan(self.line.fall):
            return math.nan, math.nan
        fall = self.line.fall * (logged.norm or self.line.norm) / self.line.norm
        return fall, math.hypot(_OF_FALL * fall, 2.0**0.5 * self.line.loss_deviation)

    def explains(self, logged: LogLine) -> bool:
        """Return whether all logged numbers are within 2.58 standard deviations of this cause's predictions."""
        return max(map(abs, self.offs(logged))) <= BEYOND

    @property
    def is_text(self) -> bool:
        """Return whether the cause is another text; it is fitted if it is unlike all of --text english and code."""
        return self.words.startswith("a text")

    @property
    def kind(self) -> str:
        """Return the words without their numbers; all codes that initialize weights are one kind."""
        single = re.sub(r" \([^()]* with other texts\)$", "", self.words.partition(WITH_TEXT)[0])
        return DRAWN_BY if single.startswith(DRAWN_BY) and ", and " not in single else _NUMBERS.sub("N", single)

    def distance(self, logged: LogLine) -> float:
        """Return how far the logged numbers are from their predictions under this cause, in standard deviations.

        A text that repeats tokens more or less often than the mean of usual texts adds its own distance.
        """
        return math.hypot(*self.offs(logged), self.text_off)

    def surprise(self, logged: LogLine) -> float:
        """Return −2 ln of the cause's posterior probability, up to a constant.

        Loss and norm have Gaussian logarithms. Causes have equal prior probabilities, which their tried numbers share.
        Other code is one cause, whose probability all codes share: a run has one of them, however many are known. A
        rare cause has less, and so has a text unlike most.
        """
        line, is_rare = self.line, "norm is squared" in self.words or self.is_fitted and not self.is_text
        widths = [line.loss_deviation / line.loss] * (logged.loss is not None)
        widths += [line.log_deviation] * (logged.norm is not None and line.norm > 0.0)
        return self.distance(logged) ** 2 + 2.0 * sum(map(math.log, [*widths, self.tried, self.codes, _RARE**is_rare]))


def matrix_causes(line: FirstLine, layers: pd.DataFrame, read: Reading) -> Iterator[Cause]:
    """Yield the cause that only the matrix furthest from theory has a wrong gradient."""
    if layers.empty or not read.is_to_scale:
        return
    matrix = layers.loc[np.log(layers["ratio"]).abs().idxmax()]
    square = line.norm**2 + matrix["logged"] ** 2 - matrix["theory"] ** 2
    if square > 0:
        yield Cause(
            f"the gradient of {matrix['role']} in layer {matrix['layer']} is {matrix['ratio']:.3g} times its "
            "prediction",
            replace(line, norm=math.sqrt(square), matrices=()),
        )


def multiplied(line: FirstLine, loss: float, norm: float) -> FirstLine:
    """Return a predicted line with its loss and its norm multiplied by two factors, each with its deviation."""
    return replace(
        line, loss=line.loss * loss, loss_deviation=line.loss_deviation * loss, norm=line.norm * norm,
        norm_deviation=line.norm_deviation * norm, drawn=line.drawn * norm, fall=line.fall * loss,
    )  # fmt: skip


def logging_causes(line: FirstLine, read: Reading, stack: Stack, batch: int) -> Iterator[Cause]:
    """Yield causes in which the network is as predicted but the log prints other numbers, such as sums.

    Args:
        line: predicted loss and norm, or those of another log of the same configuration.
        read: the log that has other numbers.
        stack: the network.
        batch: number of sequences.
    """
    printed = read.line
    times = partial(multiplied, line)
    padded = {-(-stack.vocab // 2**k) * 2**k for k in range(6, 13)} - {stack.vocab}
    larger = {vocab: line.loss + math.log(vocab / stack.vocab) for vocab in padded}
    for vocab in sorted(padded, key=lambda vocab: abs(larger[vocab] - (printed.loss or line.loss)))[:1]:
        yield Cause(f"the vocabulary is padded to {vocab}", replace(line, loss=larger[vocab]), len(padded))
    yield Cause("the loss is in bits", times(1.0 / math.log(2.0), 1.0))
    positions = batch * stack.tokens
    sums = {f"all {positions} tokens": positions, f"the {stack.tokens} tokens of a sequence": stack.tokens}
    if "sum" not in read.settled:
        for tokens, number in sums.items():
            yield Cause(f"the loss is a sum over {tokens}", times(number, number))
            if printed.norm is not None:
                yield Cause(f"the gradient is a sum over {tokens}", times(1.0, number))
    elif read.of.is_sum:
        yield Cause("the loss is a mean, but the gradient is a sum", times(1.0 / positions, 1.0))
        yield Cause("the loss is a sum, but the gradient is a mean", times(1.0, 1.0 / positions))
    divisors = [k for k in range(2, min(batch, 2**20) + 1) if batch % k == 0]
    losses = {name: value for name, value in printed.apart.items() if not plain(name).endswith("scale")}
    stated = [value for name, value in printed.apart.items() if name not in losses]
    scales = [value for value in stated if value > 1] if stated else _LOSS_SCALES
    ways = (
        (1, "added up over {:.0f} accumulation steps or devices", divisors),
        (-1, "divided once too often, by {:.0f}", divisors),
        (1, "multiplied by the loss scale {:.0f} of half precision", scales),
    )
    parts = (("loss and gradient are", 1, 1), ("the loss is", 1, 0), ("the gradient is", 0, 1))
    for (power, way, numbers), (part, of_loss, of_norm) in itertools.product(ways, parts):
        value, theory = (printed.loss, line.loss) if of_loss else (printed.norm, line.norm)
        if numbers and value is not None and not (printed.norm is None and of_norm):
            wanted = power * math.log(value / theory)
            k = float(min(numbers, key=lambda k, wanted=wanted: abs(math.log(k) - wanted)))  # type: ignore[misc]
            yield Cause(f"{part} {way.format(k)}", times(k ** (power * of_loss), k ** (power * of_norm)), len(numbers))
    if losses and printed.loss is not None:
        # Each loss has its own weight, or none, and many losses share one.
        alike = [(weight,) * len(losses) for weight in _WEIGHTS]
        weights = [*itertools.product((0.0, *_WEIGHTS), repeat=len(losses))][1:] if len(losses) < 4 else alike
        added = {each: sum(map(operator.mul, each, losses.values())) for each in weights}
        nearest = min(added, key=lambda each: abs(added[each] - printed.loss + line.loss))
        terms = " and ".join(f"{weight:g} times {name}" for weight, name in zip(nearest, losses, strict=True) if weight)
        yield Cause(f"the loss contains {terms}", replace(line, loss=line.loss + added[nearest]), len(weights))
    yield from _norm_causes(line, read, divisors)


def combined_causes(others: Sequence[Cause], read: Reading, stack: Stack, batch: int) -> list[Cause]:
    """Return causes in which other code draws the weights, and the log also prints sums over steps or devices."""
    return [
        replace(cause, words=f"{other.words}, and {cause.words}", is_fitted=True)
        for other in others
        if other.words.startswith(DRAWN_BY) and other.line.norm > 0
        for cause in logging_causes(other.line, read, stack, batch)
        if "added up" in cause.words
    ]


def nearest_with_texts(
    found: Sequence[tuple[float, Cause]], printed: LogLine, alone: Mapping[str, Cause]
) -> Iterator[Cause]:
    """Yield the likeliest cause of each kind, with the range of its number over texts with which it explains a log.

    Args:
        found: causes, each with the text's probability of equal tokens.
        printed: numbers of the log.
        alone: causes that explain the log without another text, by kind. They are yielded instead.
    """
    kinds: dict[str, list[tuple[float, Cause]]] = {}
    for kappa, cause in found:
        kinds.setdefault(_NUMBERS.sub("N", cause.words), []).append((kappa, cause))
    for pairs in kinds.values():
        fits = sorted(
            [pair for pair in pairs if pair[1].explains(printed)] or pairs, key=lambda pair: pair[1].surprise(printed)
        )
        kappa, nearest = fits[0]
        numbers = [_NUMBERS.findall(cause.words) for _, cause in fits]
        free = [values for values in zip(*numbers, strict=True) if len({*values}) > 1]
        is_one = len(free) == 1 and free[0] == tuple(row[0] for row in numbers)
        ends = sorted({*free[0]}, key=lambda word: _FACTORS.get(word) or float(word)) if is_one else [""]
        other = f" ({ends[0]} {'or' if ends[0] in _FACTORS else 'to'} {ends[-1]} with other texts)" * is_one
        by_itself = alone.get(nearest.kind)
        yield replace(by_itself or nearest, words=f"{by_itself.words}{other}" if by_itself
                      else f"{nearest.words}{other}{WITH_TEXT}{kappa:.3g}")  # fmt: skip


def _norm_causes(line: FirstLine, read: Reading, divisors: Sequence[int]) -> Iterator[Cause]:
    # Yield causes in which the log prints another norm: squared, clipped, of one device, or of padded sequences.
    printed = read.line
    if printed.norm is None:
        return
    if "square" not in read.settled:
        yield Cause(
            "the norm is squared",
            replace(
                line, norm=line.norm**2, norm_deviation=2.0 * line.norm * line.norm_deviation, quick=2 * line.quick
            ),
        )
    # The log rounds a threshold by 0.1%.
    threshold = min(THRESHOLDS, key=lambda limit: abs(math.log(printed.norm / limit)))  # type: ignore[operator]
    if line.norm > threshold and "clipped" not in read.settled:
        yield Cause(
            f"the norm is logged after it was clipped at {threshold:g}",
            replace(line, norm=threshold, norm_deviation=threshold * 1e-3, quick=0.0), len(THRESHOLDS),
        )  # fmt: skip
    # The squared norm has a part that all sequences share and a part that is proportional to 1/batch.
    for what, shared in (
        ("is of one device's gradient, before the mean over {} devices", line.shared),
        ("counts {0} times the parameters that {0} devices share", 0.0),
    ):
        roots = {k: math.sqrt(shared + k * (1.0 - shared)) for k in divisors or (1,)}
        k = min(roots, key=lambda k: abs(math.log(printed.norm / line.norm / roots[k])))  # type: ignore[operator]
        yield Cause(f"the norm {what.format(k)}", multiplied(line, 1.0, roots[k]), len(divisors), is_fitted=True)
    share = math.nan if printed.loss is None else printed.loss / line.loss
    if 0.25 < share < 0.95:  # of tokens without padding
        words = f"loss and gradient are averaged over {1.0 / share:.3g} times as many tokens, such as padding"
        yield Cause(words, multiplied(line, share, share), is_fitted=True)


def off_words(healthy: Cause, printed: LogLine) -> list[str]:
    """Describe whether the loss or the gradient norm differs from its prediction, by which factor, and what is usual.

    The usual factors are those of 95% of runs, and only numbers outside them are described.
    """
    line = healthy.line
    by, (least, most) = 2.0 * line.loss_deviation / line.loss, line.norm_range
    pairs = (
        ("loss", printed.loss, line.loss, 1.0 - by, 1.0 + by, ".4g"),
        ("gradient norm", printed.norm, line.norm, least / line.norm, most / line.norm, ".3g"),
    )
    return [
        f"the {name} is {number / theory:.4g} times the prediction (95% of runs: {low:{digits}} to {high:{digits}})"
        for name, number, theory, low, high, digits in pairs
        if number is not None and not low <= number / theory <= high
    ]


def separating_tests(causes: Iterable[str]) -> str:
    """Describe the measurements that tell causes apart, from their words; "" if none is known."""
    listed = "; ".join(causes)
    return "; ".join(what for words, what in _REPEATED.items() if words in listed)
