"""The forward and backward pass of networks in which each sub-layer reads a weighted sum of all earlier outputs.

With the matrix M of `theory.stack.depth_mixing`, x_{k+1} = Σ_j M_kj y_j. Here y_0 is the embedding and y_k the output
of sub-layer k. Two facts close the recursion, as for a plain residual stream:

1. Forward, E y_i·y_j = 0 for i < j. The last matrix of sub-layer j (W^O, or W^V without it, or W2) has a symmetric
   law and enters no earlier output. Flipping its sign flips y_j alone. So at large width, where x_i·x_j/d is its mean,

       X_{k+1} = Σ_j M_kj² Y_j,    with Y_j the kernel of y_j.

   No product of different outputs is needed, for any two tokens. Only the embedding has means of coordinates.
2. Backward, let h_k be the gradient with respect to x_k through sub-layer k, or through the final norm for k = S + 1.
   The gradient with respect to y_k is Σ_{m ≥ k} M_mk h_{m+1}. Every h ends in the transpose of the first matrix of its
   own sub-layer, which the gradient meets as an independent copy at large width. So products of two h vanish, and

       G_k = Σ_{m ≥ k} M_mk² H_{m+1},    with G_k and H_k the kernels of both gradients.

3. W^Q and W^K also meet the part of h that a norm removes, along x. For sub-layer k, gradient and y_k each enter with
   the factor M_mk. So the second moments of that part have the factor M_mk⁴.

Large width is an assumption of 1 at d < ∞ and of 2 everywhere. Biases are 0 at initialization. Tied embeddings would
correlate h_{S+1} with y_0, and a norm of the stream would rescale earlier outputs: `check_mixing` refuses both.
A branch is followed with α = 0, so that its own rule of `theory.mean_field.sublayers` gives Y_k from x_k, and H_k from
G_k. `stream_gradient_sq` is Σ_i G_k at the last sub-layer of a layer, as for a plain residual stream.

Source: the matrix form is that of Kimi Team (2026), arXiv:2603.15031, section 6.2. The rule is derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Generic

from theory.mean_field.kernels import Kernel
from theory.mean_field.sublayers import (
    Above,
    LastNorm,
    Overlaps,
    Passed,
    PathGradients,
    Pullback,
    SquaredNorms,
    TokenMoments,
    scaled_overlaps,
    summed_overlaps,
)
from theory.stack.depth_mixing import Matrix


@dataclass(slots=True, eq=False)
class MixedStream(Generic[Kernel]):
    """The outputs of all sub-layers so far, in a network where each sub-layer reads a weighted sum of them.

    Attributes:
        matrix: M.
        outputs: y_0 and the output of each sub-layer so far.
    """

    matrix: Matrix
    outputs: list[TokenMoments[Kernel]] = field(default_factory=list)

    def read(self) -> TokenMoments[Kernel]:
        """Return the input of the next sub-layer, the weighted sum of all outputs so far.

        After k sub-layers it is x_{k+1}.
        """
        weights = self.matrix[len(self.outputs) - 1, : len(self.outputs)]
        means = self.outputs[0].means
        kernels = [output.kernel for output in self.outputs]
        return TokenMoments(weighted_sum(kernels, weights**2), None if means is None else means * weights[0])

    def passed(self, passed: Passed[Kernel]) -> Passed[Kernel]:
        """Store the output of a sub-layer, and return the sub-layer's record with the input of the next one."""
        self.outputs.append(TokenMoments(passed.total.kernel))
        stream = self.read()
        return replace(
            passed, stream=stream, total=stream, pullback=self.joined(passed.pullback, len(self.outputs) - 2)
        )

    def joined(self, pullback: Pullback[Kernel], below: int) -> Pullback[Kernel]:
        """Return the backward pass of a sub-layer, which also adds up the gradients from all sub-layers above.

        The result is the gradient at y_below, the last output that the sub-layer reads. The rule also passes down the
        gradients of all sub-layers above, the lowest first, because earlier outputs receive them.
        """

        def joined(gradient: Kernel, above: Above[Kernel]) -> tuple[Kernel, SquaredNorms, Above[Kernel]]:
            paths: PathGradients[Kernel] = above if isinstance(above, PathGradients) else PathGradients()
            along = map(scaled_overlaps, paths.removed, (self.matrix[below + 1 :, below + 1 : below + 2] ** 4).ravel())
            overlaps: Overlaps[Kernel] = reduce(summed_overlaps, along, None)
            entered, energies, removed = pullback(gradient, overlaps)
            assert not isinstance(removed, LastNorm | PathGradients), "there is one stream"
            paths = PathGradients((entered, *paths.gradients), (removed, *paths.removed))
            return weighted_sum(paths.gradients, self.matrix[below:, below] ** 2), energies, paths

        return joined


def weighted_sum(kernels: Sequence[Kernel], weights: Matrix) -> Kernel:
    """Return the weighted sum of several kernels, the matrices of token products."""
    return reduce(add, (kernel * weight for kernel, weight in zip(kernels, weights.tolist(), strict=True)))
