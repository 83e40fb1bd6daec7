"""The backward pass through experts with tied embeddings, where gradients correlate with the residual stream.

Let the gradient have coefficients M on a branch's output f_p = Σ_e p_pe F_e(u_p). Then the gradient of expert e is
p_ie g_i, and has coefficients p_ie M_ip p_pe on F_e's own output; outputs of other experts are noise to it. The
product of a token's gradient with an expert's output, t_ie = F_e(u_i)·g_i, has the mean √d Σ_p M_ip p_pe K_ip in
addition to its noise. So the gradient at the router's logits has a mean given the choice of experts. Through W^R it
comes back as noise and along the tokens, whose logits are known. Derived in docs/report.md.
"""

import numpy as np

from theory.mean_field.experts import Routed
from theory.mean_field.kernels import Array, KernelLayout
from theory.mean_field.sublayers import Overlaps, SquaredNorms, SublayerState
from theory.mean_field.tied.units import below_network
from theory.stack import Stack
from theory.stack.weights import gain


def below_experts(
    stack: Stack, tokens: KernelLayout[Array], noise: Array, part: Array, inside: SublayerState[Array],
    overlaps: Overlaps[Array], generator: np.random.Generator,
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through experts, including the gradient's part along the branch's output.

    The branch is Σ_e p_ie F_e(u_i), and a shared expert.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (entries, samples, N, N).
        part: the gradient's coefficients on the output's tokens, (entries, samples, N, N).
        inside: kernels of the sub-layer, (entries, 1, N, N).
        overlaps: the part of the noise that norms above removed.
        generator: random generator of the Gaussian samples.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    whole, energies = noise + part @ inside.made @ part.mT, SquaredNorms()
    below, along = np.zeros_like(whole), np.zeros_like(part)
    for routed in inside.attended:
        weights, kernels = routed.route.weights, (inside.given, routed.output)
        parts = [
            weights[..., :, e, None] * part * weights[..., None, :, e]
            for e in range(weights.shape[-1])
            if weights[..., e].any()
        ]
        to_tokens, known, of_units = below_network(
            stack, tokens, routed.route.overlap * whole, parts, kernels, generator, routed.kind
        )
        below, along, energies = below + to_tokens, along + known, energies | of_units
        if (logits := routed.logits) is not None:
            to_tokens, known, of_router = _below_router(
                stack, tokens, whole, part, (routed, logits), inside.given, overlaps
            )
            below, along, energies = below + to_tokens, along + known, energies | of_router
    return below, along, energies


def _below_router(
    stack: Stack, tokens: KernelLayout[Array], whole: Array, part: Array, of: tuple[Routed, Array], given: Array,
    overlaps: Overlaps[Array],
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through the router of experts.

    The results are noise and coefficients at the tokens, and E‖∂L/∂W^R‖²/d.
    """
    routed, logits = of
    route, role, root = routed.route, routed.kind + "R", stack.width**0.5
    certain = root * (part * routed.output) @ route.weights
    at_logits = route.slopes * certain - route.shares * (route.weights * certain).sum(-1, keepdims=True)
    kernel = at_logits @ at_logits.mT + route.at_logits(routed.output, whole, overlaps)
    # Tokens that are equal, or nearly, have no inverse.
    along = at_logits @ logits.mT @ np.linalg.pinv(given, rcond=1e-10, hermitian=True) / root
    return gain(stack, role) * kernel, along, {role: tokens.positive_total(given * kernel)}
