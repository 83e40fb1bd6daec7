"""`gradbounds bound`: its flags."""

from dataclasses import dataclass, field
from typing import Annotated

from gradbounds.flags import Flag, WithJson, given, network
from theory import Stack

Network = network(Stack())


@dataclass(frozen=True, kw_only=True)
class Bound(WithJson):
    """Print Theorem 1's bound for one network, what large-width theory predicts, and their ratio."""

    stack: Annotated[Network, Flag(name="", help="")] = field(default_factory=Network)  # type: ignore[valid-type]
    latex: Annotated[bool, Flag(help="print the bound as LaTeX")] = False

    def run(self) -> int:
        """Exit code.

        Raises:
            ValueError: the network is not the paper's.
        """
        stack = Stack(**given(self.stack))
        if left := list(stack.relaxed):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in left)
            raise ValueError(
                f"stack must be in the paper's setting for Theorem 1, got one with {flags}; gradbounds predict has the "
                "gradients of every network."
            )
        from gradbounds.actions.bound import bound_latex, bound_text

        print(bound_latex(stack) if self.latex else bound_text(stack))
        return 0
