"""The dense engine: a sampler of random networks that samples every weight matrix, used as the ground truth."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from simulate.network.engines import GradientNorms, MapEngine, inner, taken
from simulate.network.random_streams import RandomStreams
from theory.stack.initializations import NORMAL, Law

_TINY = torch.finfo(torch.float32).tiny


def largest_eigenvalues(grams: Float[Tensor, "draws rows rows"]) -> Float[Tensor, " draws"]:
    """Return the largest eigenvalue of each positive semidefinite matrix in a batch, by repeated squaring.

    The shape is (draws,), and the result is exact to rounding.

    Let λ be the largest eigenvalue, f_k = ‖A_k‖_F and A_(k+1) = (A_k / f_k)². Then the product of f_k^(1/2^k) over k =
    0..K lies between λ and n^(1/2^(K+1)) λ for any other eigenvalues, because λ <= ‖A‖_F <= √n λ. K is large enough for
    the accuracy of the data type.
    """
    squarings = math.ceil(math.log2(1.0 + math.log(grams.shape[-1]) / torch.finfo(grams.dtype).eps))
    powers, sizes = grams, []
    for _ in range(squarings):
        # The smallest numbers keep matrices of zeros from being divided by them.
        size = torch.linalg.vector_norm(powers, dim=(1, 2), keepdim=True).clamp_min_(_TINY)
        sizes.append(size)
        powers = powers / size
        powers = powers @ powers
    logs = torch.cat([*sizes, torch.linalg.vector_norm(powers, dim=(1, 2), keepdim=True)], 2).double().log()
    shares = torch.arange(squarings + 1, device=grams.device, dtype=torch.float64)
    return (logs[:, 0] * 0.5**shares).sum(1).exp().to(grams.dtype)


class DenseMap:
    """A random weight matrix that is sampled entry by entry and stored, one for each random network."""

    def __init__(
        self, streams: RandomStreams, weight: Float[Tensor, "draws d_in d_out"], full_gradients: list[Tensor] | None
    ) -> None:
        self._product = streams.product
        self.weight = weight
        self._full_gradients = full_gradients
        self._rows: Tensor | None = None

    def forward(self, rows: Float[Tensor, "draws rows d_in"]) -> Float[Tensor, "draws rows d_out"]:
        self._rows = rows
        return self._product(rows, self.weight)

    def pullback(
        self, gradient: Float[Tensor, "draws rows d_out"]
    ) -> tuple[Float[Tensor, "draws rows d_in"], Float[Tensor, " draws"]]:
        rows, self._rows = taken(self._rows, "applied", "is pulled back"), None
        if self._full_gradients is not None:
            self._full_gradients.insert(0, rows.mT @ gradient)
        grams = self._product(rows, rows.mT), self._product(gradient, gradient.mT)
        return self._product(gradient, self.weight.mT), inner(*grams)


class DenseEngine(MapEngine):
    """A sampler of random networks that samples every weight matrix entry by entry, on any device.

    It is the ground truth, in O(n d²) for each map and in any dtype.

    Args:
        streams: the only source of randomness, for all draws of a batch; its device is the engine's.
        dtype: type of weights and activations.
        keep: whether `weights` and `full_gradients` store every matrix and its (d_in, d_out) gradient by role, in the
            order of the layers, which takes their memory.
    """

    def __init__(self, streams: RandomStreams, dtype: torch.dtype, *, keep: bool = False) -> None:
        self.streams = streams
        self.dtype = dtype
        self.gradients, self.scalars = GradientNorms(dtype), []
        self.weights: dict[str, list[Tensor]] = {}
        self.full_gradients: dict[str, list[Tensor]] = {}
        self._keep = keep

    def map(self, name: str, d_in: int, d_out: int, std: float, *, law: Law = NORMAL) -> DenseMap:
        """Return a new random weight matrix for a role such as "W1", one for each random network."""
        weight = self.streams.entries(d_in, d_out, std=std, law=law, dtype=self.dtype)
        # The output matrix alone is always kept: Theorem 1 is judged with its spectral norm.
        if self._keep or name == "Wemb":
            self.weights.setdefault(name, []).append(weight)
        return DenseMap(self.streams, weight, self.full_gradients.setdefault(name, []) if self._keep else None)

    def spectral_norm(self, name: str) -> Float[Tensor, " draws"]:
        """Return the largest singular value of a stored weight matrix, for each random network.

        It is ‖W‖₂ of the one matrix of a role, (draws,), from the smaller Gram matrix.
        """
        (weight,) = self.weights[name]
        first = weight if weight.shape[-2] <= weight.shape[-1] else weight.mT
        grams = self.streams.product(first, first.mT)
        if self.streams.device.type != "cpu":
            # Eigenvalues of a GPU are found one matrix after another, and column after column.
            return largest_eigenvalues(grams).sqrt()
        return torch.cat([torch.linalg.eigvalsh(gram)[..., -1] for gram in self.streams.blocks(grams)]).sqrt()
