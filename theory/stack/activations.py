"""The names of the built-in activations, and the description of an activation that a user registers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from theory.stack.registry import Table

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "leaky_relu", "relu_squared", "identity"]

LEAK = 0.01
"""The default slope of leaky ReLU for negative inputs, as in torch."""
Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Moment = Callable[[float, float, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredActivation:
    """An activation function φ that a user registers, with its derivative and, if known, its Gaussian moments.

    Attributes:
        function: φ, applied to each entry of a float64 array of any shape.
        derivative: the derivative φ′, applied to each entry of a float64 array of any shape.
        torch: φ as a function of torch tensors, which autograd differentiates, or the dotted path of such a function;
            None if networks with φ can be predicted but not sampled.
        moment: E[φ(u) φ(v)] as a function of Var u, Var v and Cov(u, v); None to compute it by quadrature.
        slope_moment: E[φ′(u) φ′(v)] as a function of Var u, Var v and Cov(u, v); None to compute it by quadrature.
    """

    function: Function
    derivative: Function
    torch: Callable[[Any], Any] | str | None = None
    moment: Moment | None = None
    slope_moment: Moment | None = None


ACTIVATIONS: Table[RegisteredActivation | None] = Table("activation", dict.fromkeys(get_args(Activation)))
"""All activations by the value of `Stack.activation`; a built-in one is None, and theory and sampler each define it."""

# Off 0, where a kink may be, and off round numbers, where others have theirs.
CHECKED_AT = np.array([[-3.71, -2.33, -1.13, -0.47, -0.12], [0.17, 0.61, 1.27, 2.09, 3.31]])
"""The points, (2, 5), at which a registered function, its derivative and its torch version are compared."""
