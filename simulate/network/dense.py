"""The dense engine: draws every weight matrix. The ground truth."""

import torch
from jaxtyping import Float
from torch import Tensor

from simulate.network.engines import GradientNorms, MapEngine, inner, taken
from simulate.network.random_streams import RandomStreams
from theory.stack.initializations import NORMAL, Law


class DenseMap:
    """A map that holds its matrices, one per draw."""

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
    """Draws every weight matrix: the ground truth, O(n d²) per map, on any device and dtype.

    Args:
        streams: the only source of randomness, of so many draws in one batch; its device is the engine's.
        dtype: of weights and tokens.
        keep: whether `weights` and `full_gradients` keep every matrix and its (d_in, d_out) gradient by role, in
            the order of the layers; costs their memory.
    """

    def __init__(self, streams: RandomStreams, dtype: torch.dtype, *, keep: bool = False) -> None:
        self.streams = streams
        self.dtype = dtype
        self.gradients, self.scalars = GradientNorms(), []
        self.weights: dict[str, list[Tensor]] = {}
        self.full_gradients: dict[str, list[Tensor]] = {}
        self._keep = keep

    def map(self, name: str, d_in: int, d_out: int, std: float, *, law: Law = NORMAL) -> DenseMap:
        """A fresh map with its own matrix per draw, of entries of that law."""
        weight = self.streams.entries(d_in, d_out, std=std, law=law, dtype=self.dtype)
        # The output matrix alone is always kept: Theorem 1 is judged with its spectral norm.
        if self._keep or name == "Wemb":
            self.weights.setdefault(name, []).append(weight)
        return DenseMap(self.streams, weight, self.full_gradients.setdefault(name, []) if self._keep else None)

    def spectral_norm(self, name: str) -> Float[Tensor, " draws"]:
        """‖W‖₂ of the one kept matrix of that role, from the smaller Gram matrix."""
        (weight,) = self.weights[name]
        first = weight if weight.shape[-2] <= weight.shape[-1] else weight.mT
        grams = self.streams.blocks(self.streams.product(first, first.mT))
        return torch.cat([torch.linalg.eigvalsh(gram)[..., -1] for gram in grams]).sqrt()
