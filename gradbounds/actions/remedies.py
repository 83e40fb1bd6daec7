"""The one change of a field that makes a network's predicted gradients most equal over the layers, and its rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from checks.remedy import drawn_smaller, remedy_line
from checks.stacks.gradients_by_layer import Columns, layer_columns
from gradbounds.actions.batch import Asked, law_of, quick_batch
from gradbounds.actions.first_line import quick_cost
from gradbounds.budget import Budget, Way, each_once, way
from gradbounds.described_network import Description
from gradbounds.layer_summary import (
    NEARLY_EQUAL,
    UNEVEN,
    card_row,
    first_over_last,
    profiles,
    role,
)
from gradbounds.network_text import with_cosines
from gradbounds.progress import shown
from gradbounds.result import Result
from gradbounds.units import duration
from theory import Stack
from theory.mean_field.cost import Cost, prediction_cost
from theory.mean_field.experts import fullest_share
from theory.mean_field.prediction import own_token, stream_of_text
from theory.mean_field.tied.text_output import LARGEST_OWN_PROBABILITY, OwnTokenError
from theory.stack.placements import COMPOSITIONS

# First layer over last, of the matrix that is furthest from 1 and either way, from where on nothing else is asked.
EVEN = 1.2

# By the estimate, of all networks that are asked about: or twice what the
# prediction itself takes, if that is more, up to so much.
_SECONDS, _MOST_SECONDS = 2.0, 20.0

# Of the norms' first layer over last two patterns say enough.
_PATTERNS = 2

_NONE = (
    "- No change that evens out the layers' gradients was found: tested changes of a field that halve the logarithm of "
    "the ratio: 0 of {} (in {})."
)

LESS_EVEN = 0.1
"""The distance in the logarithm by which a less even ratio is further from 1."""

# The largest difference of losses that count as equal.
SAME_LOSS = 0.01

# The fewest tokens of a sequence that represents a longer one; tokens repeat too rarely in shorter ones.
FEWEST_TOKENS = 128

# Attention samples of one sequence with coarse groups where only its stream and the change of a field are printed.
FEW_SAMPLES = 4

# Changes of a batch that are tested for SGD. Each takes as long as the batch.
TESTS = 2

# Seconds by the estimate, at most, of a batch for which the card has a change for SGD.
SHORT_SECONDS = 3.0

# The part of a prediction that a test in the search for an option takes: it has no backward pass. Measured for eight
# models: 0.40 to 0.71.
_OF_PREDICTION = 0.55

SKIPPED = 0.1
"""The share of the residual stream's mean square below which the layers that add it are called nearly skipped."""

DIFFERENT = 0.5
"""The largest cosine of two tokens that an advised change aims at."""

_SIZES = [float(f"{step}e{k}") for k in range(-6, 12) for step in (1, 2, 5)]  # of advised embeddings
_PLACEMENTS = ("peri", "pre", "post", "deepnorm", "keel")


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of one setting of a network that makes the gradients of its layers more equal.

    Attributes:
        words: description of the change.
        values: the changed fields and their values.
        first_over_last: remaining ratio of the first / last layer's norms, as a factor above 1, of the worst matrix.
        added: shares of the stream's mean square after layer L that layers 2 to L add, before and after the change.
    """

    words: str
    values: Mapping[str, Any]
    first_over_last: float
    added: tuple[float, float] = (0.0, 0.0)

    def line(self) -> str:
        """Describe the change in one line."""
        head = remedy_line(f"{self.words} ({', '.join(as_flags(self.values))})", partly=self.first_over_last >= EVEN)
        return (
            f"- {head}.\n  The first and the last layer then differ by a factor of at most {self.first_over_last:.1f}."
        )


@dataclass(frozen=True, slots=True)
class Option:
    """A change of one setting that makes alike tokens differ, which matters to every optimizer.

    Attributes:
        words: description of the change.
        values: the changed fields and their values.
        cosine: largest cosine of two tokens over the layers, for the text of step 1.
        added: shares of the stream's mean square after layer L that layers 2 to L add, before and after the change.
        own: mean probability that a tied head gives to a position's own token.
        fullest: share of tokens that the fullest expert takes at this cosine, the most of a layer; 0 without experts.
    """

    words: str
    values: Mapping[str, Any]
    cosine: float
    added: tuple[float, float]
    own: float = 0.0
    fullest: float = 0.0


def remedy(stack: Stack, table: Columns, budget: Budget, own: Way | None = None) -> tuple[Remedy | None, str]:
    """Return the first change of a field that makes the layers' gradients about equal, or else the best change.

    Embeddings are as small as they can be with about equal layers. The second result is the line of text that describes
    the change. If the layers differ by less than a factor of 1.5, the line is empty. A change counts only if it at
    least halves the logarithm of the ratio. Without such a change, the line says that there is none or that trying
    takes too long.

    Args:
        stack: the network.
        table: theory's `layer_table` of the network.
        budget: limits of time and memory.
        own: the way in which the network itself was predicted.
    """
    here = furthest(table)
    if here < UNEVEN:
        return None, ""
    best: Remedy | None = None
    least = here**0.5
    most = search_seconds(own.cost.seconds if own else 0.0)
    limit = replace(budget, seconds=min(most, budget.seconds), is_clocked=False)
    is_coarse = own is not None and own.arguments.get("coarse", False)
    changes = _within(stack, changes_of(stack, table), limit, coarse=is_coarse)
    before = _own_token(stack, table)[0]
    cost = sum((chosen.cost for *_, chosen in changes), Cost())
    with each_once(), shown("testing changes that even out the layers", cost):
        for k, (words, values, chosen) in enumerate(changes):
            try:
                _, chance = _own_token(chosen.stack, chosen, before)
                changed = table if chance > LARGEST_OWN_PROBABILITY else layer_columns(chosen.predicted(), None)
            except OwnTokenError as error:
                chance = error.probability
            if chance > LARGEST_OWN_PROBABILITY:
                continue
            ratios = [first_over_last(each) for each in (table, changed)]
            change = Remedy(words, values, furthest(changed), added=(_added(table), _added(changed)))
            if change.first_over_last < max(least, EVEN) and _evens_out(*ratios):
                best, least = change, change.first_over_last
            if change.first_over_last < EVEN:
                changes[k + 1 :] = _within(stack, _smaller(stack, change), limit, coarse=is_coarse)
    return best, best.line() if best else _NONE.format(len(changes), duration(limit.seconds))


def search_seconds(own: float) -> float:
    """Return the most seconds, by the estimate, of all changes of a network whose own prediction takes `own`."""
    return max(_SECONDS, min(2.0 * own, _MOST_SECONDS))


def change_of_batch(
    asked: Asked, batch: int, of: Description, run: Result, words: str, values: Mapping[str, Any], **limits: Any
) -> Remedy | None:
    """Return a change with its effect on a batch; None if it fails the criterion of `remedy` or has no rule.

    The numbers are those of `predict --compare`.

    Args:
        asked: the network and its text.
        batch: number of sequences.
        of: further description of the network.
        run: result of `predict_batch` without the change.
        words: description of the change.
        values: the changed fields and their values.
        limits: other arguments of `predict_batch`.
    """
    try:
        after = quick_batch(replace(asked, given={**asked.given, **values}), batch, of, **limits)
    except ValueError:
        return None
    norms, changed = run.columns("layers"), after.columns("layers")
    ratios = [first_over_last(each) for each in (norms, changed)]
    if (ratio := furthest(changed)) >= furthest(norms) ** 0.5 or not _evens_out(*ratios):
        return None
    return Remedy(words, values, ratio, added=(_added(norms), _added(changed)))


def _added(table: Columns) -> float:
    # Return the share of the stream's mean square after layer L that layers 2 to L add.
    energies = profiles(table, "predicted").get("hidden_energy", np.ones(1))
    return 1.0 - float(energies[0] / energies[-1])


def change_of_step(
    given: Mapping[str, Any], of: Description, single: Result, run: Result | None, text: str,
    limits: Mapping[str, Any], *, option: Option | None = None,
) -> Remedy | None:  # fmt: skip
    """Return one change that makes the layers of step 1 even; None with an option, which changes embeddings as well.

    At most `TESTS` changes are tested for the batch, and then smaller embeddings than advised ones. If a batch takes
    more than `SHORT_SECONDS`, the result is None. Only SGD has a use for the change, which took a quarter of the card
    of Llama 3 8B. Without a text, the change is that of one sequence, if it was searched for.
    """
    if run is None or not text:
        return single.values["evened_by"]
    stack, table = run.values["stack"], run.columns("layers")
    is_long = quick_cost(stack, law_of(stack, text), limits["patterns"]).seconds > SHORT_SECONDS
    if option or is_long or furthest(table) < UNEVEN:
        return None
    asked, batch = Asked({**given, "tokens": stack.tokens}, text), run.values["batch"]
    likely = (each for each in changes_of(stack, table) if not _is_sure_of_own(replace(stack, **each[1])))
    tested = (change_of_batch(asked, batch, of, run, *each, **limits) for each in islice(likely, TESTS))
    if (change := next(filter(None, tested), None)) is None or change.first_over_last >= EVEN:
        return change
    smaller = (change_of_batch(asked, batch, of, run, *each, **limits) for each in _smaller(stack, change))
    return next((each for each in smaller if each and each.first_over_last < EVEN), change)


def _is_sure_of_own(stack: Stack) -> bool:
    # Return whether a tied network predicts a position's own token if embeddings dominate the stream, as even layers
    # require. Then its logit is s√d, and the others have the variance s².
    logit = stack.output_scale * stack.width**0.5 - stack.output_scale**2 / 2.0 - math.log(stack.vocab)
    return stack.embeddings == "tied" and 1.0 / (1.0 + math.exp(-logit)) > LARGEST_OWN_PROBABILITY


def cost_of_option(stack: Stack, patterns: int | None) -> Cost:
    """Estimate the cost of `option_of` for a network whose tokens are alike."""
    cost = prediction_cost(replace(stack, sequences=1), patterns=patterns or 2, grouped=True, text=True, coarse=True)
    return replace(cost, seconds=_OF_PREDICTION * cost.seconds)


def option_of(run: Result, text: str, patterns: int | None, budget: Budget) -> Option | None:
    """Return embeddings with which the tokens of step 1 differ; None if there are none, or tokens differ already.

    Tokens differ if no layer has a cosine of two tokens above 1/2. Layers add a mean square a to embeddings of mean
    square s², which are orthogonal for two tokens. So their cosine is at most a/(s² + a), and 1/2 at most for s² >= a.
    Since a falls as tokens differ, embeddings as large as the present rms of the stream suffice. The largest of the
    sizes 1, 2, 5, 10, ... below this rms usually does, too, and is tested first. If a tied network then predicts its
    own token, smaller sizes follow, down to one with which tokens are not alike.

    Args:
        run: result of `predict_batch` without the change.
        text: name of the law of the text.
        patterns: requested number of attention samples.
        budget: limits of time and memory. If they do not hold the test, the result is None.
    """
    stack, stream = run.values["stack"], profiles(with_cosines(run.columns("layers")), "predicted")
    is_fine = stream.get("cosine", np.zeros(1)).max() <= NEARLY_EQUAL
    if is_fine or not budget.holds(cost_of_option(stack, patterns)):
        return None
    largest, best = _round_up(float(stream["hidden_energy"][-1]) ** 0.5), None
    sizes = [each for each in _SIZES if stack.embedding_scale < each <= largest]
    for size in sizes[-2::-1]:
        if best := _tested(stack, text, size, run):
            break
    if sizes and (best is None or best.cosine > DIFFERENT):
        best = _tested(stack, text, sizes[-1], run) or best
    return best if best and best.cosine <= NEARLY_EQUAL else None


def _tested(stack: Stack, text: str, size: float, run: Result) -> Option | None:
    # Return embeddings of a size with their effect on the tokens of a text; None if the network then has no rule.
    with suppress(ValueError):
        stream, chance = stream_of_text(replace(stack, embedding_scale=size), law_of(stack, text))
        energy = stream["hidden_energy"]
        if chance <= LARGEST_OWN_PROBABILITY:
            shares = _added(run.columns("layers")), 1.0 - float(energy[0] / energy[-1])
            cosine, values = float(max(stream["token_correlation"] / energy)), {"embedding_scale": size}
            fullest = float(fullest_share(stack, np.array(cosine))) if stack.experts else 0.0
            return Option(_larger_words(stack, size), values, cosine, shares, chance, fullest)
    return None


def change_rows(table: Columns, run: Result | None, change: Remedy | None, option: Option | None) -> list[str]:
    """Return the change that makes alike tokens differ, or one that makes the layers even, or else that there is none.

    Args:
        table: one sequence's `layer_table`.
        run: result of `predict --batch`, or None. If its layers are even, there is nothing to change.
        change: the change that makes the layers even.
        option: the change that makes alike tokens differ.
    """
    depth = max(table["layer"])
    if option:
        head = f", fullest expert under {option.fullest:.0%}" * (option.fullest > 0.0)
        head += f", tied head predicts the token itself with {option.own:.0%}" * (option.own >= 0.01)
        effect = f"tokens' cosine at most {option.cosine:.2f}{head}"
        return [card_row("option", f"{_change_text(option)}: {effect}{_cost_text(option.added, depth)}")]
    if furthest(table if run is None else run.columns("layers")) < UNEVEN:
        return []
    text = "changes that even out the layers, with their costs: --compare"
    if change:
        what = f"to even out the layers{' partly' * (change.first_over_last >= UNEVEN)}"
        text = f"{what}: {_change_text(change)}{_cost_text(change.added, depth)}"
    return [card_row("if you use SGD", text)]


def _change_text(change: Remedy | Option) -> str:
    return f"--compare {' '.join(as_flags(change.values))} ({change.words})"


def _cost_text(added: tuple[float, float], depth: int) -> str:
    # State which share of the residual stream's mean square the layers still add after larger embeddings.
    (before, after), float32 = added, "; float32 stream only" * is_rounded_away(added[1], depth)
    share = f"{float(f'{100 * after:.2g}'):g}% of the stream's mean square, not {before:.0%}"
    return f"; cost: layers 2 to {depth} then add {share}{float32}" if 0.0 < after < before else "; its cost is listed"


def _smaller(stack: Stack, change: Remedy) -> Iterator[tuple[str, dict[str, Any]]]:
    # Yield the change to embeddings smaller than a change's, at least 1, with layers about equal by an estimate.
    #
    # A branch between norms changes a gradient by a factor of 1 + a/r², where r is the stream's rms. With large
    # embeddings, r is theirs in every layer, and the logarithm of a ratio is proportional to 1/r².
    times = (math.log(change.first_over_last) / math.log(EVEN)) ** 0.5
    scale = float(change.values.get("embedding_scale", 0.0))
    smaller = max(1.0, _round_up(times * scale)) if scale else 0.0
    if stack.embedding_scale < smaller < scale:
        yield f"{change.words.rpartition(' -> ')[0]} -> {smaller:g}", {**change.values, "embedding_scale": smaller}


def is_rounded_away(share: float, depth: int) -> bool:
    """Return whether a residual stream in bfloat16 rounds away half or more of what the branches above layer 1 add.

    This happens if the rms of each of the 2 (L - 1) branches is below 2^-10 times the stream's. The limit is from sums
    of 94 independent Gaussian branches of equal size.

    Args:
        share: the part of the stream's mean square after layer L that these branches add.
        depth: number of layers L.
    """
    return bool(0.0 < share < 2 * (depth - 1) * 2.0**-20)


def as_flags(values: Mapping[str, Any]) -> list[str]:
    """Return changed fields in the form that the flag `--compare` takes.

    >>> as_flags({"embeddings": "untied", "embedding_scale": 1.0})
    ['embeddings=untied', 'embedding_scale=1']
    """
    return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()]


def code_of(before: Stack, after: Stack, drawn: str | None = None) -> list[str]:
    """Return a heading and lines of Python that change embeddings in a torch model; none for a change of other fields.

    Learned positions are multiplied by the same factor as token embeddings. With a tied head, the lines multiply the
    embedding's output, because the head's rows stay as they are.

    The lines find embeddings by the names of their classes, as those of Megatron are not torch's. A table with a column
    for each head, as T5 has for relative positions, is no embedding. A table that modules share is changed once.

    For weights that `drawn` "megatron" initializes, the lines are Megatron-LM's arguments. Their standard deviation
    holds for words and learned positions, and not for an untied head (NVIDIA/Megatron-LM,
    core/transformer/transformer_config.py and models/gpt/gpt_model.py, commit d98e8a6).

    >>> code_of(small := Stack(width=8, depth=2), replace(small, embedding_scale=2.5))[1]
    "es = [e for e in model.modules() if 'Embedding' in type(e).__name__ and hasattr(e, 'weight')]"
    >>> code_of(small, replace(small, embedding_scale=2.5))[2]
    '[w.data.mul_(2.5) for w in {e.weight for e in es} if w.shape[1] > 1]  # no biases per head'
    >>> code_of(small, replace(small, embedding_scale=2.0), "megatron")[1]
    "--embedding-init-method-std 2  # documented to end the embeddings' weight decay"
    """
    factor, untied = after.embedding_scale / before.embedding_scale, after.embeddings != before.embeddings == "tied"
    others = replace(after, embedding_scale=before.embedding_scale, embeddings=before.embeddings) != before
    if factor == 1.0 or others or before.embeddings != after.embeddings == "tied":
        return []
    if drawn == "megatron" and after.embeddings != "tied":
        std = factor * (before.init_std or before.embedding_scale)
        untie = ["--untie-embeddings-and-output-weights"] * untied
        what = f"--embedding-init-method-std {std:.4g}  # documented to end the embeddings' weight decay"
        return ["In Megatron-LM's arguments:", *untie, what]
    change, weights = f"[w.data.mul_({factor:.4g}) for w in", "{e.weight for e in es} if w.shape[1]"
    if after.embeddings == "tied":
        hook = f"register_forward_hook(lambda module, ids, x: {factor:.4g} * x)"
        change, weights = f"[e.{hook} for e in", "es if e.weight.shape[1]"
    lines = [
        "es = [e for e in model.modules() if 'Embedding' in type(e).__name__ and hasattr(e, 'weight')]",
        f"{change} {weights} > {after.heads}]  # no biases per head",
    ]
    return [
        "In torch, once, on real weights (not meta), before sharding and optimizers; Megatron's: --drawn-by megatron:",
        *["config.tie_word_embeddings = False  # before model = ...(config)"] * untied, *lines,
    ]  # fmt: skip


def effect(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Describe the smallest and the largest ratio first / last layer after a change, and what became less even.

    >>> effect({"W1": 1.4, "W2": 3.0, "WK": 2.0}, {"W1": 0.5, "W2": 1.2})
    '0.5x (W1) to 1.2x (W2); less even: W1; unknown: WK'
    """
    ordered = sorted(after, key=lambda name: float(f"{after[name]:.3g}"))  # equal but for rounding: in order
    sizes = {name: abs(math.log(ratio)) for name, ratio in before.items()}
    less = [name for name in after if abs(math.log(after[name])) > sizes.get(name, math.inf) + LESS_EVEN]
    lists = (("less even", less), ("unknown", [name for name in before if name not in after]))
    return " to ".join(f"{after[name]:.3g}x ({role(name)})" for name in (ordered[0], ordered[-1])) + "".join(
        f"; {word}: {', '.join(map(role, names))}" for word, names in lists if names
    )


def _evens_out(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    # Returns whether at least as many matrices become more even as become less even.
    nearer = [abs(math.log(before[name])) - abs(math.log(after[name])) for name in after if name in before]
    return sum(each > LESS_EVEN for each in nearer) >= sum(each < -LESS_EVEN for each in nearer)


def _within(
    stack: Stack, listed: Iterator[tuple[str, dict[str, Any]]], limit: Budget, *, coarse: bool
) -> list[tuple[str, dict[str, Any], Way]]:
    # Return the changes that have a rule and together are predicted within the time.
    left, changes = limit.seconds, []
    for words, values in listed:
        try:
            other = replace(stack, **values)
            chosen = way(other, _PATTERNS, replace(limit, seconds=max(left, 1e-9)), coarse=coarse)
        except ValueError:  # no such network, no rule for it, or over the budget
            continue
        else:
            left -= chosen.cost.seconds
            changes.append((words, values, chosen))
    return changes


def furthest(table: Columns) -> float:
    """Return the ratio first / last layer of the matrix whose ratio is furthest from 1, as a factor above 1."""
    return max((max(ratio, 1 / ratio) for ratio in first_over_last(table).values()), default=1.0)


def loss_of(table: Columns) -> float:
    """Return the predicted loss."""
    return float(np.asarray(table["predicted"])[np.asarray(table["quantity"]) == "loss"][0])


def _own_token(stack: Stack, table: Columns | Way, before: float = math.inf) -> tuple[float, float]:
    """Return the loss, and the probability that a tied network gives to a position's own token.

    Without a rule, as for experts, a probability p is taken to raise the loss `before` by -ln(1 - p). A way of
    prediction is used only where the loss requires it.
    """
    if stack.embeddings == "tied":
        with suppress(ValueError):
            return own_token(stack)
    loss = loss_of(layer_columns(table.predicted(), None) if isinstance(table, Way) else table)
    return loss, -math.expm1(min(0.0, before - loss)) if stack.embeddings == "tied" else 0.0


def changes_of(stack: Stack, table: Columns, shares: Sequence[float] = (1.0,)) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes of one setting: those that alter the network least come first, and likely before unlikely ones.

    `shares` are multiples of the embeddings that even out the layers, for an untied head.
    """
    ends = {name: words for name, words in (("grad_WO", "W^O"), ("grad_W2", "W2")) if name in set(table["quantity"])}
    energies = profiles(table, "predicted")["hidden_energy"]
    larger, tied = _round_up(3.0 * float(energies[-1]) ** 0.5), stack.embeddings == "tied"
    layers = COMPOSITIONS[stack.placement]
    # What grows with its branches grows less from where it is large, if these are given norms.
    if layers.input_norm and energies[-1] > UNEVEN * energies[0] and larger > stack.embedding_scale:
        # Drawn so much larger, a tied matrix would make logits larger too; times less, it predicts its own token less.
        ways: list[tuple[str, float, dict[str, Any]]] = [
            ("", share * larger, {}) for share in (1.0, 0.5, 0.2, 0.1) * tied
        ]
        untied = f"untie the head, +{stack.vocab * stack.width / 1e6:.3g}M parameters; "
        head, values = (untied, {"embeddings": "untied"}) if tied else ("", {})
        ways += [(head, _round_up(share * larger), values) for share in shares]
        for head, scale, values in ways:
            if scale > stack.embedding_scale:
                yield _larger_words(stack, scale, head), {**values, "embedding_scale": scale}
    if ends and stack.depth_scaling == "none":
        yield drawn_smaller(" and ".join(ends.values())), {"depth_scaling": "depth"}
    if stack.branch_scaling == "none":
        yield "branches times 1/L", {"branch_scaling": "inverse_depth"}
    others = (name for name in _PLACEMENTS if name != stack.placement)
    yield from ((COMPOSITIONS[name].title, {"placement": name}) for name in others)


def _larger_words(stack: Stack, scale: float, head: str = "") -> str:
    # Describe embeddings of a size; a tied head's rows keep theirs if it is not first untied by `head`.
    is_multiplied, positions = stack.embeddings == "tied" and not head, stack.positions.startswith("learned")
    what = "embedded tokens" if is_multiplied else f"input{' and position' * positions} embeddings"
    return f"{head}rms of {what} {stack.embedding_scale:.3g} -> {scale:g}"


def _round_up(number: float) -> float:
    """Round up to the next of 1, 2, 5, 10, 20, and so on.

    >>> [_round_up(each) for each in (0.03, 0.93, 7.7, 46.0)]
    [0.05, 1.0, 10.0, 50.0]
    """
    return next((size for size in _SIZES if size >= number), float(f"{number:.1g}"))
