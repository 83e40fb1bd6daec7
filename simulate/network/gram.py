"""The engine without a stream: rows of the residual stream are few coordinates, only hidden units are drawn in full.

A stack that meets its stream of n tokens only through norms, sums and Gaussian matrices commutes with every rotation
of the d coordinates that leaves the vector of ones. So a frame of orthonormal vectors can be chosen as it is met, and
its vectors never be drawn. In a sub-layer of a frame U with span(1, X) the rows are coordinates, exactly in law:

- **Up.** A matrix writes W = Z into the stream: the coordinates of Z along U are independent normal numbers, the rest
  is L U' for new vectors U' and the factor L of a Wishart matrix with d - |U| degrees of freedom (Bartlett).
- **Sum.** `Rebased` takes (1, X + Y) = L Q (U, U') as the next frame, of n + 1 vectors, with coordinates L.
- **Down.** A gradient G at the sum is Γ along that frame, and C V beyond: every matrix above saw the stream along the
  frame only, and rotates with whatever is beyond. So V is a uniform n-frame of d - n - 1 dimensions, independent of
  everything below, (U, U') included. Its products with the part of (U, U') beyond the frame and the Gram matrix of what
  is left are V = K [E (I - QᵀQ), T], E normal, T Bartlett with d - |U| - |U'| degrees, and K K' the inverse of a root.
- A matrix that read the stream pulls a gradient back as in `simulate.network.conditioned`, with fresh numbers that are
  coordinates too: along everything met so far, and a Bartlett factor beyond.

So n x d numbers remain for each side of the hidden units, and of queries, keys and values where they are random. Every
new block of r rows takes r dimensions, so that the law is exact for d above the number of columns of a sub-layer:
4n + 1 for units, 6n + 1 for random attention. Sums, norms and products of rows are those of their coordinates.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from simulate.network.conditioned import ConditionedEngine, ConditionedMap, factor
from simulate.network.products import product
from simulate.network.random_streams import RandomStreams
from theory.stack import Stack
from theory.stack.initializations import NORMAL, Law
from theory.stack.plan import ROLES, plan
from theory.stack.weights import law, rows_met, weight_shapes

Coordinates = Float[Tensor, "draws rows columns"]

# Relative to the mean eigenvalue of a Gram matrix of coordinates in float64: what rounding does to its factor.
_RIDGE = 1e-13


def without_gram(stack: Stack) -> str:
    """Return why a stack cannot be sampled by its coordinates, as "FIELD ..."; empty if it can be."""
    fixed = stack.attention_dropout == 0.0 and not stack.query_key_scale and stack.mask == "none"
    heads = "identity" in stack.output_projection and "attention" in {k for step in plan(stack) for k in step.kinds}
    reasons = {
        "initialization and truncation with normal entries": law(stack) != NORMAL,
        "no dropout": stack.dropout > 0.0,
        "normalization layer, rms or none": stack.normalization == "tanh",
        "untied embeddings": stack.embeddings != "untied",
        "no positions": stack.positions != "none",
        "no source": stack.source_tokens > 0,
        "no experts": stack.experts > 0,
        "no output_transform": stack.output_transform != "none",
        "a placement of one stream": any(step.stack.composition.second_stream for step in plan(stack)),
        "a random output_projection unless all tokens attend to their mean": heads and not fixed,
        "as many kv_heads as heads unless output_projection is random": heads and stack.key_heads != stack.heads,
        f"a width above {max(columns(stack))}": stack.width <= max(columns(stack)),
    }
    return next((f"engine 'gram' requires {what}." for what, missing in reasons.items() if missing), "")


def columns(stack: Stack) -> list[int]:
    """The number of coordinates in every sub-layer, and below the output matrix."""
    met, counts = rows_met(stack), []
    for step in plan(stack):
        roles = [role for kind in step.kinds for role in ROLES[kind] if role in weight_shapes(step.stack)]
        into = sum(met[role] for role in roles if _writes(stack, role))
        read = sum(met[role] for role in roles if _reads(role))
        counts.append(2 * stack.rows + 1 + into + read)
    return [*counts, 2 * stack.rows + 1]


def normalized(stack: Stack, x: Coordinates) -> Coordinates:
    """The norm of rows that are coordinates: LayerNorm or RMSNorm, without its gain."""
    if stack.normalization == "layer":
        x = torch.nn.functional.pad(x[..., 1:], (1, 0))
    return x * (x.square().sum(-1, keepdim=True) / stack.width + stack.norm_epsilon).rsqrt()


def _reads(role: str) -> bool:
    return role not in ("WO", "W2")


def _writes(stack: Stack, role: str) -> bool:
    return not _reads(role) or (role == "WV" and stack.output_projection == "identity")


class Frame:
    """Orthonormal vectors of the stream's space, the vector of ones first.

    Args:
        engine: the source of coordinates.
        used: vectors that rows have met.
        columns: the most that they will meet.
    """

    def __init__(self, engine: "GramEngine", used: int, columns: int) -> None:
        self._engine, self.used, self._columns = engine, used, columns

    def normal(self, rows: int, std: float = 1.0) -> Coordinates:
        """Rows of d independent N(0, std²) numbers, as coordinates along all vectors and as many new ones."""
        engine, used = self._engine, self.used
        numbers = engine.streams.normal(rows, used + rows, dtype=engine.dtype).double() * std
        engine.bartlett(numbers[..., used:], engine.width - used, std)
        self.used += rows
        return torch.nn.functional.pad(numbers, (0, self._columns - self.used))


class GramMap(ConditionedMap):
    """A map of rows that are coordinates, or to such rows, or both."""

    def __init__(self, engine: "GramEngine", d_out: int, std: float, *, reads: bool, writes: bool) -> None:
        super().__init__(engine, d_out, std)
        self._reads, self._writes, self._frame = reads, writes, engine.frame

    def known(self, rows: int) -> Tensor:
        return self._frame.normal(rows, self._std) if self._writes else super().known(rows)

    def fresh(self, rows: int, d_in: int) -> Tensor:
        return self._frame.normal(rows, self._std) if self._reads else super().fresh(rows, d_in)


class Rebased(torch.autograd.Function):
    """Rows of the stream in the frame that they span with the vector of ones."""

    @staticmethod
    def forward(ctx: Any, total: Coordinates, engine: "GramEngine") -> Coordinates:
        frame, (draws, n, _) = engine.frame, total.shape
        rows = total.new_zeros(draws, n + 1, frame.used)
        rows[:, 0, 0], rows[:, 1:] = 1.0, total[..., : frame.used]
        lower, _ = factor(product(rows, rows.mT), _RIDGE)
        along = torch.linalg.solve_triangular(lower, rows, upper=False)
        ctx.engine, ctx.frame, ctx.along, ctx.columns = engine, frame, along, total.shape[2]
        return torch.nn.functional.pad(lower[:, 1:], (0, engine.next_frame(n + 1) - n - 1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Coordinates) -> tuple[Coordinates, None]:
        engine, frame, along = ctx.engine, ctx.frame, ctx.along
        n, used = gradient.shape[1], frame.used
        kept = product(gradient[..., : n + 1].contiguous(), along)
        beyond, _ = factor(product(gradient, gradient.mT) - product(kept, kept.mT), _RIDGE)
        numbers = engine.streams.normal(n, used + n, dtype=engine.dtype).double()
        met = numbers[..., :used]
        met -= product(product(met.contiguous(), along.mT), along)
        engine.bartlett(numbers[..., used:], engine.width - used)
        root, _ = factor(product(numbers, numbers.mT), _RIDGE)
        turned = torch.linalg.solve_triangular(root, beyond, upper=False, left=False)
        below = product(turned, numbers)
        below[..., :used] += kept
        frame.used = used + n
        return torch.nn.functional.pad(below, (0, ctx.columns - frame.used)), None


class GramEngine(ConditionedEngine):
    """Draws coordinates of the stream, and hidden units, exactly in distribution.

    Args:
        streams: the only source of randomness.
        dtype: type of hidden units and logits; coordinates have float64.
        stack: the network.

    Raises:
        ValueError: the stack acts on single coordinates of the stream, or is too narrow.
    """

    def __init__(self, streams: RandomStreams, dtype: torch.dtype, stack: Stack) -> None:
        super().__init__(streams, dtype)
        if reason := without_gram(stack):
            raise ValueError(reason)
        self.width, self._stack = stack.width, stack
        self._columns: Iterator[int] = iter(columns(stack))
        self.next_frame(1)

    def next_frame(self, used: int) -> int:
        """Begin the frame of the next sub-layer, and return its number of columns."""
        count = next(self._columns)
        self.frame = Frame(self, used, count)
        return count

    def stream(self, rows: int) -> Coordinates:
        """Independent N(0, 1) rows of the stream."""
        return self.frame.normal(rows)

    def rebased(self, total: Coordinates) -> Coordinates:
        """The rows in a frame of their own."""
        rows: Tensor = Rebased.apply(total, self)
        return rows

    def map(self, name: str, d_in: int, d_out: int, std: float, *, law: Law = NORMAL) -> GramMap:
        """A fresh map of a role."""
        return GramMap(self, d_out, std, reads=_reads(name), writes=_writes(self._stack, name))

    def bartlett(self, square: Tensor, degrees: int, std: float = 1.0) -> None:
        """Turn normal numbers (draws, n, n) into a lower factor of a Wishart matrix of so many degrees of freedom."""
        square.tril_(-1)
        left = degrees - torch.arange(square.shape[-1], dtype=torch.float64, device=square.device)
        square.diagonal(dim1=-2, dim2=-1).copy_(self.streams.chi(left) * std)
