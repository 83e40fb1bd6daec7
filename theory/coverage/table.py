"""The table of networks that the theory cannot predict: which networks, which predictions, and why."""

from collections.abc import Callable
from dataclasses import dataclass

from theory.coverage.networks import (
    attends_randomly,
    ends_on_a_sphere,
    has_closed_growth,
    has_experts,
    has_other_two_streams,
    has_unlike_layers,
    has_zero_matrices,
    holds_words,
    is_approximate,
    is_exchangeable,
    is_known_at_finite_width,
    is_plain,
    is_squashed,
    is_tied,
    is_unprojected,
    keeps_means,
    sees_overlaps,
)
from theory.stack import Stack

MOST_STEPPED_ROWS = 64
"""The largest number of tokens, over all sequences, in a predicted first step.

Means of products of four derivatives need n⁴ numbers for a sample.
"""
LARGEST_STEPPED_VOCAB = 200.0
"""The largest V/d in a predicted first step, which was compared with networks up to V/d = 64 (docs/report.md)."""
NARROWEST_GROUPED_WINDOW = 32
"""The smallest attention window for which tokens are grouped.

By groups of tokens, W^Q and W^K are 20% off at a window of 8, 9% at 16, and 3% at 32.
"""
FEWEST_GROUPED_WORDS = 2.0
"""The smallest number of tokens, divided by √d, for groups with tied embeddings and random queries.

Groups leave out the deterministic part of the gradient at the logits, which falls like d/n². At 2 W^K is 6% too large
(Post-LN, causal mask).
"""

SUBJECTS = {
    "prediction": "a prediction",
    "queries": "the gradients of W^Q and W^K",
    "grouped": "a prediction by groups of its tokens",
    "finite_width": "corrections for finite width",
    "first_step": "a prediction of its first step",
    "noise_scale": "a noise scale",
    "gauss_newton": "a prediction of its Gauss-Newton matrix",
    "gauss_newton_norms": "the norms of its Gauss-Newton matrix",
    "mean_hessian": "the mean of its Hessian",
    "hessian_eigenvalue": "the largest eigenvalue of its Hessian",
    "layer_growth": "a closed form of its gradients over the layers",
    "training": "training",
    "hessian": "a Hessian of one network",
    "sampled_step": "a first step of one network",
}
"""The subjects that a gap can be about, in words that end the sentence "the stack must have ... for"."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A set of networks for which the theory cannot predict something, with the reason.

    Attributes:
        subjects: the predictions that are missing, keys of `SUBJECTS`.
        networks: the networks, in words for a table.
        needs: the property that a stack must have instead, in words that begin an error message.
        because: the reason why the rule is missing, a clause.
        contains: function that returns whether a stack is one of the networks.
    """

    subjects: tuple[str, ...]
    networks: str
    needs: str
    because: str
    contains: Callable[[Stack], bool]


_RESPONSE = ("first_step", "gauss_newton", "gauss_newton_norms", "hessian_eigenvalue")
_TIED = ("prediction",)
_SAMPLED = ("training", "hessian")

GAPS = (
    Gap(
        _TIED,
        "tied embeddings with one matrix for queries and keys",
        "untied embeddings or query_key 'untied'",
        "the overlap of a shared query/key matrix with the tokens is not derived",
        lambda stack: holds_words(stack) and stack.query_key_scale > 0.0 and stack.query_key == "tied",
    ),
    Gap(
        _TIED,
        "tied embeddings with dropout",
        "untied embeddings or no dropout",
        "with dropped branches, the component of the logits along the tokens has no rule",
        lambda stack: holds_words(stack) and stack.dropout > 0.0,
    ),
    Gap(
        _TIED,
        "tied embeddings with an encoder",
        "untied embeddings or no source_tokens",
        "the projections of the norms add up over the positions, which the rule omits",
        lambda stack: holds_words(stack) and stack.source_tokens > 0,
    ),
    Gap(
        (*_TIED, "first_step"),
        "tied embeddings with two residual streams, or an embedding norm",
        "untied embeddings, or one stream, and no embedding_norm",
        "the response of the logits to the tokens has not been derived there",
        lambda stack: holds_words(stack) and bool(stack.composition.second_stream or stack.embedding_norm == "added"),
    ),
    Gap(
        (*_TIED, "first_step"),
        "tied embeddings with layers that differ in placement or scale, with norm gains other than 1, or with tanh "
        "instead of norms",
        "untied embeddings, or layers alike in placement and branch_scaling, norm_gain 1, and no tanh",
        "the response of the logits to the tokens has not been derived there",
        lambda stack: (
            holds_words(stack) and (has_unlike_layers(stack) or stack.norm_gain != 1.0 or stack.normalization == "tanh")
        ),
    ),
    Gap(
        _TIED,
        "tied embeddings with a loss on a share of the positions",
        "untied embeddings or loss_share 1",
        "the mean over the choice of positions has not been derived there",
        lambda stack: holds_words(stack) and stack.loss_share < 1.0,
    ),
    Gap(
        (*_TIED, "first_step"),
        "tied embeddings with values that heads share, and no W^O",
        "untied embeddings, or output_projection 'random' with kv_heads",
        "the residual stream contains several copies of shared values, and all layers read these copies",
        lambda stack: holds_words(stack) and stack.key_heads < stack.heads and stack.output_projection == "identity",
    ),
    Gap(
        ("prediction",),
        "a shared query/key matrix (query_key = 'tied') with an encoder, and logits / √d_k or sinusoidal positions",
        "query_key 'untied', or attention_scale 'linear' without sinusoidal positions, with source_tokens",
        "in a shared matrix, tokens and encoder output have overlaps of order one, which have no rule",
        sees_overlaps,
    ),
    Gap(
        ("prediction", *_RESPONSE),
        "tanh instead of norms of branches, sums or embeddings, or tanh with sinusoidal positions or an "
        "output_transform",
        "a norm, or tanh only before branches and the output, without sinusoidal positions or output_transform",
        "the coordinates of the residual stream are then not Gaussian",
        is_squashed,
    ),
    Gap(
        ("prediction", *_RESPONSE),
        "two residual streams with a norm before or after branches, or with scaled branch inputs",
        "two residual streams whose branches read the normalized stream, without other norms or factors",
        "the rules of two residual streams are derived only for these",
        has_other_two_streams,
    ),
    Gap(
        ("queries",),
        "random queries and keys without any norm, or with tanh instead of norms",
        "a norm with random queries and keys",
        "without a norm, the gradient keeps a part along the residual stream that changes W^Q and W^K at any width",
        is_approximate,
    ),
    Gap(
        (*_RESPONSE[1:], *_SAMPLED, "mean_hessian"),
        "tied embeddings",
        "untied embeddings",
        "the path of the tokens through the output matrix is omitted",
        is_tied,
    ),
    Gap(
        (*_RESPONSE[1:], *_SAMPLED, "mean_hessian", "layer_growth"),
        "experts",
        "no experts",
        "the contribution of a router has been derived only for gradients at initialization",
        has_experts,
    ),
    Gap(
        ("grouped", *_RESPONSE, *_SAMPLED, "sampled_step", "mean_hessian", "noise_scale"),
        "depth mixing",
        "depth_mixing 'none'",
        "its rules have been derived for gradients at initialization, without groups of tokens",
        lambda stack: stack.depth_mixing != "none",
    ),
    Gap(
        (*_RESPONSE, "layer_growth"),
        "a W^O or W2 of zeros",
        "projection_gain and down_gain above 0",
        "learning rates and ratios are relative to matrices and gradients, some of which are 0",
        has_zero_matrices,
    ),
    Gap(
        _TIED,
        "tied embeddings with a W^O or W2 of zeros",
        "untied embeddings, or projection_gain and down_gain above 0",
        "the response of a branch to the tokens is computed relative to its size, which is 0",
        lambda stack: holds_words(stack) and has_zero_matrices(stack),
    ),
    Gap(
        _TIED,
        "experts without a norm of sums, branches or the output, or with tanh instead of norms",
        "a norm of sums, branches or the output with experts",
        "without a norm, the gradient keeps a part along the residual stream that changes the router at any width",
        is_unprojected,
    ),
    Gap(
        _RESPONSE[1:],
        "random queries and keys, or dropped attention weights",
        "fixed attention weights",
        "the mean over attention samples of a product of two Gauss-Newton matrices has not been derived",
        attends_randomly,
    ),
    Gap(
        (*_RESPONSE, "hessian", "sampled_step"),
        "dropout, of branches or of attention weights",
        "no dropout",
        "dropout changes the network in every pass",
        lambda stack: stack.dropout > 0.0 or stack.attention_dropout > 0.0,
    ),
    Gap(
        (*_RESPONSE[1:], *_SAMPLED, "mean_hessian"),
        "a transform before the output matrix",
        "output_transform 'none'",
        "the contribution of W^H is omitted",
        lambda stack: stack.output_transform == "added",
    ),
    Gap(
        ("first_step",),
        "an encoder (source_tokens)",
        "no source_tokens",
        "cross-attention has a rule for the backward pass, but no rule for the motion of decoder and encoder in a step",
        lambda stack: stack.source_tokens > 0,
    ),
    Gap(
        ("first_step",),
        "a shared expert",
        "no shared expert (shared_ratio 0)",
        "the motion of a shared expert is not derived",
        lambda stack: stack.shared_ratio > 0.0,
    ),
    Gap(
        ("first_step",),
        "tied embeddings with experts",
        "untied embeddings or no experts",
        "the overlap of tokens with the gradients of experts is derived only for gradients at initialization",
        lambda stack: holds_words(stack) and has_experts(stack),
    ),
    Gap(
        ("first_step",),
        "two residual streams",
        "one stream",
        "the motion of the second residual stream is not derived",
        lambda stack: bool(stack.composition.second_stream),
    ),
    Gap(
        ("training",),
        "an encoder (source_tokens)",
        "no source_tokens",
        "the encoder's matrices are not trained",
        lambda stack: stack.source_tokens > 0,
    ),
    Gap(
        ("layer_growth",),
        "tied embeddings, an encoder, parallel branches, unlike layers, tau, kappa or norm gains not 1, tanh, an "
        "epsilon, dropped attention weights, a causal mask with dropout or a window of 1, given masks, or one "
        "matrix for queries and keys with logits / √d_k",
        "both branches one after the other, all layers alike, with norms of gain 1 and no epsilon, untied embeddings, "
        "no source, no mask or a causal one without dropout, and query_key 'untied'",
        "the limit over the layers is derived only for these",
        lambda stack: not has_closed_growth(stack),
    ),
    Gap(
        ("first_step",),
        "one matrix for queries and keys",
        "query_key 'untied'",
        "the step of a shared query/key matrix has not been derived",
        lambda stack: stack.query_key == "tied" and stack.query_key_scale > 0.0,
    ),
    Gap(
        ("first_step",),
        "tied embeddings with sinusoidal positions, except with RMSNorm or with a norm before every branch",
        "untied embeddings, no sinusoidal positions, normalization 'rms' or a norm before branches",
        "the effect of LayerNorm's mean on a motion along the tokens has not been derived",
        lambda stack: holds_words(stack) and keeps_means(stack),
    ),
    Gap(
        ("first_step",),
        "tanh instead of norms",
        "norms",
        "the motion of tokens through tanh is not derived",
        lambda stack: stack.normalization == "tanh",
    ),
    Gap(
        (*_SAMPLED, "gauss_newton_norms", "hessian_eigenvalue"),
        "a loss on a share of the positions",
        "loss_share 1",
        "the counted positions differ between networks",
        lambda stack: stack.loss_share < 1.0,
    ),
    Gap(
        ("first_step",),
        f"more than {MOST_STEPPED_ROWS} tokens in all sequences together",
        f"at most {MOST_STEPPED_ROWS} tokens x sequences",
        "the memory of the rule grows with the fourth power of this number",
        lambda stack: stack.rows > MOST_STEPPED_ROWS,
    ),
    Gap(
        ("first_step",),
        f"V/d above {LARGEST_STEPPED_VOCAB:g}",
        f"vocab of at most {LARGEST_STEPPED_VOCAB:g} width",
        "the change of the logits was compared with networks only up to V/d = 64",
        lambda stack: stack.vocab > LARGEST_STEPPED_VOCAB * stack.width,
    ),
    Gap(
        ("gauss_newton_norms", "hessian_eigenvalue"),
        "a mask, positions, a given covariance, a loss on one position, or another difference between tokens",
        "exchangeable tokens",
        "the spectrum is reduced to a pair of numbers",
        lambda stack: not is_exchangeable(stack),
    ),
    Gap(
        ("grouped",),
        "text, a given covariance or mask, sinusoidal positions, label groups, a loss on one position, or an encoder",
        "independent tokens, and a loss on all of them",
        "tokens must differ only by their position, and slowly",
        lambda stack: (
            bool(stack.input_gram or stack.label_groups or stack.source_tokens or stack.positions == "sinusoidal")
            or (stack.mask == "given" or stack.loss_on != "all")
        ),
    ),
    Gap(
        ("grouped",),
        "tied embeddings with labels by Zipf's law",
        "untied embeddings or labels 'uniform'",
        "tokens of neighbouring positions must be equally likely as labels",
        lambda stack: holds_words(stack) and stack.labels != "uniform",
    ),
    Gap(
        ("grouped",),
        "tied embeddings with experts",
        "untied embeddings or no experts",
        "the response of grouped tokens that use different experts has not been derived",
        lambda stack: holds_words(stack) and has_experts(stack),
    ),
    Gap(
        ("grouped",),
        f"tied embeddings with random queries and fewer than {FEWEST_GROUPED_WORDS:g} √d tokens",
        f"untied embeddings or at least {FEWEST_GROUPED_WORDS:g} sqrt(width) tokens",
        "the rule omits the non-random gradient at the logits, which matters for few tokens",
        lambda stack: (
            holds_words(stack)
            and stack.query_key_scale > 0.0
            and stack.tokens < FEWEST_GROUPED_WORDS * stack.width**0.5
        ),
    ),
    Gap(
        ("grouped",),
        f"a window of fewer than {NARROWEST_GROUPED_WINDOW} tokens",
        f"window 0 or at least {NARROWEST_GROUPED_WINDOW}",
        "such a window contains no groups of many tokens",
        lambda stack: 0 < stack.window < NARROWEST_GROUPED_WINDOW,
    ),
    Gap(
        ("grouped",),
        "two residual streams, one matrix for queries and keys, or dropped attention weights",
        "one stream, query_key 'untied' and no attention_dropout",
        "the rule for groups is not derived for these",
        lambda stack: bool(
            stack.composition.second_stream
            or (stack.query_key == "tied" and stack.query_key_scale)
            or stack.attention_dropout
        ),
    ),
    Gap(
        ("noise_scale",),
        "tied embeddings with fewer token ids than two sequences have tokens",
        "untied embeddings or vocab of at least 2 tokens",
        "all tokens of two sequences must differ",
        lambda stack: is_tied(stack) and stack.vocab < 2 * stack.tokens,
    ),
    Gap(
        ("finite_width",),
        "all except the paper's setting with Post-LN, or with Pre-LN and one token",
        "the paper's setting, with placement 'post', or 'pre' and tokens 1",
        "the corrections are derived only there",
        lambda stack: not is_known_at_finite_width(stack),
    ),
    Gap(
        ("mean_hessian", "hessian_eigenvalue"),
        "no final norm, an epsilon in it, or two streams",
        "a final norm without epsilon, and one stream",
        "the mean over the output matrix is 0 only for logits of a fixed size",
        lambda stack: not ends_on_a_sphere(stack),
    ),
    Gap(
        ("hessian_eigenvalue",),
        "feed-forward units but plain ReLU ones, a layer of one branch or of parallel ones, a matrix after attention, "
        "shared values, layers that differ or add nothing, smoothed labels, or input_correlation negative or 1",
        "ffn 'plain' with activation 'relu', both branches one after the other, output_projection 'identity' without "
        "kv_heads, layers alike that add something, label_smoothing 0 and input_correlation in [0, 1)",
        "the Dyson equation is derived only for these",
        lambda stack: not is_plain(stack),
    ),
)
"""All known gaps."""
