"""The backward pass through an MLP with tied embeddings, where gradients correlate with the residual stream."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from theory.mean_field.activations import activation_of
from theory.mean_field.kernels import Array, KernelLayout, cholesky
from theory.mean_field.sublayers import SquaredNorms, SublayerState, bias_gradients
from theory.stack import Stack
from theory.stack.weights import gain, weight_shapes

# Gaussian samples of an activation's inputs: of a kernel that all samples of the logits share, and of one of its own.
POINTS = 4096
OWN_POINTS = 256


def below_units(
    stack: Stack, tokens: KernelLayout[Array], noise: Array, part: Array, inside: SublayerState[Array],
    generator: np.random.Generator,
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through an MLP, including the gradient's part along the branch's output.

    The MLP is φ(x W1) W2 or (φ(x WG) ∘ x W1) W2.

    With h the hidden units, the gradient at h is C h/√d plus noise. Multiplied by the slope s of a pre-activation u
    it is w/√d plus noise with w = s ∘ C h, and w is B u plus a part without overlap with any u_i.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (entries, samples, N, N).
        part: its coefficients on the output's tokens, (entries, samples, N, N).
        inside: kernels of the sub-layer, (entries, 1, N, N).
        generator: random generator of the Gaussian samples.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    return below_network(
        stack, tokens, noise + part @ inside.made @ part.mT, [part], (inside.given, inside.made), generator
    )


def below_network(
    stack: Stack, tokens: KernelLayout[Array], whole: Array, parts: Sequence[Array], kernels: tuple[Array, Array],
    generator: np.random.Generator, kind: str = "W",
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through one MLP, or through all experts of a layer together.

    All experts have the same law and the same input.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        whole: sum of the gradient kernels at the MLPs' outputs.
        parts: coefficients of each MLP's gradient on its own output's tokens.
        kernels: kernels of the input, and of one MLP's output.
        generator: random generator of the Gaussian samples.
        kind: "S" for the shared expert, else "W".

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    given, output = kernels
    units, _ = weight_shapes(stack)[kind + "2"]
    activation, ratio = activation_of(stack.activation, stack.leaky_slope), units / stack.width
    first, second = gain(stack, kind + "1"), gain(stack, kind + "2")
    energies = {kind + "2": ratio * tokens.total(output / second * whole)}
    energies |= bias_gradients(stack, tokens, **{kind + "2": whole})
    noise, parts = second * whole, [second / ratio * part for part in parts]
    part = reduce(add, parts)
    gated = stack.ffn == "gated"
    gate = gain(stack, kind + "G") if gated else first
    points = _points(given, part, generator, 1 + gated)
    gates = gate**0.5 * points[0]
    active, slope = activation.value(gates), activation.slope(gates)
    if gated:
        lines = first**0.5 * points[1]
        hidden = active * lines
        # On the way to W1 the units are linear.
        to_gate = response(part * first * given, given * gate, gates, active, slope)
        paths = {kind + "1": (active, part * _mean(active, active)), kind + "G": (slope * lines, to_gate)}
    else:
        hidden = active
        paths = {kind + "1": (slope, response(part, given * first, gates, active, slope))}
    below, along = np.zeros_like(noise), np.zeros_like(noise)
    for role, (slopes, answer) in paths.items():
        squares = reduce(add, (_squares(of_network, slopes, hidden) for of_network in parts))
        whole = noise * _mean(slopes, slopes) + ratio * squares
        energies[role] = tokens.total(given * whole)
        energies |= bias_gradients(stack, tokens, **{role: whole})
        size = gain(stack, role)
        below, along = below + size * whole, along + ratio * size * answer
    return below, along, energies


def own_numbers(stack: Stack) -> int:
    """Estimate how many floats a batch entry with tied embeddings and its own attention sample needs in memory.

    These are the Gaussian samples of `below_units`, and the attention weights for the backward pass.
    """
    patterns = stack.heads * stack.rows * (6 * stack.rows + (2 * stack.key_width if stack.rotary else 0))
    return 6 * OWN_POINTS * stack.rows + stack.depth * patterns + 3 * stack.experts * stack.rows**2


def _points(kernel: Array, part: Array, generator: np.random.Generator, sets: int) -> list[Array]:
    """Return independent sets of Gaussian samples with a given kernel, each (entries, 1, points, N)."""
    root, n = cholesky(kernel), kernel.shape[-1]
    if part.shape[1] == 1:
        shape = (*kernel.shape[:-2], OWN_POINTS, n)
        return [generator.standard_normal(shape) @ root.mT for _ in range(sets)]
    from scipy.stats import qmc  # scipy.stats takes as long to load as all the rest of theory

    normals = qmc.MultivariateNormalQMC(np.zeros(sets * n), rng=generator).random(POINTS)
    return [normal @ root.mT for normal in np.split(normals, sets, axis=-1)]


def _mean(left: Array, other: Array) -> Array:
    """Return the mean of left_i other_j over the samples."""
    return left.mT @ other / left.shape[-2]


def response(part: Array, kernel: Array, units: Array, active: Array, slope: Array) -> Array:
    """Return the coefficients of the projection of an MLP's gradient on its pre-activations.

    They are B in w = B u + (a part without overlap with u), for w_i = φ'(u_i) Σ_p C_ip φ(u_p) and u ~ N(0, K). By
    partial integration, E w_i u_k = Σ_p C_ip (K_kp E φ'_i φ'_p + K_ki E φ''_i φ_p), and E u_i φ'_i φ_p is K_ip E φ'_i
    φ'_p + K_ii E φ''_i φ_p. So no inverse of K is needed, which aligned tokens do not have.

    Args:
        part: C.
        kernel: K.
        units: samples of u.
        active: φ(u) for the samples.
        slope: φ'(u) for the samples.
    """
    slopes = _mean(slope, slope)
    bent = (_mean(units * slope, active) - kernel * slopes) / np.linalg.diagonal(kernel)[..., :, None]
    return part * slopes + (part * bent).sum(-1)[..., None] * np.eye(kernel.shape[-1])


def _squares(part: Array, slopes: Array, hidden: Array) -> Array:
    """Return E w_i w_j for w_i = Σ_p C_ip s_i h_p.

    Args:
        part: C.
        slopes: samples of s.
        hidden: samples of h.
    """
    if part.shape[1] == 1:
        w = slopes * (hidden @ part.mT)
        return _mean(w, w)
    # Forms in C, whose matrices are the same for all samples of the logits.
    n = part.shape[-1]
    products = slopes[..., :, None] * hidden[..., None, :]
    flat = products.reshape(*products.shape[:-2], n * n)
    moments = _mean(flat, flat).reshape(*flat.shape[:-2], n, n, n, n)
    return np.asarray(np.einsum("...ip,...ipjq,...jq->...ij", part, moments, part, optimize=True))
