"""What a causal mask gathers at the first tokens, as the sequence grows: the gradient of the first layer's W^V.

With W^Q = W^K = 0 token i is the mean of the values of the i tokens it sees. On the way back token j receives 1/i of
every later token's gradient, so that of different tokens j and k E⟨g_j, g_k⟩ is n^(−2) K(j, k) with K of degree −1
while j, k ≪ n. One layer of attention maps K to

    (T K)(j, k) = ∫_{i ≥ j} ∫_{m ≥ k} K(i, m) di dm/(i m),

of which (j k)^(−1/2) (j/k)^(iω) is an eigenfunction, with λ(ω) = 1/(1/4 + ω²) of at most 4. A token's own gradient, D
of all, enters as 1/max(j, k), whose spectral density is λ(ω)/(2π).
"""

from typing import TYPE_CHECKING

import numpy as np

from theory.coverage.networks import is_plain
from theory.mean_field.gaussian import relu_kernel, relu_slope_kernel
from theory.stack import Stack

if TYPE_CHECKING:
    import sympy

# Midpoints in t of ω = tan(t)/2, in which λ = 4 cos² t; the spectrum is smooth and periodic there.
_NODES = 2000


def eigenvalue() -> "sympy.Expr":
    """λ(ω): what a layer of attention makes of (j k)^(−1/2) (j/k)^(iω), over itself, by integration."""
    import sympy as sp  # late, as the law itself needs none of it

    i, m, j, k, w = sp.symbols("i m j k omega", positive=True)

    def power(first: sp.Expr, other: sp.Expr) -> sp.Expr:
        return first ** (-sp.Rational(1, 2) + sp.I * w) * other ** (-sp.Rational(1, 2) - sp.I * w)

    inner = sp.integrate(power(i, m) / i, (i, j, sp.oo), conds="none")
    outer = sp.integrate(inner / m, (m, k, sp.oo), conds="none")
    return sp.factor(sp.simplify(outer / power(j, k)))


def share_alone() -> "sympy.Expr":
    """∫ λ(ω) dω/(2π), which is 1/max(j, k) at j = k: what one layer gathers at a token of every gradient's own part."""
    import sympy as sp  # as above

    w = sp.symbols("omega", real=True)
    return sp.integrate(1 / (sp.Rational(1, 4) + w**2), (w, -sp.oo, sp.oo)) / (2 * sp.pi)


def first_token_growth(stack: Stack) -> float:
    """Return Λ in n² E‖∂L/∂W^V‖_F² → Λ d ln n of the first layer, as n → ∞ with independent inputs and labels.

    Λ = D + ∫ λ(ω) C(ω) dω/(2π), with the recursion over the layers, from above,

        units: D ← D (1 + ½/q), C ← C (1 + κ̇(ρ)/q);     attention: C ← C (1 + λ/q) + D λ/q,

    of the stream's energy q and correlation ρ, with κ̇ the slope of ReLU's kernel and D = 1/q, C = 0 at the output. At
    large depth q ≃ 3l/2 and the largest λ is 4, so that Λ grows like L², up to a logarithm. The last layer's squared
    gradient times n² grows like n/L, so that the first layer's is far above it where ln n L³ is far above n, and far
    below it for longer sequences. The limit in n is reached where ln n is far above attention's effective passes.

    Args:
        stack: Pre-LN in the paper's setting, of any depth, but for its mask, which is causal; its tokens do not matter.
            V must be far above n, since labels that agree, and softmaxes, add what is coherent over positions.

    Raises:
        ValueError: it is another network.

    Source: derived in docs/queries.md.
    """
    relaxed = set(stack.relaxed) - {"tokens"}
    if stack.placement != "pre" or relaxed != {"mask"} or stack.mask != "causal" or not is_plain(stack):
        raise ValueError(f"stack must be the paper's Pre-LN with mask 'causal' alone, got {stack.non_default()}.")
    angles = (np.arange(_NODES) + 0.5) / _NODES * np.pi - np.pi / 2
    passed = 4.0 * np.cos(angles) ** 2
    weights = 1.0 / (4.0 * _NODES * np.cos(angles) ** 2)  # dω/(2π)
    streams, energy, product = [], 1.0, 0.0
    for _ in range(stack.depth):
        before, correlation = energy, product / energy
        energy, product = energy + correlation, product + correlation
        streams.append((before, energy, product / energy))
        energy, product = energy + 0.5, product + float(relu_kernel(product / energy))
    alone, spectrum = 1.0 / energy, np.zeros(_NODES)
    for layer, (before, between, correlation) in reversed(list(enumerate(streams))):
        alone = alone * (1.0 + 0.5 / between)
        spectrum = spectrum * (1.0 + float(relu_slope_kernel(correlation)) / between)
        if layer:
            spectrum = spectrum + passed * (spectrum + alone) / before
    return float(alone + (weights * passed * spectrum).sum())
