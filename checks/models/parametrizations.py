"""The exponents in width or depth that a parametrization, such as µP, requires of outputs, updates and logits.

The width is n. Matrices W belong to hidden layers (n x n), to the input (n x fixed) or to the output (fixed x n).

- mu-P (Yang and Hu 2021, Yang et al. 2022): every output of a module and its change by every weight's update are of
order 1, at the start and after every step. Logits W_0 x are of order n^-1/2 to 1 at the start. The passed-on change W_k
(x_k - x_0) is of order 1 in the limit; at practical widths, a part of it still falls like n^-1/2.
- Mean field (Chizat and Bach 2018, Mei et al. 2018): the same as mu-P, with logits of order n^-1/2, or 0, at the start.
- Standard: entries of variance 1/fan-in and no multiplier. All outputs, including logits, are of order 1 at the start,
and the gradient with respect to a unit is of order n^-1/2. With one learning rate for all weights, the first step
changes outputs by these orders. Optimizers that divide by the gradient's size: n for hidden and output matrices, 1 for
other weights. SGD: n^1/2 for hidden matrices, n for the output matrix, n^-1/2 for input matrices, gains and biases, and
1 for the output's bias. Muon, whose update of W is an orthogonal matrix times sqrt(max(1, rows/columns)): 1 for hidden
and input matrices; for the output matrix n^1/2 if it has fewer rows than columns, else 1.
- CompleteP (Dey et al. 2025): mu-P in the width, and branches divided by the depth, so that all outputs and changes are
of order 1 in the depth.

In a correct mu-P, two parts of updates fall like n^-1/2. They dominate at widths where they are larger than the limit:

- A matrix's update from T vectors x_s changes the output for one of them by its own part, and by the parts of the T - 1
others through x_s.x_t, which is of order n^1/2 for independent vectors. With SGD, the mean square is its limit for n ->
oo times 1 + T/n. With a sign update, in which the part of one of T vectors is (2/pi)^1/2 T^-1/2, it is the limit times
1 + pi T/(2 n). The exponent is then -1/2 / (1 + 2 n/(pi T)), below -1/4 for n < pi T/2.
- Attention logits q.k/d_k get a gradient of order n^-1/2 at the start if values are independent of the gradient that
arrives at them. With SGD, queries, keys and the weights before them in their branch then also change by order n^-1/2.
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
    """Return whether a weight is an input, hidden, output, ... weight, from which of its lengths grow with the width.

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


def start_exponents(parametrization: Parametrization, *, grows: bool) -> Range:
    """Return the expected range, (low, high), of the exponent in the width of a module's output before training."""
    if grows or parametrization == "sp":
        return 0.0, 0.0
    return (-HALF, -HALF) if parametrization == "mean-field" else (-HALF, 0.0)


def crowded(vectors: int, inputs: float) -> bool:
    """Return whether a sign update changes a matrix's output for one vector mostly through the batch's other vectors.

    Args:
        vectors: number of vectors that the matrix multiplies.
        inputs: length of these vectors.

    >>> crowded(100, 64), crowded(32, 64)
    (True, False)
    """
    return pi * vectors / 2 > inputs


def own_change_exponents(
    parametrization: Parametrization, role: Role, optimizer: str, rate: float, *, crowd: bool = False,
    attention: bool = False,
) -> Range | None:  # fmt: skip
    """Return the expected range of the exponent with which a weight's first update changes its module's output.

    Args:
        parametrization: the parametrization.
        role: the weight's role.
        optimizer: the name of the optimizer's class.
        rate: exponent of the common learning rate, for the standard parametrization.
        crowd: whether other vectors dominate the change (`crowded`).
        attention: whether the network has attention. The result is None if no exponent is expected.
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


def passed_change_exponents(parametrization: Parametrization) -> Range | None:
    """Return the expected range of the exponent with which a changed input changes a module's output, if any."""
    return None if parametrization == "sp" else (-HALF, 0.0)


def logit_exponent(parametrization: Parametrization) -> float:
    """Return the exponent of the key size d_k in the factor of q·k: -1/2 in the standard parametrization, else -1."""
    return -HALF if parametrization == "sp" else -1.0
