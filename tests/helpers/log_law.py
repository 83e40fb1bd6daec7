"""The law of the logarithm of a layer's squared gradient, divided by that of the last layer: docs/finite_width.md."""

from theory import Stack
from theory.mean_field.finite_width import coefficients, feed_forward_branch
from theory.mean_field.finite_width.pre_norm import pre_stream


def log_law(stack: Stack, layer: int) -> tuple[float, float]:
    """Mean and variance of ln r to leading order in 1/d, for r = grad_sq_W2 of a layer / of the last layer.

    Both gradients are divided by their large-width means, which differ while tokens align and in Pre-LN. Both ends hold
    ‖h‖² of their layer, of relative variance ω/b², less twice its covariances with the norm above it and with the
    gradient below it. With more tokens than one, the tokens of the first layers of Post-LN, which have not aligned,
    fluctuate separately, which subtracts about the same amount again (8 tokens, L ≥ 8).
    """
    if layer == stack.depth:
        return 0.0, 0.0
    ffn, d = feed_forward_branch(), stack.width
    b, omega, c = (float(value) for value in (ffn.energy, ffn.spread, ffn.shared))
    if stack.placement == "pre":
        stream, point = pre_stream(stack.depth), 2 * layer
        top = float(1 / stream.energy[-1])
        ends = 2 * omega / b**2 - 2 * omega / b * (1 / stream.energy[point] - top) - 2 * c / b * top
        return float(stream.mean_log()[point]) / d, float(stream.log_variance(top)[point] + ends) / d
    mean, variance = (float(value) for value in (coefficients().mean, coefficients().log_variance))
    ends = 2 * omega / b**2 - 2 * (omega + c) / (b * (1 + b)) + 2 * c / (1 + b) ** 2
    above = (stack.depth - layer) / d
    return (mean - variance / 2) * above, variance * above + ends / d * (stack.tokens == 1)
