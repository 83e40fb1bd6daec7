"""What theory has a rule for: one table of gaps, read by every prediction and by the pages."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from theory.stack import Stack

MOST_TIED_ROWS = 64
"""Tokens of all sequences up to which tied embeddings are predicted: their moments take the fourth power in memory."""
MOST_STEPPED_ROWS = 64
"""Tokens of all sequences up to which a first step is predicted: means of four slopes are n⁴ numbers a sample."""
LARGEST_STEPPED_VOCAB = 4.0
"""V/d up to which the law of the logits' change at the first step has been compared with networks."""
NARROWEST_ANNEALED_HEAD = 16
"""Here W^Q is off by 2.3% (s = 1) or 2.8% (s = 1.5) in the closed form, whose heads are wide: as much as by its means.
"""

SUBJECTS = {
    "prediction": "a prediction",
    "queries": "what W^Q and W^K receive",
    "annealed": "a prediction in closed form",
    "finite_width": "corrections for finite width",
    "first_step": "a prediction of its first step",
    "noise_scale": "a noise scale",
    "gauss_newton": "a prediction of its Gauss-Newton matrix",
    "gauss_newton_norms": "the norms of its Gauss-Newton matrix",
    "mean_hessian": "the mean of its Hessian",
}
"""What can be asked of theory, in words that end the sentence "the stack must have ... for"."""


class NoRuleError(ValueError):
    """A network that can be sampled and that large-width theory has no rule for yet."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Networks for which something is not predicted.

    Attributes:
        subjects: what is not, of `SUBJECTS`.
        networks: which networks, in words for a table.
        needs: what a stack must have instead, in words that begin an error.
        because: what is missing, a clause.
        contains: whether a stack is one of the networks.
    """

    subjects: tuple[str, ...]
    networks: str
    needs: str
    because: str
    contains: Callable[[Stack], bool]


def is_fluctuating(stack: Stack) -> bool:
    """Whether attention weights differ from network to network at large width."""
    return stack.attention_dropout > 0.0 or stack.query_key_scale > 0.0


def is_exchangeable(stack: Stack) -> bool:
    """Whether no token differs in law from another, so that a pair of numbers says all of a kernel."""
    telling_apart = {"input_gram", "positions", "mask", "loss_on", "sequences", "embeddings", "label_groups"}
    telling_apart |= {"attention_dropout", "query_key_scale", "rotary"}
    return not telling_apart & set(stack.relaxed) and not stack.composition.second_stream


def is_approximate(stack: Stack) -> bool:
    """Whether W^Q and W^K have a rule that leaves overlaps of leading order out: where no norm stands anywhere.

    The gradient then has a deterministic component along the stream, which holds the values (docs/queries.md).
    """
    composition = stack.composition
    normed = composition.input_norm or composition.stream_norm or composition.output_norm
    return stack.query_key_scale > 0.0 and not normed


def gaps(stack: Stack, subject: str) -> list[Gap]:
    """Return why theory has no rule for something of a stack; nothing where it has one.

    Raises:
        ValueError: the subject is not one of `SUBJECTS`.
    """
    if subject not in SUBJECTS:
        raise ValueError(f"subject must be one of {', '.join(SUBJECTS)}, got {subject!r}.")
    return [gap for gap in GAPS if subject in gap.subjects and gap.contains(stack)]


def require(stack: Stack, subject: str) -> None:
    """Refuse a stack for which there is no rule.

    Raises:
        NoRuleError: there is none; the error says what the stack must have, and what is missing.
    """
    if missing := gaps(stack, subject):
        needs = " and ".join(f"{gap.needs} ({gap.because})" for gap in missing)
        raise NoRuleError(f"stack must have {needs} for {SUBJECTS[subject]}, got {stack.non_default()}.")


def _tied(stack: Stack) -> bool:
    return stack.embeddings == "tied"


def _annealable(stack: Stack) -> bool:
    without = replace(stack, query_key_scale=0.0, query_key_norm="none")
    usual = (stack.query_key, stack.attention_scale, stack.query_key_norm) == ("untied", "sqrt", "none")
    usual = usual and stack.query_key_scale > 0.0 and not stack.source_tokens and not stack.logit_softcap
    return usual and is_exchangeable(without)


def _sees_overlaps(stack: Stack) -> bool:
    overlapping = stack.attention_scale == "sqrt" or stack.positions == "sinusoidal"
    return stack.source_tokens > 0 and stack.query_key == "tied" and stack.query_key_scale > 0.0 and overlapping


def _at_finite_width(stack: Stack) -> bool:
    return not stack.relaxed and (stack.placement == "post" or (stack.placement == "pre" and stack.tokens == 1))


def _on_a_sphere(stack: Stack) -> bool:
    composition = stack.composition
    return composition.normalized_output and not composition.second_stream and not stack.norm_epsilon


_RESPONSE = ("first_step", "gauss_newton", "gauss_newton_norms")
_TIED = ("prediction",)

GAPS = (
    Gap(
        _TIED,
        "tied embeddings with random queries and keys, or dropped attention weights",
        "untied embeddings or fixed attention weights",
        "how a logit follows the word at its own position is not known given an attention pattern",
        lambda stack: _tied(stack) and is_fluctuating(stack),
    ),
    Gap(
        _TIED,
        "tied embeddings with dropout",
        "untied embeddings or no dropout",
        "a dropped branch has no rule for the part of the logits that follows the words",
        lambda stack: _tied(stack) and stack.dropout > 0.0,
    ),
    Gap(
        _TIED,
        "tied embeddings with a source",
        "untied embeddings or no source_tokens",
        "the norm's projection along the stream is coherent over positions, which the rule leaves out",
        lambda stack: _tied(stack) and stack.source_tokens > 0,
    ),
    Gap(
        _TIED,
        "tied embeddings with two streams, parallel branches, heads of a width of their own, or a norm after the "
        "embedding to which positions are added",
        "untied embeddings, or one stream with branches one after the other, heads of width d/h, and no embedding_norm "
        "with added positions",
        "the response of the logits to the words has not been derived there",
        lambda stack: (
            _tied(stack)
            and bool(
                stack.composition.second_stream
                or stack.layout == "parallel"
                or stack.head_width
                or stack.embedding_norm == "added"
            )
        ),
    ),
    Gap(
        _TIED,
        f"tied embeddings with more than {MOST_TIED_ROWS} tokens of all sequences",
        f"untied embeddings or at most {MOST_TIED_ROWS} tokens x sequences",
        "moments of the logits take the fourth power of it in memory",
        lambda stack: _tied(stack) and stack.rows > MOST_TIED_ROWS,
    ),
    Gap(
        ("prediction",),
        "queries that are the keys (query_key = 'tied') with a source, logits over √d_k or sinusoidal positions",
        "query_key 'untied', or attention_scale 'linear' without sinusoidal positions, with source_tokens",
        "a shared matrix sees overlaps of tokens and source of order one, which have no rule",
        _sees_overlaps,
    ),
    Gap(
        ("queries",),
        "random queries and keys without any norm",
        "a norm with random queries and keys",
        "without one the gradient keeps a part along the stream, which W^Q and W^K feel at any width",
        is_approximate,
    ),
    Gap(
        (*_RESPONSE, "noise_scale", "mean_hessian"),
        "tied embeddings",
        "untied embeddings",
        "the words' path through the output matrix is left out",
        _tied,
    ),
    Gap(
        (*_RESPONSE, "noise_scale"),
        "random queries and keys, or dropped attention weights",
        "fixed attention weights",
        "the tangent kernel of two attention patterns has not been derived",
        is_fluctuating,
    ),
    Gap(
        _RESPONSE,
        "dropout",
        "no dropout",
        "a dropped branch is not one network's",
        lambda stack: stack.dropout > 0.0,
    ),
    Gap(
        ("first_step",),
        "a source, or two streams",
        "one stream without a source",
        "their tangent kernel has more parts",
        lambda stack: stack.source_tokens > 0 or stack.composition.second_stream,
    ),
    Gap(
        ("first_step",),
        "labels shared by positions, one kind of branch alone, parallel branches, keys and values shared by heads, or "
        "heads of a width of their own",
        "a label of its own at every position, both branches, one after the other, and values for every head, of width "
        "d/h",
        "the shares of the matrices have been derived for these alone",
        lambda stack: bool(
            stack.label_groups
            or stack.branches != "both"
            or stack.layout == "parallel"
            or stack.key_heads != stack.heads
            or stack.head_width
        ),
    ),
    Gap(
        ("first_step",),
        f"more than {MOST_STEPPED_ROWS} tokens of all sequences",
        f"at most {MOST_STEPPED_ROWS} tokens x sequences",
        "means of four slopes take the fourth power of it in memory",
        lambda stack: stack.rows > MOST_STEPPED_ROWS,
    ),
    Gap(
        ("first_step",),
        f"V/d above {LARGEST_STEPPED_VOCAB:g}",
        f"vocab of at most {LARGEST_STEPPED_VOCAB:g} width",
        "up to there the law of the logits' change has been compared with networks",
        lambda stack: stack.vocab > LARGEST_STEPPED_VOCAB * stack.width,
    ),
    Gap(
        ("gauss_newton_norms",),
        "a mask, positions, a given covariance, loss on one position, or whatever else tells tokens apart",
        "exchangeable tokens",
        "the spectrum is reduced to a pair of numbers",
        lambda stack: not is_exchangeable(stack),
    ),
    Gap(
        ("annealed",),
        "fixed attention, queries that are the keys, logits over d_k, normalized queries and keys, a soft cap, a "
        "source, or tokens that something else tells apart",
        "query_key_scale > 0 with untied matrices, logits over sqrt(d_k) and exchangeable tokens (no mask, source, "
        "positions, text, ...)",
        "a pair of numbers has to say all of a kernel",
        lambda stack: not _annealable(stack),
    ),
    Gap(
        ("annealed",),
        f"heads of fewer than {NARROWEST_ANNEALED_HEAD} coordinates",
        f"heads of at least {NARROWEST_ANNEALED_HEAD} coordinates each",
        "logits are taken as Gaussian",
        lambda stack: stack.key_width < NARROWEST_ANNEALED_HEAD,
    ),
    Gap(
        ("finite_width",),
        "all but the paper's setting with Post-LN, or with Pre-LN and one token",
        "the paper's setting, with placement 'post', or 'pre' and tokens 1",
        "only there are the first corrections derived",
        lambda stack: not _at_finite_width(stack),
    ),
    Gap(
        ("mean_hessian",),
        "no final norm, an epsilon in it, or two streams",
        "a final norm without epsilon, and one stream",
        "the mean over the output matrix is 0 for logits of a fixed size alone",
        lambda stack: not _on_a_sphere(stack),
    ),
)
"""Every gap that is known."""
