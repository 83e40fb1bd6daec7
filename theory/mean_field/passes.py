"""The results of the recursion's passes: the forward pass's for the backward pass, the backward's for predictions."""

from dataclasses import dataclass, field
from typing import Generic

from theory.mean_field.attention.cross import Memory
from theory.mean_field.kernels import Kernel, Number
from theory.mean_field.outputs import OutputPullback
from theory.mean_field.sublayers import Pullback, SquaredNorms, SublayerState, TokenMoments


@dataclass(frozen=True, slots=True, eq=False)
class Forward(Generic[Kernel]):
    """The way up.

    Attributes:
        layers: quantities of every layer, by name.
        pullbacks: of the norm of the inputs, every sub-layer and what is read out, from below.
        insides: kernels in every sub-layer, from below, by its branches; none with two streams.
        total: the last residual sum.
        total_scales: what the norms above it divide a kernel by; 1 if there is none.
        hidden: kernel of the last feed-forward units.
        stream: after the last sub-layer.
        output: kernel of the tokens that the output matrix is given.
        transform: from the gradient kernel there to that at the layers' output, which a transform may stand above.
        output_scales: what the final norm of the layers divides a kernel by; 1 if there is none.
        encoded: the encoder's way up, and the memory it leaves; None without an encoder.
    """

    layers: dict[str, list[Number]]
    pullbacks: list[Pullback[Kernel]]
    insides: list[tuple[SublayerState[Kernel], ...]]
    total: TokenMoments[Kernel]
    total_scales: Number
    hidden: Kernel
    stream: TokenMoments[Kernel]
    output: Kernel
    transform: OutputPullback[Kernel]
    output_scales: Number
    encoded: tuple["Forward[Kernel]", Memory[Kernel]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Backward(Generic[Kernel]):
    """The way down.

    Attributes:
        loss: E of the cross-entropy.
        output: gradient kernel at the layers' output.
        total: gradient kernel at the last residual sum.
        inputs: gradient kernel at x_0.
        embedding: E‖∂L/∂W_emb‖²/d.
        energies: E‖∂L/∂W‖²/d of the matrices of every sub-layer, from above.
        transform: the same of the matrix before the output matrix, if there is one.
        loss_variance: of the loss, within a sequence and between two, where sequences are told apart; else None.
    """

    loss: Number
    output: Kernel
    total: Kernel
    inputs: Kernel
    embedding: Number
    energies: list[SquaredNorms]
    transform: SquaredNorms = field(default_factory=dict)
    loss_variance: Number | None = None
