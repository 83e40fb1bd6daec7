"""The predicted loss and gradient norm of step 1, with the standard deviation of one training run."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from gradbounds.actions.plan import ZIPF
from gradbounds.budget import Budget, OverBudgetError, measured, once
from gradbounds.network_text import number_text
from gradbounds.progress import shown
from gradbounds.units import cpu_time, format_bytes
from simulate.network.allocator import keep_freed_memory
from simulate.threads import one_numpy_thread
from theory import Stack
from theory.configurations import Note
from theory.configurations.encoder_decoders import shares_ends
from theory.configurations.vectors import gradient_factors
from theory.first_step.noise_scale import NoiseScale, noise_scale
from theory.mean_field.cost import Cost, is_grouped, prediction_cost
from theory.mean_field.text_law import KINDS, LEAST_VOCAB, TextLaw, token_law
from theory.mean_field.token_groups import Coarse

# Relative deviations of a norm from theory, in sampled networks (docs/report.md). Units: sqrt(L/d); for Post-LN
# without depth scaling L/sqrt(d), as if all its layers deviated with one sign; 1/sqrt(tokens).
_OF_DEPTH, _OF_POST, _OF_TOKENS = 0.15, 0.17, 0.25
# Of what sequences share, over sqrt(d): the gradient of frequent labels is one Gaussian vector of d coordinates, whose
# length varies by 1/sqrt(2 d). With tied embeddings more was sampled, with plain units and with gated ones.
_OF_LABELS, _OF_TIED, _OF_TIED_GATED = 0.5**0.5, 1.15, 1.5
# Theory's own error for text with gated units, of which tests/evidence/text-networks.json has 0.02 in the mean where
# embeddings are tied.
_OF_GATED_TEXT = 0.02
# Theory's own error for text with experts: the root mean square over sampled networks is 4%, nearly all below them. The
# width is the cause: with a plain MLP the norm is 3% low too at d = 256, and with either it is 1% low at d = 1024.
_OF_EXPERT_TEXT = 0.04
# The power of how often words repeat that the shared squared norm goes like with gated units: theory itself has it
# within 11% for Llama 3, GPT-2 and Pythia, at batches of 64 and more.
_GATED_POWER = 2


# Attention samples of a quick batch, and whether its groups are coarse: the first of these within the seconds of the
# estimate, or the last.
_WAYS, _QUICK = ((16, False), (4, False), (16, True), (4, True), (2, True)), 2.5

LOSS_OF_UNTIED = "unknown: the class ties both ends, and theory has the loss of untied ends, "

# The mean number of masked words below which a batch's ranges are rough: without any, its loss is NaN.
_LEAST_MASKED = 20

# The largest number of tokens in the predictions from which a deviation is derived.
_FEW = 16
COARSE = 0.09
"""The most by which coarse groups of tokens change the norm with gated units.

Seven models with gated units were predicted by hand both ways, and most norms were lower. In the first twelve networks
of tests/evidence/quick-norms.json, 36 norms change by -1.3% to 4.1%. With plain units, norms hardly change.
"""
RISE = 0.05
"""The most by which coarse groups raise the norm with gated units, set on the first twelve networks.

One of 45 norms of 15 later networks rises by more: 5.7%, for Gemma 3 1B with 128 tokens and 512 sequences.
"""
OF_COARSE = 0.01
"""The most by which coarse groups change a norm with plain units, and by which few heads change it."""


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The predicted loss and gradient norm of step 1, each with the standard deviation of one training run.

    Attributes:
        loss: mean loss in nats per token.
        loss_deviation: standard deviation of the loss over networks, labels and texts.
        norm: root mean square of the total gradient norm over networks.
        norm_deviation: standard deviation of one run's norm from `norm`, including theory's own error.
        shared: share of the matrices' squared gradient norm that is common to two sequences.
        is_bound: whether `loss_deviation` is only an upper bound.
        drawn: standard deviation of the norm over weights and batches of one text, without theory's own error.
        quick: largest relative error by which a quick estimate of the norm is too small; 0 otherwise.
        masked: share of masked words; 0 if every position counts in the loss.
        positions: number of positions in the batch.
        own_logit: mean logit of a position's own token with tied embeddings, in Pre-LN networks; 0 elsewhere.
        matrices: distances of the proportions of a log's matrix norms from their predictions, in standard deviations.
        fall: decrease of the loss by AdamW's step 1 at the learning rate of a log; NaN if it was not predicted.
    """

    loss: float
    loss_deviation: float
    norm: float
    norm_deviation: float
    shared: float = 0.0
    is_bound: bool = False
    drawn: float = 0.0
    quick: float = 0.0
    masked: float = 0.0
    positions: int = 0
    own_logit: float = 0.0
    matrices: tuple[float, ...] = ()
    fall: float = math.nan

    @property
    def log_deviation(self) -> float:
        """Return the standard deviation of the norm's logarithm, including the error of a quick estimate."""
        return math.hypot(self.norm_deviation / self.norm, self.quick)

    @property
    def norm_range(self) -> tuple[float, float]:
        """Return the limits of the gradient norm in 95% of runs, two standard deviations of its logarithm each way.

        The range of a quick estimate is wider on both sides, so that it contains the range of the fine estimate.
        """
        times = math.exp(2.0 * self.norm_deviation / (self.norm or 1.0))
        return self.norm / times / (1.0 + min(self.quick, RISE)), self.norm * times / (1.0 - self.quick)


def first_line(
    scale: NoiseScale, batch: int, vectors: Sequence[str], law: TextLaw | None, spread: float = 0.0
) -> FirstLine:
    """Predict the loss and the gradient norm of step 1 for a network, a batch size and a distribution of token ids.

    `vectors` names the biases, gains and tables that are learned. `spread` is the standard deviation of ln kappa over
    texts of the law's kind; 0 for one known text.
    """
    norm, error = scale.norm(batch, vectors)
    bound = scale.loss_moments is None
    deviation = largest_loss_deviation(scale.stack, batch, law) if bound else scale.loss_deviation(batch)
    drawn = _of_networks(scale, batch, alike=None if law is not None else _alike(scale.stack))
    shares = [error / norm if norm else 0.0]
    common, whole = (
        sum(float(np.nansum(part)) for part in parts.values()) for parts in (scale.product, scale.grad_sq(batch))
    )
    shared = min(1.0, common / whole) if whole else 0.0
    of_tied = _OF_TIED_GATED if scale.stack.ffn == "gated" else _OF_TIED
    drawn += [shared * (of_tied if scale.stack.embeddings == "tied" else _OF_LABELS) * scale.stack.width**-0.5]
    if law is not None:
        power = shared * _power(scale.stack, scale.masked)
        tokens = scale.stack.tokens * (scale.masked or 1.0)
        # The number of masked words varies, and with it the part of the squared norm that averages out.
        of_count = (1.0 - shared) / 2.0 * ((1.0 - scale.masked) / (batch * tokens)) ** 0.5 * bool(scale.masked)
        drawn += [power * _deviation_of_repeats(law, batch, tokens), of_count]
        shares += [
            power * 0.5 * spread, _OF_GATED_TEXT * (scale.stack.ffn == "gated"),
            _OF_EXPERT_TEXT * bool(scale.stack.experts),
        ]  # fmt: skip
    of_draw = norm * float(np.linalg.norm(drawn))
    return FirstLine(
        scale.loss, deviation, norm, math.hypot(of_draw, norm * float(np.linalg.norm(shares))), shared, bound, of_draw,
        masked=scale.masked, positions=batch * scale.stack.tokens,
    )  # fmt: skip


def _of_networks(scale: NoiseScale, batch: int, *, alike: tuple[float, float] | None) -> list[float]:
    # Return relative standard deviations of the norm over random networks and labels, without a text's repeats.
    #
    # With `alike`, they are derived. The labels' rows of the output matrix are Gaussian vectors of d coordinates, and
    # two of N S labels agree with probability 1/V. The squared norm weights pairs of positions by `alike`, so its
    # relative variance is 2 (1/d + 1/V) times the mean square of the weights. In a sequence, early positions have large
    # weights, and the mean square is at most the mean. A layer's own vectors have d coordinates, and what theory omits
    # is of order 1/d.
    stack, sequences = scale.stack, batch
    depth, width, positions = stack.depth, stack.width, batch * stack.tokens * (scale.masked or 1.0)
    if alike is None:
        is_post = stack.placement == "post" and stack.depth_scaling == "none"
        of_depth = _OF_POST * depth / width**0.5 if is_post else _OF_DEPTH * (depth / width) ** 0.5
        return [of_depth, _OF_TOKENS * positions**-0.5]
    within, across = alike
    square = 1.0 / positions + (1.0 - 1.0 / stack.tokens) / sequences * within + (1.0 - 1.0 / sequences) * across**2
    return [
        (square * (1.0 / width + 1.0 / stack.vocab) / 2.0) ** 0.5, within * (2.0 * width * depth) ** -0.5, 1.0 / width
    ]  # fmt: skip


def _is_derived(stack: Stack) -> bool:
    scaled = stack.placement == "pre" and stack.depth_scaling != "none"
    return scaled and stack.embeddings != "tied" and not stack.experts


@cache
def _alike(stack: Stack) -> tuple[float, float] | None:
    # Return the share of the gradients that two positions of one sequence, and of two, have in common if labels agree.
    #
    # It is the response to the probability that labels agree, for at most 16 tokens that all differ. None where the
    # constants of sampled networks apply: without Pre-LN and depth scaling, with tied embeddings or experts, or without
    # a rule.
    if not _is_derived(stack):
        return None
    few, apart, agree = replace(stack, tokens=min(stack.tokens, _FEW)), TextLaw.distinct(stack.vocab), 0.5
    laws = apart, replace(apart, same_word_labels=agree, other_word_labels=agree)
    try:
        apart_scale, alike_scale = (
            noise_scale(few, text=law, patterns=2, coarse=True, max_time=math.inf, memory=math.inf) for law in laws
        )
    except ValueError:  # no rule for text
        return None
    whole = sum(float(np.nansum(single)) for single in apart_scale.single.values()) * (agree - 1.0 / stack.vocab)
    single, product = (
        sum(float(np.nansum(after[role] - before[role])) for role in before if role != "Wemb") / whole
        for before, after in ((apart_scale.single, alike_scale.single), (apart_scale.product, alike_scale.product))
    )
    return single / (few.tokens - 1), product / few.tokens


def spread_of_texts(text: str | None, vocab: int) -> float:
    """Return the standard deviation of ln kappa over texts of one kind; two tokens are equal with probability kappa.

    `text` names the kind. The result is 0 if it is None or describes one known text.
    """
    if text not in KINDS:
        return 0.0
    kappas = [*token_law(text, vocab).kappa_of_texts.values()]
    return float(np.std(np.log(kappas), ddof=1)) if len(kappas) > 1 else 0.0


def text_lines(stack: Stack, text: str | None, line: FirstLine) -> list[str]:
    """Describe a kind of text, and the gradient norms for its texts with the fewest and the most repeated tokens.

    Args:
        stack: the network.
        text: name of a text law, or None.
        line: predicted first line for this law.
    """
    if text == ZIPF:
        return [
            "Text: token frequencies follow Zipf's law with exponent 1, because no English law is known",
            f"for a vocabulary of {stack.vocab:,} (least: {LEAST_VOCAB:,}). Another text can halve or double "
            "the norm. --text FILE uses your own text.",
        ]
    if text not in KINDS:
        return []
    law = token_law(text, stack.vocab)
    name = f"{text.replace('_', ' ').capitalize()}{' text' * (text == 'english')}"
    by = f"the {law.tokenizer} tokenizer" if law.tokenizer else "an unknown tokenizer"
    sentence = f"{name} by {by}: two tokens are equal with probability {law.kappa:.2g}"
    if len(law.kappa_of_texts) == 1:
        return [f"{sentence}. --text FILE uses your own text."]
    kappas = min(law.kappa_of_texts.values()), max(law.kappa_of_texts.values())
    norms = " to ".join(dict.fromkeys(f"{norm:.3g}" for norm in norms_of_texts(stack, text, line) or kappas))
    return [
        f"{sentence} ({len(law.kappa_of_texts)} texts: {kappas[0]:.2g} to {kappas[1]:.2g},",
        f"with norms of about {norms}). --text FILE uses your own text.",
    ]


def norms_of_texts(stack: Stack, text: str | None, line: FirstLine) -> tuple[float, float] | None:
    """Return the gradient norms for the least and the most repetitive text of a kind, or None for one known text."""
    if text not in KINDS:
        return None
    law = token_law(text, stack.vocab)
    norms = [line.norm * times_of_repeats(stack, line, kappa / law.kappa) for kappa in law.kappa_of_texts.values()]
    return (min(norms), max(norms)) if len(norms) > 1 else None


def times_of_repeats(stack: Stack, line: FirstLine, times: float) -> float:
    """Estimate the factor of the gradient norm for a text in which two tokens are `times` as likely to be equal.

    In GPT-2 and Llama 3 8B it is within 6% of predictions, from the smallest to the largest usual probability.
    """
    return float((1.0 + line.shared * (times ** _power(stack, line.masked) - 1.0)) ** 0.5)


def repeats_of_norm(stack: Stack, line: FirstLine, norm: float) -> float:
    """Estimate how many times as likely two tokens are equal in a text with this norm; the norm grows with it."""
    times = max(0.0, 1.0 + ((norm / line.norm) ** 2 - 1.0) / (line.shared or 1.0))
    return float(times ** (1.0 / _power(stack, line.masked)))


def normal_ranges(line: FirstLine, notes: Sequence[Note], *, texts: bool) -> tuple[str, str]:
    """Describe the ranges of the loss and of the gradient norm that contain 95% of runs, with the included errors.

    Args:
        line: predicted first line.
        notes: notes on the configuration.
        texts: whether the norm's deviation includes the difference between texts.
    """
    errors = f"; errors: {'text, ' * texts}theory{', quick estimate' * bool(line.quick)}"
    errors += f"; {line.masked:.0%} masked" if line.masked else ", not by masking" * bool(masked_share(notes))
    runs, rough = " in 95% of runs" * (not line.is_bound), ""
    if 0.0 < line.masked * line.positions < _LEAST_MASKED:
        none = (1.0 - line.masked) ** line.positions
        runs, rough = "", f"; rough: {line.masked * line.positions:.2g} masked words a batch"
        rough += f", none in {none:.0%} of runs (loss NaN)" * (none > 0.005)
    around = line.loss - 2 * line.loss_deviation, line.loss + 2 * line.loss_deviation
    loss, norm = (
        f"{' to '.join(number_text(end, error).partition(' ')[0] for end in ends)}{runs} (mean "
        f"{number_text(mean, error)}"
        for ends, mean, error in (
            (around, line.loss, line.loss_deviation), (line.norm_range, line.norm, line.norm_deviation)
        )
    )  # fmt: skip
    differ = f"(seeds{', texts' * texts}; mean"
    loss = f"{loss}, one standard deviation at most)" if line.is_bound else f"{loss.partition(' +-')[0]}{rough})"
    loss = loss.replace("(mean", differ) if runs else loss
    loss = f"{LOSS_OF_UNTIED}{line.loss:.4g}" if shares_ends(notes) else loss
    return loss, f"{norm.partition(' +-')[0].replace(' (mean', ', before clipping (mean')}{errors})"


def masked_share(notes: Sequence[Note]) -> float:
    """Return the share of masked words in the training of a configuration's model; 0 if all positions count."""
    return next((note.value for note in notes if note.field == "masked words"), 0.0)


def _power(stack: Stack, masked: float) -> int:
    # Return the power of kappa to which the part of the squared norm shared by two sequences is proportional.
    #
    # Masked words have equal ids in any text, and only their labels repeat with kappa.
    return _GATED_POWER if stack.ffn == "gated" and not masked else 1


def cost_of_batch(
    stack: Stack, law: TextLaw | None, patterns: int | None, *, coarse: Coarse = False
) -> tuple[Cost, bool]:
    """Estimate the cost of predicting a batch's gradient; also return whether tokens are taken in groups."""
    two = replace(stack, sequences=2)
    grouped = law is not None or is_grouped(two)
    cost = prediction_cost(two, patterns=patterns, grouped=grouped, text=law is not None, coarse=coarse)
    if law is None and _is_derived(stack):
        few = replace(two, tokens=min(stack.tokens, _FEW))
        derived = prediction_cost(few, patterns=2, grouped=True, text=True, coarse=True)
        cost += derived + derived
    return cost, grouped


def quick_sampling(stack: Stack, law: TextLaw | None, patterns: int | None) -> tuple[int | None, bool]:
    """Return the number of attention samples for a quick prediction, and whether tokens form coarse groups."""
    if law is None:  # no groups
        return patterns, False
    ways = [(patterns or count, coarse) for count, coarse in _WAYS]
    return next((way for way in ways if cost_of_batch(stack, law, way[0], coarse=way[1])[0].seconds < _QUICK), ways[-1])


def quick_cost(stack: Stack, law: TextLaw | None, patterns: int | None) -> Cost:
    """Estimate the cost of the quick prediction of a batch."""
    patterns, coarse = quick_sampling(stack, law, patterns)
    return cost_of_batch(stack, law, patterns, coarse=coarse)[0]


def scale_of_batch(
    stack: Stack, law: TextLaw | None, patterns: int | None, budget: Budget, *, coarse: Coarse = False,
    notes: Sequence[Note] = (),
) -> NoiseScale:  # fmt: skip
    """Predict the gradient of a batch as a function of the batch size, within limits of time and memory.

    `coarse` has the same meaning as in `noise_scale`. With `notes` on a configuration, gradients belong to the matrices
    that the model stores, and words are masked if its class predicts masked words.

    Raises:
        ValueError: an argument is outside its range; see `noise_scale`.
        NoRuleError: theory has no rule for the network.
        OverBudgetError: theory would take more than it may.
    """
    if law and (share := masked_share(notes)):
        stack, law = replace(stack, loss_share=1.0), law.masked(share)
    cost, grouped = cost_of_batch(stack, law, patterns, coarse=coarse)
    if budget.is_clocked and budget.has_room(cost) and not coarse:  # the measured small batch has fine groups
        cost = measured(replace(stack, sequences=2), cost, patterns=patterns, grouped=grouped, text=law)
    if not (budget.holds(cost) and budget.has_room(cost)):
        raise OverBudgetError(
            "; ".join(
                [
                    f"{format_cost(cost, grouped)}, more than {budget.exceeded(cost)}",
                    "fewer --tokens or --patterns take less",
                    *budget.larger(cost),
                ]
            )
        )

    def scale() -> NoiseScale:
        keep_freed_memory()  # of a layer, for the next one
        threads = one_numpy_thread() if grouped else nullcontext()
        with shown("predicting the first step", cost), threads:
            return noise_scale(
                stack, patterns=patterns, grouped=grouped, text=law, max_time=math.inf, memory=math.inf, coarse=coarse
            )

    scales = once((stack, patterns, None if law is None else law.key, coarse), scale)
    if not (times := gradient_factors(notes)):
        return scales
    parts: dict[str, Any] = {
        name: {role: of * times.get(role, 1.0) for role, of in getattr(scales, name).items()}
        for name in ("single", "product", "single_sem", "product_sem", "vectors")
    }
    return replace(scales, **parts)


def format_cost(cost: Cost, grouped: bool) -> str:
    """Describe in words the time and the memory that a prediction takes."""
    how = "groups of tokens" if grouped else "all tokens"
    return f"theory for two sequences with {how} takes about {cpu_time(cost.seconds)} and {format_bytes(cost.bytes)}"


def _deviation_of_repeats(law: TextLaw, sequences: int, tokens: float) -> float:
    # Return the relative standard deviation of the root of the share of equal pairs in a batch of text.
    agree, three = float(np.square(law.frequencies).sum()), float((law.frequencies**3).sum())
    _, pairs, clumps = law.clumping or (0.0, 0.0, 0.0)
    variance = (three - agree**2 + (tokens - 1) * clumps) / (tokens * sequences)
    # Two sequences share more or fewer ids than the mean, and so do two positions.
    variance += (agree * (1.0 - agree) / tokens**2 + (1.0 - 1.0 / sequences) * pairs) / (2.0 * sequences**2)
    return max(variance, 0.0) ** 0.5 / agree


def largest_loss_deviation(stack: Stack, batch: int, law: TextLaw | None) -> float:
    """Return an upper bound on the standard deviation of the loss, for labels whose logit is equal at all positions."""
    positions = batch * stack.tokens
    agree = 1.0 / stack.vocab if law is None else law.other_word_labels
    return float(stack.output_scale * (agree + (1.0 - agree) / positions) ** 0.5)
