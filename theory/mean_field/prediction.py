"""Predictions of gradient norms and activations: the recursion, averaged over texts and attention samples."""

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from theory.coverage import gaps, holds_words, is_exchangeable, is_fluctuating, require
from theory.mean_field.cost import (
    Cost,
    chunk,
    grouped_chunk,
    is_grouped,
    is_mirrored,
    least_patterns,
    measured_seconds,
    own_chunk,
    prediction_cost,
    quick_patterns,
    representatives,
    word_chunks,
)
from theory.mean_field.inputs import (
    Inputs,
    attention_pattern,
    checked_windows,
    exchangeable_inputs,
    gaussian_inputs,
    grouped_inputs,
    text_inputs,
    word_inputs,
)
from theory.mean_field.kernels import KernelLayout, MatrixLayout
from theory.mean_field.passes import Forward
from theory.mean_field.recursion import forward_pass, recursion
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.text_law import TextLaw
from theory.mean_field.tied.text_gradient import loss_and_own_token
from theory.mean_field.token_groups import Coarse, GroupLayout
from theory.stack import Stack, check_stack
from theory.stack.quantities import NamedArrays

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, NDArray[np.float64]]

# Seconds beyond which a prediction says beforehand how long it takes.
_LONG = 60.0
# How many times longer than the estimate a machine may take.
_SLOWEST = 8.0
# Degrees of freedom of the mean relative variance over layers.
_PRIOR = 4


@dataclass(frozen=True, slots=True, eq=False)
class Prediction(NamedArrays):
    """The predicted mean of every quantity, by name: one number, or one number for each layer.

    Arrays have the shape () or, per layer, (L,), with layer l at index l - 1.

    Attributes:
        stack: the network.
        arrays: the predicted means.
        errors: standard errors of the means if attention samples or logits are sampled, by name; otherwise empty.
    """

    stack: Stack
    arrays: Arrays
    errors: Arrays = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Prediction of {self.stack!r}: {len(self)} quantities>"

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per layer and one column per quantity; row 0 is for the whole network."""
        import pandas as pd  # late: predictions need none of it

        columns, layers = {}, self.stack.most_layers
        for name, values in self.arrays.items():
            column = np.full(layers + 1, np.nan)
            column[slice(1, 1 + len(values)) if values.ndim else 0] = values
            columns[name] = column
        return pd.DataFrame(columns, index=pd.RangeIndex(layers + 1, name="layer"))

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(float_format="%.4g", na_rep="")
        return f"<p>Prediction of <code>{escape(repr(self.stack))}</code></p>{table}"


def predict(
    stack: Stack, windows: NDArray[np.integer] | None = None, *, finite_width: bool = False,
    patterns: int | None = None, grouped: bool | None = None, text: TextLaw | None = None,
    max_time: float | None = None, memory: float | None = None, coarse: Coarse = False,
) -> Prediction:  # fmt: skip
    """Predict the mean of every quantity of a random network in the limit of large width.

    Args:
        stack: the network.
        windows: token ids of shape (windows, n + 1): inputs are the first n columns (equal ids share one
            Gaussian embedding), labels the last n. The prediction is the average over the windows. Without
            windows, inputs are independent N(0, I_d) tokens and labels are uniform and independent.
        finite_width: correct the gradients of W1, W2 and WV for a width that is not large compared with the depth, to
            first order in 1/d at fixed L/d. The error is at most 5% up to L/d = 1/8, for Post-LN only
            (docs/finite_width.md).
        patterns: minimum number of attention samples, or of samples of the logits with tied embeddings, with a fixed
            seed. Nothing is sampled without random queries and keys, dropped attention weights, experts or tied
            embeddings. None for 4 to 4096, as many as a few seconds allow.
        grouped: whether a few tokens represent groups of neighbouring tokens (`theory.mean_field.token_groups`), which
            takes a few seconds at any n and includes the terms of order n/d (docs/attention.md). None uses groups if
            the attention samples of all tokens would take longer. With tied embeddings, this requires that a position's
            own token id has a mean probability of at most 1/4 (`theory.mean_field.tied.text_output`).
        text: law of random text, over which the prediction is averaged: repeated token ids share an embedding, and
            labels agree with the law's probability. This always uses groups of tokens.
        max_time: longest time in seconds, as estimated by timing a smaller network beforehand. None means a minute, or
            no limit and a warning if patterns are given.
        memory: largest memory in bytes, as estimated from the sizes; None for the machine's memory.
        coarse: whether there are about half as many groups of tokens, and few sampled heads between the first and the
            last layer.

    Raises:
        ValueError: windows are not token ids in n + 1 columns, or are combined with `grouped`; `finite_width` without
            Post-LN; patterns, max_time or memory are not positive; or the prediction would exceed the limit of time or
            memory.
        NoRuleError: there is no rule for the network (`theory.coverage`).

    Source: derived in docs/theory.md; the mean squared activations of the paper (Lemma 2) are its diagonal.

    >>> energy = predict(Stack(placement="post", depth=3))["hidden_energy"]
    >>> energy.round(12).tolist()  # Lemma 2: 3/2 in every layer
    [1.5, 1.5, 1.5]
    """
    check_stack(stack)
    for name, value in (("finite_width", finite_width), ("grouped", grouped)):
        if not isinstance(value, bool | np.bool_) and (name, value) != ("grouped", None):
            raise ValueError(f"{name} must be True or False, got {value!r}.")
    if not finite_width:
        return _predicted(stack, windows, (grouped, coarse), text, patterns, (max_time, memory))
    from theory.mean_field.finite_width import corrections  # sympy is as slow to load as the rest of the package

    factors = corrections(stack)
    large = _predicted(stack, windows, (grouped, coarse), text, patterns, (max_time, memory))
    return Prediction(stack, {name: value * factors.get(name, 1.0) for name, value in large.items()})


def _predicted(
    stack: Stack,
    windows: NDArray[np.integer] | None,
    groups: tuple[bool | None, Coarse],
    text: TextLaw | None,
    patterns: int | None,
    limits: tuple[float | None, float | None],
) -> Prediction:
    """Return the large-width prediction for arguments that have been checked.

    Pairs of arguments have the same meaning as in `predict`.
    """
    (grouped, coarse), (max_time, memory) = groups, limits
    _check_patterns(patterns)
    ids, grouped = _checked_inputs(stack, windows, text, grouped=grouped)
    if grouped:
        require(stack, "grouped")
    of_text = text is not None
    asked, patterns = patterns, patterns or quick_patterns(stack, grouped=grouped, text=of_text)
    count = 0 if ids is None else len(ids)
    how: dict[str, Any] = {"patterns": patterns, "grouped": grouped, "coarse": coarse}
    cost = prediction_cost(stack, count, text=of_text, **how)
    clock = partial(predicted_seconds, stack, count, text=text, **how)
    _check_cost(cost, clock, _LONG if max_time is None and asked is None else max_time, memory, stacklevel=4)
    if ids is None and not grouped and is_exchangeable(stack):
        quantities = recursion(stack, *exchangeable_inputs(stack), np.random.default_rng(0))
        return Prediction(stack, {name: np.array(value) for name, value in quantities.items()})
    inputs, tokens = _laid_out(stack, ids, text, grouped=grouped, coarse=coarse)
    return _averaged(stack, inputs, tokens, patterns)


def predict_sequences(
    stack: Stack, windows: NDArray[np.integer] | None = None, *, patterns: int | None = None,
    grouped: bool | None = None, text: TextLaw | None = None, max_time: float | None = None,
    memory: float | None = None, coarse: Coarse = False,
) -> Prediction:  # fmt: skip
    """Predict squared gradient norms for two sequences, as sums within each sequence and between the two.

    Arguments are those of `predict`, and `coarse` as in `noise_scale`.

    Returns:
        A prediction in which every E‖∂L/∂W‖² has two parts along a last axis: the sum over pairs of tokens in one
        sequence, and the sum over pairs of tokens in different sequences.

    Raises:
        ValueError: an argument is not allowed, or the prediction would take more time or memory than it may.
    """
    check_stack(stack)
    require(stack, "noise_scale")
    two = replace(stack, sequences=2)
    _check_patterns(patterns)
    ids, grouped = _checked_inputs(two, windows, text, grouped=grouped)
    # What few tied words omit falls like 1/n²: for half as many tokens it is a quarter of W^K, which is coarse.
    if grouped and not (coarse and not gaps(replace(two, tokens=2 * two.tokens, vocab=2 * two.vocab), "grouped")):
        require(two, "grouped")
    of_text, count = text is not None, 0 if ids is None else len(ids)
    asked, patterns = patterns, patterns or quick_patterns(two, grouped=grouped, text=of_text)
    cost = prediction_cost(two, count, patterns=patterns, grouped=grouped, text=of_text, coarse=coarse)
    clock = partial(predicted_seconds, two, count, patterns=patterns, grouped=grouped, text=text)
    _check_cost(cost, clock, _LONG if max_time is None and asked is None else max_time, memory)
    inputs, tokens = _laid_out(two, ids, text, grouped=grouped, coarse=coarse)
    if inputs.source is not None:
        inputs = replace(inputs, source=replace(inputs.source, tokens=_split_by_sequence(inputs.source.tokens)))
    return _averaged(two, inputs, _split_by_sequence(tokens), patterns)


def own_token(stack: Stack, law: TextLaw | None = None) -> tuple[float, float]:
    """Return the expected loss of a network with tied embeddings and the mean probability of a position's own token.

    The logit of a position's own token has the mean σ_e √d h, with h the part of its own embedding that the normalized
    residual stream keeps. The other logits are Gaussian with mean 0.

    Args:
        stack: the network.
        law: law of the text; without it, all tokens differ.

    Raises:
        NoRuleError: the network lacks a rule.
    """
    return loss_and_own_token(stack, *_forward_on_text(stack, law))


def stream_of_text(stack: Stack, law: TextLaw | None) -> tuple[dict[str, NDArray[np.float64]], float]:
    """Return the mean activations of every layer for one sequence of a text, by name, and a tied network's own token.

    The activations have shape (L,). The number is the mean probability of a position's own token, 0 for an untied head.
    Only the forward pass is predicted, by coarse groups of tokens and two attention samples or more.

    Raises:
        ValueError: the network lacks a rule, or its activations overflow.
    """
    tokens, forward = _forward_on_text(single := replace(stack, sequences=1), law)
    means = {name: np.mean(cast(Any, values), axis=-1) for name, values in forward.layers.items()}
    return means, loss_and_own_token(single, tokens, forward)[1] if stack.embeddings == "tied" else 0.0


def _forward_on_text(stack: Stack, law: TextLaw | None) -> tuple[TextLayout, Forward[NDArray[np.float64]]]:
    # A gradient needs more tokens than a loss.
    require(replace(stack, tokens=max(stack.tokens, math.ceil(2.0 * stack.width**0.5))), "grouped")
    inputs, tokens = _laid_out(stack, None, law or TextLaw.distinct(stack.vocab), grouped=True, coarse=True)
    forward = forward_pass(stack, tokens, inputs.repeated(max(2, tokens.entries_together)), np.random.default_rng(0))
    return cast(TextLayout, tokens), forward


def _split_by_sequence(tokens: KernelLayout[NDArray[np.float64]]) -> MatrixLayout:
    """Return the same tokens, with sums over pairs within a sequence and between two sequences kept apart."""
    return replace(cast(MatrixLayout, tokens), apart=True)


def _laid_out(
    stack: Stack, ids: NDArray[np.integer] | None, text: TextLaw | None, *, grouped: bool, coarse: Coarse = False
) -> tuple[Inputs[NDArray[np.float64]], MatrixLayout]:
    """Return the inputs, and the tokens that are computed: all tokens, or the representatives of groups."""
    if grouped and text is None and holds_words(stack):
        text = TextLaw.distinct(stack.vocab)
    if text is not None:
        of_text = TextLayout.of(representatives(stack, coarse=coarse, text=True), text, coarse=coarse)
        return text_inputs(stack, of_text, text), of_text
    if grouped:
        tokens = representatives(stack, coarse=coarse)
        return grouped_inputs(stack, tokens), tokens
    layout = MatrixLayout(stack.rows, attention_pattern(stack), stack.sequences, is_mirrored(stack))
    return gaussian_inputs(stack) if ids is None else word_inputs(stack, ids), layout


def _averaged(
    stack: Stack,
    inputs: Inputs[NDArray[np.float64]],
    tokens: MatrixLayout,
    patterns: int,
) -> Prediction:
    """Return the prediction averaged over batch entries and attention samples.

    Args:
        stack: the network.
        inputs: inputs of the network.
        tokens: layout of the tokens.
        patterns: number of attention samples, as in `predict`.
    """
    generator = np.random.default_rng(0)
    together, grouped = tokens.entries_together, isinstance(tokens, GroupLayout)
    if not is_fluctuating(stack) and (grouped or not holds_words(stack)):
        quantities = _batch(stack, inputs.repeated(together), tokens, generator)
        return Prediction(stack, {name: value.mean(-1) for name, value in quantities.items()})
    count = len(inputs.kernel)
    each = together * max(2, -(-patterns // (count * together)))
    if holds_words(stack) and not grouped:
        values = _tied_batch(stack, inputs, tokens, each, generator)
    else:
        values = _batch(stack, inputs.repeated(each), tokens, generator)
        values = {name: value.reshape(*value.shape[:-1], count, each) for name, value in values.items()}
    means = {name: value.mean((-2, -1)) for name, value in values.items()}
    if grouped and not tokens.apart:
        # Of one pattern a squared gradient is a difference, which may be negative.
        means = {name: np.maximum(mean, 0.0) if name.startswith("grad_sq_") else mean for name, mean in means.items()}
    # Sums over pairs of tokens have one axis more, for pairs in one sequence and in two.
    of_layers = {name for name, value in values.items() if "grad_sq_" in name and value.ndim == 3 + tokens.apart}
    errors = {name: _error(value, together, of_layers=name in of_layers) for name, value in values.items()}
    return Prediction(stack, means, errors)


def _error(values: NDArray[np.float64], each: int, *, of_layers: bool = False) -> NDArray[np.float64]:
    """Return the standard error of a mean over (..., windows, samples): windows are complete, attention is sampled.

    A variance of two samples is hardly known. Layers of one matrix vary by nearly equal shares. The mean share of all
    layers counts like `_PRIOR` degrees of freedom (Smyth 2004, doi:10.2202/1544-6115.1027, eq. 4).

    Measured with 32 pairs of samples of a Llama with 8 layers: two errors each way contained the mean in 91% (W^Q) and
    89% (W^K) of cases. With each layer's own variance, the numbers were 73% and 71%. All layers of W1 and W2 deviate
    together. Their number rises only from 74% to 80%.

    Args:
        values: values of a quantity.
        each: number of consecutive attention samples that form one independent sample.
        of_layers: whether the first axis is the layer of a matrix, whose squared norms the values are.
    """
    samples = values.reshape(*values.shape[:-1], -1, each).mean(-1)
    variance, (windows, count) = samples.var(-1, ddof=1).mean(-1), samples.shape[-2:]
    if of_layers:
        square, freedom = np.square(samples).mean((-2, -1)), windows * (count - 1)
        share = np.divide(variance, square, out=0.0 * variance, where=square > 0)
        # What layers do not have is NaN.
        shared = square * (_PRIOR * np.nanmean(share, axis=0) + freedom * share) / (_PRIOR + freedom)
        # Layer 1 often varies less: Student's quantile then bounds its variance by the layer alone.
        shared[0] = np.minimum(shared[0], variance[0] * (stdtrit(freedom, 0.975) / ndtri(0.975)) ** 2)
        variance = shared
    return np.sqrt(variance / (windows * count))


def _batch(
    stack: Stack, inputs: Inputs[NDArray[np.float64]], tokens: MatrixLayout, generator: np.random.Generator
) -> Arrays:
    """Return every quantity for every kernel of a batch, along the last axis, in chunks that fit into memory."""
    size = chunk(stack)
    if isinstance(tokens, GroupLayout):
        size = grouped_chunk(stack, text=isinstance(tokens, TextLayout), coarse=tokens.coarse)
    chunks = [slice(start, start + size) for start in range(0, len(inputs.kernel), size)]
    parts = [recursion(stack, tokens, inputs.part(chunk), generator) for chunk in chunks]
    return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}


def _tied_batch(
    stack: Stack, inputs: Inputs[NDArray[np.float64]], tokens: MatrixLayout, samples: int,
    generator: np.random.Generator,
) -> Arrays:  # fmt: skip
    """Return every quantity for every kernel of a batch and samples of its logits, along the last two axes.

    It is computed in chunks that fit into memory.
    """
    count = len(inputs.kernel)
    if is_fluctuating(stack):
        # Every sample of the logits has patterns of its own.
        inputs, each = inputs.repeated(samples), 1
        entries, size = own_chunk(stack), 1
    else:
        (entries, size), each = word_chunks(stack, count), samples
    rows: list[Arrays] = []
    for start in range(0, len(inputs.kernel), entries):
        part = inputs.part(slice(start, start + entries))
        chunks = [
            recursion(stack, tokens, part.sampled(min(size, each - done)), generator) for done in range(0, each, size)
        ]
        rows.append({
            # A quantity that all samples share is repeated for each.
            name: np.concatenate(
                [np.broadcast_to(c[name], (*c[name].shape[:-1], c["loss"].shape[-1])) for c in chunks], axis=-1
            )
            for name in chunks[0]
        })  # fmt: skip
    whole = {name: np.concatenate([row[name] for row in rows], axis=-2) for name in rows[0]}
    return {name: value.reshape(*value.shape[:-2], count, samples) for name, value in whole.items()}


def predicted_seconds(
    stack: Stack, windows: int = 0, *, patterns: int | None = None, grouped: bool = False,
    text: TextLaw | None = None, coarse: Coarse = False,
) -> float:  # fmt: skip
    """Estimate the processor seconds of `predict` on this machine by timing a smaller network.

    Args:
        stack: the network.
        windows: number of windows of token ids; 0 without windows.
        patterns: number of attention samples, as in `predict`.
        grouped: whether tokens are grouped.
        text: law of random text, as in `predict`.
        coarse: as in `predict`.
    """
    how: dict[str, Any] = {
        "grouped": grouped,
        "patterns": least_patterns(stack, grouped=grouped, text=text is not None),
        "coarse": coarse,
    }

    def estimate(least: Stack) -> float:
        require(least, "grouped" if grouped else "prediction")
        return prediction_cost(least, text=text is not None, **how).seconds

    def run(least: Stack) -> None:
        predict(least, text=text, max_time=math.inf, memory=math.inf, **how)

    cost = prediction_cost(stack, windows, patterns=patterns, grouped=grouped, text=text is not None, coarse=coarse)
    return measured_seconds(stack, cost.seconds, estimate, run)


def _check_cost(
    cost: Cost, clock: Callable[[], float], max_time: float | None, memory: float | None, *, stacklevel: int = 3
) -> None:
    """Raise an error for a prediction that would exceed a limit, and warn of one that takes more than a minute.

    Args:
        cost: the estimated cost.
        clock: function that measures the seconds, called if the estimate is not far below the limit.
        max_time: limit in seconds, as in `predict`.
        memory: limit in bytes, as in `predict`.
        stacklevel: stack level of the warning.

    Raises:
        ValueError: the prediction would take too long or too much memory, or a limit is not positive.
    """
    for name, value in (("max_time", max_time), ("memory", memory)):
        if value is not None and (isinstance(value, bool) or not value > 0):
            raise ValueError(f"{name} must be a positive number or None, got {value!r}.")
    holds, smaller = f"hold about {cost.bytes / 1e9:.2g} GB", "take fewer tokens or patterns"
    if memory is not None and cost.bytes > memory:
        raise ValueError(
            f"memory {memory / 1e9:.2g} GB is too small: the prediction would {holds}. Raise memory, or {smaller}."
        )
    if memory is None and cost.bytes > (there := _machine_memory()):
        raise ValueError(
            f"tokens are too many: the prediction would {holds}, and this machine has {there / 1e9:.2g} GB; {smaller}."
        )
    seconds = clock() if cost.seconds > (_LONG if max_time is None else max_time) / _SLOWEST else cost.seconds
    takes = f"a prediction would take about {seconds:.2g} s and {holds}"
    if max_time is not None and seconds > max_time:
        raise ValueError(f"max_time {max_time:g} s is too short: {takes}. Raise max_time, or {smaller}.")
    if max_time is None and seconds > _LONG:
        warnings.warn(f"{takes}; max_time= sets a limit.", stacklevel=stacklevel)


def _machine_memory() -> float:
    """Return the machine's memory in bytes, or infinity if it is not known."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # not a Unix, or one without these names
        return math.inf


def _checked_inputs(
    stack: Stack, windows: NDArray[np.integer] | None, text: TextLaw | None, *, grouped: bool | None
) -> tuple[NDArray[np.integer] | None, bool]:
    """Check the inputs of a prediction, and return the token ids and whether tokens are grouped.

    Raises:
        ValueError: windows or text are not allowed.
        NoRuleError: the network lacks a rule.
    """
    if grouped and windows is not None:
        raise ValueError("grouped must be False with windows: its tokens are independent.")
    ids = None if windows is None else checked_windows(stack, windows)
    if text is not None:
        _check_text(stack, text, windows, grouped=grouped)
    require(stack, "prediction")
    return ids, text is not None or (ids is None and is_grouped(stack) if grouped is None else grouped)


def _check_text(stack: Stack, text: TextLaw, windows: object, *, grouped: bool | None) -> None:
    """Check that a law of text is a `TextLaw`, and that the network has a rule for it.

    Raises:
        ValueError: the law or the network is not allowed.
    """
    if not isinstance(text, TextLaw):
        raise ValueError(f"text must be a TextLaw or None, got {text!r}.")
    if windows is not None or grouped is False:
        raise ValueError(
            "text cannot be combined with windows or grouped=False, because it is predicted with groups of tokens; "
            "windows=text.windows(...) predicts given texts."
        )
    if (words := len(text.frequencies)) > stack.vocab:
        raise ValueError(f"vocab must be at least the {words} token ids of the text, got {stack.vocab}.")
    if stack.tokens < 2 or stack.input_correlation:
        raise ValueError(
            f"text requires input_correlation 0 and at least 2 tokens, got input_correlation "
            f"{stack.input_correlation:g} and tokens {stack.tokens}; windows=text.windows(...) predicts given texts."
        )


def _check_patterns(patterns: int | None) -> None:
    """Check that the number of attention samples is positive.

    Raises:
        ValueError: it is not.
    """
    whole = isinstance(patterns, int | np.integer) and not isinstance(patterns, bool)
    if patterns is not None and (not whole or patterns < 1):
        raise ValueError(f"patterns must be an integer of at least 1 or None, got {patterns!r}.")
