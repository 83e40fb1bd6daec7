"""The plan of a network: its sub-layers in the order of the forward pass, for theory and sampling."""

from dataclasses import dataclass, replace
from typing import Literal

from theory.stack.depth_mixing import NONE
from theory.stack.stack import Stack

Kind = Literal["attention", "cross", "units"]
"""The kind of a branch: attention among the tokens, cross-attention to an encoder, or an MLP ("units")."""

ROLES: dict[Kind, tuple[str, ...]] = {
    "attention": ("WQ", "WK", "WV", "WO"),
    "cross": ("XQ", "XK", "XV", "XO"),
    "units": ("WR", "WG", "W1", "W2", "SR", "SG", "S1", "S2"),
}
"""The matrices that a kind of branch may have, in the order of the forward pass."""

_ENERGIES: dict[Kind, str] = {"attention": "attention_energy", "cross": "cross_energy", "units": "hidden_energy"}


@dataclass(frozen=True, slots=True)
class Step:
    """One sub-layer: the scaled residual stream plus the scaled outputs of one or several parallel branches.

    It is z = α x + Σ τ N(f(κ N(x))), with a sum over the branches f.

    Attributes:
        layer: number of the layer, l = 1..L.
        stack: the stack whose layers are all like this one; its composition determines the norms.
        kinds: kinds of its branches.
        residual: α; 0 where a matrix mixes the outputs of sub-layers.
        branches: τ of each branch.
        learned: whether τ is a learned scalar of the layer.
        input_scale: κ.
        energy: name of the quantity that is the mean squared activation of z.
        ends_layer: whether the next sub-layer belongs to another layer.
    """

    layer: int
    stack: Stack
    kinds: tuple[Kind, ...]
    residual: float
    branches: tuple[float, ...]
    learned: bool
    input_scale: float
    energy: str
    ends_layer: bool

    @property
    def alone(self) -> tuple["Step", ...]:
        """A tuple of sub-layers with one branch each, made from a sub-layer with parallel branches."""
        both = zip(self.kinds, self.branches, strict=True)
        return tuple(replace(self, kinds=(kind,), branches=(tau,)) for kind, tau in both)

    @property
    def branch(self) -> float:
        """The factor that multiplies the output of a sub-layer's only branch."""
        (tau,) = self.branches
        return tau


def kinds(stack: Stack) -> tuple[Kind, ...]:
    """Return the kinds of branches in a layer, such as attention and MLP, in the order of the forward pass."""
    if stack.branches != "both":
        return ("attention",) if stack.branches == "attention" else ("units",)
    return ("attention", "cross", "units") if stack.source_tokens else ("attention", "units")


def plan(stack: Stack) -> tuple[Step, ...]:
    """Return all sub-layers of a network from the input to the output; an encoder has its own plan.

    >>> [(step.layer, *step.kinds) for step in plan(Stack(depth=2))]
    [(1, 'attention'), (1, 'units'), (2, 'attention'), (2, 'units')]
    """
    each = kinds(stack)
    sums = [each] if stack.layout == "parallel" else [(kind,) for kind in each]
    steps = []
    for layer in range(1, stack.depth + 1):
        like = stack.of_layer(layer)
        composition = like.composition
        alpha, tau, kappa = (
            composition.residual(like.depth) if like.depth_mixing == NONE else 0.0,
            composition.branch(like.depth),
            composition.input_scale(layer),
        )
        for terms in sums:
            factors = tuple(
                tau * (like.feed_forward_factor if kind == "units" else like.attention_factor) for kind in terms
            )
            energy, last = _ENERGIES[terms[-1]], terms is sums[-1]
            steps.append(Step(layer, like, terms, alpha, factors, stack.has_scalars, kappa, energy, last))
    return tuple(steps)
