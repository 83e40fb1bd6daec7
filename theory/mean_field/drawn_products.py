"""Products of tokens drawn at the width that they have, in the place of their means at large width.

A kernel K_ij = x_i·x_j/d has fluctuations of order 1/√d, which means at large width leave out. They matter where a
product is small by itself and enters squared: E K² = (E K)² + Var K. The gradient of queries and keys is made of such
squares, (x_j − x̄)·(y_l − ȳ) of keys in two sentences with nothing in common (docs/encoder_decoder.md).
"""

from dataclasses import dataclass, field

import numpy as np

from theory.mean_field.attention.patterns import wishart_root
from theory.mean_field.kernels import Array, MatrixLayout, cholesky


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLayout(MatrixLayout):
    """Tokens whose residual sums have products drawn at their width; every entry of a batch has its own.

    A branch ends in a Gaussian matrix, so that what it adds has Gaussian coordinates, given the tokens that this matrix
    is given: the products of a sum are drawn in their exact law. What activations and heads add at their own width is
    left out, and so are fluctuations of gradients, together of order L/d.

    Attributes:
        generator: of all products.
    """

    generator: np.random.Generator = field(default_factory=np.random.default_rng)

    def plus(self, kernel: Array, added: Array, coordinates: int, means: Array | None = None) -> Array:
        """Of x with this kernel and y with so many independent Gaussian coordinates: a draw of x + y's.

        In an orthonormal basis that begins with the span of x, y's coordinates there are normal, and the others have
        products in the law of Wishart. Along (1, ..., 1) x has these means, and y has next to nothing.
        """
        if means is not None:
            along_ones = np.outer(means, means)
            return self.plus(kernel - along_ones, added, coordinates) + along_ones
        spanned = min(self.count, coordinates)
        of_added = cholesky(added) / coordinates**0.5
        along = of_added @ self.generator.standard_normal((*added.shape[:-1], spanned))
        across = of_added @ wishart_root(added.shape[:-1], coordinates - spanned, self.generator)
        joint = _root(kernel, spanned) + along
        return np.asarray(joint @ joint.mT + across @ across.mT)


def _root(kernel: Array, rank: int) -> Array:
    """R with R Rᵀ a kernel, and so many columns, at least as many as its rank but for rounding."""
    if rank == kernel.shape[-1] and kernel.any():
        return cholesky(kernel)
    squares, axes = np.linalg.eigh(kernel)
    return np.asarray(axes * np.sqrt(np.maximum(squares, 0.0))[..., None, :])[..., -rank:]
