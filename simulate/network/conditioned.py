"""Sample random networks through products with their weight matrices, without sampling the matrices.

Every product is with n rows.

A weight W that multiplies rows X once forward and once backward enters only through Y = X W and g Wᵀ. Both are Gaussian
given everything sampled before, so they can be sampled exactly in O(n² d) instead of O(n d²): docs/finite_width.md has
the derivation.

The n x n Gram matrices are factorized in float64 by Cholesky, after every row has received a private extra input
coordinate of relative size √ε. This makes the Gram matrix of identical or dependent rows positive definite, and its
factor unique and continuous. It is itself exact: it is the law of a network whose weights have n more input rows.
"""

import math
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from simulate.network.allocator import keep_freed_memory
from simulate.network.engines import GradientNorms, MapEngine, inner, taken
from simulate.network.products import product
from simulate.network.random_streams import RandomStreams
from theory.stack.initializations import NORMAL, Law

# √ε is the size of the extra coordinates: far above what rounding does to Gram matrices and to differences of equal
# rows, far below what any recorded quantity shows (1 - token_correlation is right down to a few ε).
RIDGE = {torch.float32: 1e-8, torch.float64: 1e-10}
# A root needs no inverse, only as much as keeps a Gram matrix definite under rounding, which grows like n² eps.
ROOT_RIDGE = 1e-10

# The least extra coordinate, for rows that are all zero: its inverse must fit into float32. A root has none.
_LEAST = 1e-15
_TINY = torch.finfo(torch.float32).tiny

NORMAL_ONLY = (
    "engine must be 'dense' for matrices with uniform entries (initialization xavier_uniform, pytorch) or cut ones "
    "(truncation): conditioning is exact for normal ones, which have the same large-width theory."
)

# Random numbers and sums in float64 take two passes over memory: in pieces of this many numbers, the second is over a
# cache, and calls are few. On a GPU pieces cost a launch each, and save nothing.
_PIECE = 2**18

Square = Float[Tensor, "draws rows rows"]
Draw = Callable[[int], Tensor]


# Kept, because a new identity is a kernel launch; a number on the host serves operations on a GPU too.
identity, _on_host = lru_cache(8)(torch.eye), lru_cache(8)(torch.tensor)


def factor(gram: Square, ridge: float, least: float = 0.0) -> tuple[Square, Float[Tensor, "draws 1 1"]]:
    """Return the Cholesky factor of each random network's Gram matrix plus a small multiple of the identity.

    It is the factor L of Gram + a² I, with the number a².

    a² is `ridge` times the mean squared norm of a row, plus `least` squared. If rounding or overflow spoils a factor,
    it is NaN, because LAPACK leaves plausible numbers.
    """
    rows, eye = gram.shape[-1], identity(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).view(-1, 1, 1)
    # The smallest numbers keep a matrix of zeros definite.
    extra_sq = torch.add(_on_host(least**2 + _TINY**2, dtype=gram.dtype), trace, alpha=ridge / rows)
    lower, info = torch.linalg.cholesky_ex(torch.addcmul(gram, eye, extra_sq))
    return lower.masked_fill_(info.view(-1, 1, 1).bool(), torch.nan), extra_sq


def pulled_back(
    rows: Float[Tensor, "draws rows d_in"],
    gradient: Float[Tensor, "draws rows d_out"],
    lower: Square,
    extra_sq: Float[Tensor, "draws 1 1"],
    forward: Float[Tensor, "draws rows d_out"],
    fresh: Float[Tensor, "draws rows d_in"],
    fresh_extra: Square,
) -> Float[Tensor, "draws rows d_in"]:
    """Return the gradient times Wᵀ for a weight matrix W of which only the product with some rows is known.

    The result is g Wᵀ if the product with the rows X is L Z; other directions of W have fresh random numbers.

    With the extra coordinates X' = [X, a I], L Lᵀ = X' X'ᵀ and Q = L⁻¹ X', W' = Qᵀ Z + (I - Qᵀ Q) W̃, so that g W'ᵀ = N
    + (g Zᵀ - N Qᵀ) Q with N = g W̃ᵀ. The result contains the columns of Q and N that belong to X.

    Args:
        rows: the rows X.
        gradient: the gradient g.
        lower: the Cholesky factor L.
        extra_sq: the squared extra coordinate a².
        forward: the numbers Z, independent N(0, std²).
        fresh: the columns of N for X: independent with covariance std² g gᵀ; overwritten.
        fresh_extra: the columns of N for the extra coordinates.
    """
    known = product(gradient, forward.mT)
    overlap = torch.addcmul(product(fresh, rows.mT), extra_sq.sqrt(), fresh_extra)  # in float64, as what follows
    return product(share_of_rows(known, overlap, lower).to(rows.dtype), rows, onto=fresh)


def share_of_rows(known: Square, overlap: Square, lower: Square) -> Square:
    """Return the part of a gradient's product with Wᵀ along the inputs of the matrix W, as input coefficients.

    The coefficients of the rows X are (g Zᵀ - N X'ᵀ L⁻ᵀ) L⁻¹, by two triangular solves.
    """
    whitened = torch.linalg.solve_triangular(lower, overlap.mT, upper=False).mT
    return torch.linalg.solve_triangular(lower, known - whitened, upper=False, left=False)


class ConditionedMap:
    """A random weight matrix that is known only by its product with some rows, not by its entries.

    It stores the rows and the random numbers of the product: O(n d) memory for each random network.

    Args:
        engine: the source of random numbers.
        std: standard deviation of an entry.
        known: function that samples the random numbers of the product of so many rows.
        fresh: function that samples the fresh random numbers of the pullback of so many rows.
    """

    def __init__(self, engine: "ConditionedEngine", std: float, known: Draw, fresh: Draw) -> None:
        self._engine, self._std, self._known, self._fresh = engine, std, known, fresh
        self._state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None = None

    def forward(self, rows: Float[Tensor, "draws rows d_in"]) -> Float[Tensor, "draws rows d_out"]:
        normals = self._known(rows.shape[1])
        applied, *known = self._engine.replays.call(self._engine.applied, rows, normals)
        rows_gram, lower, extra_sq = known
        self._state = rows, normals, rows_gram, lower, extra_sq
        return applied

    def pullback(
        self, gradient: Float[Tensor, "draws rows d_out"]
    ) -> tuple[Float[Tensor, "draws rows d_in"], Float[Tensor, " draws"]]:
        state, self._state = taken(self._state, "applied", "is pulled back"), None
        n = state[0].shape[1]
        fresh = self._fresh(n), self._engine.normals(n, n, self._std)
        below, gradient_sq = self._engine.replays.call(self._engine.pulled_back, *state, gradient, *fresh)
        return below, gradient_sq


class ConditionedEngine(MapEngine):
    """A sampler of random networks that samples products of the weight matrices instead of the matrices.

    It is exact in distribution, in O(n² d) for each map.

    Each draw allows one backward pass. Operations that need a matrix itself raise an error.

    Args:
        streams: the only source of randomness, for all draws of a batch; its device is the engine's.
        dtype: type of the activations.
    """

    def __init__(self, streams: RandomStreams, dtype: torch.dtype) -> None:
        self.streams = streams
        self.dtype = dtype
        self.gradients, self.scalars = GradientNorms(dtype), []
        self._rooms: dict[torch.dtype, Tensor] = {}
        self._views: dict[tuple[torch.dtype, Sequence[int]], Tensor] = {}
        self.replays = Replays(streams.device)
        keep_freed_memory()
        self._piece = _PIECE if streams.device.type == "cpu" else sys.maxsize

    def map(self, name: str, d_in: int, d_out: int, std: float, *, law: Law = NORMAL) -> ConditionedMap:
        """Return a new random weight matrix for a role such as "W1", known only by its products.

        Raises:
            ValueError: the entries' law is not normal.
        """
        if law != NORMAL:
            raise ValueError(NORMAL_ONLY)
        return ConditionedMap(self, std, *self.draws(d_in, d_out, std))

    def draws(self, d_in: int, d_out: int, std: float) -> tuple[Draw, Draw]:
        """Return two functions that sample a matrix's random numbers, for its forward and its backward product."""
        return partial(self.normals, width=d_out, std=std), partial(self.normals, width=d_in, std=std, keep=False)

    def applied(self, rows: Tensor, normals: Tensor) -> tuple[Tensor, Tensor, Square, Tensor]:
        """Return the product of rows with a new random matrix, and the Gram matrix of the rows.

        The Cholesky factor and the squared extra coordinate are returned too.
        """
        gram = self.gram(rows)
        lower, extra_sq = factor(gram, RIDGE[rows.dtype], _LEAST)
        return product(lower.to(normals.dtype), normals), gram, lower, extra_sq

    def pulled_back(
        self,
        rows: Tensor,
        normals: Tensor,
        rows_gram: Square,
        lower: Square,
        extra_sq: Tensor,
        gradient: Tensor,
        fresh: Tensor,
        fresh_extra: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the backward product with a matrix's transpose, and the matrix's squared gradient norm.

        They are g Wᵀ, from independent numbers, and ‖∂L/∂W‖_F² of every random network.
        """
        gram = self.gram(gradient)
        root, _ = factor(gram, ROOT_RIDGE)
        fresh, fresh_extra = product(root.to(rows.dtype), fresh), product(root, fresh_extra.double())
        return pulled_back(rows, gradient, lower, extra_sq, normals, fresh, fresh_extra), inner(rows_gram, gram)

    def normals(self, rows: int, width: int, std: float, *, keep: bool = True) -> Float[Tensor, "draws rows width"]:
        """Return independent normal random numbers for every network, with a given standard deviation.

        The shape is (draws, rows, width); with `keep=False` the numbers are in memory that is reused.
        """
        shape = (self.streams.draws, rows, width)
        like: dict[str, Any] = {"dtype": self.dtype, "device": self.streams.device}
        numbers = torch.empty(shape, **like) if keep else self.room(self.dtype, shape)
        return self.streams.fill_normal(numbers, std, piece=self._piece)

    def gram(self, rows: Float[Tensor, "draws rows width"]) -> Square:
        """Return the Gram matrix of each random network's rows, in float64.

        It is X Xᵀ; in float64 products of float32 numbers are exact.
        """
        draws, n, width = rows.shape
        if rows.dtype == torch.float64:
            return product(rows, rows.mT)
        step = max(1, self._piece // (n * width))
        if draws <= step:
            room = self.room(torch.float64, rows.shape).copy_(rows)
            return product(room, room.mT)
        grams = torch.empty(draws, n, n, dtype=torch.float64, device=rows.device)
        for piece, result in zip(rows.split(step), grams.split(step), strict=True):
            room = self.room(torch.float64, piece.shape).copy_(piece)
            product(room, room.mT, out=result)
        return grams

    def room(self, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Return reusable memory for a tensor of a type and shape.

        New pages on a CPU cost as much as filling them.
        """
        if self.streams.device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=self.streams.device)
        if (view := self._views.get((dtype, shape))) is not None:
            return view
        size = math.prod(shape)
        room = self._rooms.get(dtype)
        if room is None or room.numel() < size:
            self._views.clear()
            room = self._rooms[dtype] = torch.empty(size, dtype=dtype)
        view = self._views[dtype, shape] = room[:size].view(shape)
        return view


# Calls before a graph is made, which takes as long as some; at their first, libraries make what they need.
CALLS_BEFORE = 128

# A call of more numbers keeps a GPU as busy as launches keep the host, and a graph would hold as many once more.
MOST_NUMBERS = 2**25

Function = Callable[..., Sequence[Tensor]]


class Replays:
    """A cache of CUDA graphs by function name and argument shapes; on a CPU, functions are called directly.

    A deep network fills a GPU's memory with few draws, so that kernel launches dominate a layer's time. A graph is
    launched as a whole, with the same kernels on the same numbers.

    Args:
        device: the device of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._of_use = device.type == "cuda"
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph | None] = {}

    def call(self, function: Function, *inputs: Tensor) -> Sequence[Tensor]:
        """Return a function's output in newly allocated memory, by replaying its CUDA graph if one is stored.

        Args:
            function: a named function of tensors only; everything else that it reads must not change.
            inputs: tensors on one device.
        """
        if not self._of_use or sum(value.numel() for value in inputs) > MOST_NUMBERS:
            return function(*inputs)
        key = function.__name__, tuple((value.shape, value.stride()) for value in inputs)
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] == CALLS_BEFORE:
            self._graphs[key] = captured(function, inputs)
        graph = self._graphs.get(key)
        return function(*inputs) if graph is None else graph.replay(inputs)


class _Graph:
    """A captured CUDA graph with the memory of its inputs and outputs."""

    def __init__(self, function: Function, inputs: Sequence[Tensor]) -> None:
        self._inputs = [torch.empty_like(value) for value in inputs]
        self._graph = torch.cuda.CUDAGraph()
        # The device may be another than the current one, whose launches alone would be captured.
        with torch.cuda.device(inputs[0].device), torch.cuda.graph(self._graph, stream=torch.cuda.Stream()):
            self._outputs = list(function(*self._inputs))

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the graph on other inputs and return copies of its outputs."""
        for group in _by_dtype(self._inputs):  # of one dtype many are copied at once
            torch._foreach_copy_([self._inputs[k] for k in group], [inputs[k] for k in group])
        self._graph.replay()
        copies = list(self._outputs)
        for group in _by_dtype(copies):
            for k, copy in zip(group, torch._foreach_mul([copies[k] for k in group], 1.0), strict=True):
                copies[k] = copy
        return copies


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    return [[k for k, tensor in enumerate(tensors) if tensor.dtype == dtype] for dtype in dtypes]


def captured(function: Function, inputs: Sequence[Tensor]) -> _Graph | None:
    """Capture a function as a CUDA graph; return None if the function does something that cannot be captured.

    Raises:
        OutOfMemoryError: the GPU's memory is too small.
    """
    try:
        return _Graph(function, inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
