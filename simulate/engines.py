"""A random linear map, the one thing a network asks of an engine; and the dense engine, which draws the matrix.

A map is applied once and pulled back once. What an engine does in between is its own affair: the network and the
gradient norms below see only `forward` and `pullback`.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Generator, Tensor


@runtime_checkable
class RandomMap(Protocol):
    """One weight matrix W with independent N(0, std²) entries per draw, known by its action."""

    def forward(self, rows: Float[Tensor, "draws rows d_in"]) -> Float[Tensor, "draws rows d_out"]:
        """The product x W of every draw."""

    def pullback(self, gradient: Float[Tensor, "draws rows d_out"]) -> Float[Tensor, "draws rows d_in"]:
        """The product g Wᵀ of every draw."""


@runtime_checkable
class Engine(Protocol):
    """A source of independent random maps for a batch of independent networks."""

    generator: Generator
    draws: int
    like: dict[str, Any]
    gradients: "GradientNorms"

    def map(self, name: str, d_in: int, d_out: int, std: float) -> RandomMap:
        """A fresh map; each name is one role in the network (W1, W2, ...), in the order of the layers."""


class GradientNorms:
    """‖∂L/∂W‖_F² of every map, by role and in the order in which the maps were applied."""

    def __init__(self) -> None:
        self._slots: dict[str, list[Tensor | None]] = {}

    def open(self, name: str) -> int:
        """Reserve the next place of a role; returns its position."""
        slots = self._slots.setdefault(name, [])
        slots.append(None)
        return len(slots) - 1

    def put(self, name: str, position: int, value: Tensor) -> None:
        """Fill a reserved place.

        Raises:
            RuntimeError: it was filled before: a map may be pulled back once.
        """
        if self._slots[name][position] is not None:
            raise RuntimeError(
                f"{name} of layer {position + 1} was pulled back a second time; a map allows one backward."
            )
        self._slots[name][position] = value

    def of(self, name: str) -> Float[Tensor, "draws maps"]:
        """The squared norms of a role, one column per map.

        Raises:
            RuntimeError: no backward pass has reached some map of that role.
        """
        filled = [value for value in self._slots.get(name, []) if value is not None]
        if not filled or len(filled) < len(self._slots[name]):
            raise RuntimeError(f"{name} has no gradient yet; run the backward pass first.")
        return torch.stack(filled, dim=1)


def apply_map(engine: Engine, name: str, rows: Float[Tensor, "draws rows d_in"], d_out: int, std: float) -> Tensor:
    """The product x W for a fresh random W, differentiable once; the engine receives its squared gradient norm."""
    random_map = engine.map(name, rows.shape[-1], d_out, std)
    product: Tensor = _Apply.apply(rows, random_map, engine.gradients, name, engine.gradients.open(name))
    return product


def gradient_norm_sq(
    rows: Float[Tensor, "draws rows d_in"], gradient: Float[Tensor, "draws rows d_out"]
) -> Float[Tensor, " draws"]:
    """‖Xᵀ g‖_F² = ⟨X Xᵀ, g gᵀ⟩ of every draw: n x n Gram matrices, never the d_in x d_out gradient."""
    return ((rows @ rows.mT) * (gradient @ gradient.mT)).sum((-2, -1))


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, random_map: RandomMap, gradients: GradientNorms, name: str, position: int
    ) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.random_map, ctx.gradients, ctx.name, ctx.position = random_map, gradients, name, position
        return random_map.forward(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (rows,) = ctx.saved_tensors
        ctx.gradients.put(ctx.name, ctx.position, gradient_norm_sq(rows, gradient))
        return ctx.random_map.pullback(gradient), None, None, None, None


class DenseMap:
    """A map that holds its matrices, one per draw."""

    def __init__(self, weight: Float[Tensor, "draws d_in d_out"], full_gradients: list[Tensor] | None) -> None:
        self.weight = weight
        self._full_gradients = full_gradients
        self._rows: Tensor | None = None

    def forward(self, rows: Float[Tensor, "draws rows d_in"]) -> Float[Tensor, "draws rows d_out"]:
        self._rows = rows if self._full_gradients is not None else None
        return rows @ self.weight

    def pullback(self, gradient: Float[Tensor, "draws rows d_out"]) -> Float[Tensor, "draws rows d_in"]:
        if self._full_gradients is not None and self._rows is not None:
            self._full_gradients.insert(0, self._rows.mT @ gradient)
        return gradient @ self.weight.mT


class DenseEngine:
    """Draws every weight matrix: the ground truth, O(n d²) per map, on any device and dtype.

    Args:
        generator: the only source of randomness; its device is the engine's.
        draws: independent networks in one batch.
        dtype: of weights and tokens.
        keep: whether `weights` and `full_gradients` keep every matrix and its (d_in, d_out) gradient by role, in
            the order of the layers; costs their memory.
    """

    def __init__(self, generator: Generator, draws: int, dtype: torch.dtype, *, keep: bool = False) -> None:
        self.generator = generator
        self.draws = draws
        self.like: dict[str, Any] = {"dtype": dtype, "device": generator.device}
        self.gradients = GradientNorms()
        self.weights: dict[str, list[Tensor]] = {}
        self.full_gradients: dict[str, list[Tensor]] = {}
        self._keep = keep

    def map(self, name: str, d_in: int, d_out: int, std: float) -> DenseMap:
        """A fresh map with its own matrix per draw."""
        weight = torch.randn(self.draws, d_in, d_out, generator=self.generator, **self.like) * std
        # The output matrix alone is always kept: Theorem 1 is judged with its spectral norm.
        if self._keep or name == "Wemb":
            self.weights.setdefault(name, []).append(weight)
        return DenseMap(weight, self.full_gradients.setdefault(name, []) if self._keep else None)

    def spectral_norm(self, name: str) -> Float[Tensor, " draws"]:
        """‖W‖₂ of the one kept matrix of that role, from the smaller Gram matrix."""
        (weight,) = self.weights[name]
        gram = weight @ weight.mT if weight.shape[-2] <= weight.shape[-1] else weight.mT @ weight
        return torch.linalg.eigvalsh(gram)[..., -1].sqrt()
