"""Functions that test a network for the properties on which the theory's rules depend."""

from theory.stack import Stack
from theory.stack.stack import BY_LAYER


def is_fluctuating(stack: Stack) -> bool:
    """Return whether attention weights or the choice of experts vary between random networks at large width."""
    return attends_randomly(stack) or has_experts(stack)


def attends_randomly(stack: Stack) -> bool:
    """Return whether attention weights vary between random networks even at large width."""
    return stack.attention_dropout > 0.0 or stack.query_key_scale > 0.0


def has_experts(stack: Stack) -> bool:
    """Return whether a network has a mixture of experts: a router that chooses among MLPs for every token."""
    return stack.experts > 0


def is_unprojected(stack: Stack) -> bool:
    """Return whether the gradients of a mixture of experts overlap with the residual stream.

    They have a deterministic component along the stream, because no norm removes it.

    This is the case without a norm of the residual sums, of the branches' outputs, and before the output matrix, and
    with tanh instead of norms.
    """
    composition = stack.composition
    normed = composition.output_norm or composition.normalized_output
    return has_experts(stack) and (stack.normalization == "tanh" or not normed)


def is_exchangeable(stack: Stack) -> bool:
    """Return whether tokens are exchangeable: a permutation of them does not change their joint distribution.

    Two numbers then describe the kernel over all pairs of tokens.
    """
    telling_apart = {"input_gram", "positions", "mask", "loss_on", "sequences", "embeddings", "label_groups"}
    telling_apart |= {"attention_dropout", "query_key_scale", "rotary", "experts"}
    return not telling_apart & set(stack.relaxed) and not stack.composition.second_stream


def is_approximate(stack: Stack) -> bool:
    """Return whether the theory for W^Q and W^K is only approximate, because the network has no norm.

    The rule leaves out overlaps of leading order, because no norm projects anywhere.

    The gradient then has a deterministic component along the residual stream, which contains the values
    (docs/attention.md).
    """
    composition = stack.composition
    normed = composition.input_norm or composition.stream_norm or composition.output_norm
    return stack.query_key_scale > 0.0 and (stack.normalization == "tanh" or not normed)


def is_tied(stack: Stack) -> bool:
    """Return whether embeddings are tied: whether the input embeddings are rows of the output matrix."""
    return stack.embeddings == "tied"


def holds_words(stack: Stack) -> bool:
    """Return whether the logits at a position depend on the token id at this position.

    This is the case for tied embeddings without a transform before the output matrix.
    """
    return is_tied(stack) and stack.output_transform == "none"


def has_zero_matrices(stack: Stack) -> bool:
    """Return whether W^O or W2 is zero at initialization, so that earlier matrices in its branch have no gradient."""
    return 0.0 in (stack.projection_gain, stack.down_gain)


def keeps_means(stack: Stack) -> bool:
    """Return whether sinusoidal positions cause a gradient component that is equal in all coordinates.

    Norms remove it, except where they centre after a branch whose input had a mean.
    """
    composition = stack.composition
    centred = stack.normalization == "layer" and composition.input_norm and composition.final_norm
    return stack.positions == "sinusoidal" and stack.normalization != "rms" and not centred


def sees_overlaps(stack: Stack) -> bool:
    """Return whether cross-attention with a shared query-key matrix depends on overlaps of tokens and encoder.

    The overlaps between tokens and encoder output are of order one.
    """
    overlapping = stack.attention_scale == "sqrt" or stack.positions == "sinusoidal"
    return stack.source_tokens > 0 and stack.query_key == "tied" and stack.query_key_scale > 0.0 and overlapping


def is_known_at_finite_width(stack: Stack) -> bool:
    """Return whether corrections for finite width are derived for a network.

    They are of first order in 1/d.
    """
    return not stack.relaxed and (stack.placement == "post" or (stack.placement == "pre" and stack.tokens == 1))


def ends_on_a_sphere(stack: Stack) -> bool:
    """Return whether every token before the output matrix has the same length for any values of the weights.

    The length is √d.
    """
    return stack.normalized_output and not stack.composition.second_stream and not stack.norm_epsilon


def is_squashed(stack: Stack) -> bool:
    """Return whether tanh replaces a norm at a place where theory would need Gaussian inputs.

    The tanh's input, or the input of the next layer, is not Gaussian.
    """
    layers = (stack.composition, stack.of_layer(1).composition)
    after_sums = any(composition.stream_norm or composition.output_norm for composition in layers)
    given = stack.embedding_norm == "added" or stack.positions == "sinusoidal" or stack.output_transform == "added"
    return stack.normalization == "tanh" and (after_sums or given)


def has_unlike_layers(stack: Stack) -> bool:
    """Return whether layers differ in LayerNorm placement or in the factor that multiplies their branches."""
    return stack.lower_layers > 0 or stack.branch_scaling == "layer"


def is_plain(stack: Stack) -> bool:
    """Return whether a network has the plain layers for which the loss's Hessian can be predicted.

    The Dyson equation of the Hessian is derived for these layers.

    Every layer has uniform attention without W^O and then a plain ReLU MLP, all layers are alike, branches are added
    with a scale above 0, labels are token ids without smoothing, and the inputs' correlation is in [0, 1).
    """
    units = (stack.ffn, stack.activation, stack.branches, stack.layout) == ("plain", "relu", "both", "sequential")
    values = stack.output_projection == "identity" and stack.key_heads == stack.heads
    alike = not has_unlike_layers(stack) and stack.depth_scaling not in BY_LAYER and not stack.source_tokens
    alike = alike and not stack.is_idle
    return units and values and alike and stack.label_smoothing == 0.0 and 0.0 <= stack.input_correlation < 1.0


def has_closed_growth(stack: Stack) -> bool:
    """Return whether the growth of gradient norms over the layers has a closed form for a network.

    The placement must have one too.
    """
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
    """Return whether a network with two residual streams has branch norms or scales that no rule covers."""
    composition = stack.composition
    changed = composition.input_norm or composition.output_norm or composition.input_scale(2) != 1.0
    return composition.second_stream and changed
