"""Finite-width corrections in Pre-LN: the distribution of one token's gradients in every layer."""

from dataclasses import dataclass

import numpy as np
import sympy as sp

from theory.mean_field.finite_width.branches import attention_branch, energy_variance, feed_forward_branch
from theory.mean_field.kernels import Array


@dataclass(frozen=True, slots=True)
class PreStream:
    """The residual stream of one token in Pre-LN, with the fluctuations of its squared norm and its gradient.

    Fluctuations are of first order in 1/d.

    Sub-layers are numbered from 0, points of the stream from 0 (the input N(0, I_d)) to 2L (before the final norm).
    Above point k the squared gradient is prod (1 + b/q) (1 + ρ). In addition to ln q, its logarithm contains backward
    fluctuations divided by q, and the effect of every forward fluctuation on the norms above it. The stream's
    energies have the mean q (1 − 1/d), because they are centred.

    Attributes:
        energy: q, the large-width energy, (2L + 1,).
        variance: d Var(‖x‖²/d), (2L + 1,); `theory.mean_field.concentration.pre_energy_variance` has every other one.
        added: 4 q b + 2 b² + ω of every sub-layer, (2L,): its contribution to the variance.
        branch: b of every sub-layer, (2L,).
        shared: c of every sub-layer, (2L,).
        known: 1 where a sub-layer has an inner matrix that the forward pass fixes along one direction, else 0, (2L,).
    """

    energy: Array
    variance: Array
    added: Array
    branch: Array
    shared: Array
    known: Array

    def cosine(self) -> Array:
        """Return the mean squared cosine between the residual stream and its gradient, times width d, at every depth.

        There is one value for every point of the stream, (2L + 1,).

        It is 1 for an independent gradient, and 0 at the top, because of the final norm's projector. Below, it
        follows from g_j · x_j = g_{j+1} · (x_{j+1} − f_j).
        """
        q, cosines = self.energy, np.zeros(len(self.energy))
        for j in range(len(q) - 2, -1, -1):
            cosines[j] = q[j] * (cosines[j + 1] * q[j] + self.branch[j]) / q[j + 1] ** 2
        return cosines

    def mean_log(self) -> Array:
        """Return the finite-width correction, times width d, of the mean of ln ‖g‖² for the gradient g at every depth.

        It is the correction of E ln(‖g_k‖² / ‖g_2L‖²) for the gradient g_k at every point k of the stream, (2L + 1,).

        The large-width value is ln(q_2L / q_k). A branch's share b/(q + b) is larger by the variance of 1/‖x‖² and by
        1/d of centring, and loses 2/d to the norm's projector; the known direction of W2 costs (1 − cos² of
        `cosine`)/(q d).
        """
        above, variance = self.energy[1:], self.variance[:-1] / self.energy[:-1] ** 2
        share = variance - 1 - self.known * (1 - self.cosine()[1:]) / above
        return _sum_above(self.branch / above * share - ((self.added + self.branch**2 * variance) / above**2) / 2)

    def log_variance(self, reference: float) -> Array:
        """Return the variance, times the width d, of ln ‖g‖² for the gradient g of the residual stream at every depth.

        There is one value for every point k of the stream, (2L + 1,). With reference 0 this is the variance without the
        scatter of the loss. What sub-layer j adds to ‖x‖² by chance is divided by q_{j+1} in ln ‖g_k‖² and by q_2L in
        ln ‖g_2L‖². So reference 1/q_2L gives the variance of ln(‖g_k‖² / ‖g_2L‖²).

        Args:
            reference: 0, or 1/q of the point with whose gradient the others are compared.
        """
        inverse = 1 / self.energy
        above, forward = inverse[1:], inverse[1:] - reference
        steps = self.added * (above**2 + forward**2) - 2 * self.shared * above * forward
        return _sum_above(steps) + self.variance * (inverse - reference) ** 2


def _sum_above(terms: Array) -> Array:
    """Return, for every point of the stream, the sum over the sub-layers above it, (2L,) → (2L + 1,)."""
    return np.append(np.cumsum(terms[::-1])[::-1], 0.0)


def pre_stream(depth: int) -> PreStream:
    """Return the residual stream of a Pre-LN network with L layers for one token.

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
    """Return the relative finite-width corrections, times the width d, of the squared gradients in every Pre-LN layer.

    They are of grad_sq_W2, grad_sq_W1 and grad_sq_WV, (L,).

    At the top, the projector contributes −2, and E ln 1/‖x‖² contributes 1 + Var/2. W2 also contains ‖h‖², which is
    part of the ‖x‖² above.

    Args:
        depth: number of layers L.
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
