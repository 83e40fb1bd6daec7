"""The backward pass through one branch with tied embeddings, for tokens that represent a random text.

The coefficients a on the branch's output are for a unit of a token's error. The known part of the gradient is also
noise for the layers below. From a token itself, hidden units leave a multiple of its pre-activation.
"""

from typing import Any

import numpy as np

from theory.mean_field.activations import activation_of
from theory.mean_field.kernels import Array
from theory.mean_field.sublayers import Overlaps, SquaredNorms, SublayerState, add_energies, bias_gradients
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.tied.hermite import gaussian_nodes, pair_means
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio


def below_units(
    stack: Stack, tokens: TextLayout, noise: Array, part: Array, own: Array, inside: SublayerState[Array]
) -> tuple[Array, Array, SquaredNorms]:
    """Propagate the gradient back through an MLP, including the gradient's part along the branch's output.

    The MLP is φ(x W1) W2 or (φ(x WG) ∘ x W1) W2.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (batch, 2 R, 2 R).
        part: its coefficients a there, (batch, 2 R).
        own: products of tokens' errors, (batch, 2 R, 2 R).
        inside: kernels of the sub-layer.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    activation, ratio = activation_of(stack.activation, stack.leaky_slope), stack.ffn_width / stack.width
    first, second, gated = gain(stack, "W1"), gain(stack, "W2"), stack.ffn == "gated"
    gate = gain(stack, "WG") if gated else first
    below, energies = inside.pullback(noise + own * part[..., :, None] * part[..., None, :] * inside.made, None)
    part = second / ratio * part
    energy, nodes, weights = np.linalg.diagonal(inside.given), *gaussian_nodes()
    units = np.sqrt(gate * energy)[..., None] * nodes
    root = np.sqrt(energy)
    correlation = np.clip(inside.given / (root[..., :, None] * root[..., None, :]), -1.0, 1.0)
    active, slope = activation.value(units), activation.slope(units)
    bent = (units * active * slope) @ weights / (gate * energy)
    if gated:
        # w is φ² l on the way to W1, and φ' φ l² on the way to WG, with l the linear units.
        lines = first * inside.given
        line = np.linalg.diagonal(lines)
        squares = line[..., :, None] * line[..., None, :] + 2.0 * lines**2
        paths = {
            "W1": (pair_means(active**2, correlation) * lines, active**2 @ weights),
            "WG": (pair_means(active * slope, correlation) * squares, bent * line),
        }
    else:
        paths = {"W1": (pair_means(active * slope, correlation), bent)}
    along = 0.0 * part
    for role, (means, response) in paths.items():
        squares = ratio * own * part[..., :, None] * part[..., None, :] * means
        energies[role] = energies[role] + tokens.total(inside.given * squares)
        energies = add_energies(energies, bias_gradients(stack, tokens, **{role: squares}))
        size = gain(stack, role)
        below, along = below + size * squares, along + ratio * size * part * response
    return below, along, energies


def below_attention(
    stack: Stack, tokens: TextLayout, noise: Array, part: Array, own: Array, inside: SublayerState[Array],
    overlaps: Overlaps[Array],
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through attention, including the gradient's part along the branch's output.

    A token's coefficient is kept on itself, not on others that it attends to.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (batch, 2 R, 2 R).
        part: its coefficients a there, (batch, 2 R).
        own: products of tokens' errors, (batch, 2 R, 2 R).
        inside: kernels of the sub-layer.
        overlaps: the part of the noise that norms above removed.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    ratio, projected = inner_ratio(stack), stack.output_projection == "random"
    size = gain(stack, "WO") if projected else 1.0
    within = own * part[..., :, None] * part[..., None, :] * inside.made
    whole = noise + within if projected else noise
    part = size / ratio * part
    if inside.attended is None:
        below, energies = inside.pullback(whole + within / ratio, overlaps)
    else:
        known = own * part[..., :, None] * part[..., None, :] * inside.made / size
        known = (stack.key_width / stack.width * known)[:, None, None]
        # As the way back of `GroupedAttention` takes what is known at every head's output.
        below, energies = inside.attended[1](whole, overlaps, known)
    if projected:
        if inside.attended is None:
            # The rule took what is known of the gradient below W^O as if it were above it.
            energies["WO"] = energies["WO"] - tokens.total(inside.made / size * within)
        energies |= bias_gradients(stack, tokens, WO=whole)
    return below, gain(stack, "WV") * ratio * part * _to_itself(tokens, inside.attended), energies


def _to_itself(tokens: TextLayout, attended: Any) -> Array:
    """Return the mean square of a token's attention weight on itself over all heads, (..., 2 R)."""
    if attended is not None:
        squares = np.square(np.linalg.diagonal(attended[0].own)).mean((1, 2))
        return np.asarray(squares.reshape(len(squares), -1))
    return np.asarray(1.0 / tokens.seen_all[:, 0] ** 2)
