"""Products of tokens drawn at the width that they have, in the place of their means at large width.

A kernel K_ij = x_i·x_j/d has fluctuations of order 1/√d, which means at large width leave out. They matter where a
product is small by itself and enters squared: E K² = (E K)² + Var K. The gradient of queries and keys is made of such
squares, (x_j − x̄)·(y_l − ȳ) of keys in two sentences with nothing in common (docs/report.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from theory.mean_field.attention.patterns import wishart_root
from theory.mean_field.kernels import Array, MatrixLayout, cholesky


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLayout(MatrixLayout):
    """Tokens whose products are drawn at their width wherever a matrix makes them; every entry of a batch has its own.

    What a Gaussian matrix makes has Gaussian coordinates given what it was given, so that all products on the way up
    have their exact law, with three exceptions: what dropout drops counts as Gaussian, and so does a sum over heads
    without W^O; and where means of coordinates are told apart, what a matrix adds to them is left out. Fluctuations of
    the gradients' kernel are left out too.

    Attributes:
        generator: of all products.
    """

    generator: np.random.Generator = field(kw_only=True)

    def plus(self, kernel: Array, added: Array, coordinates: int, means: Array | None = None) -> Array:
        """Of x with this kernel and y with so many independent Gaussian coordinates: a draw of x + y's.

        In an orthonormal basis that begins with the span of x, y's coordinates there are normal, and the others have
        products in the law of Wishart. Along (1, ..., 1) x has these means, and y has next to nothing.
        """
        if not added.any():
            return kernel + added
        if means is not None:
            along_ones = np.outer(means, means)
            return self.plus(kernel - along_ones, added, coordinates) + along_ones
        spanned = min(self.count, coordinates)
        of_added = cholesky(added) / coordinates**0.5
        along = of_added @ self.generator.standard_normal((*added.shape[:-1], spanned))
        across = of_added @ wishart_root(added.shape[:-1], coordinates - spanned, self.generator)
        joint = _root(kernel, spanned) + along
        return np.asarray(joint @ joint.mT + across @ across.mT)

    def images(self, kernel: Array, coordinates: int, copies: int = 0) -> Array:
        """Of Gaussian rows of this kernel and so many coordinates; of so many independent ones, along an axis (-3)."""
        shape = (*kernel.shape[:-2], copies, *kernel.shape[-2:]) if copies else kernel.shape
        each = np.broadcast_to(kernel[..., None, :, :] if copies else kernel, shape)
        rows = cholesky(each) @ wishart_root(shape[:-1], coordinates, self.generator)
        return np.asarray(rows @ rows.mT / coordinates)

    def features(self, kernel: Array, function: Callable[..., Array], given: Sequence[Array], units: int) -> Array:
        """Of a function of Gaussian rows of the given kernels, with so many coordinates."""
        rows = (cholesky(inputs) @ self.generator.standard_normal((*inputs.shape[:-1], units)) for inputs in given)
        values = function(*rows)
        return np.asarray(values @ values.mT / units)


def _root(kernel: Array, rank: int) -> Array:
    """R with R Rᵀ a kernel, and so many columns, at least as many as its rank but for rounding."""
    if rank == kernel.shape[-1] and kernel.any():
        return cholesky(kernel)
    squares, axes = np.linalg.eigh(kernel)
    return np.asarray(axes * np.sqrt(np.maximum(squares, 0.0))[..., None, :])[..., -rank:]
