"""The gradient of a batch of sequences at initialization, and its noise scale: the batch above which more helps little.

The gradient of B independent sequences has E‖∇‖² = C + (S − C)/B, with S the mean square of one sequence's gradient and
C the mean product of two's. Both are linear in the gradient's kernel, of which two sequences have blocks of their own,
S, and blocks that they share, C: from one way up, and the same attention patterns. The noise scale is (S − C)/C, the
trace of the covariance of one sequence's gradient over the squared norm of its mean.

Source: McCandlish et al. (2018), arXiv:1812.06162, section 2.2, B_simple, there of one example; large-width theory by
this project.
"""

from dataclasses import dataclass, replace

import numpy as np

from theory.coverage import is_fluctuating, require
from theory.mean_field.cost import chunk
from theory.mean_field.inputs import attention_pattern, gaussian_inputs
from theory.mean_field.kernels import Array, MatrixLayout
from theory.mean_field.recursion import forward_pass, quantities_of
from theory.stack import Stack, check_stack
from theory.stack.weights import weight_shapes

# Of S: a smaller product of two sequences' gradients is rounding.
_NONE = 1e-9
_PATTERNS = 16


@dataclass(frozen=True, slots=True, eq=False)
class NoiseScale:
    """Gradient noise scales, in sequences.

    Attributes:
        stack: the network, of one sequence.
        single: S of each matrix, by role: (L,), and of "Wemb" ().
        product: C, likewise.
        product_sem: standard errors of C, where attention patterns are sampled; else 0.
    """

    stack: Stack
    single: dict[str, Array]
    product: dict[str, Array]
    product_sem: dict[str, Array]

    @property
    def whole(self) -> float:
        """The noise scale of all matrices together."""
        single, product = (sum(float(part.sum()) for part in parts.values()) for parts in (self.single, self.product))
        return float(_scale(np.asarray(single), np.asarray(product)))

    @property
    def matrices(self) -> dict[str, Array]:
        """That of each, by role; infinite where the gradients of two sequences are orthogonal in the mean.

        In the first layer that is every matrix that is given a linear image of independent inputs. W2 is given units,
        whose products have the mean kappa(0): 1/(2 pi) for ReLU, and 0 for odd activations.
        """
        return {role: _scale(self.single[role], self.product[role]) for role in self.single}

    def grad_sq(self, sequences: int) -> dict[str, Array]:
        """E‖∂L/∂W‖² of a batch of so many sequences, by role.

        Raises:
            ValueError: no sequence.
        """
        if sequences < 1:
            raise ValueError(f"sequences must be an integer of at least 1, got {sequences!r}.")
        return {
            role: self.product[role] + (single - self.product[role]) / sequences for role, single in self.single.items()
        }


def noise_scale(stack: Stack, *, patterns: int = _PATTERNS) -> NoiseScale:
    """The gradients of batches of a stack and their noise scale, in sequences of `stack.tokens` tokens.

    Args:
        stack: the network; how many sequences it has is ignored.
        patterns: how many attention patterns are sampled where attention is random, at least 2.

    Raises:
        ValueError: fewer than 2 patterns.
        NoRuleError: embeddings are tied, or `predict` has no rule.

    Assumes d → ∞ at fixed L and n; corrections are O(L/d).

    >>> scale = noise_scale(Stack(width=512, depth=6, tokens=8, vocab=16))
    >>> print(f"{scale.whole:.1f} sequences, of the last W2 {scale.matrices['W2'][-1]:.1f}")
    9.3 sequences, of the last W2 5.9
    """
    check_stack(stack)
    require(stack, "noise_scale")
    if patterns < 2:
        raise ValueError(f"patterns must be an integer of at least 2, got {patterns!r}.")
    two, n = replace(stack, sequences=2), stack.tokens
    tokens, generator = MatrixLayout(two.rows, attention_pattern(two), 2), np.random.default_rng(0)
    within = np.asarray(np.kron(np.eye(2), np.ones((n, n))), dtype=np.float64)
    names = [f"grad_sq_{role}" for role in (*weight_shapes(stack), "Wemb")]
    draws, size = (patterns if is_fluctuating(stack) else 1), chunk(two)
    whole, blocks = list[dict[str, Array]](), list[dict[str, Array]]()
    for start in range(0, draws, size):
        inputs = gaussian_inputs(two).repeated(min(size, draws - start))
        forward = forward_pass(two, tokens, inputs, generator)
        whole.append(quantities_of(two, tokens, inputs, forward, generator))
        blocks.append(quantities_of(two, tokens, inputs, forward, generator, within))
    both, alone = (
        {name: np.concatenate([part[name] for part in parts], axis=-1) for name in names} for parts in (whole, blocks)
    )
    # Two sequences have (S + C)/2.
    single = {name: 2.0 * alone[name] for name in names}
    product = {name: 2.0 * (both[name] - alone[name]) for name in names}
    roles = [name.removeprefix("grad_sq_") for name in names]
    errors = [
        product[name].std(-1, ddof=1) / draws**0.5 if draws > 1 else 0.0 * product[name][..., 0] for name in names
    ]
    return NoiseScale(
        stack=replace(stack, sequences=1),
        single={role: single[name].mean(-1) for role, name in zip(roles, names, strict=True)},
        product={role: product[name].mean(-1) for role, name in zip(roles, names, strict=True)},
        product_sem=dict(zip(roles, errors, strict=True)),
    )


def _scale(single: Array, product: Array) -> Array:
    """(S − C)/C."""
    scales = np.full(np.shape(single), np.inf)
    return np.divide(single - product, product, out=scales, where=product > _NONE * single)
