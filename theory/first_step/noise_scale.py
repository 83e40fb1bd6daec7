"""The gradient noise scale at initialization: the batch of sequences above which a larger batch helps little.

The gradient of a batch of B independent sequences has E‖∇‖² = C + (S − C)/B, with S the mean square of one sequence's
gradient and C the mean product of two's. Both are linear in the gradient's kernel, so that predictions for one and two
sequences give them. The noise scale is (S − C)/C, the trace of the covariance of one sequence's gradient over the
squared norm of its mean.

Source: McCandlish et al. (2018), arXiv:1812.06162, section 2.2, B_simple, there of one example; large-width theory by
this project.
"""

from dataclasses import dataclass, replace

import numpy as np

from theory.coverage import require
from theory.mean_field.kernels import Array
from theory.mean_field.prediction import predict
from theory.stack import Stack, check_stack
from theory.stack.weights import weight_shapes

# Of S: a smaller product of two sequences' gradients is rounding.
_NONE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class NoiseScale:
    """Gradient noise scales, in sequences.

    Attributes:
        stack: the network, of one sequence.
        whole: that of all matrices together.
        matrices: of each, by role: (L,), and of "Wemb" (); infinite where the gradients of two sequences are orthogonal
            in the mean. In the first layer that is every matrix that is given a linear image of independent inputs. W2
            is given units, whose products have the mean kappa(0): 1/(2 pi) for ReLU, and 0 for odd activations.
    """

    stack: Stack
    whole: float
    matrices: dict[str, Array]


def noise_scale(stack: Stack) -> NoiseScale:
    """The gradient noise scale of a stack, in sequences of `stack.tokens` tokens.

    Args:
        stack: the network; how many sequences it has is ignored.

    Raises:
        NoRuleError: attention is random or embeddings are tied, whose predictions are sampled, or `predict` has no
            rule.

    Assumes d → ∞ at fixed L and n; corrections are O(L/d).

    >>> scale = noise_scale(Stack(width=512, depth=6, tokens=8, vocab=16))
    >>> print(f"{scale.whole:.1f} sequences, of the last W2 {scale.matrices['W2'][-1]:.1f}")
    9.3 sequences, of the last W2 5.9
    """
    check_stack(stack)
    require(stack, "noise_scale")
    names = [f"grad_sq_{role}" for role in (*weight_shapes(stack), "Wemb")]
    single, two = (predict(replace(stack, sequences=count)) for count in (1, 2))
    squares = {name.removeprefix("grad_sq_"): (np.asarray(single[name]), np.asarray(two[name])) for name in names}
    whole = [sum(float(pair[k].sum()) for pair in squares.values()) for k in (0, 1)]
    return NoiseScale(
        stack=replace(stack, sequences=1),
        whole=float(_scale(np.asarray(whole[0]), np.asarray(whole[1]))),
        matrices={role: _scale(*pair) for role, pair in squares.items()},
    )


def _scale(single: Array, two: Array) -> Array:
    """(S − C)/C from the squares of one sequence's gradient and of two's, C = 2 · two − single."""
    product = 2.0 * two - single
    scales = np.full(np.shape(single), np.inf)
    return np.divide(single - product, product, out=scales, where=product > _NONE * single)
