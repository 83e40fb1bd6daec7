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

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from simulate.network.activations import activation_of
from simulate.network.conditioned import RIDGE, ROOT_RIDGE, ConditionedEngine, ConditionedMap, Square, factor, share_of_rows
from simulate.network.engines import inner
from simulate.network.random_streams import RandomStreams
from simulate.network.record import Record
from theory.stack import Stack
from theory.stack.initializations import NORMAL, Law
from theory.stack.plan import ROLES, plan
from theory.stack.weights import gain, law, rows_met, weight_shapes

Coordinates = Float[Tensor, "draws rows columns"]

# Relative to the mean eigenvalue of a Gram matrix of coordinates in float64: what rounding does to its factor.
_RIDGE = 1e-13

# Numbers that a CPU works on at once: of its second cache.
_PART = 2**17


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
    rows: Tensor = _Normalized.apply(x, stack)
    return rows


def product(first: Tensor, second: Tensor, out: Tensor | None = None) -> Tensor:
    """The product of every draw, with less around it than `products.product` has: its matrices are always plain."""
    if first.device.type != "cpu":
        return torch.bmm(first, second, out=out)
    if out is None:
        return torch.from_numpy(np.matmul(first.numpy(), second.numpy()))
    np.matmul(first.numpy(), second.numpy(), out=out.numpy())
    return out


def _reads(role: str) -> bool:
    return role not in ("WO", "W2")


def _writes(stack: Stack, role: str) -> bool:
    return not _reads(role) or (role == "WV" and stack.output_projection == "identity")


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Coordinates, stack: Stack) -> Coordinates:
        ctx.centred, ctx.width = stack.normalization == "layer", stack.width
        rows = x.clone()
        rows[..., : int(ctx.centred)] = 0.0
        size_sq = torch.linalg.vecdot(rows, rows)[..., None]
        ctx.scale = size_sq.div_(ctx.width).add_(stack.norm_epsilon).rsqrt_()
        ctx.rows = rows.mul_(ctx.scale)
        return rows.view_as(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Coordinates) -> tuple[Coordinates, None]:
        radial = torch.linalg.vecdot(gradient, ctx.rows)[..., None] / -ctx.width
        below = torch.addcmul(gradient, ctx.rows, radial).mul_(ctx.scale)
        below[..., : int(ctx.centred)] = 0.0
        return below, None


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
        self.used += rows
        numbers = self._engine.coordinates(rows, self.used, self._columns, std)
        engine.bartlett(numbers[..., used : self.used], engine.width - used, std)
        return numbers


class GramMap(ConditionedMap):
    """A map of rows that are coordinates, or to such rows, or both."""

    def __init__(self, engine: "GramEngine", d_out: int, std: float, *, reads: bool, writes: bool) -> None:
        super().__init__(engine, d_out, std)
        self._reads, self._writes, self._frame = reads, writes, engine.frame

    def known(self, rows: int) -> Tensor:
        return self._frame.normal(rows, self._std) if self._writes else super().known(rows)

    def fresh(self, rows: int, d_in: int) -> Tensor:
        return self._frame.normal(rows, self._std) if self._reads else super().fresh(rows, d_in)


class Units:
    """A feed-forward branch: from coordinates to coordinates, by hidden units that are drawn.

    Args:
        engine: the source of random numbers.
        stack: the network.
    """

    def __init__(self, engine: "GramEngine", stack: Stack) -> None:
        self._engine, self._frame = engine, engine.frame
        roles = [role for role in ("WG", "W1", "W2") if role in weight_shapes(stack)]
        self._std = {role: (gain(stack, role) / weight_shapes(stack)[role][0]) ** 0.5 for role in roles}
        self._slots = {role: engine.gradients.open(role) for role in roles}
        self._reading, self._width = roles[:-1], stack.ffn_width
        phi = activation_of(stack.activation, stack.leaky_slope)
        self._units = (lambda gate, up: phi(gate) * up) if stack.ffn == "gated" else phi
        self._plain = phi is torch.relu_ and stack.ffn == "plain"
        self._parts = engine.streams.parts(engine.piece // (stack.rows * stack.ffn_width))
        self._normals: list[list[Tensor]] = []
        self._edges: list[list[GradientEdge]] = []
        self.hidden: list[Tensor] = []

    def forward(self, rows: Coordinates) -> Coordinates:
        """The branch of the rows."""
        engine, n = self._engine, rows.shape[1]
        self._rows, self._rows_gram = rows, product(rows, rows.mT)
        self._lower, self._extra = engine.factor(self._rows_gram, RIDGE[rows.dtype], 1e-15)
        self._gram, lower = torch.empty_like(self._rows_gram), self._lower.to(engine.dtype).contiguous()
        for part, generator in self._parts:
            normals, before = [], []
            for role in self._reading:
                numbers = torch.empty(len(lower[part]), n, self._width, dtype=lower.dtype, device=lower.device)
                normals.append(numbers.normal_(0.0, self._std[role], generator=generator))
                before.append(product(lower[part], numbers))
            if self._plain:
                after = self._units(*before)
            else:
                with torch.enable_grad():
                    after = self._units(*(1 * pre.requires_grad_() for pre in before))
                self._edges.append([get_gradient_edge(pre) for pre in before])
            self._normals.append(normals)
            self.hidden.append(after)
            engine.exact_gram(after.detach(), self._gram[part])
        self._hidden_lower, self._hidden_extra = engine.factor(self._gram, RIDGE[engine.dtype], 1e-15)
        self._known = self._frame.normal(n, self._std["W2"])
        return product(self._hidden_lower, self._known)

    def pullback(self, gradient: Coordinates) -> Coordinates:
        """The gradient of the rows."""
        engine, n, std = self._engine, gradient.shape[1], self._std["W2"]
        for role, slot in self._slots.items():
            engine.gradients.check_empty(role, slot)
        gram = product(gradient, gradient.mT)
        engine.gradients.put("W2", self._slots["W2"], inner(gram, self._gram))
        root, _ = engine.factor(gram, ROOT_RIDGE)
        fresh, overlap = [], torch.empty_like(gram)
        for (part, generator), hidden in zip(self._parts, self.hidden, strict=True):
            fresh.append(torch.empty_like(hidden).normal_(0.0, std, generator=generator))
            overlap[part] = product(fresh[-1], hidden.mT)
        extra = engine.streams.normal(2, n, n, dtype=engine.dtype).double()
        overlap = product(root, overlap + self._hidden_extra.sqrt() * std * extra[:, 0])
        share = share_of_rows(product(gradient, self._known.mT), overlap, self._hidden_lower)
        root, share = (each.to(engine.dtype).contiguous() for each in (root, share))
        total, known = torch.zeros_like(gram), torch.zeros_like(gram)
        grams = {role: torch.empty_like(gram) for role in self._reading}
        for k, (part, _) in enumerate(self._parts):
            room = engine._room(engine.dtype, (2, *self.hidden[k].shape))
            below = product(root[part], fresh[k], out=room[0])
            below += product(share[part], self.hidden[k], out=room[1])
            if self._plain:
                slopes: Sequence[Tensor] = [torch.ops.aten.threshold_backward(below, self.hidden[k], 0.0, grad_input=room[1])]
            else:
                slopes = torch.autograd.grad(self.hidden[k], self._edges[k], below)
            for role, slope, numbers in zip(self._reading, slopes, self._normals[k], strict=True):
                engine.exact_gram(slope, grams[role][part])
                known[part] += product(slope, numbers.mT)
        for role, of_role in grams.items():
            engine.gradients.put(role, self._slots[role], inner(of_role, self._rows_gram))
            total += self._std[role] ** 2 * of_role
        root, _ = engine.factor(total, ROOT_RIDGE)
        below = product(root, self._frame.normal(n))
        overlap = product(below, self._rows.mT) + self._extra.sqrt() * product(root, extra[:, 1])
        return below.add_(product(share_of_rows(known, overlap, self._lower), self._rows))


class _ThroughUnits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Coordinates, units: Units) -> Coordinates:
        ctx.units = units
        return units.forward(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Coordinates) -> tuple[Coordinates, None]:
        return ctx.units.pullback(gradient), None


class Rebased(torch.autograd.Function):
    """Rows of the stream in the frame that they span with the vector of ones."""

    @staticmethod
    def forward(ctx: Any, total: Coordinates, engine: "GramEngine") -> Coordinates:
        frame, (draws, n, _) = engine.frame, total.shape
        rows = total.new_zeros(draws, n + 1, frame.used)
        rows[:, 0, 0], rows[:, 1:] = 1.0, total[..., : frame.used]
        lower, _ = engine.factor(product(rows, rows.mT), _RIDGE)
        along = torch.linalg.solve_triangular(lower, rows, upper=False)
        ctx.engine, ctx.frame, ctx.along, ctx.columns = engine, frame, along, total.shape[2]
        return torch.nn.functional.pad(lower[:, 1:], (0, engine.next_frame(n + 1) - n - 1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Coordinates) -> tuple[Coordinates, None]:
        engine, frame, along = ctx.engine, ctx.frame, ctx.along
        n, used = gradient.shape[1], frame.used
        kept = product(gradient[..., : n + 1].contiguous(), along)
        beyond, _ = engine.factor(product(gradient, gradient.mT) - product(kept, kept.mT), _RIDGE)
        numbers = engine.coordinates(n, used + n, used + n)
        met = numbers[..., :used]
        met -= product(product(met.contiguous(), along.mT), along)
        engine.bartlett(numbers[..., used:], engine.width - used, 1.0)
        root, _ = engine.factor(product(numbers, numbers.mT), _RIDGE)
        turned = torch.linalg.solve_triangular(root, beyond, upper=False, left=False)
        below = gradient.new_zeros(len(gradient), n, ctx.columns)
        below[..., : used + n] = product(turned, numbers)
        below[..., :used] += kept
        frame.used = used + n
        return below, None


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
        self.width, self._stack, self.piece = stack.width, stack, _PART if streams.device.type == "cpu" else sys.maxsize
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

    def feed_forward(self, stack: Stack, record: Record, x: Coordinates) -> Coordinates:
        """The feed-forward branch of a layer."""
        units = Units(self, stack)
        output: Tensor = _ThroughUnits.apply(x, units)
        record.hidden(stack.ffn_width, [hidden.detach() for hidden in units.hidden])
        return output

    def factor(self, gram: Square, ridge: float, least: float = 0.0) -> tuple[Square, Tensor]:
        """`conditioned.factor`, with an identity that is made once."""
        return factor(gram, ridge, least, self._identity(gram.shape[-1]))

    def exact_gram(self, rows: Float[Tensor, "draws rows width"], out: Tensor) -> None:
        """X Xᵀ in float64, by a general product, which is twice as fast as a symmetric one here."""
        room, half = self._room(torch.float64, rows.shape).copy_(rows), rows.shape[1] // 2
        out[:, :half], out[:, half:] = product(room[:, :half], room.mT), product(room[:, half:], room.mT)

    def coordinates(self, rows: int, count: int, columns: int, std: float = 1.0) -> Coordinates:
        """Rows of so many independent N(0, std²) numbers in float64, and of zeros up to so many columns."""
        numbers = torch.zeros(self.streams.draws, rows, columns, dtype=torch.float64, device=self.streams.device)
        numbers[..., :count] = self.normals(rows, count, std, keep=False)
        return numbers

    def bartlett(self, square: Tensor, degrees: int, std: float) -> None:
        """Turn normal numbers (draws, n, n) into a lower factor of a Wishart matrix of so many degrees of freedom."""
        left = torch.arange(degrees, degrees - square.shape[-1], -1, dtype=torch.float64, device=square.device)
        square.tril_(-1).diagonal(dim1=-2, dim2=-1).copy_(self.streams.chi(left).mul_(std))
