"""The exponents that a parametrization requires of outputs, updates and attention, in the width or the depth.

With the width n, matrices W of hidden layers (n x n), of the input (n x fixed) and of the output (fixed x n):

- mu-P (Yang and Hu 2021, Yang et al. 2022): every output of a module and what every weight's update makes of it are of
  order 1, at the start and after every step. Of logits, W_0 x is of order n^-1/2 to 1 at the start. What is passed on,
  W_k (x_k - x_0), is of order 1 in the limit; at the widths that one has a part of it still falls like n^-1/2.
- Mean field (Chizat and Bach 2018, Mei et al. 2018): the same with logits of n^-1/2, or 0, at the start.
- Standard: entries of variance 1/fan-in and no multiplier. All is of order 1 at the start, logits too, and the gradient
  by a unit is n^-1/2. With one rate for all weights the first step's updates make of their outputs, by optimizers that
  divide by the gradient's size: n of hidden and output matrices, 1 of the rest. By SGD: n^1/2 of hidden matrices, n of
  the output's, n^-1/2 of what comes before it, and 1 of its bias. By Muon, whose update of W is an orthogonal matrix
  times the root of max(1, rows/columns): 1 of hidden and input matrices; of the output's n^1/2 where it has fewer rows
  than columns, else 1.
- CompleteP (Dey et al. 2025): mu-P in the width, and branches divided by the depth, so that all is of order 1 in that.

Two parts of updates fall like n^-1/2 in a right mu-P, and are all that one sees at widths where they are larger:

- A matrix's update by T vectors x_s makes of one of them its own part, and T - 1 others' through x_s.x_t, of order
  n^1/2 where these are independent. The mean square is that of n -> oo times 1 + T/n by SGD; by a step that is the
  gradient's sign, whose part of one vector of T is (2/pi)^1/2 T^-1/2, times 1 + pi T/(2 n). Its power is
  -1/2 / (1 + 2 n/(pi T)), below -1/4 where n < pi T/2.
- Logits of attention that are q.k/d_k, with values independent of what comes back to them, get a gradient of order
  n^-1/2 at the start, and by SGD so do queries, keys and what stands before them in their branch.
"""

from math import pi
from typing import Literal

from theory.stack.parametrizations import Parametrization

Role = Literal["input", "hidden", "output", "vector", "fixed", "inner"]
"""The role of a weight. Matrices are named by the lengths that grow with the width (both for `hidden`). A `vector`
grows, a `fixed` weight does not. An `inner` weight belongs to a module whose output does not grow."""

Range = tuple[float, float]

HALF = 0.5

_BY_SIZE = ("Adam", "AdamW", "NAdam", "Adamax", "RMSprop", "Adagrad", "Lion")
_FIRST_STEP: dict[str, dict[Role, float]] = {
    "size": {"hidden": 1.0, "output": 1.0, "input": 0.0, "vector": 0.0},
    "SGD": {"hidden": HALF, "output": 1.0, "input": -HALF, "vector": -HALF},
    "Muon": {"hidden": 0.0, "input": 0.0},
}


def role_of(growing: int, lengths: int, *, input_grows: bool, output_grows: bool) -> Role:
    """Return the role of a weight.

    Args:
        growing: number of its lengths that grow with the width.
        lengths: number of its lengths.
        input_grows: whether the input of its module grows with the width.
        output_grows: whether the output of its module grows with the width.

    >>> role_of(2, 2, input_grows=True, output_grows=True), role_of(1, 2, input_grows=True, output_grows=False)
    ('hidden', 'output')
    """
    if not growing:
        return "fixed"
    if growing > 1:
        return "hidden" if output_grows else "inner"
    if lengths > 1:
        return "input" if output_grows else "output" if input_grows else "inner"
    return "vector" if output_grows else "inner"


def start_asked(parametrization: Parametrization, *, grows: bool) -> Range:
    """Return the expected range of a module output's exponent at the start: for growing outputs, or for logits."""
    if grows or parametrization == "sp":
        return 0.0, 0.0
    return (-HALF, -HALF) if parametrization == "mean-field" else (-HALF, 0.0)


def crowded(vectors: int, inputs: float) -> bool:
    """Return whether a sign update changes a vector's output more through the other vectors than through itself.

    Args:
        vectors: number of vectors that the matrix multiplies.
        inputs: length of these vectors.

    >>> crowded(100, 64), crowded(32, 64)
    (True, False)
    """
    return pi * vectors / 2 > inputs


def own_asked(
    parametrization: Parametrization, role: Role, optimizer: str, rate: float, *, crowd: bool = False,
    attention: bool = False,
) -> Range | None:  # fmt: skip
    """Return the expected exponent of the output change by a weight's first update, or None if nothing is expected.

    Args:
        parametrization: the parametrization.
        role: the weight's role.
        optimizer: the name of the optimizer's class.
        rate: exponent of the common learning rate, for the standard parametrization.
        crowd: whether other vectors dominate the change (`crowded`).
        attention: whether the network has attention.
    """
    # Muon's updates are orthogonal matrices: they make of a vector as much, whatever the others are.
    less = HALF if crowd and role in ("hidden", "output") and optimizer != "Muon" else 0.0
    if parametrization != "sp":
        if role in ("inner", "fixed"):
            return -HALF, 0.0
        by_gradient = optimizer not in (*_BY_SIZE, "Muon")
        return (-HALF if attention and by_gradient and role in ("hidden", "vector") else 0.0) - less, 0.0
    if (optimizer, role) == ("Muon", "output"):
        return rate, HALF + rate
    asked = _FIRST_STEP.get("size" if optimizer in _BY_SIZE else optimizer, {}).get(role)
    return None if asked is None else (asked + rate - less, asked + rate)


def passed_asked(parametrization: Parametrization) -> Range | None:
    """Return the expected exponent of passed-on changes, or None; too small changes follow from earlier updates."""
    return None if parametrization == "sp" else (-HALF, 0.0)


def logit_asked(parametrization: Parametrization) -> float:
    """Return the expected exponent of the factor of q·k in the key size d_k."""
    return -HALF if parametrization == "sp" else -1.0
