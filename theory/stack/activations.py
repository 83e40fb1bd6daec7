"""Activations by name: those that are built in, and what defines one that a user registers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from theory.stack.registry import Table

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "leaky_relu", "relu_squared", "identity"]

LEAK = 0.01
"""Slope of leaky ReLU left of 0 unless another is given, as in torch."""
Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Moment = Callable[[float, float, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredActivation:
    """An activation that is not built in, with everything that theory and sampling need.

    Attributes:
        function: φ of arrays of any shape, entrywise.
        derivative: φ′ likewise.
        torch: φ of tensors, which autograd differentiates, or its dotted path; None if there are only predictions.
        moment: E[φ(u) φ(v)] as a function of Var u, Var v and Cov(u, v); None for quadrature.
        slope_moment: E[φ′(u) φ′(v)] likewise.
    """

    function: Function
    derivative: Function
    torch: Callable[[Any], Any] | str | None = None
    moment: Moment | None = None
    slope_moment: Moment | None = None


ACTIVATIONS: Table[RegisteredActivation | None] = Table("activation", dict.fromkeys(get_args(Activation)))
"""By the value of `Stack.activation`; what a built-in one is, theory and the network each know by themselves."""

# Off 0, where a kink may be, and off round numbers, where others have theirs.
CHECKED_AT = np.array([[-3.71, -2.33, -1.13, -0.47, -0.12], [0.17, 0.61, 1.27, 2.09, 3.31]])
"""Where a registered function, its derivative and its form for torch are compared."""
