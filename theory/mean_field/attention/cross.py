"""Attention to the output of an encoder: what the layers are given of it, and what of their gradients returns to it.

Forward it adds energy to every token that does not come from the tokens; backward the gradient of what it added goes
to the encoder, so that the norm of the sum divides the tokens' own gradient and nothing is returned for it.
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
    """The tokens that an encoder hands to every layer.

    Attributes:
        tokens: their layout.
        kernel: of the encoder's output.
        attention: weights of every token on them with zero queries and keys, (N, M); None for exchangeable tokens.
        gradient: kernel of the gradient at the encoder's output, of the layers that were passed back so far.
    """

    tokens: KernelLayout[Kernel]
    kernel: Kernel
    attention: Array | None = None
    gradient: Kernel | None = None

    def receive(self, gradient: Kernel) -> None:
        """Add what one layer returns; products between layers vanish, whose matrices are independent."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def seen(self) -> Kernel:
        """A K Aᵀ, the kernel of what uniform attention gives to the tokens."""
        return self._weighted(self.tokens, self.kernel, None if self.attention is None else self.attention.T)

    def returned(self, tokens: KernelLayout[Kernel], gradient: Kernel) -> Kernel:
        """Aᵀ G A for uniform attention A, with G the kernel of the gradients at the attention output."""
        return self._weighted(tokens, gradient, self.attention)

    def _weighted(self, tokens: KernelLayout[Any], kernel: Any, weights: Array | None) -> Any:
        """Wᵀ K W of an array; of a pair with equal weights."""
        if weights is not None:
            return weights.T @ kernel @ weights
        value = float(tokens.total(kernel)) / self.tokens.count**2
        return Pair(value, value)


def uniform_cross_attention(stack: Stack, memory: Memory[Kernel]) -> Branch[Kernel]:
    """The mean of the memory's tokens, times W^V W^O: every token of a sequence is given the same."""
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
