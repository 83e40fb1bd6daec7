"""The Gram engine: a sampler of random networks that samples a few coordinates of each token, never the full one.

Hidden units are sampled one by one.

Take a stack that meets the n rows X of its stream only through norms, sums and Gaussian matrices. Rotations of R^d that
fix the vector of ones keep its law. So rows are known in a frame U: orthonormal vectors, met one by one and never
drawn. U begins with 1/√d, and 1 and X span it. Exactly in law:

- **Up.** A matrix writes rows of independent normal numbers. Their coordinates along U are normal. Beyond U they are
  T U', with T the Bartlett factor of a Wishart matrix of d - |U| degrees of freedom. Then U' joins U.
- **Sum.** (1, X + Y) = L Q U by Cholesky: `rebased` takes Q U as the next frame, in which L holds the coordinates.
- **Down.** The gradient at the sum is G = Γ (Q U) + C V with V beyond Q U. All later layers met the stream in Q U only,
  and turn with the rest. So V is a uniform n-frame of d - n - 1 dimensions, independent of all earlier layers.
  With E normal along U and T Bartlett of d - |U| degrees, V = K⁻¹ [E (I - QᵀQ), T]. K is the factor of its Gram matrix.
- **Pullback.** A matrix that read rows gives G Wᵀ as in `simulate.network.conditioned`. The fresh numbers are
  coordinates along all vectors met so far, and a Bartlett factor.

Where rows are dependent, Q has a lower rank, and I - QᵀQ the dimensions that it lacks. Drawn number by number are the
hidden units, queries, keys and values of n rows, up and down. Each block of r rows takes r dimensions. So d must exceed
the most columns of a sub-layer: 4n + 1 for units, 6n + 1 for random attention.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from simulate.network.activations import activation_of
from simulate.network.conditioned import (
    RIDGE,
    ROOT_RIDGE,
    ConditionedEngine,
    ConditionedMap,
    Square,
    factor,
    identity,
    share_of_rows,
)  # fmt: skip
from simulate.network.engines import inner
from simulate.network.products import LEAST_ROWS, product
from simulate.network.random_streams import RandomStreams
from simulate.network.record import Record
from theory.stack import Stack
from theory.stack.initializations import NORMAL, Law
from theory.stack.plan import ROLES, plan
from theory.stack.weights import gain, law, rows_met, weight_shapes

Coordinates = Float[Tensor, "draws rows columns"]

# Relative to the mean eigenvalue of a Gram matrix of coordinates in float64: what rounding does to its factor.
_RIDGE, _LEAST = 1e-13, 1e-15
# Numbers of hidden units that a CPU works on at once: they fit into its second cache.
_PART = 2**17


def columns(stack: Stack) -> list[int]:
    """Return the number of coordinates for each token that the Gram engine uses, by sub-layer and at the output."""
    met, counts = rows_met(stack), []
    for step in plan(stack):
        roles = [role for kind in step.kinds for role in ROLES[kind] if role in met]
        counts.append(2 * stack.rows + 1 + sum(met[role] * sum(_sides(stack, role)) for role in roles))
    return [*counts, 2 * stack.rows + 1]


def drawn_rows(stack: Stack) -> list[tuple[int, int]]:
    """Return the sizes of all arrays that the Gram engine samples number by number, such as hidden units and logits.

    A size is a number of rows and a width.
    """
    shapes, met = weight_shapes(stack), rows_met(stack)
    each = [(met[role], shapes[role][1]) for role in shapes if _sides(stack, role) == (True, False)]
    return [*each * stack.depth, (stack.rows, stack.vocab)]


def without_gram(stack: Stack) -> str:
    """Return an error text with a network field that the Gram engine does not support; "" if it supports all."""
    most = max(columns(stack))
    means = stack.attention_dropout == 0.0 and not stack.query_key_scale and stack.mask == "none"
    split = stack.output_projection == "identity" and (not means or stack.key_heads != stack.heads)
    missing = {
        "initialization and truncation with normal entries": law(stack) != NORMAL,
        "dropout 0": stack.dropout > 0.0,
        "normalization 'layer' or 'rms'": stack.normalization == "tanh",
        "embeddings 'untied'": stack.embeddings != "untied",
        "positions 'none'": stack.positions != "none",
        "source_tokens 0": stack.source_tokens > 0,
        "experts 0": stack.experts > 0,
        "output_transform 'none'": stack.output_transform != "none",
        "a placement with one stream": stack.composition.second_stream,
        "output_projection 'random' for attention other than the mean": split and stack.branches != "feed_forward",
        f"width above {most} for {stack.rows} rows": stack.width <= most,
    }
    return next((f"engine 'gram' requires {name}." for name, is_missing in missing.items() if is_missing), "")


def _sides(stack: Stack, role: str) -> tuple[bool, bool]:
    # Whether a matrix multiplies rows of the stream, and whether its products are added to the stream.
    reads = role not in ("WO", "W2")
    return reads, not reads or (role == "WV" and stack.output_projection == "identity")


class _Normalized(torch.autograd.Function):
    """The norm of rows given by coordinates: LayerNorm or RMSNorm, without its gain."""

    @staticmethod
    def forward(ctx: Any, x: Coordinates, stack: Stack) -> Coordinates:
        ctx.means, ctx.width = int(stack.normalization == "layer"), stack.width
        rows = x.clone()
        rows[..., : ctx.means] = 0.0
        energies = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_().div_(ctx.width)
        ctx.scale = energies.add_(stack.norm_epsilon).rsqrt_()
        ctx.save_for_backward(rows.mul_(ctx.scale))
        return rows

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Coordinates) -> tuple[Coordinates, None]:
        (rows,) = ctx.saved_tensors
        radial = torch.linalg.vecdot(gradient, rows)[..., None] / -ctx.width
        below = torch.addcmul(gradient, rows, radial).mul_(ctx.scale)
        below[..., : ctx.means] = 0.0
        return below, None


class Frame:
    """A set of orthonormal vectors in the space of the residual stream, in which tokens have a few coordinates.

    The normalized vector of ones is the first.

    Args:
        engine: the source of coordinates.
        used: number of vectors that the rows have used.
        columns: largest number of vectors that the rows will use.
    """

    def __init__(self, engine: "GramEngine", used: int, columns: int) -> None:
        self._engine, self.used, self._columns = engine, used, columns

    def normal(self, rows: int, std: float = 1.0) -> Coordinates:
        """Sample rows of independent normal numbers, given by coordinates along the frame's vectors and new ones.

        A row has d numbers from N(0, std²), along all used and as many new vectors.
        """
        streams, degrees = self._engine.streams, self._engine.width - self.used
        self.used += rows
        numbers = torch.zeros(streams.draws, rows, self._columns, dtype=torch.float64, device=streams.device)
        numbers[..., : self.used] = self._engine.normals(rows, self.used, std, keep=False)
        new = numbers[..., self.used - rows : self.used].tril_(-1)
        torch.mul(streams.chi(degrees, rows), std, out=new.diagonal(dim1=-2, dim2=-1))
        return numbers


class _Rebased(torch.autograd.Function):
    """A change of frame: rows of the stream in the frame that they span with the vector of ones."""

    @staticmethod
    def forward(ctx: Any, total: Coordinates, engine: "GramEngine") -> Coordinates:
        frame, (draws, n, _) = engine.frame, total.shape
        rows = total.new_zeros(draws, n + 1, frame.used)
        rows[:, 0, 0], rows[:, 1:] = 1.0, total[..., : frame.used]
        lower, _ = factor(product(rows, rows.mT), _RIDGE)
        ctx.frame, ctx.along = frame, torch.linalg.solve_triangular(lower, rows, upper=False)
        return torch.nn.functional.pad(lower[:, 1:], (0, engine.next_frame(n + 1) - n - 1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Coordinates) -> tuple[Coordinates, None]:
        frame, along, used = ctx.frame, ctx.along, ctx.frame.used
        kept, numbers = product(gradient[..., : along.shape[1]], along), frame.normal(gradient.shape[1])
        known, met = numbers[..., :used], numbers[..., : frame.used]
        known -= product(product(known, along.mT), along)
        grams = product(gradient, gradient.mT) - product(kept, kept.mT), product(met, met.mT)
        beyond, root = factor(torch.cat(grams), _RIDGE)[0].chunk(2)
        below = product(torch.linalg.solve_triangular(root, beyond, upper=False, left=False), numbers)
        below[..., :used] += kept
        return below, None


normalized: Callable[[Coordinates, Stack], Tensor] = _Normalized.apply
rebased: Callable[[Coordinates, "GramEngine"], Tensor] = _Rebased.apply


class Units:
    """An MLP on tokens that are given by their coordinates; hidden units are sampled in small groups.

    A group has a few random networks. Hidden units of a plain ReLU are not kept for the way back but computed again,
    which costs less than new memory.

    Args:
        engine: the source of random numbers.
        stack: the network.
        record: the record to which the sizes of hidden units are added.
    """

    def __init__(self, engine: "GramEngine", stack: Stack, record: Record) -> None:
        self._engine, self._frame, self._record = engine, engine.frame, record
        shapes = weight_shapes(stack)
        self._std = {
            role: (gain(stack, role) / shapes[role][0]) ** 0.5 for role in ("WG", "W1", "W2") if role in shapes
        }
        self._std_down = self._std.pop("W2")
        self._slots = {role: engine.gradients.open(role) for role in self._std}
        phi = activation_of(stack.activation, stack.leaky_slope)
        self._phi = (lambda gate, up: phi(gate) * up) if stack.ffn == "gated" else phi
        self._relu = stack.activation == "relu" and stack.ffn == "plain"
        self._parts = engine.streams.parts(engine.piece // (stack.rows * stack.ffn_width))
        self._shapes = [(part.stop - part.start, stack.rows, stack.ffn_width) for part in self._parts]
        self._drawn = lambda part, std: engine.streams.normal_part(
            part, stack.rows, stack.ffn_width, std=std, dtype=engine.dtype
        )
        self._normals: list[list[Any]] = []
        self._kept: list[tuple[Tensor, list[GradientEdge]]] = []

    def forward(self, rows: Coordinates) -> Coordinates:
        """Return the coordinates of the MLP's output, for tokens that are given by their coordinates."""
        engine, n = self._engine, rows.shape[1]
        self._rows = rows = rows[..., : self._frame.used]  # the other coordinates are zero
        self._rows_gram = product(rows, rows.mT)
        self._lower, self._extra_sq = factor(self._rows_gram, RIDGE[rows.dtype], _LEAST)
        self._narrow, gram = engine.array(self._lower.to(engine.dtype).contiguous()), torch.empty_like(self._rows_gram)
        self._gram, of_hidden, extremes = gram, engine.array(gram), []
        for k, (part, shape) in enumerate(zip(self._parts, self._shapes, strict=True)):
            self._normals.append([engine.array(self._drawn(part, std)) for std in self._std.values()])
            hidden = self._hidden(k, engine.room(engine.dtype, shape))
            extremes.append([torch.amax(hidden, (1, 2)), torch.amin(hidden, (1, 2))])
            engine.exact_gram(hidden, of_hidden[part])
        norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
        self._record.hidden(shape[2], norms, *(torch.cat(each) for each in zip(*extremes, strict=True)))
        self._hidden_lower, self._hidden_extra_sq = factor(gram, RIDGE[engine.dtype], _LEAST)
        self._known = self._frame.normal(n, self._std_down)
        return product(self._hidden_lower, self._known)

    def _hidden(self, k: int, room: Tensor) -> Tensor:
        # Those of a plain ReLU are in the given memory; autograd keeps others.
        multiply, lower = self._engine.multiply, self._narrow[self._parts[k]]
        if self._relu:
            multiply(lower, self._normals[k][0], out=self._engine.array(room))
            return torch.relu_(room)
        before = [torch.as_tensor(multiply(lower, numbers)) for numbers in self._normals[k]]
        with torch.enable_grad():
            after: Tensor = self._phi(*(1 * values.requires_grad_() for values in before))
        self._kept.append((after, [get_gradient_edge(values) for values in before]))
        return after.detach()

    def pullback(self, gradient: Coordinates) -> tuple[Coordinates, Float[Tensor, " draws"]]:
        """Return the loss gradient at the MLP's input rows, and the squared gradient norm of W2."""
        engine, n = self._engine, gradient.shape[1]
        gradient = gradient[..., : self._frame.used]
        gram = product(gradient, gradient.mT)
        extra = engine.streams.normal(2, n, n, dtype=engine.dtype).double()
        grams = gram.new_empty(len(self._std), *gram.shape)
        known = torch.empty_like(grams, dtype=engine.dtype)
        of_slopes, along = engine.array(grams), engine.array(known)
        for k, slopes in enumerate(self._units_gradients(gradient, gram, extra[:, 0])):
            for role, (numbers, slope) in enumerate(zip(self._normals[k], slopes, strict=True)):
                engine.exact_gram(slope, of_slopes[role, self._parts[k]])
                engine.multiply(engine.array(slope), numbers.swapaxes(1, 2), out=along[role, self._parts[k]])
        for (name, slot), of_role in zip(self._slots.items(), grams, strict=True):
            engine.gradients.put(name, slot, inner(of_role, self._rows_gram))
        total = torch.stack([std**2 * of_role for std, of_role in zip(self._std.values(), grams, strict=True)]).sum(0)
        root, _ = factor(total, ROOT_RIDGE)
        fresh = product(root, self._frame.normal(n))
        met = fresh[..., : self._rows.shape[2]]
        overlap = torch.addcmul(product(met, self._rows.mT), self._extra_sq.sqrt(), product(root, extra[:, 1]))
        product(share_of_rows(known.double().sum(0), overlap, self._lower), self._rows, onto=met)
        return fresh, inner(gram, self._gram)

    def _units_gradients(self, gradient: Coordinates, gram: Square, extra: Square) -> Iterator[Sequence[Tensor]]:
        # Yields the gradients before the activation for every part of the draws, in memory that is reused.
        engine, array, std = self._engine, self._engine.array, self._std_down
        root, _ = factor(gram, ROOT_RIDGE)
        eye = identity(gram.shape[1], dtype=gram.dtype, device=gram.device)
        inverse = array(torch.linalg.solve_triangular(self._hidden_lower, eye, upper=False))
        known = array(product(gradient, self._known[..., : gradient.shape[2]].mT))
        extra, narrow = array(self._hidden_extra_sq.sqrt() * std * extra), array(root.to(engine.dtype).contiguous())
        root, share = array(root), array(torch.empty_like(gram, dtype=engine.dtype))
        for k, (part, shape) in enumerate(zip(self._parts, self._shapes, strict=True)):
            room, below, added = engine.room(engine.dtype, (3, *shape))
            units = self._hidden(k, room) if self._relu else self._kept[k][0].detach()
            numbers, hidden = array(self._drawn(part, std)), array(units)
            overlap = root[part] @ (numbers @ hidden.swapaxes(1, 2) + extra[part])
            share[part] = (known[part] - overlap @ inverse[part].swapaxes(1, 2)) @ inverse[part]
            engine.multiply(narrow[part], numbers, out=array(below))
            engine.multiply(share[part], hidden, out=array(added))
            below += added
            if self._relu:
                yield [torch.ops.aten.threshold_backward.grad_input(below, units, 0.0, grad_input=below)]
            else:
                yield torch.autograd.grad(*self._kept[k], below)


class GramEngine(ConditionedEngine):
    """A sampler of random networks that samples coordinates of the tokens and hidden units.

    It is exact in distribution.

    Args:
        streams: the only source of randomness, for all draws of a batch; its device is the engine's.
        dtype: type of hidden units and logits; coordinates are float64.
        stack: the network.

    Raises:
        ValueError: the stack acts on single coordinates of its stream, or is too narrow.
    """

    def __init__(self, streams: RandomStreams, dtype: torch.dtype, stack: Stack) -> None:
        super().__init__(streams, dtype)
        if reason := without_gram(stack):
            raise ValueError(reason)
        self._stack, self.width, self.piece = stack, stack.width, _PART if streams.device.type == "cpu" else sys.maxsize
        # NumPy's calls cost less than those of torch.
        host = streams.device.type == "cpu" and stack.rows >= LEAST_ROWS
        self.multiply: Callable[..., Any] = np.matmul if host else torch.matmul
        self.array: Callable[[Tensor], Any] = Tensor.numpy if host else Tensor.detach
        self._columns = iter(columns(stack))
        self.next_frame(1)

    def next_frame(self, used: int) -> int:
        """Begin the coordinate system of the next sub-layer, and return its number of coordinates."""
        count = next(self._columns)
        self.frame = Frame(self, used, count)
        return count

    def map(self, name: str, d_in: int, d_out: int, std: float, *, law: Law = NORMAL) -> ConditionedMap:
        """Return a new random weight matrix for a role, which multiplies tokens given by coordinates.

        Coordinates are on the sides where the matrix meets the stream.
        """
        draws, sides = self.draws(d_in, d_out, std), _sides(self._stack, name)[::-1]
        coordinates = partial(self.frame.normal, std=std)
        return ConditionedMap(
            self, std, *(coordinates if side else draw for side, draw in zip(sides, draws, strict=True))
        )

    def feed_forward(self, stack: Stack, record: Record, x: Coordinates) -> Coordinates:
        """Return the output of a layer's MLP, and record the MLP's hidden units."""
        return self._through(Units(self, stack, record), "W2", x)

    def exact_gram(self, rows: Float[Tensor, "draws rows width"], out: Any) -> None:
        """Write the Gram matrix X Xᵀ of rows X in float64 into an output array, computed in halves.

        With OpenBLAS's AVX-512 kernels this is twice as fast as one symmetric product, with those of AVX2 0.7 times.
        """
        room, half = self.array(self.room(torch.float64, rows.shape).copy_(rows)), rows.shape[1] // 2
        self.multiply(room[:, :half], room.swapaxes(1, 2), out=out[:, :half])
        self.multiply(room[:, half:], room.swapaxes(1, 2), out=out[:, half:])
