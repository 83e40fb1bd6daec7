"""Estimate the work and the memory that the sampling of one block of random networks takes."""

from dataclasses import dataclass
from itertools import chain

from simulate.network.gram import columns, drawn_rows
from simulate.runs.cell import Cell
from theory.stack import Stack
from theory.stack.weights import copies, rows_met, weight_shapes


@dataclass(frozen=True, slots=True)
class Work:
    """The counted work of sampling one block: layers, random numbers, flops and elementwise operations.

    Attributes:
        steps: layers, each with a fixed overhead.
        normals: random numbers.
        flops: floating-point operations of matrix products.
        elements: entries of token matrices and logits that elementwise operations touch.
    """

    steps: float
    normals: float
    flops: float
    elements: float

    @property
    def cost(self) -> float:
        """The work of sampling as one number for a progress bar: seconds at typical speeds of a CPU core."""
        return 5e-4 * self.steps + 6e-9 * self.normals + 3e-11 * self.flops + 1e-8 * self.elements


def block_work(cell: Cell) -> Work:
    """Count the operations and random numbers that sampling one block of a configuration takes."""
    s, draws = cell.stack, cell.draws_per_block
    normals, flops = {"dense": _dense, "conditioned": _conditioned, "gram": _gram}[cell.engine](s)
    return Work(
        steps=sum(part.depth for part in s.parts) + 1,
        normals=draws * (normals + sum(part.rows for part in s.parts) * s.width),
        flops=draws * flops,
        elements=draws * (_kept(s, 10) + s.rows * s.vocab),
    )


def _kept(s: Stack, streams: int) -> int:
    # Count the entries of so many streams, and twice the hidden units, in all layers.
    return sum(part.rows * part.depth * (streams * part.width + 2 * _units(part)) for part in s.parts)


def _units(part: Stack) -> int:
    return part.ffn_width * max(1, part.experts) + part.shared_width


def _maps(s: Stack) -> list[tuple[int, int, int]]:
    # Return rows, d_in and d_out of every matrix except the output matrix.
    each = [
        [
            (rows_met(part)[role], a, b)
            for role, (a, b) in weight_shapes(part).items()
            for _ in range(copies(part, role))
        ]
        * part.depth
        for part in s.parts
    ]
    return [*chain(*each), *[(s.rows, s.width, s.width)] * (s.output_transform == "added")]


def _dense(s: Stack) -> tuple[float, float]:
    # Count random numbers and flops of one draw of the dense engine: matrices, products, and ‖W_emb‖₂.
    maps, (smaller, larger) = _maps(s), sorted((s.vocab, s.width))
    products = sum(4 * rows * a * b for rows, a, b in maps) + sum(8 * p.rows**2 * p.width * p.depth for p in s.parts)
    head = 4 * s.rows * s.width * s.vocab + 2 * smaller**2 * larger + 4 * smaller**3
    return sum(a * b for _, a, b in maps) + s.vocab * s.width, products + head


def _conditioned(s: Stack) -> tuple[float, float]:
    # Count random numbers and flops of one draw of the conditioned engine: n rows and seven products per map.
    maps = [*_maps(s), (s.rows, s.width, s.vocab)]
    return sum(rows * (a + b + rows) for rows, a, b in maps), sum(2 * rows**2 * (4 * a + 3 * b) for rows, a, b in maps)


def _gram(s: Stack) -> tuple[float, float]:
    # Count random numbers and flops of one draw of the Gram engine: hidden rows, and seven products with n x n.
    drawn = drawn_rows(s)
    return 2 * sum(rows * width for rows, width in drawn), sum(14 * rows**2 * width for rows, width in drawn)


def _streams(part: Stack) -> int:
    # Count the streams of a layer that are kept for the backward pass, including unusable gaps in memory.
    composition, depth = part.composition, part.depth
    norms = composition.input_norm + composition.stream_norm + composition.output_norm
    scales = composition.residual(depth), composition.input_scale(depth), part.branch_scale or composition.branch(depth)
    scaled = sum(scale != 1.0 for scale in scales) + (4 if part.dropout else 0)
    # Two sub-layers before and after each norm, but that attention is given a mean; and the sums.
    count = max(3, 2 + 2 * norms) + scaled + 3 * composition.second_stream
    means = all(rows == part.sequences for role, rows in rows_met(part).items() if role == "WV")
    count += 0 if part.depth_mixing == "none" else 2  # the outputs of both branches
    return count + (0 if means else 1) + (2 if part.query_key_scale else 0) + (3 if part.source_tokens else 0)


def _copies_of_units(part: Stack) -> int:
    # Return how often hidden units are kept: before and after the activation, and times their gate.
    of_plain = 1 if part.activation == "relu" else 2
    return 4 if part.ffn == "gated" else of_plain


def block_bytes(cell: Cell) -> float:
    """Estimate the largest memory, in bytes, that sampling one block of a configuration takes.

    It is the memory that is kept for the backward pass, plus the largest transient memory. The estimate is 1.1 to 1.6
    times the measured peak of the conditioned engine in 20 networks of 200 layers. Each differs from the paper's
    setting in one or two fields (`python -m bench memory`).
    """
    s, size = cell.stack, 4 if cell.dtype == "float32" else 8
    maps = _maps(s)
    if cell.engine == "gram":
        copies_of_units = _copies_of_units(s)
        # A plain ReLU keeps the random numbers only.
        kept = 1 if copies_of_units == 1 and not s.query_key_scale and s.mask == "none" else 2 + copies_of_units
        hidden = kept * sum(rows * width for rows, width in drawn_rows(s))
        transient = 6 * s.rows * max(s.ffn_width, s.vocab)
        return float(cell.draws_per_block * (size * (hidden + transient) + 64 * s.rows * sum(columns(s))))
    kept = sum(p.rows * p.depth * (_streams(p) * p.width + _copies_of_units(p) * _units(p)) for p in s.parts)
    # Of every expert its output, that times its weight, and what is kept of the sum.
    kept += sum(3 * p.rows * p.depth * p.experts * p.width for p in s.parts)
    kept += sum(3 * p.depth * p.heads * p.rows * p.tokens for p in s.parts if p.query_key_scale)
    if cell.engine == "dense":
        transient = sum(a * b for _, a, b in maps) + s.vocab * s.width + 2 * min(s.vocab, s.width) ** 2
    else:
        # Of every map its random numbers, and two Gram matrices in float64.
        transient = sum(rows * b + 4 * rows**2 for rows, _, b in [*maps, (s.rows, s.width, s.vocab)])
        transient += 4 * s.rows * max(s.width, s.ffn_width, s.shared_width, s.vocab)
    return float(cell.draws_per_block * size * (kept + transient + 4 * s.rows * s.vocab))
