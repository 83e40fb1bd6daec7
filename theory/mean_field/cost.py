"""What a prediction takes, counted before anything is sampled: operations, and from them seconds, and memory."""

from dataclasses import dataclass, replace

import numpy as np

from theory.coverage import attends_randomly, gaps, has_experts, holds_words, is_exchangeable, is_fluctuating
from theory.mean_field.attention.grouped_patterns import SAMPLES
from theory.mean_field.experts import COUNTED
from theory.mean_field.group_members import MEMBERS, MemberLayout
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.tied.loss import LARGEST_TABLE
from theory.mean_field.tied.units import OWN_POINTS, POINTS, own_numbers
from theory.mean_field.token_groups import GroupLayout, representative_count, token_groups
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

# Activations whose kernels are formulas; those of others are interpolated, of this degree.
_FORMULAS = ("relu", "leaky_relu", "relu_squared", "identity")
_DEGREE = 32

# Numbers of a quadrature: of an activation's moment, and of two softmaxes whose logits have a standard deviation of 1.
_MOMENT, _OVERLAP = 4e3, 8e4

_NUMBER = 8
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one prediction takes.

    Attributes:
        calls: of NumPy.
        entries: numbers that are made one by one from others.
        slow: random numbers, and values of exponentials and their like.
        products: multiplications in products of matrices.
        matrices: products of matrices.
        bytes: held at once, beyond what a process holds when it has loaded the libraries.
    """

    calls: float = 0.0
    entries: float = 0.0
    slow: float = 0.0
    products: float = 0.0
    matrices: float = 0.0
    bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """On one core of an AMD EPYC with AVX-512; `python -m bench costs` has measured seconds beside these."""
        return (
            2e-6 * self.calls + 1.7e-9 * self.entries + 1e-8 * self.slow + 5e-11 * self.products + 3e-7 * self.matrices
        )

    def __add__(self, other: "Cost") -> "Cost":
        """One after the other: what they hold is not added."""
        return Cost(
            self.calls + other.calls, self.entries + other.entries, self.slow + other.slow,
            self.products + other.products, self.matrices + other.matrices, max(self.bytes, other.bytes),
        )  # fmt: skip

    def times(self, count: float) -> "Cost":
        """So often."""
        return Cost(
            self.calls * count, self.entries * count, self.slow * count, self.products * count, self.matrices * count,
            self.bytes,
        )  # fmt: skip


def prediction_cost(
    stack: Stack, windows: int = 0, *, patterns: int | None = None, grouped: bool = False,
    text: bool = False,
) -> Cost:  # fmt: skip
    """What `theory.predict` takes for a network, within a factor of three, and its memory within one of two.

    Args:
        stack: the network.
        windows: of text; 0 without one.
        patterns: as in `predict`.
        grouped: as in `predict`; whether, and not None.
        text: whether words follow a law of text, by groups of tokens.
    """
    if grouped:
        return _of_groups(stack, patterns or quick_patterns(stack, grouped=True, text=text), text=text)
    if windows == 0 and is_exchangeable(stack):
        return _of_pairs(stack)
    entries = max(1, windows // stack.sequences)
    tied, sampled = holds_words(stack), is_fluctuating(stack) or holds_words(stack)
    each = repeats(stack, patterns or quick_patterns(stack), entries) if sampled else 1
    given = 2 * stack.rows**2 * _NUMBER * entries * (1 if tied and not is_fluctuating(stack) else each)
    if tied and not is_fluctuating(stack):
        of_chunks = _of_words(stack, entries, each)
    else:
        size = own_chunk(stack) if tied else chunk(stack)
        of_chunks = _of_entries(stack, entries * each, size)
    return of_chunks + Cost(bytes=of_chunks.bytes + given)


def quick_patterns(stack: Stack, *, grouped: bool = False, text: bool = False) -> int:
    """Patterns of a prediction that takes some seconds, from 4 to 4096; the same on every machine.

    One token has one pattern, which is taken twice. By groups of tokens there are at most 64, and of several sequences
    at least 2.
    """
    if grouped:
        if not is_fluctuating(stack):
            return 1
        least = 4 if stack.sequences == 1 else 2
        return int(np.clip(_QUICK_SECONDS // _of_groups(stack, 1, text=text).seconds, least, 64))
    dropped = stack.attention_dropout or stack.source_tokens
    if stack.tokens == 1 and not (dropped or stack.experts or holds_words(stack)):
        return 2 * (1 + is_mirrored(stack))
    each = sum(part.depth * part.rows * (stack.heads * part.rows + part.experts) for part in stack.parts)
    # Tied embeddings sample the logits of every word, of which four take as long as an entry of a pattern in a layer.
    each += stack.rows * stack.vocab // 4 if holds_words(stack) else 0
    return int(np.clip(2.0 ** np.floor(np.log2(_QUICK / each)), 4 * (1 + is_mirrored(stack)), 4096))


def is_mirrored(stack: Stack) -> bool:
    """Whether patterns come in pairs whose logits are each other's negatives, alike in law, where a pair fits.

    Tied queries and keys have no such pairs; and tied embeddings scatter by the logits of words. Products of the
    queries of narrow heads, which a pair has in common, scatter more than what is odd in the logits.
    """
    alike = stack.query_key_scale > 0.0 and stack.query_key != "tied" and not holds_words(stack)
    return alike and stack.key_width >= _NARROWEST and 2 * _numbers(stack) <= _MOST_ENTRIES


def _numbers(stack: Stack) -> int:
    """Weights of a pattern, of all layers and heads, and of experts with their slopes."""
    return stack.rows * stack.depth * (stack.rows * stack.heads + 4 * stack.experts)


def repeats(stack: Stack, patterns: int, entries: int) -> int:
    """How often each entry of a batch is predicted for so many patterns: two samples at least, for an error."""
    each = 1 + is_mirrored(stack)
    return each * max(2, -(-patterns // (each * entries)))


def is_grouped(stack: Stack) -> bool:
    """Whether groups of tokens are predicted where nothing is asked for: all tokens would take long."""
    if not has_cheaper_groups(stack):
        return False
    seconds = prediction_cost(stack).seconds
    return seconds > _LONG_SECONDS and prediction_cost(stack, grouped=True).seconds < seconds


def has_cheaper_groups(stack: Stack) -> bool:
    """Whether groups of tokens may be predicted with less than all tokens take."""
    return not (is_exchangeable(stack) or gaps(stack, "grouped")) and _representatives(stack) < stack.rows


def representatives(stack: Stack) -> GroupLayout:
    """Tokens of all sequences that stand for groups of their neighbours."""
    of_one = token_groups(stack.tokens, causal=stack.mask == "causal", window=stack.window)
    if has_experts(stack):
        of_one = MemberLayout.of(of_one)
    return of_one.repeated(stack.sequences) if stack.sequences > 1 else of_one


def _representatives(stack: Stack, members: int = 1) -> int:
    """How many these are, had at once for any number of tokens; or with so many tokens for each."""
    of_one = representative_count(stack.tokens, causal=stack.mask == "causal", window=stack.window, members=members)
    return stack.sequences * of_one


def chunk(stack: Stack) -> int:
    """Kernels that are predicted at once: a stack keeps some per layer and head for its backward pass."""
    each, numbers = 1 + is_mirrored(stack), _numbers(stack)
    # Of less than four there is no half whose control variate the other half knows.
    wanted = _CONTROLLED if is_mirrored(stack) and _CONTROLLED * numbers <= _MOST_ENTRIES else 1
    return each * max(1, -(-wanted // each), CHUNK_ENTRIES // (each * numbers))


def grouped_chunk(stack: Stack, *, text: bool = False) -> int:
    """The same where representatives stand for groups; of one text both ends of how often words repeat at once."""
    return _at_once(stack, _of_groups(stack, 1, text=text).bytes, text=text or holds_words(stack))


def _at_once(stack: Stack, each: float, *, text: bool) -> int:
    """Entries of so many bytes that are predicted at once: of one text an even number, of two each has both ends."""
    entries = max(1, int(CHUNK_BYTES / each))
    return max(2, entries // 2 * 2) if text and stack.sequences != 2 else entries


def own_chunk(stack: Stack) -> int:
    """The same of tied embeddings, where every sample of the logits has patterns of its own."""
    return max(1, CHUNK_NUMBERS // own_numbers(stack))


def word_chunks(stack: Stack, entries: int) -> tuple[int, int]:
    """Kernels, and samples of the logits of each, that are predicted at once with tied embeddings and fixed weights."""
    at_once = min(entries, max(1, TIED_ENTRIES // stack.rows**2))
    return at_once, max(1, TIED_CUBES // (at_once * stack.rows**3))


def _of_pairs(stack: Stack) -> Cost:
    """Kernels of two numbers each."""
    layers = sum(part.depth for part in stack.parts)
    smooth = sum(part.depth * 4 * _MOMENT for part in stack.parts if part.activation not in _FORMULAS)
    loss = 3 * _overlap(stack.output_scale**2)
    peak = _quadrature_bytes(stack.output_scale**2)
    return Cost(calls=40.0 * layers, slow=smooth + loss, bytes=peak)


def _overlap(variance: float) -> float:
    """Numbers of the quadrature of two softmaxes with logits of a variance."""
    return _OVERLAP * (1.0 + variance / 6.0)


def _quadrature_bytes(variance: float) -> float:
    """What that quadrature holds, whose tables have a largest size."""
    return min(2.5e7, 8e5 * (1.0 + variance / 5.0))


def _of_entries(stack: Stack, count: int, size: int) -> Cost:
    """Kernels of so many entries, of which so many at once."""
    each, lasting, transient = Cost(), 0.0, 0.0
    for part in stack.parts:
        layer, kept, passing = _layer(part)
        each, lasting, transient = each + layer.times(part.depth), lasting + kept * part.depth, max(transient, passing)
    chunks, at_once = -(-count // size), min(count, size)
    once, of_chunk = _quadratures(stack)
    calls = Cost(calls=sum(150.0 + part.depth * 275.0 for part in stack.parts))
    total = each.times(count) + (calls + of_chunk).times(chunks) + once
    numbers = at_once * (lasting + transient)
    if holds_words(stack):
        words, passing = _logits(stack)
        total, numbers = total + words.times(count), max(numbers, _table(passing * at_once))
    return total + Cost(bytes=max(numbers * _NUMBER, _quadrature_bytes(stack.output_scale**2)))


def _of_groups(stack: Stack, patterns: int, *, text: bool = False) -> Cost:
    """Representatives of groups of tokens; of text there are twice as many, and of tied embeddings by the same rule."""
    text = text or holds_words(stack)
    r, width = _representatives(stack) * (1 + text), stack.key_width
    heads = min(stack.heads, (TextLayout if text else GroupLayout).most_heads)
    square, rows, cube = float(r * r), float(r * width), float(r) ** 3
    followed = float(_representatives(stack, MEMBERS)) ** 2 if has_experts(stack) else square
    # Of one text nothing of which is sampled, both ends of how often words repeat; pairs of two have both.
    patterns = patterns if is_fluctuating(stack) or not text else 1 + (stack.sequences != 2)
    # Of patterns, what each sequence has with itself.
    blocks, deep = square / stack.sequences, cube / stack.sequences
    smooth = 280.0 * (stack.activation not in _FORMULAS) * followed
    kept, passing = 12.0 * followed, 40.0 * followed
    if stack.query_key_scale:
        tracked, rotary, capped = _is_tracked(stack), bool(stack.rotary), bool(stack.logit_softcap)
        # A complex product is four.
        sample = Cost(
            entries=(70.0 + 6.0 * tracked + 53.0 * text + 60.0 * capped) * blocks + 26.0 * square
            + (16.0 + 17.0 * rotary) * rows,
            slow=(2.25 + text + 8.0 * capped) * blocks + 1.5 * rows,
            products=((6.5 + rotary) * blocks + (2.75 + 0.25 * text + 0.5 * tracked + 0.25 * rotary) * square) * width
            + (10.0 + 2.75 * tracked + 0.75 * text + 12.0 * rotary + 10.0 * text * rotary) * deep
            + (2.0 + 2.0 * text + 6.0 * text * rotary) * deep / stack.sequences,
            matrices=(22.0 + 3.0 * tracked + 1.5 * rotary + 6.5 * text + 14.0 * text * rotary) * stack.sequences,
        )  # fmt: skip
        if has_experts(stack):
            # Rows of tokens that are followed, on the way up.
            weights, vectors = (followed**0.5 - r) * r / stack.sequences, (followed**0.5 - r) * width
            sample += Cost(
                entries=35.0 * weights + (16.0 + 24.0 * rotary) * vectors + 4.0 * (followed - square) / heads**0.5,
                slow=1.2 * weights, products=(3.0 + 2.0 * rotary) * weights * width + (1.0 + 2.0 * rotary) * width
                * (followed - square) / SAMPLES + 3.0 * (followed - square) * r / stack.sequences,
            )  # fmt: skip
            passing += heads * SAMPLES * (8.0 * weights + 3.0 * vectors)
        layer = sample.times(heads * SAMPLES) + Cost(entries=(140.0 + 40.0 * tracked) * square + smooth, matrices=11.5)
        kept += heads * (SAMPLES * ((2.0 + text) * blocks + 2.0 * rows) + 2.0 * rows)
        passing += heads * SAMPLES * (12.0 * blocks + 4.0 * rows)
    else:
        layer = Cost(
            entries=(120.0 + 235.0 * text) * square + smooth, products=(6.0 + 1.4 * text) * cube,
            matrices=27.0 + 20.0 * text,
        )  # fmt: skip
    words = Cost()
    if has_experts(stack):
        # Of every token that is followed, and logits of those that are counted.
        each, networks = followed**0.5 * stack.experts, 1 + (stack.shared_ratio > 0.0)
        counted = float(min(stack.rows, COUNTED * r) * stack.experts)
        layer += Cost(
            entries=110.0 * followed + 90.0 * networks * followed + 20.0 * each + 20.0 * counted,
            slow=3.0 * (each + counted),
            products=5.0 * followed * stack.experts + 8.0 * followed * r, matrices=40,
        )  # fmt: skip
        kept, passing = kept + 4.0 * each + 8.0 * followed, passing + 6.0 * (each + counted)
    if holds_words(stack):
        # Entry by entry, with points of what a token's own logit is.
        layer, words = layer + Cost(entries=270.0 * square), Cost(entries=170.0 * square)
    each = _NUMBER * (kept * stack.depth + passing)
    at_once = min(patterns, _at_once(stack, each, text=text))
    once, of_chunk = _quadratures(replace(stack, tokens=1, sequences=1, mask="none", rotary=0.0, window=0))
    chunks = (Cost(calls=150.0 + (1000.0 if holds_words(stack) else 400.0) * stack.depth) + of_chunk).times(
        -(-patterns // at_once)
    )
    whole = layer.times(stack.depth) + words + Cost(entries=105.0 * followed, matrices=8)
    return whole.times(patterns) + chunks + once + Cost(bytes=at_once * each)


def _layer(stack: Stack) -> tuple[Cost, float, float]:
    """One layer for one entry of the batch: operations, the numbers it keeps for the way down, and those it passes."""
    n, h = stack.rows * (2 if stack.composition.second_stream else 1), stack.heads
    smooth, tied = stack.activation not in _FORMULAS, holds_words(stack)
    entries, kept, passing = (90.0 + 190.0 * smooth) * n**2, 12.0 * n**2, (18.0 + 20.0 * smooth) * n**2
    cost = Cost(entries=entries)
    if tied:
        # The stream's coefficients beside the noise, and points of the activation.
        gated = 1 + (stack.ffn == "gated")
        cost += Cost(
            entries=150.0 * n**2 + 25.0 * OWN_POINTS * n * gated, slow=3.0 * OWN_POINTS * n * gated,
            products=60.0 * n**3 + 10.0 * OWN_POINTS * n**2 * gated, matrices=60,
        )  # fmt: skip
    if has_experts(stack):
        # Logits and weights of every expert, products over experts, and the units of a shared one.
        each = float(stack.rows * stack.experts)
        cost += Cost(entries=14.0 * each + entries, slow=2.5 * each, products=5.0 * n * each, matrices=4)
        kept, passing = kept + 4.0 * each + 8.0 * n**2, passing + 6.0 * each
        if tied:
            # Coefficients and points of every expert.
            networks = float(stack.experts + (stack.shared_ratio > 0.0))
            cost += Cost(
                entries=networks * (2.0 * n**2 + 1.5 * OWN_POINTS * n * gated),
                products=networks * 2.0 * OWN_POINTS * n**2 * gated, matrices=3.0 * networks,
            )  # fmt: skip
            passing += 3.0 * networks * n**2
    if not attends_randomly(stack):
        return cost + Cost(products=4.0 * n**3, matrices=4), kept, passing
    cost += Cost(entries=40.0 * n**2 if stack.query_key_scale else 0.0)
    sources = [stack.rows, *([stack.source_tokens * stack.sequences] if stack.source_tokens else [])]
    for m in sources:
        head, of_head, through = _head(stack, stack.rows, m)
        cost += head.times(h)
        kept, passing = kept + h * of_head, max(passing, 25.0 * n**2 + h * through)
    return cost, kept, passing


def _is_tracked(stack: Stack) -> bool:
    """Whether norms remove something of gradients at queries and keys."""
    composition = stack.composition
    normed = composition.input_norm or composition.stream_norm or composition.output_norm
    return normed and stack.normalization != "tanh"


def _head(stack: Stack, n: int, m: int) -> tuple[Cost, float, float]:
    """A head of one layer, from n tokens to m."""
    cube, square = float(n * m * max(n, m)), float(n * m)
    if not stack.query_key_scale:
        return Cost(entries=10.0 * square, slow=square, products=4.0 * cube, matrices=4), 3 * square, 6 * square
    width = stack.key_width if stack.rotary else min(n, m, stack.key_width)
    tracked = _is_tracked(stack)
    own_keys, rotary = stack.key_heads / stack.heads, bool(stack.rotary)
    cost = Cost(
        entries=(63.0 if tracked else 40.0) * square + (4.0 if rotary else 12.0) * (n + m * own_keys) * width,
        slow=(3.0 + rotary) * square + 2.0 * (n + m * own_keys) * width,
        products=(37.0 if tracked else 21.0) * cube + (3.0 + (2.0 if rotary else 4.0) * own_keys) * square * width,
        matrices=43.0 if tracked else 27.0,
    )
    if stack.query_key == "tied":
        # Sums over four tokens.
        cost += Cost(entries=3.0 * square**2, products=8.0 * cube)
    if holds_words(stack):
        cost += Cost(entries=30.0 * square, products=20.0 * cube, matrices=20)
    coordinates = 2.5 * (n + m) / 2 * width if holds_words(stack) else 0.0
    return cost, 5.0 * square + coordinates, 12.0 * square + 2.0 * (n + m) / 2 * width


def _quadratures(stack: Stack) -> tuple[Cost, Cost]:
    """What interpolants of pair functions take: once, where tokens have one size; and for every chunk, where not."""
    once = each = 0.0
    for part in stack.parts:
        composition = part.composition
        if part.activation not in _FORMULAS:
            alike = (composition.input_norm or composition.stream_norm) and not part.norm_epsilon
            moments = 2 * (_DEGREE + 1) * _MOMENT
            once, each = (once + moments, each) if alike else (once, each + part.depth * moments * _pairs(part))
    if not holds_words(stack):
        energy = 1.0 if stack.normalized_output else 1.0 + 2.0 * stack.depth
        variance = stack.output_scale**2 * energy
        overlaps = (25 + int(4 * stack.output_scale)) * _overlap(variance)
        alike = stack.normalized_output and not stack.norm_epsilon
        once, each = (once + overlaps, each) if alike else (once, each + overlaps * _pairs(stack))
    entries = 0.0 if holds_words(stack) else 80.0 * stack.rows**2
    return Cost(slow=once, entries=entries), Cost(slow=each)


def _pairs(stack: Stack) -> int:
    """Pairs of sizes of tokens that an interpolant is made of."""
    composition = stack.composition
    return 3 if composition.input_norm or composition.stream_norm else 10


def _logits(stack: Stack) -> tuple[Cost, float]:
    """A sample of the logits of tied embeddings, of every word; and the numbers it holds."""
    n, words = stack.rows, float(stack.rows * stack.vocab)
    return Cost(entries=9.0 * words, slow=4.0 * words, products=2.0 * n * words, matrices=2), words


def _table(words: float) -> float:
    """Numbers held for so many logits, which are made a table at a time."""
    return 6.0 * min(words, LARGEST_TABLE)


def _of_words(stack: Stack, entries: int, samples: int) -> Cost:
    """Tied embeddings with fixed attention weights: points of the activation, which all samples of an entry share."""
    n = stack.rows
    at_once, size = word_chunks(stack, entries)
    chunks = -(-entries // at_once) * -(-samples // size)
    gated = 1 + (stack.ffn == "gated")
    points = Cost(
        calls=400, entries=POINTS * (25.0 * n + 3.0 * n**2) * at_once * gated, slow=12.0 * POINTS * n * at_once * gated,
        products=(POINTS * float(n) ** 4 + 10.0 * POINTS * n**2) * at_once * gated,
    )  # fmt: skip
    each = Cost(entries=300.0 * n**2 + 0.7 * gated * float(n) ** 4, products=60.0 * n**3, matrices=60)
    words, passing = _logits(stack)
    cost = points.times(stack.depth * chunks) + (each.times(stack.depth) + words).times(entries * samples)
    moments = at_once * (2.0 * POINTS * n**2 + 2.0 * float(n) ** 4)
    numbers = moments + at_once * min(size, samples) * (25.0 * n**2 + float(n) ** 3)
    return cost + Cost(bytes=_NUMBER * max(numbers, _table(passing * at_once * min(size, samples))))
