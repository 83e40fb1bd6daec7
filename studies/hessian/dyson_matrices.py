"""What the Dyson equation of a stack's Hessian is made of: kernels of every matrix, and how one reaches the next.

A kernel of exchangeable tokens is two numbers, its eigenvalues: that of the mean token, K_ii + (n − 1) K_ij, and that
of differences of tokens, K_ii − K_ij.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, norm

from theory.mean_field.activations import activation_of
from theory.mean_field.inputs import exchangeable_inputs
from theory.mean_field.kernels import Array, Pair
from theory.mean_field.outputs import output_gradient
from theory.mean_field.recursion import forward_pass
from theory.stack import Stack
from theory.stack.weights import gain

Name = tuple[str, int]
"""A matrix: role and layer. Layer 0 is the output matrix."""
OUTPUT: Name = ("Wemb", 0)
# Of what tokens share, and the largest of its values that are told apart from infinity.
_NODES, _LAST = 400, 9.0


def eigenvalues(pair: Pair, n: int) -> Array:
    """Of a kernel of n exchangeable tokens, (2,); of one token the second is 0."""
    return np.array([pair.diagonal + (n - 1) * pair.off, pair.diagonal - pair.off if n > 1 else 0.0])


def entries(values: Array, n: int) -> tuple[float, float]:
    """K_ii and K_ij of a kernel by its eigenvalues."""
    return float(values[0] + (n - 1) * values[1]) / n, float(values[0] - values[1]) / n


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of parameters.

    Attributes:
        inputs: eigenvalues of the Gram matrix of its inputs h_i.
        gradients: of that of the loss's gradients δ_i at its outputs.
        gain: its entries have the variance gain/d_in.
        ratio: d_out/d_in.
        fan_in: d_in.
    """

    inputs: Array
    gradients: Array
    gain: float
    ratio: float
    fan_in: int


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """All matrices of a stack, and the stream between them.

    Attributes:
        stack: the network.
        each: by name.
        readers: what reads the stream, from below: W^V and W^1 of every layer, at last the output matrix.
        writers: what adds to it: W^V and W^2 of every layer.
        reach: for the mean token and for differences, (readers, writers): what arrives at a reader of what a writer
            adds, after the norms between them. Uniform attention reads no differences.
        active: of every layer the law of how many of n tokens a ReLU lets pass, (n + 1,).
    """

    stack: Stack
    each: dict[Name, Matrix]
    readers: list[Name]
    writers: list[Name]
    reach: tuple[Array, Array]
    active: dict[int, Array]


def matrices_of(stack: Stack) -> Matrices:
    """All matrices of a stack that `coverage` lets pass for "hessian_eigenvalue"."""
    n, d = stack.tokens, stack.width
    tokens, inputs = exchangeable_inputs(stack)
    forward = forward_pass(stack, tokens, inputs, np.random.default_rng(0))
    activation = activation_of(stack.activation, stack.leaky_slope)
    first, second, values = (gain(stack, role) for role in ("W1", "W2", "WV"))
    ratio = stack.ffn_width / d
    stream: dict[Name, float] = {}
    readers, writers, rows = list[Name](), list[Name](), list[dict[Name, float]]()
    grams: dict[Name, Pair] = {OUTPUT: forward.output * d}
    active: dict[int, Array] = {}
    for (inside,) in forward.insides:
        step, layer, attends = inside.step, inside.step.layer, inside.step.kinds == ("attention",)
        # Scales of exchangeable tokens are plain numbers.
        into = step.input_scale / float(inside.given_scales) ** 0.5
        added, after = step.branch / float(inside.made_scales) ** 0.5, float(inside.after_scales) ** -0.5
        reader, writer = (("WV", layer), ("WV", layer)) if attends else (("W1", layer), ("W2", layer))
        readers.append(reader)
        writers.append(writer)
        rows.append({below: factor * into for below, factor in stream.items()})
        stream = {below: factor * step.residual * after for below, factor in stream.items()} | {writer: added * after}
        if attends:
            grams[reader] = tokens.attend(inside.given) * d
        else:
            grams[reader] = inside.given * d
            grams[writer] = activation.kernel(tokens, inside.given * first) * (d * ratio)
            active[layer] = _active_tokens(inside.given.off / inside.given.diagonal if n > 1 else 0.0, n)
    readers.append(OUTPUT)
    output_scale = float(forward.output_scales) ** 0.5
    rows.append({writer: factor / output_scale for writer, factor in stream.items()})
    reach = np.array([[row.get(writer, 0.0) for writer in writers] for row in rows])
    of_differences = reach * np.array([[name[0] != "WV"] for name in readers])

    given = output_gradient(stack, tokens, forward.output, inputs.same_label)
    slopes: dict[Name, Pair] = {OUTPUT: given * stack.output_scale**-2}
    gradient = given * output_scale**-2
    for (inside,) in reversed(forward.insides):
        step, layer = inside.step, inside.step.layer
        gradient = gradient * (1.0 / float(inside.after_scales))
        at_output = gradient * (step.branch**2 / float(inside.made_scales))
        if step.kinds == ("attention",):
            slopes["WV", layer] = at_output
            below = tokens.attend_back(at_output) * values
        else:
            slopes["W2", layer] = at_output
            slopes["W1", layer] = at_output * second * activation.slope_kernel(tokens, inside.given * first)
            below = slopes["W1", layer] * first
        gradient = gradient * step.residual**2 + below * (step.input_scale**2 / float(inside.given_scales))
    gains = {"WV": (values, 1.0, d), "W1": (first, ratio, d), "W2": (second, 1.0 / ratio, stack.ffn_width)}
    gains["Wemb"] = (stack.output_scale**2, stack.vocab / d, d)
    each = {
        name: Matrix(eigenvalues(gram, n), eigenvalues(slopes[name], n), *gains[name[0]])
        for name, gram in grams.items()
    }
    return Matrices(stack, each, readers, writers, (reach, of_differences), active)


def _active_tokens(correlation: float, n: int) -> Array:
    """The law of how many of n equally correlated standard normals are positive: binomial, given what they share."""
    share = min(max(correlation, 0.0), 1.0 - 1e-12)
    slope = (share / (1.0 - share)) ** 0.5
    # Where what they share times the slope is beyond the last node, all of them have its sign.
    last = _LAST / max(1.0, slope)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    shared = last * nodes
    law = (last * weights * norm.pdf(shared)) @ binom.pmf(np.arange(n + 1), n, norm.cdf(slope * shared)[:, None])
    law[[0, n]] += norm.sf(last)
    return np.asarray(law)
