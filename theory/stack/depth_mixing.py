"""Depth-mixing matrices: fixed weights with which each sub-layer of a network reads all earlier outputs.

The S sub-layers of a stack have the outputs y_0, the embedding, and y_k = τ N_out(f_k(κ N_in(x_k))), k = 1..S. Without
a norm of the residual stream, all residual schemes with fixed weights are one lower-triangular matrix M:

    x_{k+1} = M_k0 y_0 + M_k1 y_1 + ... + M_kk y_k,    k = 0..S.

Sub-layer k + 1 reads x_{k+1}, and the output matrix, or the final norm below it, reads x_{S+1}. Ones in all entries are
the plain residual stream. Published schemes start from these matrices:

- highway: x_{k+1} = (1 - T) x_k + T y_k with the gate T = sigmoid(-1) of a bias of -1. Gates with random matrices
  depend on the token and are no such matrix. Source: Srivastava et al. (2015), arXiv:1505.00387, section 2.2.
- denseformer: an average over blocks whose weights start as the identity, so all entries are 1.
  Source: Pagliardini et al. (2024), arXiv:2402.02622, section 3, and `_init_weights` of its code.
- attention_residuals: a softmax over outputs with queries of zeros, so row k has k + 1 equal weights.
  Source: Kimi Team (2026), arXiv:2603.15031, section 5.
- hyper_connections: 4 streams start alike, every branch is added to each, and their sum is read out. All entries are 1,
  and 4 in the last row. Source: Zhu et al. (2024), arXiv:2409.19606, initialization, known at second hand.
"""

import json
import math
from collections.abc import Callable
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theory.stack.documents import parsed
from theory.stack.registry import nearest
from theory.stack.streams import first_attention_is_zero

NONE = "none"
_LARGEST = 1e10
_GATE = 1.0 / (1.0 + math.e)
_STREAMS = 4.0

Matrix = NDArray[np.float64]


def _highway(rows: int) -> Matrix:
    ages = np.subtract.outer(np.arange(rows), np.arange(rows))
    return np.tril((1.0 - _GATE) ** np.maximum(ages, 0) * np.where(np.arange(rows) > 0, _GATE, 1.0))


def _hyper_connections(rows: int) -> Matrix:
    matrix = np.tri(rows)
    matrix[-1] *= _STREAMS
    return matrix


SCHEMES: dict[str, Callable[[int], Matrix]] = {
    "highway": _highway,
    "denseformer": np.tri,
    "attention_residuals": lambda rows: np.tri(rows) / np.arange(1, rows + 1)[:, None],
    "hyper_connections": _hyper_connections,
}
"""The matrix of each published scheme at initialization, from the number of its rows S + 1."""


def mixing(about: str) -> Any:
    """Make a network field that accepts the name of a residual scheme or the rows of a depth-mixing matrix.

    The value is kept as text so that tables and files can hold it.
    """

    def check(name: str, value: object) -> str:
        if isinstance(value, str) and value in (NONE, *SCHEMES):
            return value
        try:
            rows = np.array(parsed(value, "JSON") if isinstance(value, str) else value, dtype=float)
        except (TypeError, ValueError, OverflowError):
            rows = np.empty(0)
        square = rows.ndim == 2 and rows.shape[0] == rows.shape[1] > 1 and bool((np.abs(rows) <= _LARGEST).all())
        if not square or np.triu(rows, 1).any() or not (rows.any(axis=0) & rows.any(axis=1)).all():
            known = ", ".join(map(repr, (NONE, *SCHEMES)))
            raise ValueError(
                f"{name} must be one of {known}, or a lower-triangular matrix without a row or column of zeros, as "
                f'a list of rows such as "[[1, 0], [0.5, 0.5]]", got {str(value)[:80]!r}.{nearest(str(value), SCHEMES)}'
            )
        return json.dumps((rows + 0.0).tolist())

    return field(default=NONE, metadata={"help": about, "check": check, "choices": (NONE, *SCHEMES, "NAME")})


@lru_cache(maxsize=64)
def _matrix(value: str, rows: int) -> Matrix:
    return SCHEMES[value](rows) if value in SCHEMES else np.array(json.loads(value))


def _rows(stack: Any) -> int:
    """The number of rows S + 1."""
    return 1 + int(stack.depth) * (2 if stack.branches == "both" and stack.layout == "sequential" else 1)


def has_rows(stack: Any) -> bool:
    """Return whether a depth-mixing matrix was given by its rows instead of a name, so that it fits only one depth."""
    return str(stack.depth_mixing) not in (NONE, *SCHEMES)


def mixing_matrix(stack: Any) -> Matrix | None:
    """Return a network's depth-mixing matrix, or None if its branches are added to one residual stream.

    The matrix is M, (S + 1, S + 1), for S sub-layers.
    """
    return None if stack.depth_mixing == NONE else _matrix(stack.depth_mixing, _rows(stack))


def check_mixing(stack: Any) -> None:
    """Raise an error if a network combines a depth-mixing matrix with a field that has no rule for it.

    Raises:
        ValueError: it does so; the error states the requirement.
    """
    if (matrix := mixing_matrix(stack)) is None:
        return
    composition = stack.composition
    may_be_zero = stack.is_idle or 0.0 in (stack.projection_gain, stack.down_gain) or stack.attention_dropout
    may_be_zero = may_be_zero or first_attention_is_zero(stack)
    refused = {
        "a placement without a norm of the residual stream": composition.stream_norm or composition.second_stream,
        "residual_scale 1, because the matrix has its factors": composition.residual(stack.depth) != 1.0,
        "one placement": stack.lower_share > 0.0,
        "no source_tokens": stack.source_tokens > 0,
        "no experts": stack.experts > 0,
        "embeddings 'untied'": stack.embeddings == "tied",
        f"a matrix of {_rows(stack)} rows, one more than sub-layers": len(matrix) != _rows(stack),
        "a weight of the embedding in every row where a branch may be 0": not matrix[:, 0].all() and may_be_zero,
    }
    for needed, missing in refused.items():
        if missing:
            raise ValueError(
                f"depth_mixing requires {needed}, got {stack.depth_mixing[:80]!r} with {stack.placement!r} at depth "
                f"{stack.depth}."
            )
