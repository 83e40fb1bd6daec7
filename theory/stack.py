"""The one description of a random Transformer stack, shared by theory, simulation and tables."""

import math
import operator
from dataclasses import MISSING, dataclass, field, fields
from typing import Literal, get_args

from theory.placements import COMPOSITIONS, Composition

Placement = Literal[*COMPOSITIONS]  # type: ignore[valid-type]
TITLES: dict[str, str] = {name: composition.title for name, composition in COMPOSITIONS.items()}
"""Placements as prose and pictures have them."""

PAPER = ("post", "pre")
"""The placements of Xiong et al. (2020): what the paper claims is about these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A random Transformer stack at initialization: everything about the network, nothing about sampling.

    The defaults are the simplified setting of the paper: one head, W^Q = W^K = 0 (uniform attention),
    W^V, W^1, W^2 of shape (d, d) with N(0, 1/d) entries, ReLU, no biases, inputs N(0, I_d), and an output
    matrix W_emb of shape (V, d) with N(0, σ_e²/d) entries under a softmax cross-entropy averaged over the
    n positions. Engine, device, draws, seed and text belong to sampling, not here.

    A field added later must default to the paper's value: cell keys hold only what differs from a default.

    Source: Xiong et al. (2020), arXiv:2002.04745v2, section 3.3 and Table 1.

    Raises:
        ValueError: a field is outside its range; the message names the field, what is allowed and what came.

    >>> Stack(placement="pre", width=128).non_default()
    {'placement': 'pre', 'width': 128}
    """

    placement: Placement = field(
        default="post",
        metadata={"help": "where LayerNorm stands: after each residual sum (post), before each branch (pre), ..."},
    )
    width: int = field(default=512, metadata={"help": "hidden width d"})
    depth: int = field(default=6, metadata={"help": "number of layers L"})
    tokens: int = field(default=8, metadata={"help": "sequence length n"})
    vocab: int = field(default=512, metadata={"help": "number of output classes V"})
    output_scale: float = field(default=1.0, metadata={"help": "sigma_e; entries of W_emb are N(0, sigma_e^2/d)"})

    def __post_init__(self) -> None:
        allowed = get_args(Placement)
        if self.placement not in allowed:
            raise ValueError(f"placement must be one of {', '.join(map(repr, allowed))}, got {self.placement!r}.")
        # d = 2 is the least width at which LayerNorm has a direction left; V = 2 the least with a choice.
        for name, least in (("width", 2), ("depth", 1), ("tokens", 1), ("vocab", 2)):
            object.__setattr__(self, name, _integer(name, getattr(self, name), least))
        object.__setattr__(self, "output_scale", _positive("output_scale", self.output_scale))

    @property
    def composition(self) -> Composition:
        """How the placement makes a sub-layer of residual, branch and norm."""
        return COMPOSITIONS[self.placement]

    def non_default(self) -> dict[str, str | int | float]:
        """The fields that differ from the defaults, in field order: what makes two stacks different."""
        return {
            f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default or f.default is MISSING
        }


def _integer(name: str, value: object, least: int) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")
    return number


def _positive(name: str, value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}.")
    return number
