"""Kinds of networks that rules ask for, or do not reach."""

from theory.stack import Stack
from theory.stack.stack import BY_LAYER


def is_fluctuating(stack: Stack) -> bool:
    """Whether attention weights, or the choice of experts, differ from network to network at large width."""
    return attends_randomly(stack) or has_experts(stack)


def attends_randomly(stack: Stack) -> bool:
    """Whether attention weights differ from network to network at large width."""
    return stack.attention_dropout > 0.0 or stack.query_key_scale > 0.0


def has_experts(stack: Stack) -> bool:
    """Whether a router chooses feed-forward units for every token."""
    return stack.experts > 0


def is_unprojected(stack: Stack) -> bool:
    """Whether experts' gradients keep a certain part along the stream: no norm of sums, branches or the output."""
    composition = stack.composition
    normed = composition.output_norm or composition.normalized_output
    return has_experts(stack) and (stack.normalization == "tanh" or not normed)


def is_exchangeable(stack: Stack) -> bool:
    """Whether no token differs in law from another, so that a pair of numbers says all of a kernel."""
    telling_apart = {"input_gram", "positions", "mask", "loss_on", "sequences", "embeddings", "label_groups"}
    telling_apart |= {"attention_dropout", "query_key_scale", "rotary", "experts"}
    return not telling_apart & set(stack.relaxed) and not stack.composition.second_stream


def is_approximate(stack: Stack) -> bool:
    """Whether W^Q and W^K have a rule that leaves overlaps of leading order out: where no norm projects anywhere.

    The gradient then has a deterministic component along the stream, which holds the values (docs/attention.md).
    """
    composition = stack.composition
    normed = composition.input_norm or composition.stream_norm or composition.output_norm
    return stack.query_key_scale > 0.0 and (stack.normalization == "tanh" or not normed)


def is_tied(stack: Stack) -> bool:
    """Whether inputs are rows of the output matrix."""
    return stack.embeddings == "tied"


def holds_words(stack: Stack) -> bool:
    """Whether logits hold the words of their own positions: embeddings are tied, and no matrix comes in between."""
    return is_tied(stack) and stack.output_transform == "none"


def has_zero_matrices(stack: Stack) -> bool:
    """Whether W^O or W2 are zeros, so that what stands below them in their branch has no gradient."""
    return 0.0 in (stack.projection_gain, stack.down_gain)


def keeps_means(stack: Stack) -> bool:
    """Whether gradients have a part along the mean of coordinates, which sinusoidal positions have.

    Norms take it off, unless they centre behind a branch that was given a mean.
    """
    composition = stack.composition
    centred = stack.normalization == "layer" and composition.input_norm and composition.final_norm
    return stack.positions == "sinusoidal" and stack.normalization != "rms" and not centred


def sees_overlaps(stack: Stack) -> bool:
    """Whether one matrix of queries and keys sees overlaps of tokens and source of order one."""
    overlapping = stack.attention_scale == "sqrt" or stack.positions == "sinusoidal"
    return stack.source_tokens > 0 and stack.query_key == "tied" and stack.query_key_scale > 0.0 and overlapping


def is_known_at_finite_width(stack: Stack) -> bool:
    """Whether the first corrections in 1/d are derived."""
    return not stack.relaxed and (stack.placement == "post" or (stack.placement == "pre" and stack.tokens == 1))


def ends_on_a_sphere(stack: Stack) -> bool:
    """Whether the output matrix is given tokens of the length √d, whatever the parameters."""
    return stack.normalized_output and not stack.composition.second_stream and not stack.norm_epsilon


def is_squashed(stack: Stack) -> bool:
    """Whether tanh stands in a norm's place where its input, or what it leads to, is not Gaussian."""
    layers = (stack.composition, stack.of_layer(1).composition)
    after_sums = any(composition.stream_norm or composition.output_norm for composition in layers)
    given = stack.embedding_norm == "added" or stack.positions == "sinusoidal" or stack.output_transform == "added"
    return stack.normalization == "tanh" and (after_sums or given)


def has_unlike_layers(stack: Stack) -> bool:
    """Whether layers differ in how branches are added to the stream."""
    return stack.lower_layers > 0 or stack.branch_scaling == "layer"


def is_plain(stack: Stack) -> bool:
    """Whether every layer is uniform attention without W^O, then plain ReLU units, all alike, and labels are words.

    And whether branches add something, so that there is a curvature below the output matrix.
    """
    units = (stack.ffn, stack.activation, stack.branches, stack.layout) == ("plain", "relu", "both", "sequential")
    values = stack.output_projection == "identity" and stack.key_heads == stack.heads
    alike = not has_unlike_layers(stack) and stack.depth_scaling not in BY_LAYER and not stack.source_tokens
    alike = alike and not stack.is_idle
    return units and values and alike and stack.label_smoothing == 0.0 and 0.0 <= stack.input_correlation < 1.0


def has_closed_growth(stack: Stack) -> bool:
    """Whether gradients over the layers have a closed form, given a placement that has one."""
    unmasked = stack.mask == "none" or stack.tokens == 1 or (stack.mask == "causal" and stack.dropout == 0.0)
    normed = stack.normalization in ("layer", "rms") and stack.norm_gain == 1.0 and stack.norm_epsilon == 0.0
    added = stack.branch_scaling == "none" and stack.branch_scale in (None, 1.0) and stack.lower_share == 0.0
    added = added and stack.depth_mixing == "none" and stack.input_scaling == "none"
    added = added and stack.attention_factor == stack.feed_forward_factor == 1.0
    read = not is_tied(stack) and not stack.source_tokens and stack.layout == "sequential"
    untied = stack.query_key == "untied" or not stack.query_key_scale or stack.attention_scale == "linear"
    # A token that sees itself alone never aligns by attention.
    return unmasked and normed and added and read and untied and stack.window != 1 and not stack.attention_dropout


def has_other_two_streams(stack: Stack) -> bool:
    """Whether there are two streams, and branches read or add what their rules do not have."""
    composition = stack.composition
    changed = composition.input_norm or composition.output_norm or composition.input_scale(2) != 1.0
    return composition.second_stream and changed
