"""Finite-width corrections from hidden units and attention values that are few or heavy-tailed.

A branch's mean squared activation |f|²/d is a mean over its inner coordinates: the r d hidden units of the MLP or the
k d_k values of attention. If these have E y⁴/(E y²)² = κ, the mean over m of them has the relative variance (κ −
1)/m, which is an excess of (κ − 1) d/m, times 1/d, in addition to that of the matrix. Dropped entries of a branch
have E y⁴/(E y²)² = 3/(1 − p) instead of 3, an excess of 3 p/(1 − p). Derived in docs/finite_width.md, where b² (κ −
1) d/m is called ω.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from theory.mean_field.activations import activation_of
from theory.stack import Stack
from theory.stack.weights import gain

# Nodes on either side of 0, where φ may have a kink, up to a radius beyond which e^(-r²/2) r^20 is nothing.
_NODES, _RADIUS = 256, 14.0
_STEP = 1e-3

GAUSSIAN = 3.0
"""The value E u⁴/(E u²)² = 3 for Gaussian factors of a gate, and for values."""


class UnitMoments(NamedTuple):
    """The second and fourth moments of a hidden unit, with or without a gate.

    The unit is y = φ(u), or y = φ(u) u' with an independent u' if there is a gate. In the backward pass, φ' replaces φ.

    Attributes:
        energy: E y².
        kurtosis: κ = E y⁴/(E y²)².
        shared: relative covariance of y² and of the energy that the unit passes backward to its W1.
        power: d ln E y²/d ln of the input's energy.
    """

    energy: float
    kurtosis: float
    shared: float
    power: float


# Moments that are not finite in double precision ask for a width that nobody has.
_WITHOUT_END = UnitMoments(energy=1.0, kurtosis=1e15, shared=0.0, power=10.0)


@lru_cache(maxsize=256)
def activation_moments(activation: str, leak: float, variance: float) -> UnitMoments:
    """Return the moments of an activation φ(u) for a Gaussian pre-activation u ~ N(0, q), by quadrature.

    Args:
        activation: a value of `Stack.activation`, registered ones included.
        leak: leaky ReLU's slope for negative inputs.
        variance: q.

    >>> [round(one, 6) for one in activation_moments("relu", 0.0, 1.0)]
    [0.5, 6.0, 1.0, 1.0]
    >>> [round(one, 4) for one in activation_moments("relu_squared", 0.0, 1.0)]  # E φ⁴ = 105/2
    [1.5, 23.3333, 9.0, 2.0]
    """
    x, weights = np.polynomial.legendre.leggauss(_NODES)
    positive = _RADIUS / 2 * (x + 1)
    nodes = np.concatenate([-positive, positive])
    density = np.tile(_RADIUS / 2 * weights, 2) * np.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi)
    rule = activation_of(activation, leak)
    with np.errstate(over="ignore", invalid="ignore"):
        values, slopes, below, above = (
            np.asarray(function(math.sqrt(q) * nodes)) ** 2
            for function, q in (
                (rule.value, variance),
                (rule.slope, variance),
                (rule.value, variance * (1 - _STEP)),
                (rule.value, variance * (1 + _STEP)),
            )
        )
        energy, passed, fourth = (float(density @ powers) for powers in (values, slopes, values**2))
        if energy == 0.0 or passed == 0.0:
            return UnitMoments(energy, 1.0, 0.0, 0.0)
        if not math.isfinite(energy + passed + fourth):
            return _WITHOUT_END
        return UnitMoments(
            energy=energy,
            kurtosis=fourth / energy**2,
            shared=float(density @ (values * slopes)) / (energy * passed) - 1.0,
            power=math.log((density @ above) / (density @ below)) / (2 * _STEP),
        )


def unit_moments(stack: Stack) -> UnitMoments:
    """Return the moments of a hidden unit of the first layer, for an input of mean squared activation 1.

    A gate is included.
    """
    if stack.branches == "attention":
        return UnitMoments(0.0, 1.0, 0.0, 0.0)
    stack = stack.of_layer(1)
    gated = stack.ffn == "gated"
    of = activation_moments(stack.activation, stack.leaky_slope, gain(stack, "WG" if gated else "W1"))
    if not gated:
        return of
    # W1's gradient passes φ(u)² again.
    return UnitMoments(of.energy * gain(stack, "W1"), GAUSSIAN * of.kurtosis, of.kurtosis - 1.0, of.power + 1.0)


@dataclass(frozen=True, slots=True)
class InnerWidths:
    """The finite-width corrections from the hidden units of an MLP branch or the values of an attention branch.

    They are relative to a branch with d Gaussian inner coordinates.

    Attributes:
        share: w, the branch's part of the squared activation of the residual sum, in the first layer.
        inside: (κ - 1) d/m of its m inner coordinates; 0 if there are none between its matrices.
        dropped: 3 p/(1 - p) for the dropout probability p.
        normalized: whether the branch's output has its own norm.
        shared: the part of `inside` that the gradient below the inner coordinates shares.
    """

    share: float
    inside: float
    dropped: float
    normalized: bool
    shared: float = 0.0

    @property
    def correction(self) -> float:
        """The relative finite-width correction of a sub-layer, times d, from its hidden units or attention values.

        It is of first order.

        1/|y|^2 of the residual sum y has w^2 times the excess in its mean. |h|^2/|y|^2, which is part of the gradient
        of the matrix after h, has (w^2 - w) times the excess. A norm of the branch's output divides the gradient
        below by the branch's whole energy, less what they share.
        """
        if self.normalized:
            return self.inside - self.shared
        return self.inside * self.share * max(self.share, 1.0 - self.share)

    @property
    def dropout_correction(self) -> float:
        """The relative finite-width correction of a sub-layer, times the width d, from dropout.

        A norm inside the branch does not change it.
        """
        return self.dropped * self.share**2

    @property
    def fluctuation(self) -> float:
        """The relative variance of the squared norm of the residual sum, times the width d.

        It is 4 w (1 - w) + w^2 (2 + excesses).
        """
        return 4 * self.share * (1 - self.share) + self.share**2 * (2 + self.inside + self.dropped)


_NONE = InnerWidths(share=0.0, inside=0.0, dropped=0.0, normalized=False)


def attention_widths(stack: Stack) -> InnerWidths:
    """Return the finite-width corrections from the finite number of attention values.

    There are k d_k different values, for k key heads of width d_k. They are compared with d Gaussian inner coordinates.

    Without W^O, the values are the branch's output, and the variation of d values is already counted with its matrix.
    Values shared by heads are copied into the stream; the norm's projector then removes the same amount once more from
    the gradient of W^V.
    """
    if stack.branches == "feed_forward":
        return _NONE
    stack, random = stack.of_layer(1), stack.output_projection == "random"
    excess = (GAUSSIAN - 1) * stack.width / (stack.key_heads * stack.key_width)
    energy = gain(stack, "WV") * (gain(stack, "WO") if random else 1.0)
    return _widths(stack, stack.attention_factor, energy, excess if random else 2 * (excess - (GAUSSIAN - 1)))


def feed_forward_widths(stack: Stack) -> InnerWidths:
    """Return the finite-width corrections from the finite number of hidden units of the MLP.

    The r d hidden units are compared with d Gaussian inner coordinates.
    """
    if stack.branches == "attention":
        return _NONE
    stack, of = stack.of_layer(1), unit_moments(stack)
    times = stack.width / stack.ffn_width
    energy = of.energy * gain(stack, "W2")
    return _widths(stack, stack.feed_forward_factor, energy, (of.kurtosis - 1) * times, of.shared * times)


def _widths(stack: Stack, factor: float, energy: float, inside: float, shared: float = 0.0) -> InnerWidths:
    """Return the finite-width corrections from the hidden units or attention values of one branch.

    Args:
        stack: the network.
        factor: the branch's factor on τ.
        energy: squared activation of its output for an input of squared activation 1.
        inside: excess of its inner coordinates.
        shared: the part of the excess that the gradient below shares.
    """
    composition, kept = stack.composition, 1.0 - stack.dropout
    energy = (factor * composition.branch(stack.depth)) ** 2 * (1.0 if composition.output_norm else energy) / kept
    # Streams without a norm grow: a branch has its largest share where the stream is still the least of the inputs.
    fixed = (composition.input_norm or composition.output_norm) and stack.embedding_norm == "none"
    least = float(stack.input_energies.min()) + (stack.positions != "none")
    stream = composition.residual(stack.depth) ** 2 * (min(1.0, least) if fixed else 1.0)
    share = energy / (energy + stream) if energy else 0.0
    return InnerWidths(share, inside, 3.0 * stack.dropout / kept, composition.output_norm, shared)
