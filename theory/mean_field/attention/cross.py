"""Cross-attention with uniform weights to an encoder's output, and the gradient that the encoder receives.

In the forward pass it adds mean squared activation to every token that does not come from the tokens. In the backward
pass the gradient of this addition goes to the encoder. So the norm of the residual sum divides the tokens' own
gradient, without a contribution in return.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from dataclasses import dataclass
from typing import Any, Generic

from theory.mean_field.kernels import Array, Kernel, KernelLayout, Pair
from theory.mean_field.sublayers import Branch, BranchPullback, Overlaps, Recorded, SquaredNorms
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio


@dataclass(slots=True, eq=False)
class Memory(Generic[Kernel]):
    """An encoder's output, and the gradient that it receives from the layers that attend to it.

    Attributes:
        tokens: layout of the encoder's tokens.
        kernel: kernel of the encoder's output.
        attention: attention weights of every token on the encoder's tokens with zero queries and keys, (N, M); None
            for exchangeable tokens.
        gradient: gradient kernel at the encoder's output, summed over the layers in the backward pass so far.
    """

    tokens: KernelLayout[Kernel]
    kernel: Kernel
    attention: Array | None = None
    gradient: Kernel | None = None

    def receive(self, gradient: Kernel) -> None:
        """Add the gradient with respect to the encoder's output that comes from one more layer.

        Cross terms between layers vanish, because the layers' matrices are independent.

        Args:
            gradient: the gradient kernel at the encoder's output.
        """
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def seen(self) -> Kernel:
        """Return the inner products of the vectors that uniform cross-attention passes to two tokens.

        They are A K Aᵀ for uniform attention weights A and the kernel K of the encoder's tokens.
        """
        return self._weighted(self.tokens, self.kernel, None if self.attention is None else self.attention.T)

    def returned(self, tokens: KernelLayout[Kernel], gradient: Kernel) -> Kernel:
        """Return the inner products of the gradients with respect to two of the encoder's tokens.

        They are Aᵀ G A for uniform attention weights A.

        Args:
            tokens: layout of the tokens that attend.
            gradient: G, kernel of the gradients at the attention output.
        """
        return self._weighted(tokens, gradient, self.attention)

    def _weighted(self, tokens: KernelLayout[Any], kernel: Any, weights: Array | None) -> Any:
        """Return Wᵀ K W for an array K; for a pair, the mean entry, because all weights are equal."""
        if weights is not None:
            return weights.T @ kernel @ weights
        value = float(tokens.total(kernel)) / self.tokens.count**2
        return Pair(value, value)


def uniform_cross_attention(stack: Stack, memory: Memory[Kernel]) -> Branch[Kernel]:
    """Return the forward and backward pass of cross-attention with equal weights on all encoder tokens.

    The branch adds the mean encoder token, times W^V W^O, to every token of a sequence.

    Args:
        stack: the network.
        memory: the encoder's output.
    """
    value_gain = gain(stack, "XV")
    projected = stack.output_projection == "random"
    projection_gain = gain(stack, "XO") if projected else 1.0

    def branch(tokens: KernelLayout[Kernel], kernel: Kernel) -> tuple[Kernel, BranchPullback[Kernel], Recorded]:
        mean = memory.seen()
        values = mean * value_gain
        if projected:
            values = tokens.images(values, stack.heads * stack.key_width)

        def pullback(gradient: Kernel, _: Overlaps[Kernel]) -> tuple[Kernel, SquaredNorms]:
            below = gradient * projection_gain
            energies = {"XO": tokens.total(values * gradient) * inner_ratio(stack)} if projected else {}
            energies["XV"] = tokens.total(mean * below)
            memory.receive(memory.returned(tokens, below) * value_gain)
            return kernel * 0.0, energies

        return values * projection_gain, pullback, {}

    return branch
