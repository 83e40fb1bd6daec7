"""Finite width in Pre-LN: the law of one token's gradients along the stream, to first order in 1/d."""

from dataclasses import dataclass

import numpy as np
import sympy as sp

from theory.mean_field.finite_width.branches import attention_branch, energy_variance, feed_forward_branch
from theory.mean_field.kernels import Array


@dataclass(frozen=True, slots=True)
class PreStream:
    """One token's Pre-LN stream, and how its energy and the gradient along it fluctuate, to first order in 1/d.

    Sub-layers are numbered from 0, points of the stream from 0 (the input N(0, I_d)) to 2L (before the final norm).
    Above point k the squared gradient is prod (1 + b/q) (1 + ρ); ln of it adds, besides ln q, backward fluctuations
    over q and what every forward fluctuation does to the norms above it. The stream's energies have the mean
    q (1 − 1/d), being centred.

    Attributes:
        energy: q, the large-width energy, (2L + 1,).
        variance: d Var ‖x‖²/d, (2L + 1,); `theory.mean_field.concentration.pre_energy_variance` has every other one.
        added: 4 q b + 2 b² + ω of every sub-layer, (2L,): what it adds to the variance.
        branch: b of every sub-layer, (2L,).
        shared: c of every sub-layer, (2L,).
        known: where a sub-layer has an inner matrix that the forward pass fixes along one direction, (2L,).
    """

    energy: Array
    variance: Array
    added: Array
    branch: Array
    shared: Array
    known: Array

    def cosine(self) -> Array:
        """Mean square cosine of the gradient and the stream, times d, at every point: 1 for an independent gradient.

        0 at the top, by the final norm's projector; g_j · x_j = g_{j+1} · (x_{j+1} − f_j) below it, (2L + 1,).
        """
        q, cosines = self.energy, np.zeros(len(self.energy))
        for j in range(len(q) - 2, -1, -1):
            cosines[j] = q[j] * (cosines[j + 1] * q[j] + self.branch[j]) / q[j + 1] ** 2
        return cosines

    def mean_log(self) -> Array:
        """Mean, times d, of ln(‖g_k‖² / ‖g_2L‖²) beyond the large-width ln(q_2L / q_k), (2L + 1,).

        A branch's share b/(q + b) is larger by the variance of 1/‖x‖² and by 1/d of centring, and loses 2/d to the
        norm's projector; the known direction of W2 costs (1 − cos² of `cosine`)/(q d).
        """
        above, variance = self.energy[1:], self.variance[:-1] / self.energy[:-1] ** 2
        share = variance - 1 - self.known * (1 - self.cosine()[1:]) / above
        spread = (self.added + self.branch**2 * variance) / above**2
        return _sum_above(self.branch / above * share - spread / 2)

    def log_variance(self, reference: float) -> Array:
        """Variance, times d, of ln ‖g_k‖² but for the scatter of the loss, at reference 0, (2L + 1,).

        What sub-layer j adds to ‖x‖² by chance is divided by q_{j+1} in ln ‖g_k‖² and by q_2L in ln ‖g_2L‖², so that
        reference 1/q_2L gives the variance of ln(‖g_k‖² / ‖g_2L‖²).
        """
        inverse = 1 / self.energy
        above, forward = inverse[1:], inverse[1:] - reference
        steps = self.added * (above**2 + forward**2) - 2 * self.shared * above * forward
        return _sum_above(steps) + self.variance * (inverse - reference) ** 2


def _sum_above(terms: Array) -> Array:
    """At every point of the stream the sum over the sub-layers above it, (2L,) → (2L + 1,)."""
    return np.append(np.cumsum(terms[::-1])[::-1], 0.0)


def pre_stream(depth: int) -> PreStream:
    """The stream of a Pre-LN network of L layers at one token.

    >>> pre_stream(2).energy.tolist()
    [1.0, 2.0, 2.5, 3.5, 4.0]
    """
    branches = (attention_branch(), feed_forward_branch())
    b, c = (np.tile([float(getattr(branch, name)) for branch in branches], depth) for name in ("energy", "shared"))
    energy = np.append(1.0, 1 + np.cumsum(b))
    # What a branch adds to the variance is affine in the stream's energy.
    still, moved = (
        np.tile([float(energy_variance(branch, sp.Integer(q))) for branch in branches], depth) for q in (0, 1)
    )
    added = still + (moved - still) * energy[:-1]
    variance = np.append(2.0, 2 + np.cumsum(added))
    return PreStream(energy, variance, added, b, c, np.tile([branch.inner * 1.0 for branch in branches], depth))


def pre_coefficients(depth: int) -> dict[str, Array]:
    """Relative correction, times d, of the mean grad_sq_W2, grad_sq_W1 and grad_sq_WV of every Pre-LN layer, (L,).

    At the top −2 of the projector, and 1 + Var/2 of E ln 1/‖x‖². W2 has ‖h‖² as well, which lies in the ‖x‖² above.
    """
    stream, ffn = pre_stream(depth), feed_forward_branch()
    b, omega, c = (float(value) for value in (ffn.energy, ffn.spread, ffn.shared))
    top = -1 + stream.variance[-1] / stream.energy[-1] ** 2 / 2
    everywhere = top + stream.mean_log() + stream.log_variance(0.0) / 2
    after, inverse = everywhere[2::2], 1 / stream.energy[2::2]
    return {
        "grad_sq_W2": after - omega / b * inverse,
        "grad_sq_W1": after - (1 - stream.cosine()[2::2] + c / b) * inverse,
        "grad_sq_WV": everywhere[1::2],
    }


def pre_log_law(depth: int, layer: int) -> tuple[float, float]:
    """Mean beyond large width, and variance, of ln(grad_sq_W2 of a layer / of the last layer), both times d.

    ‖h‖² of both ends adds 2 ω/b², less what layer l's shares with the ‖x‖² above, and layer L's with what it returns.
    """
    stream, ffn, point = pre_stream(depth), feed_forward_branch(), 2 * layer
    b, omega, c = (float(value) for value in (ffn.energy, ffn.spread, ffn.shared))
    if layer == depth:
        return 0.0, 0.0
    top = float(1 / stream.energy[-1])
    ends = 2 * omega / b**2 - 2 * omega / b * (1 / stream.energy[point] - top) - 2 * c / b * top
    return float(stream.mean_log()[point]), float(stream.log_variance(top)[point] + ends)
