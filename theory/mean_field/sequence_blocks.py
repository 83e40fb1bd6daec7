"""Block-diagonal matrices over the tokens of several sequences that do not attend to each other.

Weights of S sequences with r rows each are blocks (..., S, r, r). In the whole matrix (..., S r, S r), all entries
between sequences are 0.
"""

import numpy as np

from theory.mean_field.kernels import Array


def numbers(array: Array, sequences: int) -> Array:
    """Split numbers, one per token, by sequence: the shape (..., S r) becomes (..., S, r)."""
    return array.reshape(*array.shape[:-1], sequences, -1)


def rows(array: Array, sequences: int) -> Array:
    """Split the rows of a matrix by sequence: the shape (..., S r, columns) becomes (..., S, r, columns)."""
    return array.reshape(*array.shape[:-2], sequences, array.shape[-2] // sequences, array.shape[-1])


def joined(blocks: Array) -> Array:
    """Join the rows of all sequences: the shape (..., S, r, columns) becomes (..., S r, columns)."""
    return blocks.reshape(*blocks.shape[:-3], -1, blocks.shape[-1])


def within(array: Array, sequences: int, shift: int = 0) -> Array:
    """Return the blocks of a matrix on its diagonal, or on a cyclic diagonal, one for each sequence.

    The blocks of a matrix (..., S r, S c) have the shape (..., S, r, c).

    Args:
        array: the matrix.
        sequences: number of sequences S.
        shift: by how many sequences the columns' sequence follows that of the rows; 0 for the same one.
    """
    if sequences == 1:
        return array[..., None, :, :]
    at, (height, width) = np.arange(sequences), array.shape[-2:]
    blocks = array.reshape(*array.shape[:-2], sequences, height // sequences, sequences, width // sequences)
    return np.moveaxis(blocks[..., at, :, (at + shift) % sequences, :], 0, -3)


def whole(blocks: Array, shift: int = 0) -> Array:
    """Return the matrix with given blocks on its diagonal, or on a cyclic diagonal, and zeros elsewhere.

    Blocks (..., S, r, c) give a matrix (..., S r, S c).

    Args:
        blocks: the blocks, (..., S, r, c).
        shift: by how many sequences the columns' sequence follows that of the rows.
    """
    *batch, sequences, height, width = blocks.shape
    out = np.zeros_like(blocks, shape=(*batch, sequences, height, sequences, width))
    at = np.arange(sequences)
    out[..., at, :, (at + shift) % sequences, :] = np.moveaxis(blocks, -3, 0)
    return out.reshape(*batch, sequences * height, sequences * width)


def before(blocks: Array, matrix: Array) -> Array:
    """Return the product A M of a block-diagonal matrix A and a matrix M over the tokens of all sequences.

    The blocks of A have the shape (..., S, r, r).
    """
    return joined(blocks @ rows(matrix, blocks.shape[-3]))


def after(matrix: Array, blocks: Array) -> Array:
    """Return the product M A of a matrix M over the tokens of all sequences and a block-diagonal matrix A.

    The blocks of A have the shape (..., S, r, r).
    """
    return _beside(_by_columns(matrix, blocks.shape[-3]) @ blocks)


def mean_sandwich(first: Array, middle: Array, other: Array, *, shifts: range | None = None) -> Array:
    """Return A M Bᵀ for block-diagonal matrices A and B and a matrix M, averaged over heads and samples.

    The shape is (batch, S r, S r).

    Args:
        first: blocks A.
        middle: M.
        other: blocks B.
        shifts: cyclic diagonals whose blocks are computed, with zeros elsewhere; None for all. 0 has the blocks of a
            sequence with itself.
    """
    if shifts is not None:
        blocks = (
            first @ within(middle, first.shape[-3], k) @ (np.roll(other, -k, -3) if k else other).mT for k in shifts
        )
        return np.asarray(sum(whole(each.mean((1, 2)), k) for k, each in zip(shifts, blocks, strict=True)))
    left = _by_columns(before(first, middle), first.shape[-3])
    shape = np.broadcast_shapes(left.shape[:4], other.shape[:4])
    # Heads and samples are summed in one product.
    sides = [np.moveaxis(np.broadcast_to(side, (*shape, *side.shape[4:])), 3, 1) for side in (left, other)]
    flat = [side.swapaxes(-2, -3).swapaxes(-3, -4).reshape(*side.shape[:2], side.shape[-2], -1) for side in sides]
    return _beside(flat[0] @ flat[1].mT / (shape[1] * shape[2]))


def _by_columns(matrix: Array, sequences: int) -> Array:
    """Return each sequence's columns, (..., S, rows, c), from (..., rows, S c)."""
    return matrix.reshape(*matrix.shape[:-1], sequences, -1).swapaxes(-2, -3)


def _beside(blocks: Array) -> Array:
    """Return all columns in one axis, (..., rows, S c), from blocks (..., S, rows, c)."""
    matrix = blocks.swapaxes(-2, -3)
    return matrix.reshape(*matrix.shape[:-2], -1)
