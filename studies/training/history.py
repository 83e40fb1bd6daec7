"""A random matrix that is known by all that it has done so far, forward and backward, and by what it has learned.

W_0 has independent N(0, std²) entries. P are orthonormal rows that span every input so far, S = P W_0; R are
orthonormal rows that span every gradient so far, T = R W_0ᵀ. Given these W_0 is a fresh matrix outside of both spans:

    W_0 = Pᵀ S + (I - Pᵀ P) Tᵀ R + (I - Pᵀ P) W̃ (I - Rᵀ R),

and every gradient of the loss is Pᵀ C R with a small core C. studies/training/README.md derives it.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from simulate.curvature.first_step import polar_factor
from simulate.network.engines import inner, taken
from simulate.network.random_streams import RandomStreams
from studies.training.optimizers import Optimizer

Rows = Float[Tensor, "draws rows width"]
Square = Float[Tensor, "draws rows rows"]
Core = Float[Tensor, "draws inputs gradients"]

# Of rows of norm 1, a direction in which all that is new to them is this much or less is taken to be known: rounding is
# below it, in rows and, squared, in their Gram matrix. So much is left out of their products.
NEGLIGIBLE = {torch.float32: 1e-5, torch.float64: 3e-7}


@dataclass(slots=True)
class Growing:
    """Rows to which rows are added, in memory that is not copied as long as there is room.

    Attributes:
        room: the memory.
        used: rows that it holds.
    """

    room: Float[Tensor, "draws capacity width"]
    used: int = 0

    def append(self, rows: Rows, times: int) -> None:
        """Add rows; where there is no room, make some for as many more so many times."""
        end = self.used + rows.shape[1]
        if end > self.room.shape[1]:
            shape = rows.shape[0], self.used + times * rows.shape[1], rows.shape[2]
            room = torch.empty(shape, dtype=rows.dtype, device=rows.device)
            room[:, : self.used] = self.held
            self.room = room
        self.room[:, self.used : end] = rows
        self.used = end

    @property
    def held(self) -> Rows:
        """All rows."""
        return self.room[:, : self.used]


@dataclass(slots=True)
class Span:
    """What a matrix is known to do on one of its sides.

    Attributes:
        times: how often rows are likely to be added.
    """

    _directions: Growing
    _images: Growing
    times: int = 1

    @classmethod
    def of(cls, directions: Float[Tensor, "draws known width"], images: Float[Tensor, "draws known across"]) -> "Span":
        """What is given, rows of which there may be none."""
        return cls(Growing(directions, directions.shape[1]), Growing(images, images.shape[1]))

    @property
    def directions(self) -> Float[Tensor, "draws known width"]:
        """Rows whose Pᵀ P projects on their span: orthonormal ones, or more of them; P for inputs, R for gradients."""
        return self._directions.held

    @property
    def images(self) -> Float[Tensor, "draws known across"]:
        """What the matrix makes of them: S = P W_0, or T = R W_0ᵀ, but for numbers that P Pᵀ takes to 0."""
        return self._images.held

    def append(self, directions: Rows, images: Float[Tensor, "draws rows across"]) -> None:
        """Add what is new."""
        self._directions.append(directions, self.times)
        self._images.append(images, self.times)


def unknown(
    streams: RandomStreams, dtype: torch.dtype, d_in: int, d_out: int, std: float, times: int = 1
) -> "HistoryMap":
    """A map of a fresh (d_in, d_out) matrix per draw, which has done nothing yet; to be applied so many times."""
    empty = [torch.empty(streams.draws, 0, width, dtype=dtype, device=streams.device) for width in (d_in, d_out)]
    inputs, gradients = Span.of(*empty), Span.of(*reversed(empty))
    inputs.times = gradients.times = times
    return HistoryMap(streams, std, inputs, gradients)


def split(
    rows: Rows, known: Float[Tensor, "draws known width"], least: float
) -> tuple[Float[Tensor, "draws rows known"], Square, Float[Tensor, "draws rows"], Rows]:
    """Rows as C P + U s Q: with P known, U orthogonal, sizes s and orthonormal rows of Q, or zeros where s is.

    U and s are the host's: it waits for a factorization of a GPU's in any case, and what follows asks which s are 0.

    Args:
        rows: of norm 1, or 0.
        known: P.
        least: the size that is no more than rounding.
    """
    coordinates = torch.bmm(rows, known.mT)
    rest = torch.baddbmm(rows, coordinates, known, alpha=-1.0)
    wide = rest.double()
    gram = torch.bmm(wide, wide.mT).cpu()
    # LAPACK refuses what is not finite; a draw that has diverged is NaN from here on.
    finite = gram.isfinite().all(2).all(1)
    values, basis = torch.linalg.eigh(gram.where(finite[:, None, None], 0.0))
    sizes = values.clamp_min(0.0).sqrt_().masked_fill_(values <= least**2, 0.0)
    sizes = sizes.masked_fill_(~finite[:, None], torch.nan)
    inverse = sizes.reciprocal().masked_fill_(sizes == 0.0, 0.0)
    # Turned before it is divided: what rounding does to a small direction weighs as little as that direction.
    turned = torch.bmm(_beside(basis.mT.to(rows.dtype), rest), rest)
    fresh = turned.mul_(_beside(inverse.to(rows.dtype)[:, :, None], rest))
    return coordinates.double(), basis, sizes, fresh


def known_of(
    rows: Rows, own: Span, other: Span, fresh: Float[Tensor, "draws rows across"]
) -> Float[Tensor, "draws rows coordinates"]:
    """Coordinates of rows in the directions of a side, to which what they have of new ones is added with its image.

    The image of new directions Q, across P, is Q W_0 = (Q Tᵀ) R + Z (I - Rᵀ R).

    Args:
        rows: inputs, or gradients.
        own: their side; extended.
        other: the other side, for which the matrix is known as well.
        fresh: Z, independent N(0, std²).
    """
    norms = torch.linalg.vector_norm(rows, dim=2, keepdim=True, dtype=torch.float64)
    norms = norms.masked_fill(norms == 0.0, 1.0)
    first, basis, sizes, unit = split(rows / norms.to(rows.dtype), own.directions, NEGLIGIBLE[rows.dtype])
    if not bool((sizes != 0.0).any()):
        return first * norms
    second, directions, factor = orthonormal(unit, _beside(basis.to(rows.dtype), rows), own.directions)
    sized = basis * sizes[:, None]
    known = first + _beside(sized, rows) @ second
    across = torch.bmm(directions, other.images.mT) - torch.bmm(fresh, other.directions.mT)
    own.append(directions, torch.baddbmm(fresh, across, other.directions))
    return torch.cat([known, _beside(sized @ basis.mT, rows) @ factor], 2) * norms


def orthonormal(
    unit: Rows, basis: Float[Tensor, "draws rows rows"], known: Float[Tensor, "draws known width"]
) -> tuple[Float[Tensor, "draws rows known"], Rows, Square]:
    """Rows Q of norm 1 or 0, but for rounding, as B P + Uᵀ L D; B and L in float64. No GPU waits.

    Of little that was new, rounding has left some of P in Q, and angles that are not quite right: so little that a
    factor of Cholesky exists. An eigenbasis jumps where eigenvalues are equal, and no number may hang on a last bit:
    Q is turned back first.

    Args:
        unit: Q.
        basis: U, which Q was turned by.
        known: P.
    """
    within = torch.bmm(unit, known.mT)
    rest = torch.baddbmm(unit, within, known, alpha=-1.0)
    # Where most of a row was rounding, nothing is new; a draw that has diverged stays NaN.
    nothing = (torch.linalg.vector_norm(rest, dim=2) <= 0.5)[:, :, None]
    back = torch.bmm(basis, rest.masked_fill_(nothing, 0.0))
    turned = basis.masked_fill(nothing.mT, 0.0)
    there = torch.bmm(turned, turned.mT)
    missing = torch.eye(there.shape[1], dtype=there.dtype, device=there.device) - there
    lower = torch.linalg.cholesky_ex(torch.baddbmm(missing, back, back.mT)).L
    directions = torch.linalg.solve_triangular(lower, back, upper=False)
    return within.double(), directions, torch.bmm(there, lower).double()


def _beside(small: Tensor, other: Tensor) -> Tensor:
    """What the host has found, on the device of another tensor; nothing waits for the copy."""
    return small.to(other.device, non_blocking=True)


@dataclass(slots=True)
class Combination:
    """A multiple of W_0 and a matrix Pᵀ C R.

    Attributes:
        share: the multiple.
        core: C, as large as the spans were when it was last changed.
    """

    share: float
    core: Core

    def grown(self, like: Core) -> Core:
        """The core with rows and columns of zeros for directions that are new since."""
        added = [new - old for new, old in zip(like.shape[1:], self.core.shape[1:], strict=True)]
        return F.pad(self.core, (0, added[1], 0, added[0]))


@dataclass(slots=True)
class HistoryMap:
    """A map that holds all that its matrix has done, O(n k d) numbers per draw after k steps of n rows.

    It may be applied and pulled back any number of times; a pullback belongs to the latest application. Given the
    products before, every product has the law that it has for a drawn matrix.

    Attributes:
        streams: where random numbers come from.
        std: of the entries of W_0; 0 for a matrix of zeros.
        inputs: P and S.
        gradients: R and T.
    """

    streams: RandomStreams
    std: float
    inputs: Span
    gradients: Span
    weight: Combination = field(init=False)
    momentum: Combination = field(init=False)
    _met: Float[Tensor, "draws rows inputs"] | None = field(init=False, default=None)
    _gradient: Core | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        empty = torch.zeros(self.streams.draws, 0, 0, dtype=torch.float64, device=self.streams.device)
        self.weight, self.momentum = Combination(1.0, empty), Combination(0.0, empty)

    def forward(self, rows: Float[Tensor, "draws rows d_in"]) -> Float[Tensor, "draws rows d_out"]:
        """The product x W of every draw."""
        met = known_of(rows, self.inputs, self.gradients, self._fresh(rows, self.gradients))
        self._met = met
        core = self.weight.core
        return _sum(met * self.weight.share, self.inputs.images, met[:, :, : core.shape[1]] @ core, self.gradients)

    def pullback(
        self, gradient: Float[Tensor, "draws rows d_out"]
    ) -> tuple[Float[Tensor, "draws rows d_in"], Float[Tensor, " draws"]]:
        """The product g Wᵀ of every draw, and ‖∂L/∂W‖_F² = ‖xᵀ g‖_F².

        Raises:
            RuntimeError: the map was not applied since it was last pulled back.
        """
        met, self._met = taken(self._met, "applied", "is pulled back"), None
        pulled = known_of(gradient, self.gradients, self.inputs, self._fresh(gradient, self.inputs))
        self._gradient = met.mT @ pulled
        core = self.weight.core
        product = _sum(
            pulled * self.weight.share, self.gradients.images, pulled[:, :, : core.shape[2]] @ core.mT, self.inputs
        )
        return product, inner(met @ met.mT, pulled @ pulled.mT).to(gradient.dtype)

    def learn(self, optimizer: Optimizer, rate: float) -> None:
        """One step of an optimizer along the gradient of the latest pullback.

        Raises:
            RuntimeError: there was none since the latest step.
        """
        gradient, self._gradient = taken(self._gradient, "pulled back", "learns"), None
        weight, momentum = self.weight.grown(gradient), self.momentum.grown(gradient)
        coupled = 0.0 if optimizer.decoupled else optimizer.weight_decay
        share = optimizer.momentum * self.momentum.share + coupled * self.weight.share
        self.momentum = Combination(share, optimizer.momentum * momentum + gradient + coupled * weight)
        if not optimizer.decoupled:
            self.weight = Combination(self.weight.share - rate * share, weight - rate * self.momentum.core)
            return
        kept = 1.0 - rate * optimizer.weight_decay
        shape = self.inputs.directions.shape[2], self.gradients.directions.shape[2]
        step = polar_factor(self.momentum.core, *shape)
        self.weight = Combination(kept * self.weight.share, kept * weight - rate * step)

    def _fresh(self, rows: Tensor, other: Span) -> Tensor:
        # Drawn for rows without anything new as well: one that is nearly so must not move the numbers of all others.
        numbers = torch.empty(
            rows.shape[0], rows.shape[1], other.directions.shape[2], dtype=rows.dtype, device=rows.device
        )
        return self.streams.fill_normal(numbers, self.std)


def _sum(first: Tensor, images: Tensor, second: Tensor, other: Span) -> Tensor:
    """The share of W_0, and what was learned."""
    product = torch.bmm(first.to(images.dtype), images)
    return torch.baddbmm(product, second.to(images.dtype), other.directions[:, : second.shape[2]])
