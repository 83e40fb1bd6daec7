"""Estimates of the time and memory of a prediction, and of the number of attention samples that it needs.

Numbers of samples depend only on the sizes, so that a command prints the same numbers on every machine. The clock is
only used to tell how long they take.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from theory.coverage import attends_randomly, gaps, has_experts, holds_words, is_exchangeable, is_fluctuating
from theory.mean_field.attention.grouped_patterns import SAMPLES
from theory.mean_field.experts import COUNTED
from theory.mean_field.group_members import MEMBERS, MemberLayout
from theory.mean_field.text_groups import text_heads
from theory.mean_field.tied.loss import LARGEST_TABLE
from theory.mean_field.tied.units import OWN_POINTS, POINTS, own_numbers
from theory.mean_field.token_groups import Coarse, GroupLayout, group_heads, representative_count, token_groups
from theory.stack import Stack

# Windows of text are predicted in chunks: a stack keeps about 12 kernels per layer for its backward pass.
CHUNK_ENTRIES = 2_000_000
# Heads of which patterns come in pairs.
_NARROWEST = 16
# Kernels at once that know each other's control variates, and the entries that these may have.
_CONTROLLED, _MOST_ENTRIES = 8, 2**23
# Tied embeddings keep 4096 products of n² numbers for every window, n⁴ averages of them, and n³ numbers a sample.
TIED_ENTRIES = 2**11
TIED_CUBES = 2**24
# Where every sample of the logits has patterns of its own, numbers that are held at once.
CHUNK_NUMBERS = 2**24

# What patterns of representatives may hold at once, and take; and what a prediction takes unasked, both in seconds.
CHUNK_BYTES = 6e8
_QUICK_SECONDS, _LONG_SECONDS = 6.0, 10.0

# Patterns times layers, heads and pairs of tokens that take some seconds.
_QUICK = 2.0**22

# The size of a float64 in bytes.
_NUMBER = 8

# The bytes of the quadrature tables of a loss, which every prediction keeps in memory.
_TABLES = 9.6e5

# Activations whose kernels are formulas.
_FORMULAS = ("relu", "leaky_relu", "relu_squared", "identity")

MEASURED = 0.75
"""The estimated seconds above which a smaller network is timed; its own estimate is at most as long."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimated time and memory of one prediction.

    The estimate consists of the leading terms in the network's sizes.

    Attributes:
        seconds: time on one core of an AMD EPYC with AVX-512; `measured_seconds` measures this machine.
        bytes: memory held at once, in addition to that of a process with the libraries loaded.
    """

    seconds: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of two steps one after the other: the sum of seconds, and the larger of the bytes."""
        return Cost(self.seconds + other.seconds, max(self.bytes, other.bytes))


def prediction_cost(
    stack: Stack, windows: int = 0, *, patterns: int | None = None, grouped: bool = False, text: bool = False,
    coarse: Coarse = False,
) -> Cost:  # fmt: skip
    """Estimate the time and memory of `theory.predict` for a network, with the same result on every machine.

    Args:
        stack: the network.
        windows: number of windows of token ids; 0 without windows.
        patterns: number of attention samples, as in `predict`.
        grouped: whether tokens are grouped, as in `predict`, but not None.
        text: whether token ids follow a law of text, which requires groups of tokens.
        coarse: as in `noise_scale`.
    """
    patterns = patterns or quick_patterns(stack, grouped=grouped, text=text)
    if grouped:
        text = text or holds_words(stack)
        count = patterns if is_fluctuating(stack) or not text else 1 + (stack.sequences != 2)
        once, each, memory, peak = _of_groups(stack, text=text, coarse=coarse)
        return Cost(once + each * count, peak * min(count, _at_once(stack, memory, text=text)))
    if windows == 0 and is_exchangeable(stack):  # kernels of two numbers each
        return Cost(0.01 + 1e-4 * sum(part.depth for part in stack.parts), _TABLES)
    entries = max(1, windows // stack.sequences)
    if holds_words(stack) and not is_fluctuating(stack):
        return _of_words(stack, entries, repeats(stack, patterns, entries))
    count = entries * (repeats(stack, patterns, entries) if is_fluctuating(stack) else 1)
    size = own_chunk(stack) if holds_words(stack) else chunk(stack)
    each, memory = _of_tokens(stack)
    calls = 6e-3 * -(-count // size) * sum(part.depth for part in stack.parts)
    memory = max(_TABLES, memory * min(count, size))
    return Cost(calls + each * count, memory + 2 * _NUMBER * stack.rows**2 * count)


def measured_seconds(
    stack: Stack, whole: float, estimate: Callable[[Stack], float], run: Callable[[Stack], object],
    fields: Sequence[str] = ("depth", "tokens"),
) -> float:  # fmt: skip
    """Estimate the processor seconds of a prediction on this machine, by timing a smaller network of the same kind.

    The estimate itself is returned if it is at most `MEASURED`, and if no such smaller network can be run.

    Args:
        stack: the network.
        whole: the estimate for the network, in seconds.
        estimate: function that returns the estimate for the smallest batch of a network, in seconds.
        run: function that predicts that batch.
        fields: names of the fields that are made smaller.
    """
    if whole <= MEASURED:
        return whole
    least, taken = stack, estimate(stack)
    for field in fields:
        while taken > MEASURED and getattr(least, field) > 1:
            try:
                smaller = replace(least, **{field: getattr(least, field) // 2})
                taken = estimate(smaller)
            except ValueError:  # a field of the network asks for its size, or no rule has a smaller one
                break
            least = smaller
    if taken > MEASURED:
        return whole
    start = time.thread_time()
    try:
        run(least)
    except ValueError:  # whatever is wrong with it, the prediction itself says it
        return whole
    return whole * (time.thread_time() - start) / taken


def least_patterns(stack: Stack, *, grouped: bool = False, text: bool = False) -> int:
    """Return the smallest number of attention samples in one batch."""
    text = text or (grouped and holds_words(stack))
    return 4 if text and stack.sequences != 2 else 2 * (1 + (not grouped and is_mirrored(stack)))


def quick_patterns(stack: Stack, *, grouped: bool = False, text: bool = False) -> int:
    """Return how many attention samples a prediction can use within a few seconds.

    There are 4 to 4096 samples, the same number on every machine. One token has one attention matrix, which is taken
    twice. With groups of tokens there are at most 64 samples, and at least 2 for several sequences.
    """
    if grouped:
        once, each, *_ = _of_groups(stack, text=text)
        least = 4 if stack.sequences == 1 else 2
        return int(np.clip(_QUICK_SECONDS // (once + each), least, 64)) if is_fluctuating(stack) else 1
    dropped = stack.attention_dropout or stack.source_tokens
    if stack.tokens == 1 and not (dropped or stack.experts or holds_words(stack)):
        return 2 * (1 + is_mirrored(stack))
    each = sum(part.depth * part.rows * (stack.heads * part.rows + part.experts) for part in stack.parts)
    # Tied embeddings sample the logits of every word, of which four take as long as an entry of a pattern in a layer.
    each += stack.rows * stack.vocab // 4 if holds_words(stack) else 0
    return int(np.clip(2.0 ** np.floor(np.log2(_QUICK / each)), 4 * (1 + is_mirrored(stack)), 4096))


def is_mirrored(stack: Stack) -> bool:
    """Return whether attention is sampled in pairs of opposite logits, so that part of the noise of a pair cancels.

    Both samples of a pair have the same distribution. A pair must fit into memory. Networks with tied queries and keys
    have no such pairs. With tied embeddings, the logits of the vocabulary cause most of the scatter. In narrow heads,
    the products of queries that a pair has in common scatter more than the odd functions of the logits that cancel.
    """
    alike = stack.query_key_scale > 0.0 and stack.query_key != "tied" and not holds_words(stack)
    return alike and stack.key_width >= _NARROWEST and 2 * _numbers(stack) <= _MOST_ENTRIES


def _numbers(stack: Stack) -> int:
    """Return the number of stored weights in one attention sample, over all layers, heads and experts."""
    return stack.rows * stack.depth * (stack.rows * stack.heads + 4 * stack.experts)


def repeats(stack: Stack, patterns: int, entries: int) -> int:
    """Return how many times each batch entry is predicted, to reach a wanted number of attention samples.

    It is at least twice, so that there is a standard error.

    Args:
        stack: the network.
        patterns: number of attention samples.
        entries: number of batch entries.
    """
    each = 1 + is_mirrored(stack)
    return each * max(2, -(-patterns // (each * entries)))


def is_grouped(stack: Stack) -> bool:
    """Return whether `predict` groups tokens by default, because a prediction with all tokens would take long."""
    if not has_cheaper_groups(stack):
        return False
    seconds = prediction_cost(stack).seconds
    return seconds > _LONG_SECONDS and prediction_cost(stack, grouped=True).seconds < seconds


def has_cheaper_groups(stack: Stack) -> bool:
    """Return whether tokens of a network can be grouped, and grouping leaves fewer tokens to compute."""
    return not (is_exchangeable(stack) or gaps(stack, "grouped")) and _representatives(stack) < stack.rows


def representatives(stack: Stack, *, coarse: Coarse = False, text: bool = False) -> GroupLayout:
    """Return the few tokens of every sequence that represent groups of neighbouring tokens.

    Experts need several tokens of each group, except in a text, where their choices are averaged.
    """
    of_one = token_groups(stack.tokens, causal=stack.mask == "causal", window=stack.window, **_groups(coarse=coarse))
    of_one = replace(of_one, coarse=coarse)
    if has_experts(stack) and not text:
        of_one = MemberLayout.of(of_one)
    return of_one.repeated(stack.sequences) if stack.sequences > 1 else of_one


def _representatives(stack: Stack, members: int = 1, *, coarse: Coarse = False) -> int:
    """Return how many tokens represent all sequences, without computing their positions and weights.

    Args:
        stack: the network.
        members: number of computed tokens for each representative, at most.
        coarse: as in `noise_scale`.
    """
    of_one = representative_count(
        stack.tokens, causal=stack.mask == "causal", window=stack.window, members=members, **_groups(coarse=coarse)
    )
    return stack.sequences * of_one


def _groups(*, coarse: Coarse) -> dict[str, Any]:
    """Return arguments of `token_groups`, for about half as many groups if they are coarse."""
    return {"alone": 6, "ratio": 2.0} if coarse is True else {}


def chunk(stack: Stack) -> int:
    """Return how many batch entries are predicted at once, as limited by the memory of the backward pass."""
    each, numbers = 1 + is_mirrored(stack), _numbers(stack)
    # Of less than four there is no half whose control variate the other half knows.
    wanted = _CONTROLLED if is_mirrored(stack) and _CONTROLLED * numbers <= _MOST_ENTRIES else 1
    return each * max(1, -(-wanted // each), CHUNK_ENTRIES // (each * numbers))


def grouped_chunk(stack: Stack, *, text: bool = False, coarse: Coarse = False) -> int:
    """Return how many batch entries are predicted at once if tokens are grouped.

    For one text it is even, so that entries with more and with fewer repeated token ids are predicted together.
    """
    return _at_once(stack, _of_groups(stack, text=text, coarse=coarse)[2], text=text or holds_words(stack))


def _at_once(stack: Stack, each: float, *, text: bool) -> int:
    """Return the number of batch entries of a given size in bytes that are predicted at once.

    For one text it is even; for two sequences each entry already has more and fewer repeated token ids.
    """
    entries = max(1, int(CHUNK_BYTES / each))
    return max(2, entries // 2 * 2) if text and stack.sequences != 2 else entries


def own_chunk(stack: Stack) -> int:
    """Return how many batch entries are predicted at once for tied embeddings with random attention or experts.

    Each sample of the logits then has its own attention sample.
    """
    return max(1, CHUNK_NUMBERS // own_numbers(stack))


def word_chunks(stack: Stack, entries: int) -> tuple[int, int]:
    """Return how many batch entries, and how many logit samples of each, are predicted at once (tied embeddings).

    This is for fixed attention weights.

    Args:
        stack: the network.
        entries: number of kernels.
    """
    at_once = min(entries, max(1, TIED_ENTRIES // stack.rows**2))
    return at_once, max(1, TIED_CUBES // (at_once * stack.rows**3))


def _of_groups(stack: Stack, *, text: bool, coarse: Coarse = False) -> tuple[float, float, float, float]:
    """Return the cost with groups of tokens: seconds without samples, seconds for a sample, and its bytes twice.

    The first number of bytes decides how many samples are predicted at once. The second one is the peak: a text keeps
    every layer for both passes, and its first layer has the most heads.
    """
    text = text or holds_words(stack)  # by the same rule
    r = float(_representatives(stack, coarse=coarse) * (1 + text))  # a text has a probe beside every representative
    chosen = has_experts(stack) and not text
    members = float(_representatives(stack, MEMBERS)) if chosen else r
    layers = range(1, stack.depth + 1)
    by_layer = [min(stack.heads, (text_heads if text else group_heads)(k, stack.depth, coarse=coarse)) for k in layers]
    heads = float(np.mean(by_layer)) if stack.query_key_scale else 0.0
    samples, pairs, rows = heads * SAMPLES, r * members / stack.sequences, members * stack.key_width
    counted = min(stack.rows, COUNTED * r) * stack.experts * chosen  # logits that tell loads of experts
    each = stack.depth * (1e-6 * members**2 + 1.1e-7 * counted + samples * (4e-7 * pairs + 1.6e-9 * r * rows))
    kept = (
        12.0 * members**2
        + samples * (2.0 + text) * r * r / stack.sequences
        + 2.0 * (heads + samples) * r * stack.key_width
    )
    passing = 12.0 * pairs + 4.0 * rows
    memory = peak = kept * stack.depth + 40.0 * members**2 + samples * passing + 6.0 * counted
    if text:
        peak = 2.0 * kept * stack.depth + 40.0 * members**2 + max(by_layer) * SAMPLES * passing
    interpolated = stack.activation not in _FORMULAS and bool(stack.norm_epsilon)
    return 0.03 + 0.0125 * stack.depth * interpolated, each, _NUMBER * memory, _NUMBER * peak


def _of_tokens(stack: Stack) -> tuple[float, float]:
    """Return the seconds and the bytes of one batch entry if all tokens are computed."""
    seconds = kept = passing = 0.0
    tied = holds_words(stack)
    for part in stack.parts:
        n, experts = part.rows * (2 if part.composition.second_stream else 1), max(1, part.experts)
        heads = part.heads if attends_randomly(part) else 0
        of_layer, of_kernel, through = 3e-7 * n**2 * (1 + experts / 30), 12.0 * n**2, 40.0 * n**2
        for m in [part.rows, *([part.source_tokens * part.sequences] if part.source_tokens else [])]:
            width = part.key_width if part.rotary else min(n, m, part.key_width)
            of_layer += (
                heads * n * m * (2.5e-7 + (1.65e-9 + 1.3e-9 * tied) * max(n, m) + 8.5e-10 * width * bool(part.rotary))
            )
            of_kernel += heads * 5.0 * n * m
            through = max(through, heads * (12.0 * n * m + (n + m) * width))
        of_layer += 3e-9 * OWN_POINTS * n**2 * experts * tied
        seconds, kept, passing = seconds + part.depth * of_layer, kept + part.depth * of_kernel, max(passing, through)
    words = float(stack.rows * stack.vocab * tied)
    return seconds + 7e-8 * words, _NUMBER * max(kept + passing, 6.0 * min(words, LARGEST_TABLE))


def _of_words(stack: Stack, entries: int, samples: int) -> Cost:
    """Return the time and memory of a prediction for tied embeddings with fixed attention weights.

    The activation's quadrature points are shared by all samples of a batch entry.
    """
    n, words = float(stack.rows), float(stack.rows * stack.vocab)
    at_once, size = word_chunks(stack, entries)
    chunks, gated = -(-entries // at_once) * -(-samples // size), 1 + (stack.ffn == "gated")
    points = at_once * gated * POINTS * (5e-11 * n**4 + 5e-9 * n**2 + 2e-7 * n)
    each = stack.depth * (1.2e-9 * gated * n**4 + 3e-9 * n**3 + 5e-7 * n**2) + 7e-8 * words
    memory = at_once * (2.0 * POINTS * n**2 + 2.0 * n**4 + min(size, samples) * (25.0 * n**2 + n**3))
    memory = max(memory, 6.0 * min(words * at_once * min(size, samples), LARGEST_TABLE)) + 2 * n**2 * entries
    return Cost(stack.depth * chunks * points + each * entries * samples, _NUMBER * memory)
