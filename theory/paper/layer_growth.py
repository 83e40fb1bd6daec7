"""Closed forms for the growth of gradient norms from layer to layer, in networks with many layers.

They hold once tokens no longer change from layer to layer.

A branch takes tokens of unit mean square and correlation c to a kernel h(c) off and h(1) on the diagonal, and
multiplies the gradient kernel by h'(c) and h'(1) in the backward pass. For plain and gated MLPs this is Price's
theorem, d/dc of E[φ(u_i) φ(u_j)] = Var(u) E[φ'(u_i) φ'(u_j)]. So once tokens have aligned an MLP sub-layer multiplies
the summed squared gradient by (1 + h'(1))/(1 + h(1)), and attention, whose h is linear, by 1. W^Q and W^K receive
differences of tokens, which fall in addition. docs/theory.md has the theorem, its conditions, and why placements
without a norm on the stream have a power of L instead.

Assumes what the recursion of `theory.mean_field.recursion` assumes, d → ∞ at fixed n and L; here L grows after that.
Only the kernels of activations are taken from the recursion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from theory.coverage import require
from theory.mean_field.activations import activation_of
from theory.mean_field.kernels import Pair, PairLayout
from theory.stack import Stack
from theory.stack.weights import gain, weight_shapes

_ALIGNED = 1e-9
_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class _Rates:
    """The contribution of a layer's branches per token of unit mean square, and their factors in the backward pass.

    Attributes:
        attended: factor of attention on the mean token's squared activation, the gains of W^V and W^O.
        made: h(c).
        returned: h'(c).
        alpha_sq: squared scale of the residual stream.
        kept: 1 − p, the share of coordinates that dropout keeps.
        tokens: n.
    """

    attended: float
    made: Callable[[float], float]
    returned: Callable[[float], float]
    alpha_sq: float
    kept: float
    tokens: int

    def mean(self, at: float) -> float:
        """Return the mean squared activation of the mean of tokens with unit mean square and a given correlation."""
        return (1.0 + (self.tokens - 1) * at) / self.tokens

    def attention_back(self, share: float) -> NDArray[np.float64]:
        """Return `share` times attention's backward map of (G_ii, G_ij), (2, 2).

        It takes the mean of all entries, with G_ii divided by 1 − p.
        """
        row = np.array([1.0 / (self.kept * self.tokens), 1.0 - 1.0 / self.tokens])
        return share * np.array([row, row])

    def units_back(self, at: float) -> NDArray[np.float64]:
        """Return the MLP's backward map of (G_ii, G_ij), (2, 2), at a given correlation."""
        return np.diag([self.returned(1.0) / self.kept, self.returned(at)])


def _rates(stack: Stack, activation: str) -> _Rates:
    gains = {role: gain(stack, role) for role in weight_shapes(stack)}
    first, second, phi, two = gains["W1"], gains["W2"], activation_of(activation, stack.leaky_slope), PairLayout(2)
    gate = gains.get("WG", first)

    def value(at: float) -> float:
        return float(phi.kernel(two, Pair(gate, gate * at)).off)

    def slope(at: float) -> float:
        return float(phi.slope_kernel(two, Pair(gate, gate * at)).off) * gate

    gated = stack.ffn == "gated"
    return _Rates(
        attended=gains["WV"] * gains.get("WO", 1.0),
        made=lambda at: second * value(at) * (first * at if gated else 1.0),
        returned=lambda at: second * (first * (value(at) + at * slope(at)) if gated else slope(at)),
        alpha_sq=stack.composition.residual(stack.depth) ** 2,
        kept=1.0 - stack.dropout,
        tokens=stack.tokens,
    )


def layer_factor(stack: Stack) -> float:
    """Return the factor by which gradient norms change per layer towards the output, for many layers.

    It applies to all matrices except W^Q and W^K, which have `query_factor`. Below 1 gradients grow towards the
    input. If tokens align and nothing is dropped it is the closed form √((α² + h(1))/(α² + h'(1))), whatever n, W^O
    and mask. Otherwise tokens settle at a correlation c below 1, and it is ρ^(−1/2), with ρ the largest eigenvalue of
    one layer's map of the pair (G_ii, G_ij).

    Args:
        stack: a network with a norm on its one stream (Post-LN, DeepNorm); its depth matters only for DeepNorm's
            scales.

    Raises:
        ValueError: a field for which there is no such form; the message names it.

    >>> round(layer_factor(Stack(ffn="gated", activation="silu")), 4)
    0.8839
    """
    composition = stack.composition
    if not composition.stream_norm or composition.second_stream or composition.input_norm:
        raise ValueError(
            f"placement must have one norm, on its one stream (post, deepnorm), for a factor per layer, got "
            f"{stack.placement!r}: without one gradients follow a power of L."
        )
    require(stack, "layer_growth")
    rates = _rates(stack, stack.activation)
    alpha, kept = rates.alpha_sq, rates.kept
    at = _settled(rates)
    if kept == 1.0 and at == 1.0:
        back = (alpha + rates.returned(1.0)) / (alpha + rates.made(1.0))
        # The second eigenvalue of a causal mask is 1/2: this is what a layer multiplies the last gap by.
        if stack.mask == "causal" and stack.tokens > 1:
            if back * (alpha + rates.attended / 4) / (alpha + rates.attended) >= 1.0:
                raise ValueError("mask must be 'none' for a factor per layer of units that keep tokens apart under it.")
        return sqrt(1.0 / back)
    if stack.query_key_scale:
        raise ValueError("query_key_scale must be 0 where tokens do not align, since attention is then random.")
    within, scale = _attended(rates, at)
    through_attention = alpha * np.eye(2) + rates.attention_back(rates.attended)
    through_units = alpha * np.eye(2) + rates.units_back(within)
    energy = alpha + rates.made(1.0) / kept
    return float(np.linalg.eigvals(through_attention @ through_units / (scale * energy)).real.max()) ** -0.5


def query_factor(stack: Stack) -> float:
    """Return the factor by which gradient norms of W^Q and W^K change per Post-LN layer towards the output.

    It holds once tokens are aligned.

    Both gradients are made of differences of tokens. So they are proportional to the gap 1 − c times the gradient
    above, and the factor is √((α² + h'(1))/(α² + h(1))) α²/(α² + g_A), with g_A the gain of attention.

    Args:
        stack: the network.

    Raises:
        ValueError: `layer_factor` has no form; or there is another placement, a mask, rotary positions, queries and
            keys that are 0, or tokens that do not align. Gradients under a causal mask gather at the first token.
            Rotary positions turn the keys of aligned tokens apart. DeepNorm's tokens are far from aligned after L
            layers, at every L.

    >>> query_factor(Stack(query_key_scale=1.0)), round(query_factor(Stack(query_key_scale=1.0, activation="tanh")), 4)
    (0.5, 0.5124)
    """
    factor, rates = layer_factor(stack), _rates(stack, stack.activation)
    simple = stack.placement == "post" and stack.mask == "none" and stack.query_key_scale and not stack.rotary
    if not simple or stack.tokens == 1 or _settled(rates) < 1.0:
        raise ValueError(
            "a factor of W^Q and W^K takes placement 'post', mask 'none', rotary 0, query_key_scale above 0, and "
            "two or more tokens that align."
        )
    return rates.alpha_sq / (rates.alpha_sq + rates.attended) / factor


def _attended(rates: _Rates, at: float) -> tuple[float, float]:
    """Return the correlation after attention, and the squared activation by which its norm divides."""
    added = rates.attended * rates.mean(at)
    scale = rates.alpha_sq + added / rates.kept
    return (rates.alpha_sq * at + added) / scale, scale


def _settled(rates: _Rates) -> float:
    """Return the correlation that a layer leaves unchanged, reached from independent tokens; 1 for one token.

    Attention divides the gap 1 − c by 1 + g m(c), and the MLP multiplies it by at most
    1 + c₁ (h'(1) − h(1))/(1 + h(1)), at the c₁ ≤ (1 + g) m(c) after attention; so tokens align if the first exceeds
    the second for every c. Otherwise the map is iterated.
    """
    attended, units = rates.attended / rates.alpha_sq, rates.made(1.0) / rates.alpha_sq
    curved = rates.returned(1.0) / rates.alpha_sq - units
    if rates.tokens == 1 or (rates.kept == 1.0 and curved * (1.0 + attended) < attended * (1.0 + units)):
        return 1.0
    at = 0.0
    for _ in range(_STEPS):
        within, _scale = _attended(rates, at)
        after = (rates.alpha_sq * within + rates.made(within)) / (rates.alpha_sq + rates.made(1.0) / rates.kept)
        if abs(after - at) < 1e-15:
            break
        if rates.kept == 1.0 and after > 1.0 - _ALIGNED:
            return 1.0
        at = after
    return at
