"""The results of the forward pass and of the backward pass of the large-width recursion."""

from dataclasses import dataclass, field
from typing import Generic

from theory.mean_field.attention.cross import Memory
from theory.mean_field.kernels import Kernel, Number
from theory.mean_field.outputs import OutputPullback
from theory.mean_field.sublayers import Pullback, SquaredNorms, SublayerState, TokenMoments


@dataclass(frozen=True, slots=True, eq=False)
class Forward(Generic[Kernel]):
    """The result of the forward pass: token products, predicted quantities, and the rules of the backward pass.

    Attributes:
        layers: quantities of every layer, by name.
        pullbacks: backward rules of the inputs' norm, every sub-layer, and the final norm, from below.
        insides: kernels in every sub-layer by branch, from below; empty with two streams.
        total: the last residual sum.
        total_scales: divisors of the norms above it; 1 if there is none.
        hidden: kernel of the last MLP's hidden units.
        stream: residual stream after the last sub-layer.
        output: kernel of the output matrix's input tokens.
        transform: map from the gradient kernel at the output matrix's input to that at the layers' output.
        output_scales: divisors of the layers' final norm; 1 if there is none.
        encoded: the encoder's forward pass, and its output; None without an encoder.
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
    """The result of the backward pass: the expected loss, and the squared gradients.

    Attributes:
        loss: expected cross-entropy in nats.
        output: gradient kernel at the layers' output.
        total: gradient kernel at the last residual sum.
        inputs: gradient kernel at x_0.
        embedding: E‖∂L/∂W_emb‖²/d.
        energies: E‖∂L/∂W‖²/d of the matrices of every sub-layer, from above.
        transform: E‖∂L/∂W‖²/d of the matrix before the output matrix, if there is one.
        loss_variance: variance of the loss, within a sequence and between two, if the layout is `apart`; else None.
    """

    loss: Number
    output: Kernel
    total: Kernel
    inputs: Kernel
    embedding: Number
    energies: list[SquaredNorms]
    transform: SquaredNorms = field(default_factory=dict)
    loss_variance: Number | None = None
