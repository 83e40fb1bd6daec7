"""The predictions of step 1 for a logged network, its texts and its other initializations, within one budget."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from gradbounds.actions.batch import vectors_of
from gradbounds.actions.first_line import (
    COARSE,
    OF_COARSE,
    FirstLine,
    cost_of_batch,
    first_line,
    largest_loss_deviation,
    masked_share,
    repeats_of_norm,
    scale_of_batch,
    times_of_repeats,
)
from gradbounds.actions.log_line import LogLine
from gradbounds.actions.logged_as import Reading
from gradbounds.actions.logged_causes import (
    BEYOND,
    DRAWN_BY,
    Cause,
    logging_causes,
    multiplied,
    nearest_with_texts,
)
from gradbounds.actions.logged_layers import compare_with_theory, proportions_off
from gradbounds.budget import Budget
from gradbounds.described_network import Description
from gradbounds.units import cpu_time
from theory import Stack
from theory.configurations import Note
from theory.configurations.encoder_decoders import shares_ends
from theory.configurations.training_codes import HUGGING_FACE, TRAINING_CODES
from theory.configurations.vectors import logit_multiplier
from theory.coverage import NoRuleError, require
from theory.first_step.batch_step import batch_steps, cost_of_steps
from theory.first_step.noise_scale import NoiseScale
from theory.mean_field.cost import Cost
from theory.mean_field.gaussian import LARGEST_SCALE, cross_entropy
from theory.mean_field.kernels import Array
from theory.mean_field.text_law import LEAST_VOCAB, TextLaw, token_law
from theory.mean_field.token_groups import Coarse

# Smallest vocabulary, and the smallest and largest probability that two tokens of a usual text are equal.
#
# Twelve English texts without hard line breaks reach 0.0167, by seven tokenizers. Seven further texts with such breaks,
# indents or short lines reach 0.0214, by GPT-2's tokenizer (docs/report.md). A small tokenizer may have letters, 0.069.
_USUAL_REPEATS = ((32_000, (0.0050, 0.0214)), (2, (0.0050, 0.069)))
# The standard deviation of ln kappa over batches of one text, times the root of the number of sequences: the root mean
# square over 20 texts, for sequences of 128 tokens. For 1024 tokens it is 0.49 (docs/report.md).
_OF_BATCH = 0.70
# The largest number of texts that are tried, the distance in standard deviations at which their search ends, and the
# step of Zipf's exponents.
_MOST_TEXTS, _CLOSE, _STEP = 4, 0.5, 0.002
# The number of usual texts with which each cause is tried, and the standard deviation of an estimated norm's logarithm
# for each unit of ln kappa between the estimate and a prediction. In five networks of width 128 the root mean square is
# 0.068 for usual texts, and 0.093 up to ten times as many repeats.
_TEXTS, _OF_ESTIMATE = 9, 0.07
# The decrease of the squared distance that a cause must bring, as Akaike's criterion requires for one more number.
_WORTH = 2.0
# The standard deviations of all weights, and the factors by which they are tried.
_DEVIATIONS, _STD_TIMES = (
    ("init_std", "query_key_scale", "embedding_scale", "output_scale"),
    {"half": 0.5, "twice": 2.0},
)

# The estimated seconds of a prediction above which causes are predicted with coarse groups of tokens.
_SOON = 2.0
# The largest relative error of a norm with coarse groups and gated units that is corrected by the network's own norm
# (4.6% was measured with Llama 3 8B, for its least repetitive text).
_OF_CORRECTED = 0.05
# The number of positions and of networks that represent a batch for the loss's fall in step 1. In a Llama 7B, 16
# positions have a fall that is within 10% of the fall by 64.
_POSITIONS, _NETWORKS = 16, 2
# The measurements that decide an undecided verdict: about a text like a counted one, a text unlike them, a text without
# a prediction, and the step.
_DECIDING = (
    "repeat with --text FILE, the token ids of your batch: {} could explain it",
    "test the other causes, then repeat with --text FILE, the token ids of your batch: no text of --text english or "
    "code explains the log, but another text could",
    "repeat with a longer --max-time or with --text FILE, because known texts were not computed",
    "log the number of the step, because later steps have a smaller loss",
)
ANOTHER_TEXT = "a text that repeats tokens more or less often"
"""The name of a text that was not predicted, in a list of missing causes."""


@dataclass
class Theory:
    """Predictions of step 1 of several networks, within one budget.

    Attributes:
        squares: squared gradient norms by role of the latest prediction; NaN for norms whose standard error of sampling
            is above a quarter.
        error: largest relative error of the network's own norm from coarse groups or few heads.
    """

    stack: Stack
    batch: int
    of: Description
    law: TextLaw | None
    patterns: int | None
    budget: Budget
    spread: float = 0.0  # of ln kappa over texts of the law's kind
    parameters: Mapping[str, float] = field(default_factory=dict)  # logged norms by name
    squares: dict[str, Array] = field(default_factory=dict)
    error: float = 0.0
    _spent: float = 0.0
    _coarse: Coarse = False
    _correction: float = 1.0  # the network's own norm over its norm with coarse groups

    def line(self, stack: Stack, notes: tuple[Note, ...], law: TextLaw | None) -> FirstLine:
        """Predict loss and norm of a network under a token law.

        Raises:
            ValueError: the prediction exceeds the budget.
            NoRuleError: there is no rule for it.
        """
        for subject in ("prediction", "noise_scale"):
            require(stack, subject)
        if shares_ends(notes):
            raise NoRuleError(
                "theory has no rule for the loss of a class that ties both ends of an encoder-decoder; --embeddings "
                "untied judges a network with separate ends."
            )
        left = replace(self.budget, seconds=max(self.budget.seconds - self._spent, 1e-9))  # of all causes together
        scale = scale_of_batch(stack, law, self.patterns, left, coarse=self._coarse, notes=notes)
        errors = scale.grad_sq_sem(self.batch)
        self.squares = {
            role: np.where((errors[role] > 0) & (square < 2.0 * errors[role]), np.nan, square)
            for role, square in scale.grad_sq(self.batch).items()
        }
        self._spent += cost_of_batch(stack, law, self.patterns, coarse=self._coarse)[0].seconds
        vectors, spread = vectors_of(stack, notes, self.of), self.spread if law is self.law else 0.0
        line, matrices = (
            first_line(scale, self.batch, vectors, law, spread),
            proportions_off(compare_with_theory(self.parameters, self.squares)[0]),
        )
        line = replace(line, quick=self._error(), own_logit=_own_logit(stack, scale), matrices=matrices)
        return multiplied(line, 1.0, self._correction)

    def with_fall(self, stack: Stack, notes: Sequence[Note], line: FirstLine, logged: LogLine) -> FirstLine:
        """Add the decrease of the loss by AdamW's step 1 to a prediction, if the log has both losses and the rate.

        It stays NaN without a rule, and if the losses of two batches differ more.
        """
        if self.law is None or logged.rate is None or logged.fall is None:
            return line
        try:
            moves = batch_steps(
                stack, ["adam", "sgd"], self.batch, self.law, positions=_POSITIONS, networks=_NETWORKS,
                masked=masked_share(notes), multiplier=logit_multiplier(notes),
            )  # fmt: skip
        except ValueError:  # no rule
            return line
        change, _ = moves["adam"].rescaled(line.norm**2 / moves["sgd"].gain).change(logged.rate)
        return replace(line, fall=-change if -change > 2.0**0.5 * line.loss_deviation else math.nan)

    def _error(self) -> float:
        # Return the largest relative error of a norm from coarse groups or few heads, in either direction.
        gated = COARSE if self._correction == 1.0 else _OF_CORRECTED
        return gated if (self._coarse is True and self.stack.ffn == "gated") else OF_COARSE * bool(self._coarse)

    def cost(self, stack: Stack) -> Cost:
        """Estimate the cost of a prediction; 0 if it has no rule or exceeds the budget."""
        try:
            cost, _ = cost_of_batch(stack, self.law, self.patterns, coarse=self._coarse)
        except ValueError:  # which `line` says
            return Cost()
        return cost if self.budget.holds(cost) else Cost()

    def quick_cost(self, *, coarse: bool) -> Cost:
        """Estimate the cost of predicting the network itself, as `healthy` does."""
        self._coarse, cost = False, cost_of_batch(self.stack, self.law, self.patterns)[0]
        if cost.seconds > _SOON or not self.budget.holds(cost):
            self._coarse = coarse or (self.stack.ffn == "gated" and "heads")
        return cost_of_batch(self.stack, self.law, self.patterns, coarse=self._coarse)[0]

    def announced(self, given: Mapping[str, Any], line: LogLine, *, coarse: bool) -> tuple[str, Cost, Cost]:
        """Return the words and the cost to print before a log is judged, and the part of the cost for causes."""
        fine, cost = (self.quick_cost(coarse=way) for way in (False, coarse))
        causes = fine if self._coarse is True else Cost()  # near an edge of the coarse norm's range
        if line.fall is not None and line.rate is not None and self.law is not None:
            cost += cost_of_steps(self.stack, ["adam", "sgd"], self.batch, positions=_POSITIONS, networks=_NETWORKS)
        self._coarse = bool(self._coarse)
        for of_text in [self.cost(self.stack)] * (1 if self.law is None else _MOST_TEXTS):
            causes += of_text
        for _, other, _ in _other_weights(given, self.of, self.stack):
            causes += self.cost(other) if self.of_loss(other, line) is None else Cost()
        return (
            f"predicting the first step ({cpu_time(cost.seconds)} if the log is as predicted)", cost + causes, causes,
        )  # fmt: skip

    def healthy(self, notes: tuple[Note, ...], *, coarse: bool) -> Cause:
        """Predict the network that the user described, without any of the tested mistakes.

        `coarse` allows coarse groups of tokens for a network that would take longer than `_SOON`. Without them, such a
        network with gated units has fine groups and few heads.
        """
        self.quick_cost(coarse=coarse)
        self.error, self._spent = self._error(), 0.0
        line = self.line(self.stack, notes, self.law)
        # Causes are chosen and left out by estimates, alike on every machine.
        self.budget, self._spent = replace(self.budget, is_clocked=False), 0.0
        return Cause(f", next to a prediction with --drawn-by {self.of.drawn_by}" * self.of.is_model, line)

    def coarsen(self, healthy: Cause, notes: tuple[Note, ...]) -> None:
        """Predict causes with coarse groups of tokens if the network itself takes longer than `_SOON`.

        Their norms are multiplied by the network's own norm over its norm with coarse groups.
        """
        self._coarse, before = False, self._coarse
        self._coarse = self.cost(self.stack).seconds > _SOON
        if self._coarse != before:
            self._correction = healthy.line.norm / self.line(self.stack, notes, self.law).norm

    def is_sure(self, causes: list[Cause], logged: LogLine) -> bool:
        """Return whether norms larger and smaller by the error of coarse groups explain a log alike.

        A verdict depends on the prediction and, if it is undecided, on a text.
        """
        return all(
            replace(cause, line=multiplied(replace(cause.line, quick=0.0), 1.0, factor)).explains(logged)
            == cause.explains(logged)
            for cause in causes
            for factor in (1.0 - self.error, 1.0 / (1.0 - self.error))
        )

    def of_loss(self, stack: Stack, logged: LogLine) -> FirstLine | None:
        """Return the loss, without a norm, if it alone refutes a slow network; None if the norm must be predicted.

        Untied logits after a norm have the variance of the output matrix, so that the loss needs no prediction. The
        epsilon of the last norm changes it by at most 0.2%.
        """
        is_read_out = stack.normalized_output and stack.output_transform == "none" and stack.embeddings != "tied"
        loss = cross_entropy(min(stack.output_scale, LARGEST_SCALE), stack.vocab)
        deviation = largest_loss_deviation(stack, self.batch, self.law) + 0.002 * loss
        line = FirstLine(loss, deviation, math.nan, math.nan, is_bound=True)
        is_known = is_read_out and self._coarse and self.cost(stack).seconds and stack.output_scale <= LARGEST_SCALE
        return line if is_known and not Cause("", line).explains(logged) else None

    def others(self, given: Mapping[str, Any], logged: LogLine, missing: list[str]) -> Iterator[Cause]:
        """Predict networks with other initializations; add those without a prediction to `missing`."""
        networks = [*_other_weights(given, self.of, self.stack)]
        codes = sum(words.startswith(DRAWN_BY) for words, _, _ in networks)
        for words, other, notes in networks:
            try:
                line = self.of_loss(other, logged) or self.line(other, notes, self.law)
            except ValueError:  # no rule, or over the budget
                missing.append(words)
            else:
                cause = Cause(words, line, codes=codes if words.startswith(DRAWN_BY) else 1)
                yield (
                    replace(cause, line=self.with_fall(other, notes, line, logged)) if cause.explains(logged) else cause
                )

    def with_texts(
        self, healthy: Cause, others: Sequence[Cause], read: Reading, by_itself: Mapping[str, Cause]
    ) -> list[Cause]:
        """Return each kind of cause with the known text with which it is nearest to a log.

        Nine texts have probabilities of equal tokens from the least to the largest of usual texts. Further texts repeat
        tokens more, up to the most repetitive text of --text code. All norms are estimates. `text_off` has the prior
        probability of kappa. Tokens that repeat the previous one lower the loss of tied embeddings, as `_repeating`. A
        cause must be nearer to the log than its text alone.

        Args:
            healthy: prediction for the network itself.
            others: networks with other weights.
            read: the log.
            by_itself: causes that explain the log without another text, by kind.
        """
        (least, most, largest), pairs = _usual_repeats(self.stack, self.batch), list[tuple[float, Cause]]()
        step, start = math.log(most / least) / (_TEXTS - 1), self.law.across if self.law else math.nan
        further = least * np.exp(np.arange(0.0, math.log(largest / least) + step, step))
        for kappa in (round(start, 4), *np.minimum(further, largest).round(4)) if self.law else ():
            lines = [
                _repeating(at_repeats(self.stack, each.line, kappa / start), kappa, read.line.loss)
                for each in (healthy, *others)
            ]
            alone = Cause("", lines[0]).distance(read.line) ** 2
            causes = [
                *(replace(other, line=line) for other, line in zip(others, lines[1:], strict=True) if line.norm > 0),
                *(cause for cause in logging_causes(lines[0], read, self.stack, self.batch)
                  if cause.distance(read.line) ** 2 < alone - _WORTH),
            ]  # fmt: skip
            off = 0.0 if kappa == round(start, 4) else text_off(self.stack.vocab, self.batch, kappa)
            pairs += [(kappa, replace(cause, text_off=off)) for cause in causes]
        return [*nearest_with_texts(pairs, read.line, by_itself)]

    def lowest_loss(self, line: FirstLine, *, is_free: bool) -> float:
        """Return the smallest loss of random weights in 99 of 100 runs, for the text or, if free, all known texts.

        For logits z and a label y the loss is ln sum(exp z) - z_y, at least ln V plus the mean of z minus z_y. Labels
        do not depend on random weights, so that the mean of this difference is zero. With tied embeddings, labels that
        repeat the token have larger logits.
        """
        known = self.law.across if self.law else 0.0
        times = _usual_repeats(self.stack, self.batch)[2] / known if is_free and known else 1.0
        lower = line.own_logit * (known * times) ** 0.5 + BEYOND * at_repeats(self.stack, line, times).loss_deviation
        return math.log(self.stack.vocab) - lower

    def texts(self, healthy: Cause, notes: tuple[Note, ...], logged: LogLine, missing: list[str]) -> list[Cause]:
        """Find a known text that explains a log; without a prediction, add it to `missing`."""
        start = None if self.law is None else (self.law.across, healthy.line)
        try:
            return text_causes(self.stack, start, lambda law: self.line(self.stack, notes, law), logged, self.batch)
        except ValueError:
            missing.append(ANOTHER_TEXT)
        return []


def doubts_of(healthy: Cause, texts: Sequence[Cause], logged: LogLine, *, is_missing: bool = False) -> list[str]:
    """Name the measurements that decide an undecided verdict; none if the log is not as predicted.

    Args:
        healthy: prediction for the network itself, which does not explain the log.
        texts: known texts that explain the log.
        logged: first step of the log; without a number, it may be a later one, whose loss is smaller.
        is_missing: whether a text that was not predicted may explain the log.
    """
    near = any(each.is_usual for each in texts)
    words = "another usual text" if near else "no English text explains the log, but text as repetitive as code"
    kinds = (
        any(not each.is_fitted for each in texts), any(each.is_fitted for each in texts), is_missing,
        logged.step is None and healthy.offs(logged)[0] < -BEYOND,
    )  # fmt: skip
    return [each.format(words) for each in itertools.compress(_DECIDING, kinds)]


def text_causes(
    stack: Stack, start: tuple[float, FirstLine] | None, predicted: Callable[[TextLaw], FirstLine], logged: LogLine,
    sequences: float = math.inf,
) -> list[Cause]:  # fmt: skip
    """Find a text, described by Zipf's law with an exponent, that repeats tokens as known texts do and explains a log.

    Known texts are usual texts and --text code. The norm grows with the probability kappa of equal tokens, so that a
    norm beyond the extremes fits no text. The list is empty if no text explains the log. A text unlike all of --text
    english and code is fitted.

    The logits of tied embeddings prefer the position's own token. A lower loss is explained by tokens that repeat the
    previous token, such as the blanks of indents, up to the largest frequency of a token: the root of kappa.

    Args:
        stack: the network.
        start: probability that two tokens are equal and first line of a predicted text; None if there is none.
        predicted: function that predicts the first line for a text law.
        logged: first step of the log.
        sequences: number of sequences in the batch; few sequences differ more from their text.
    """
    (least, most, largest), known = _usual_repeats(stack, sequences), start
    norm, nearest, tried = logged.norm or math.inf, list[Cause](), list[float]()
    for _ in range(_MOST_TEXTS):
        wanted, guess = (
            ((least * most) ** 0.5, None) if start is None else _guess(stack, *start, norm, (least, largest))
        )
        exponent = _exponent(wanted, stack.vocab)
        if any(abs(exponent - other) < 0.5 * _STEP for other in tried) or (
            guess is not None and not Cause("", _repeating(guess, wanted, logged.loss)).explains(logged)
        ):
            break
        tried.append(exponent)
        law, like = TextLaw.zipf(exponent, stack.vocab), f", like --text zipf:{exponent:.3g}"
        line = predicted(law)
        # Zipf's law has no pairs of words that repeat together.
        estimate = at_repeats(stack, known[1], law.across / known[0]) if known else line
        # The proportions of matrices and their deviations hold for the text of the first prediction.
        line = replace(
            line,
            loss_deviation=max(line.loss_deviation, estimate.loss_deviation),
            matrices=estimate.matrices,
            fall=estimate.fall * line.norm / estimate.norm,
        )
        start = law.across, line
        if is_low := Cause("", line).offs(logged)[0] < -BEYOND and line.own_logit > 0.0:
            line = _repeating(line, law.across, logged.loss)
            like = f" and {(start[1].loss - line.loss) / line.own_logit:.1%} of tokens repeat the previous one"
        cause = _text_cause(stack, law.across, line, logged, (least, most, largest), like, is_like=not is_low)
        cause = replace(cause, text_off=text_off(stack.vocab, sequences, law.across))
        if cause.explains(logged):
            nearest = [min([*nearest, cause], key=lambda cause: math.hypot(*cause.offs(logged)))]
        if nearest and math.hypot(*nearest[0].offs(logged)) < _CLOSE or abs(cause.offs(logged)[0]) > BEYOND:
            break
    return nearest


def _guess(
    stack: Stack, repeats: float, line: FirstLine, norm: float, limits: tuple[float, float]
) -> tuple[float, FirstLine]:
    # Estimate the probability of equal tokens, within limits, of a text with a norm, and its first line.
    wanted = min(max(repeats * repeats_of_norm(stack, line, norm), limits[0]), limits[1])
    guess = at_repeats(stack, line, wanted / repeats)
    return wanted, replace(guess, norm_deviation=guess.norm_deviation + 0.1 * guess.norm)


def _usual_repeats(stack: Stack, sequences: float) -> tuple[float, float, float]:
    # Return the least and the largest probability of equal tokens in batches of usual texts, and of known texts.
    #
    # Usual texts and batches of one text vary independently, each end two standard deviations from the middle.
    least, most = next(ends for vocab, ends in _USUAL_REPEATS if stack.vocab >= vocab)
    times = math.exp(math.hypot(math.log(most / least) / 2.0, 2.0 * _OF_BATCH * sequences**-0.5))
    codes = token_law("code", stack.vocab).kappa_of_texts.values() if stack.vocab >= LEAST_VOCAB else ()
    middle = (least * most) ** 0.5
    return middle / times, middle * times, max([middle * times, *codes])


def at_repeats(stack: Stack, line: FirstLine, times: float) -> FirstLine:
    """Estimate the first line for a text in which two tokens are `times` as likely to be equal.

    The loss varies by labels that agree, weighted by the correlation of their positions. Labels agree with probability
    kappa. Positions whose words agree are correlated most; two words in a row agree with probability kappa² if words
    are independent, and at most kappa. So the standard deviation grows like a power of kappa between 1/2 and 1; this
    estimate is the larger one. In eight texts it grew like the powers 0.60 to 0.81. If all positions and labels agree,
    it is the standard deviation s of one logit. Gaussian logits have the loss ln V + s²/2.
    """
    norm = times_of_repeats(stack, line, times)
    there = replace(multiplied(line, 1.0, norm), fall=line.fall * norm)
    of_logit = math.sqrt(max(0.0, 2.0 * (line.loss - math.log(stack.vocab))))
    return replace(
        there,
        loss_deviation=line.loss_deviation * times**0.5 if times < 1.0 else max(
            line.loss_deviation, min(of_logit, line.loss_deviation * times)
        ),
        norm_deviation=math.hypot(there.norm_deviation, _OF_ESTIMATE * abs(math.log(times)) * there.norm),
    )  # fmt: skip


def _own_logit(stack: Stack, scale: NoiseScale) -> float:
    # Return the mean logit of a position's own token; 0 with Post-LN, without a tied causal head, or with a transform.
    #
    # The stream contains the token's embedding, and sub-layers are independent of it. The final norm divides by the
    # root of the stream's energy.
    return (
        stack.output_scale * stack.embedding_scale * float(stack.width / scale.stream["hidden_energy"][-1]) ** 0.5
        if (stack.embeddings, stack.mask, stack.output_transform) == ("tied", "causal", "none")
        and stack.placement in ("pre", "peri")
        else 0.0
    )


def _repeating(line: FirstLine, kappa: float, logged: float | None) -> FirstLine:
    # Return a first line with the loss that is nearest to a logged one, if up to the root of kappa of the tokens repeat
    # the previous one.
    return replace(
        line,
        loss=min(max(line.loss - line.own_logit * kappa**0.5, math.inf if logged is None else logged), line.loss),
    )


def text_off(vocab: int, sequences: float, kappa: float) -> float:
    """Return the root of −2 ln of a batch's prior probability, divided by that of a typical English batch.

    Half of all texts are as the English texts of the default. The others have a wider distribution, from the ends of
    the usual range and the texts of --text code. Both are normal in ln kappa, and so is a batch of one text.
    """
    kinds = [(middle, math.hypot(off, _OF_BATCH * sequences**-0.5)) for middle, off in _prior(vocab)]
    likely, here = (
        sum(math.exp(-(((place - middle) / off) ** 2) / 2.0) / off for middle, off in kinds)
        for place in (kinds[0][0], math.log(kappa))
    )
    return math.sqrt(max(0.0, 2.0 * math.log(likely / max(here, 1e-300))))


@cache
def _prior(vocab: int) -> tuple[tuple[float, float], ...]:
    # Return mean and standard deviation of ln kappa over English texts, and over texts of any kind.
    wide = [*next(ends for least, ends in _USUAL_REPEATS if vocab >= least)]
    kinds = [wide]
    if vocab >= LEAST_VOCAB:
        english, code = (token_law(kind, vocab).kappa_of_texts.values() for kind in ("english", "code"))
        kinds = [[*english], [*wide, *code]]
    return tuple((float(np.log(kappas).mean()), float(np.log(kappas).std(ddof=1))) for kappas in kinds)


def _text_cause(
    stack: Stack, repeats: float, line: FirstLine, logged: LogLine, ends: tuple[float, float, float], like: str, *,
    is_like: bool,
) -> Cause:  # fmt: skip
    # Describe a text, and the text of --text english or code with the nearest probability of equal tokens. The text is
    # fitted if that text does not explain a log, by an estimate. A small vocabulary has no such texts.
    words = (
        f"a text in which two tokens are equal with probability {repeats:.3g}{like} "
        "(usual batches: {:.2g} to {:.2g}, known texts: to {:.2g}".format(*ends)
    )
    cause = Cause(f"{words})", line, is_usual=ends[0] <= repeats <= ends[1])
    if stack.vocab < LEAST_VOCAB:
        return cause
    texts = {
        f"{kind} {text}": kappa
        for kind in ("english", "code")
        for text, kappa in token_law(kind, stack.vocab).kappa_of_texts.items()
    }
    name, kappa = min(texts.items(), key=lambda item: abs(math.log(item[1] / repeats)))
    is_near = is_like and Cause("", multiplied(line, 1.0, times_of_repeats(stack, line, kappa / repeats))).explains(
        logged
    )
    none = "" if is_near else "no text of --text english or code explains the log, "
    return replace(cause, words=f"{words}; {none}nearest measured text: {name}, {kappa:.2g})", is_fitted=not is_near)


def _exponent(repeats: float, words: int) -> float:
    # Return Zipf's exponent at which two tokens of this vocabulary are equal with a given probability; at least 0.
    #
    # It is rounded, so that fine groups of tokens meet texts that were predicted before.
    exponents = np.linspace(0.0, 3.0, 31)
    of_each = [math.log(TextLaw.zipf(exponent, words).across) for exponent in exponents]
    return _STEP * round(float(np.interp(math.log(repeats), of_each, exponents)) / _STEP)


def _other_weights(
    given: Mapping[str, Any], of: Description, stack: Stack
) -> Iterator[tuple[str, Stack, tuple[Note, ...]]]:
    # Yield the networks with usual other initializations or tied weights, each with a description and its notes.
    other_end = "untied" if stack.embeddings == "tied" else "tied"
    others = [(f"embeddings and output matrix are {other_end}", of, dict(given) | {"embeddings": other_end})]
    others += [("W^O and W2 are not scaled by the depth", of, dict(given) | {"depth_scaling": "none"})] * (
        stack.depth_scaling != "none"
    )
    if of.is_model:
        codes = {HUGGING_FACE: "its class in transformers"} | {
            name: f"{code.title} ({name})"
            for name, code in TRAINING_CODES.items()
            if not (code.refused or code.asks)  # of a base model a log says nothing
        }
        others += [
            (f"{DRAWN_BY} {words}", replace(of, drawn_by=name), dict(given))
            for name, words in codes.items()
            if name != of.drawn_by
        ]
    if stack.init_std:
        for word, times in _STD_TIMES.items():
            scaled: dict[str, Any] = {name: times * getattr(stack, name) for name in _DEVIATIONS}
            yield (
                f"all weights have {word} their standard deviation",
                replace(stack, **scaled),
                of.read(given)[1],
            )
    seen = {stack}
    for words, described, fields in others:
        try:
            other, notes = described.read(fields)
        except ValueError:  # a code's rule is about other networks
            continue
        if other not in seen:
            yield words, other, notes
        seen.add(other)
