"""The plan of a network: its sub-layers in the order in which a token meets them, read by theory and by the sampler."""

from dataclasses import dataclass, replace
from typing import Literal

from theory.stack.depth_mixing import NONE
from theory.stack.stack import Stack

Kind = Literal["attention", "cross", "units"]
"""What a branch is: attention among the tokens, attention to a source, or feed-forward units."""

ROLES: dict[Kind, tuple[str, ...]] = {
    "attention": ("WQ", "WK", "WV", "WO"),
    "cross": ("XQ", "XK", "XV", "XO"),
    "units": ("WR", "WG", "W1", "W2", "SR", "SG", "S1", "S2"),
}
"""The matrices that a kind of branch may have, in the order in which a token meets them."""

_ENERGIES: dict[Kind, str] = {"attention": "attention_energy", "cross": "cross_energy", "units": "hidden_energy"}


@dataclass(frozen=True, slots=True)
class Step:
    """One sub-layer, z = α x + Σ τ N(f(κ N(x))), of one branch f or of several in parallel.

    Attributes:
        layer: l = 1..L.
        stack: the stack whose layers are all like this one; its composition says which norms there are.
        kinds: of its branches.
        residual: α; 0 where a matrix mixes the outputs of sub-layers.
        branches: τ of each kind.
        learned: whether τ is a scalar of the layer that learns.
        input_scale: κ.
        energy: name of the quantity that z has.
        ends_layer: whether the next sub-layer is of another layer.
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
        """The step with each of its branches alone."""
        both = zip(self.kinds, self.branches, strict=True)
        return tuple(replace(self, kinds=(kind,), branches=(tau,)) for kind, tau in both)

    @property
    def branch(self) -> float:
        """τ of the one branch."""
        (tau,) = self.branches
        return tau


def kinds(stack: Stack) -> tuple[Kind, ...]:
    """The branches of a layer, in the order in which a token meets them."""
    if stack.branches != "both":
        return ("attention",) if stack.branches == "attention" else ("units",)
    return ("attention", "cross", "units") if stack.source_tokens else ("attention", "units")


def _factor(stack: Stack, kind: Kind) -> float:
    """The factor on τ that branches of one kind have."""
    return stack.feed_forward_factor if kind == "units" else stack.attention_factor


def plan(stack: Stack) -> tuple[Step, ...]:
    """Every sub-layer of a stack, from below; its encoder has a plan of its own.

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
            factors = tuple(tau * _factor(like, kind) for kind in terms)
            energy, last = _ENERGIES[terms[-1]], terms is sums[-1]
            steps.append(Step(layer, like, terms, alpha, factors, stack.has_scalars, kappa, energy, last))
    return tuple(steps)
