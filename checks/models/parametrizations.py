"""What a parametrization asks of coordinates, updates and attention, as exponents in the width or the depth.

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
"""Of a weight: matrices by which of their lengths grow with the width (of `hidden` both); vectors that grow; what does
not; and what belongs to a module without a matrix product of its own, whose output does not grow."""

Range = tuple[float, float]

HALF = 0.5

_BY_SIZE = ("Adam", "AdamW", "NAdam", "Adamax", "RMSprop", "Adagrad", "Lion")
_FIRST_STEP: dict[str, dict[Role, float]] = {
    "size": {"hidden": 1.0, "output": 1.0, "input": 0.0, "vector": 0.0},
    "SGD": {"hidden": HALF, "output": 1.0, "input": -HALF, "vector": -HALF},
    "Muon": {"hidden": 0.0, "input": 0.0},
}


def role_of(growing: int, lengths: int, *, input_grows: bool, output_grows: bool) -> Role:
    """What a weight is.

    Args:
        growing: how many of its lengths grow with the width.
        lengths: how many it has.
        input_grows: whether the input of its module does.
        output_grows: whether its output does.

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
    """Exponent of coordinates at the start, as a range: of outputs that grow, or of logits."""
    if grows or parametrization == "sp":
        return 0.0, 0.0
    return (-HALF, -HALF) if parametrization == "mean-field" else (-HALF, 0.0)


def crowded(vectors: int, inputs: float) -> bool:
    """Whether a matrix's update makes of a vector more by the other vectors than by that one, by a sign of gradients.

    Args:
        vectors: that the matrix is given.
        inputs: their length.

    >>> crowded(100, 64), crowded(32, 64)
    (True, False)
    """
    return pi * vectors / 2 > inputs


def own_asked(
    parametrization: Parametrization, role: Role, optimizer: str, rate: float, *, crowd: bool = False,
    attention: bool = False,
) -> Range | None:  # fmt: skip
    """Exponent of what a weight's first update makes of its output; None where nothing is asked.

    Args:
        parametrization: which.
        role: of the weight.
        optimizer: name of its class.
        rate: exponent of the rate that all weights have, in the standard parametrization.
        crowd: whether its vectors are as many that others' part is the larger one (`crowded`).
        attention: whether the network has some.
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
    """Exponent of what is passed on; None where nothing is asked. What is too small follows from updates before it."""
    return None if parametrization == "sp" else (-HALF, 0.0)


def logit_asked(parametrization: Parametrization) -> float:
    """Exponent of q·k's factor in the size of a key."""
    return -HALF if parametrization == "sp" else -1.0
