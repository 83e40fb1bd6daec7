"""The interface of samplers ("engines") that multiply tokens by random weight matrices, with one backward pass.

A map is applied once and pulled back once, by its methods `forward` and `pullback`. `simulate.network.dense` samples
the matrix; `simulate.network.conditioned` samples only its products.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from simulate.network.random_streams import RandomStreams
from theory.stack.initializations import NORMAL, Law


@dataclass(slots=True)
class Scalar:
    """A learned scalar of one layer in each random network, with its gradient.

    The gradient is from all branches that the scalar multiplied.

    Attributes:
        value: the scalar of each draw.
        gradient: the gradient of the loss with respect to the scalar, for each draw; 0 before a branch is pulled back.
    """

    value: Float[Tensor, " draws"]
    gradient: Float[Tensor, " draws"] = field(init=False)

    def __post_init__(self) -> None:
        self.gradient = torch.zeros_like(self.value)


@dataclass(slots=True)
class ScalarUse:
    """The multiplication of one branch's output by a learned scalar, with its backward pass.

    Attributes:
        scalar: the scalar.
    """

    scalar: Scalar
    _rows: Tensor | None = field(init=False, default=None)

    def forward(self, rows: Float[Tensor, "draws rows width"]) -> Float[Tensor, "draws rows width"]:
        """Return the branch's output times the learned scalar of every random network."""
        self._rows = rows
        return rows * self.scalar.value[:, None, None]

    def pullback(
        self, gradient: Float[Tensor, "draws rows width"]
    ) -> tuple[Float[Tensor, "draws rows width"], Float[Tensor, " draws"]]:
        """Return the gradient times the learned scalar, and the square of this branch's part in the scalar's gradient.

        Raises:
            RuntimeError: no rows were multiplied.
        """
        if self._rows is None:
            raise RuntimeError("a scalar must multiply rows before it is pulled back.")
        slope = torch.einsum("bnd,bnd->b", self._rows, gradient)
        self.scalar.gradient = self.scalar.gradient + slope
        return gradient * self.scalar.value[:, None, None], slope.square()


T = TypeVar("T")
ENCODER = "encoder_"
"""The prefix of an encoder's role names."""


@runtime_checkable
class RandomMap(Protocol):
    """The interface of a random weight matrix that is known only by its products with rows.

    The matrix W has independent N(0, std²) entries in every random network.
    """

    def forward(self, rows: Float[Tensor, "draws rows d_in"]) -> Float[Tensor, "draws rows d_out"]:
        """Return the product of rows with the random weight matrix, for every random network."""

    def pullback(
        self, gradient: Float[Tensor, "draws rows d_out"]
    ) -> tuple[Float[Tensor, "draws rows d_in"], Float[Tensor, " draws"]]:
        """Return the gradient times the weight matrix's transpose, and the matrix's squared gradient norm.

        They are g Wᵀ and ‖∂L/∂W‖_F² = ‖xᵀ g‖_F² of every random network.
        """


@runtime_checkable
class Engine(Protocol):
    """The interface of a source of random weight matrices and their products, for a batch of random networks."""

    streams: RandomStreams
    dtype: torch.dtype
    gradients: "GradientNorms"
    scalars: list[Scalar]

    def apply(
        self, name: str, rows: Float[Tensor, "draws rows d_in"], d_out: int, std: float, *, law: Law = NORMAL
    ) -> Float[Tensor, "draws rows d_out"]:
        """Return the product of rows with the next random matrix of a role such as "W1", in the order of the layers."""

    def scaled_branch(
        self, rows: Float[Tensor, "draws rows width"], layer: int, factor: float, *, learned: bool
    ) -> Float[Tensor, "draws rows width"]:
        """Multiply a branch's output by a factor; only a `MapEngine` multiplies by the layer's learned scalar.

        Layers count from 1; the scalar is used if `learned`, and is initially 0.
        """
        return times(rows, factor)


def taken(kept: T | None, first: str, then: str, what: str = "map") -> T:
    """Return the value that an earlier call stored for the current one; raise an error if none is stored.

    Raises:
        RuntimeError: nothing was stored, or it was used before.
    """
    if kept is None:
        raise RuntimeError(f"a {what} must be {first} before it {then}, and {then} once for each time.")
    return kept


class GradientNorms:
    """The squared gradient norms of all weight matrices of a batch of networks, by role and in layer order.

    They are ‖∂L/∂W‖_F².

    Args:
        dtype: data type of the returned norms; None for the type of the stored values.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._slots: dict[str, list[Tensor | None]] = {}

    def open(self, name: str) -> int:
        """Reserve a place for the squared gradient norm of the next matrix of a role, and return its position."""
        slots = self._slots.setdefault(name, [])
        slots.append(None)
        return len(slots) - 1

    def put(self, name: str, position: int, value: Tensor) -> None:
        """Store the squared gradient norm of one weight matrix at the matrix's position.

        The shape is (draws,).
        """
        self._slots[name][position] = value

    def of(self, name: str) -> Float[Tensor, "draws maps"]:
        """Return the squared gradient norms of all matrices with a role, for each random network.

        The shape is (draws, maps); negative rounding errors become 0.

        Raises:
            RuntimeError: no backward pass has reached some map of that role.
        """
        filled = [value for value in self._slots.get(name, []) if value is not None]
        if not filled or len(filled) < len(self._slots[name]):
            raise RuntimeError(f"{name} has no gradient yet; run the backward pass first.")
        return torch.stack(filled, dim=1).clamp_min_(0.0).to(self._dtype)


def times(rows: Float[Tensor, "draws rows width"], factor: float) -> Float[Tensor, "draws rows width"]:
    """Return rows multiplied by a factor; for the usual factor 1, return the rows themselves."""
    return rows if factor == 1.0 else rows * factor


class MapEngine(Engine):
    """A base class of engines whose backward pass stores the squared gradient norm of every weight matrix."""

    @abstractmethod
    def map(self, name: str, d_in: int, d_out: int, std: float, *, law: Law) -> RandomMap:
        """Return the next random weight matrix of a role such as "W1", in the order of the layers.

        Raises:
            ValueError: the entries' law is not normal, and the engine is exact only for normal entries.
        """

    def apply(
        self, name: str, rows: Float[Tensor, "draws rows d_in"], d_out: int, std: float, *, law: Law = NORMAL
    ) -> Float[Tensor, "draws rows d_out"]:
        """Multiply rows by the next random matrix of a role; the product can be differentiated once.

        `gradients` gets the matrix's squared gradient norm.
        """
        return self._through(self.map(name, rows.shape[-1], d_out, std, law=law), name, rows)

    def scaled_branch(
        self, rows: Float[Tensor, "draws rows width"], layer: int, factor: float, *, learned: bool
    ) -> Float[Tensor, "draws rows width"]:
        if not learned:
            return times(rows, factor)
        while len(self.scalars) < layer:
            self.scalars.append(Scalar(torch.zeros(self.streams.draws, dtype=self.dtype, device=self.streams.device)))
        return self._through(ScalarUse(self.scalars[layer - 1]), "scalar", rows)

    def _through(self, random_map: RandomMap, name: str, rows: Tensor) -> Tensor:
        return _Apply.apply(rows, random_map, self.gradients, name, self.gradients.open(name))


class EncoderEngine(Engine):
    """A source of the random matrices in an encoder's layers, which uses the decoder's source and no learned scalars.

    Role names have a prefix.

    Args:
        engine: the engine of the layers that attend to the encoder.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.streams, self.dtype, self.gradients = engine, engine.streams, engine.dtype, engine.gradients
        self.scalars: list[Scalar] = []

    def apply(
        self, name: str, rows: Float[Tensor, "draws rows d_in"], d_out: int, std: float, *, law: Law = NORMAL
    ) -> Float[Tensor, "draws rows d_out"]:
        """Return the product of rows with the encoder's next random matrix of a role such as "W1"."""
        return self.engine.apply(ENCODER + name, rows, d_out, std, law=law)


class GivenMatrices(Engine):
    """An engine that multiplies tokens by given matrices and can be differentiated any number of times.

    Args:
        streams: the source of all other random numbers.
        matrices: matrices, (d_in, d_out) each, by role and in the order of the layers; roles of an encoder begin with
            `ENCODER`.
    """

    def __init__(self, streams: RandomStreams, matrices: dict[str, list[Tensor]]) -> None:
        self.streams = streams
        self.gradients, self.scalars = GradientNorms(), list[Scalar]()  # of no maps
        self._left = {name: iter(group) for name, group in matrices.items()}
        self.dtype = next(iter(matrices.values()))[0].dtype

    def apply(
        self, name: str, rows: Float[Tensor, "draws rows d_in"], d_out: int, std: float, *, law: Law = NORMAL
    ) -> Float[Tensor, "draws rows d_out"]:
        """Return the product of rows with the next given matrix of a role such as "W1".

        Width, deviation and law are ignored.
        """
        return rows @ next(self._left[name])


def inner(first: Float[Tensor, "draws rows rows"], second: Float[Tensor, "draws rows rows"]) -> Float[Tensor, " draws"]:
    """Return the inner product ⟨A, B⟩ of two matrices, for each random network.

    The shape is (draws,). For Gram matrices x xᵀ and g gᵀ it is ‖xᵀ g‖_F².
    """
    return (first * second).sum((-2, -1))


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, random_map: RandomMap, gradients: GradientNorms, name: str, position: int
    ) -> Tensor:
        ctx.random_map, ctx.gradients, ctx.name, ctx.position = random_map, gradients, name, position
        return random_map.forward(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        product, norm_sq = ctx.random_map.pullback(gradient)
        ctx.gradients.put(ctx.name, ctx.position, norm_sq)
        return product, None, None, None, None
