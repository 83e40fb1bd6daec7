"""The claims of papers as data, with one file for each source: each claim's statement, place and networks."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from theory.stack.documents import content_of, parsed
from theory.stack.registry import Table, nearest

Kind = Literal[
    "identity", "bound", "order", "probability", "observation", "value", "exponent", "growth", "ratio", "comparison"
]

MOST_BYTES, MOST_CLAIMS, MOST_NETWORKS, MOST_DRAWS = 2**20, 200, 32, 4096
"""The largest file of claims in bytes, number of claims in it, number of networks of a claim, and number of samples."""

_SOURCES = Path(__file__).parent / "sources"
_OWN = "xiong_2020"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of the paper (Xiong et al., 2020), of later criticism, of this project, or of a user's file.

    The paper is arXiv:2002.04745v2.

    Attributes:
        id: short name used in tables and on the command line.
        source: lemma, theorem, section or appendix.
        statement: the claim in plain text.
        latex: the claim as a formula.
        form: the claim as text that sympy reads; E, P, Norm, ReLU and J are undefined functions.
        setting: the networks that the claim is about.
        assumptions: its assumptions about these networks.
        kind: an identity, a bound with constants, an order, a probability, or an observation on trained-size models.
            With a quantity: a value, an exponent, a growth per layer or per step of `against`, a ratio of two
            networks, or a comparison of several, which falls from the first to the last.
        tight: the cases where the claim is attained, or the factor by which it is not, in words.
        in_words: the claim in one sentence without symbols of the paper; "" if none was written.
        explains: the observation of the paper that theory explains, with its numbers; "" for none.
        numbers: its numbers by name, which verdicts and figures read.
        measures: nouns for the number of a row, by words in the row's part; the key "" is for all other rows. Empty if
            the part names the number.
        untested: the part of the claim that no verdict tests, worded to follow "T1"; "" if no part or the whole claim
            is untested.
        paper: title of the source, and its place of publication.
        quantity: the quantity of the claim, as powers of means by their names: {"grad_sq_W2[1]": 0.5} is the norm in
            the first layer; a layer below 0 counts from the last.
        claimed: the claimed number, unless a limit is given.
        at_most: the largest allowed number.
        at_least: the smallest allowed number.
        network: fields of a Stack, the source's own setting.
        against: the field that varies, or "layer".
        at: its values, or tables of fields that vary with it.
        layers: first and last layer of an exponent or a growth over layers; empty for all.
        networks: fields of the networks of a ratio or a comparison, by name.
        variants: other settings by name, as fields that differ from the source's own.
        optimizer: optimizer of the first step with the numbers "gain", "curvature" and "critical_rate".
        draws: smallest number of random networks of each kind.
        seed: random seed of these networks.
        left_out: the step that the derivation leaves out, if the statement fails.
        corrected: the statement that holds instead.
        remark: a further note, such as that the claim is about training, or holds for a norm and not for a layer.
        unjudged: the reason why no verdict is given; "" if there is one.

    Raises:
        ValueError: the kind is not known, or a field has another form.
    """

    id: str
    source: str = ""
    statement: str = ""
    latex: str = ""
    form: str = ""
    setting: str = ""
    assumptions: tuple[str, ...] = ()
    kind: Kind
    tight: str = ""
    in_words: str = ""
    untested: str = ""
    explains: str = ""
    numbers: Mapping[str, Fraction] = field(default_factory=dict, hash=False)
    measures: Mapping[str, str] = field(default_factory=dict, hash=False)
    paper: str = ""
    quantity: Mapping[str, float] = field(default_factory=dict, hash=False)
    claimed: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    network: Mapping[str, Any] = field(default_factory=dict, hash=False)
    against: str = ""
    at: tuple[Any, ...] = field(default=(), hash=False)
    layers: tuple[int, ...] = ()
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    optimizer: str = ""
    draws: int = 64
    seed: int = 0
    left_out: str = ""
    corrected: str = ""
    remark: str = ""
    unjudged: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, got {self.kind!r}.")
        for each in fields(self):
            allowed, valid = _FORMS.get(each.name, ("text of at most 2000 characters on one line", _is_text))
            if not valid(value := getattr(self, each.name)):
                raise ValueError(
                    f"{each.name} of claim {str(self.id)[:40]!r} must be {allowed}, got {str(value)[:80]!r}."
                )
        if not self.quantity and not self.statement:
            raise ValueError(f"statement of claim {self.id!r} must be given.")

    @property
    def interval(self) -> tuple[float, float]:
        """The smallest and the largest value that a claim allows for the number that it is about.

        Raises:
            ValueError: the claim has no number, or both a number and limits.
        """
        ends = self.at_least, self.at_most
        if (self.claimed is None) == (ends == (None, None)):
            raise ValueError(f"claimed, or at_most or at_least in its place, must be given in claim {self.id!r}.")
        if self.claimed is not None:
            return self.claimed, self.claimed
        return -math.inf if self.at_least is None else self.at_least, math.inf if self.at_most is None else self.at_most

    def measured_in(self, part: str) -> str:
        """Return a noun for a number in a claim's table, such as "share of the squared length".

        The noun is for one part of the claim.

        The noun is "" if the part already names the number.

        Args:
            part: the part of the claim.

        >>> CLAIMS["L1"].measured_in("all layers"), CLAIMS["H1"].measured_in("largest eigenvalue of the Hessian")
        ("share of a Gaussian vector's squared length that ReLU keeps", '')
        """
        return next((noun for words, noun in self.measures.items() if words in part), "")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 2000 and value.isprintable()


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e100
    )


def _is_fields(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_text(key) and not isinstance(v, Mapping) for key, v in value.items())


def _are_fields(value: object) -> bool:
    few = isinstance(value, Mapping) and len(value) <= MOST_NETWORKS
    return few and all(_is_text(key) and _is_fields(v) for key, v in value.items())  # type: ignore[attr-defined]


def _whole(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_NUMBER = ("a finite number", lambda value: value is None or _is_number(value))
_TABLES = (f"at most {MOST_NETWORKS} tables of fields by name, as {{ a = {{...}}, b = {{...}} }}", _are_fields)
# The allowed form of each field that is not text: a description, and a check.
_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "id": (
        "a word of at most 40 letters, digits, '_', '.' and '-'",
        lambda value: isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", value)),
    ),
    "assumptions": ("a list of texts", lambda value: isinstance(value, tuple) and all(map(_is_text, value))),
    "numbers": ("a table", lambda value: isinstance(value, Mapping)),
    "measures": ("a table", lambda value: isinstance(value, Mapping)),
    "quantity": (
        "a table of powers by name, such as {\"grad_sq_W2[1]\" = 0.5}",
        lambda value: isinstance(value, Mapping) and len(value) <= 8 and all(map(_is_number, value.values())),
    ),
    "claimed": _NUMBER, "at_most": _NUMBER, "at_least": _NUMBER,
    "network": ("a table of fields of a Stack", _is_fields),
    "at": (
        f"a list of at most {MOST_NETWORKS} numbers or tables",
        lambda value: isinstance(value, tuple)
        and len(value) <= MOST_NETWORKS
        and all(_is_number(v) or _is_fields(v) for v in value),
    ),
    "layers": (
        "a list of the first and the last layer",
        lambda value: isinstance(value, tuple) and len(value) in (0, 2) and all(map(_whole(1, 10**6), value)),
    ),
    "networks": _TABLES, "variants": _TABLES,
    "draws": (f"an integer from 2 to {MOST_DRAWS}", _whole(2, MOST_DRAWS)),
    "seed": ("an integer from 0 to 2^31", _whole(0, 2**31)),
}  # fmt: skip

_FIELDS = {each.name for each in fields(Claim)} - {"id", "paper"}


def claim_of(name: str, content: object, paper: str = "") -> Claim:
    """Convert one table of a claims file into a claim.

    Args:
        name: id of the claim.
        content: the table.
        paper: title of the source.

    Raises:
        ValueError: the content is not a table, or has a field that is unknown or of another form.
    """
    if not isinstance(content, dict):
        raise ValueError(f"claim {name[:40]!r} must be a table, got {str(content)[:80]!r}.")
    if unknown := content.keys() - _FIELDS:
        raise ValueError(f"claim {name[:40]!r} has no field {min(unknown)[:40]!r}.{nearest(unknown, _FIELDS)}")
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    if isinstance(given.get("quantity"), str):
        given["quantity"] = {given["quantity"]: 1.0}
    if isinstance(numbers := given.get("numbers", {}), dict):
        if wrong := [
            value for value in numbers.values() if not re.fullmatch(r"-?[0-9]{1,9}(/[1-9][0-9]{0,8})?", str(value))
        ]:
            raise ValueError(
                f'numbers of claim {name[:40]!r} must be fractions, such as "3/2", got {str(wrong[0])[:40]!r}.'
            )
        given["numbers"] = {key: Fraction(value) for key, value in numbers.items()}
    try:
        return Claim(id=name, paper=paper, **given)
    except TypeError as error:
        raise ValueError(f"claim {name[:40]!r} must have a kind.") from error


def claims_of(content: bytes, name: str) -> dict[str, Claim]:
    """Read all claims from the text of a claims file (TOML), as a dictionary by id.

    The file has `paper`, the title of the source, and a table for each claim.

    Args:
        content: TOML.
        name: name of the file, for errors.

    Raises:
        ValueError: the content is not TOML, has no claim or too many, or a claim is ill-formed.
    """
    try:
        tables = parsed(content, "TOML")
    except ValueError as error:
        raise ValueError(f"claims must be TOML, but {name!r} is not: {error}.") from error
    paper = tables.pop("paper", "")
    if not _is_text(paper) or not 0 < len(tables) <= MOST_CLAIMS:
        raise ValueError(f"claims must be a paper and from 1 to {MOST_CLAIMS} claims, got {len(tables)} in {name!r}.")
    return {key: claim_of(key, table, paper) for key, table in tables.items()}


def read_claims(path: str | Path) -> dict[str, Claim]:
    """Read a user's file of claims, and return the claims by id.

    Raises:
        ValueError: the file cannot be read, is larger than 1 MiB, or has a fault.
    """
    if Path(path).exists() and not Path(path).is_file():  # opening a pipe without a writer would never end
        raise ValueError(f"claims must be a regular file, got {str(path)!r}.")
    return claims_of(content_of(path, "claims", "a readable file of claims", most=MOST_BYTES), str(path))


@cache
def sources() -> dict[str, dict[str, Claim]]:
    """Return the claims of every source except the paper that gradbounds is about, by the source's name."""
    files = sorted(path for path in _SOURCES.glob("*.toml") if path.stem != _OWN)
    return {path.stem: claims_of(path.read_bytes(), path.name) for path in files}


CLAIMS: Table[Claim] = Table("claim", claims_of((_SOURCES / f"{_OWN}.toml").read_bytes(), _OWN))


def printed_profile(placement: str, depth: int) -> NDArray[np.float64] | None:
    """Return the gradient norms of W2 in all layers that the paper's appendix F predicts, relative to the last.

    They are ‖∂L/∂W²‖_F in layers 1 to L; None for placements other than "post" and "pre".

    Args:
        placement: "post" or "pre".
        depth: number of layers L.

    >>> printed_profile("post", 3).round(4).tolist(), printed_profile("pre", 2).tolist()
    ([0.6667, 0.8165, 1.0], [1.0, 1.0])
    """
    if placement not in ("post", "pre"):
        return None
    a_layer = float(CLAIMS["F1"].numbers["square"]) if placement == "post" else 1.0
    return a_layer ** (np.arange(depth - 1, -1, -1) / 2)
