"""The paper's statements and some about it as data: what is claimed, where, in what words, under which assumptions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from theory.stack.documents import parsed
from theory.stack.registry import Table

if TYPE_CHECKING:
    import sympy

Kind = Literal["identity", "bound", "order", "probability", "observation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim: of Xiong et al. (2020), arXiv:2002.04745v2, of later criticism, of this project, or registered.

    Attributes:
        id: short name used in tables and on the command line.
        source: lemma, theorem, section or appendix.
        statement: the claim in plain text.
        latex: the claim as a formula.
        form: the claim for sympy, as text; `expression` parses it.
        setting: where it is claimed.
        assumptions: what it assumes there.
        kind: an identity, a bound with constants, an order, a probability, or an observation on trained-size models.
        tight: in words, where it is attained, or by how much it is not.
        in_words: the claim in one sentence that needs no symbol of the paper; "" where none was written.
        explains: which observation of the paper theory has, with its numbers; "" for none.
        numbers: its numbers by name, which verdicts and figures read.
        measures: what a row's number is, as a noun, by words of the row's part, "" for every other; empty where the
            part says it.
        untested: what of it no verdict is about, as it follows on "T1"; "" where that is nothing, or all of it.

    Raises:
        ValueError: there is no such kind.
    """

    id: str
    source: str
    statement: str
    latex: str
    form: str
    setting: str
    assumptions: tuple[str, ...]
    kind: Kind
    tight: str
    in_words: str = ""
    untested: str = ""
    explains: str = ""
    numbers: Mapping[str, Fraction] = field(default_factory=dict, hash=False)
    measures: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, got {self.kind!r}.")

    def measured_in(self, part: str) -> str:
        """What the number of a row about this part of the claim is, "" where the part says it.

        >>> CLAIMS["L1"].measured_in("all layers"), CLAIMS["H1"].measured_in("largest eigenvalue of the Hessian")
        ("share of a Gaussian vector's squared length that ReLU keeps", '')
        """
        return next((noun for words, noun in self.measures.items() if words in part), "")

    @property
    def expression(self) -> "sympy.Basic":
        """The claim as a sympy relation; E, P, Norm, ReLU and J stand for what they say, undefined functions here.

        >>> CLAIMS["L2a"].expression.rhs
        3*d/2
        """
        import sympy as sp  # as slow to load as the rest of the package

        functions = {name: sp.Function(name) for name in ("E", "P", "Norm", "ReLU", "J", "multiplicity", "curvature")}
        positive = {name: sp.Symbol(name, positive=True) for name in ("d", "s", "C")}
        # As in theory.paper.lemmas: l counts from 0, where the recursion that proves a claim starts.
        layers = {"l": sp.Symbol("l", integer=True, nonnegative=True), "L": sp.Symbol("L", integer=True, positive=True)}
        return sp.sympify(self.form, locals=functions | positive | layers)


def _read() -> dict[str, Claim]:
    content = parsed((Path(__file__).parent / "claims.toml").read_bytes(), "TOML")
    claims = {}
    for name, fields in content.items():
        numbers = {key: Fraction(value) for key, value in fields.get("numbers", {}).items()}
        claims[name] = Claim(id=name, **(fields | {"assumptions": tuple(fields["assumptions"]), "numbers": numbers}))
    return claims


CLAIMS: Table[Claim] = Table("claim", _read())


def printed_profile(placement: str, depth: int) -> NDArray[np.float64] | None:
    """What appendix F says of ‖∂L/∂W²‖_F in layers 1 to L, over that of the last; None of what it does not speak of.

    >>> printed_profile("post", 3).round(4).tolist(), printed_profile("pre", 2).tolist()
    ([0.6667, 0.8165, 1.0], [1.0, 1.0])
    """
    if placement not in ("post", "pre"):
        return None
    a_layer = float(CLAIMS["F1"].numbers["square"]) if placement == "post" else 1.0
    return a_layer ** (np.arange(depth - 1, -1, -1) / 2)
