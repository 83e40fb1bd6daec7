"""Which of the paper's placements a list of layers behaves like, where measurements can tell."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from checks.fits import LEAST_POINTS
from checks.models.probe import TOTAL
from checks.models.streams import NORMED_RESPONSE

Kind = Literal["Post-like", "DeepNorm-like", "Keel-like", "Pre-like", "neither", "undecided", "too weak to tell"]

# Energies of a normalized stream are equal but for the norm's epsilon.
_SAME_ENERGY = 1.05
# An exponent in the depth that is 0 for practical purposes.
_FLAT = 0.25
# The spread of an energy between draws, relatively: behind a norm that of its epsilon alone.
_NORMED_SPREAD = 1e-3
# Between the exponents of the branches' energy over the stream's: 0 in Post-LN, -1.5 in DeepNorm, -2 in Keel.
_WEAKER, _WEAKEST = -0.75, -1.75
_PRE = "; Pre-LN, Peri-LN, norms at the ends of branches and parallel branches are all like this"


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Which of the paper's placements a module behaves like, and by what.

    Attributes:
        part: the list of layers.
        kind: the answer.
        evidence: in words.
    """

    part: str
    kind: Kind
    evidence: str


def classes(frame: pd.DataFrame, exponents: pd.DataFrame) -> list[LayerKind]:
    """What each list of layers behaves like.

    By the energies of the stream, the exponent in the depth, and whether the layers' outputs answer to the scale of
    their inputs: behind a norm they do not. A stream whose energy is the same in every layer because its branches are
    weak answers, and has no class.
    """
    widest = frame[frame["width"] == frame["width"].max()]
    deepest = widest[widest["depth"] == frame["depth"].max()]
    judged = []
    for part, rows in deepest[deepest["layer"] > 0].groupby("part", sort=False):
        energies = rows[rows["quantity"] == "hidden_energy"]
        profile = energies.groupby("layer")["value"].mean().to_numpy()
        chosen = exponents[
            (exponents["part"] == part) & (exponents["parameter"] == TOTAL) & (exponents["against"] == "depth")
        ]
        if chosen.empty or not len(profile) or not np.isfinite(profile).all():
            why = f"it takes {LEAST_POINTS} depths that the layers follow, two seeds and finite numbers"
            judged.append(LayerKind(str(part), "undecided", why))
            continue
        judged.append(_class_of(str(part), profile, rows, chosen.iloc[0], _branches(widest[widest["part"] == part])))
    return judged


def _class_of(part: str, profile: np.ndarray, rows: pd.DataFrame, exponent: pd.Series, branches: float) -> LayerKind:
    spread = float(profile.max() / profile.min())
    even = spread <= _SAME_ENERGY
    rising = not even and bool((np.diff(profile) > 0).all())
    normed, how_normed = _normed(rows)
    if even and not normed:
        evidence = f"over the layers the energy of the stream changes by {100 * (spread - 1):.2g}%, and {how_normed}"
        return LayerKind(part, "too weak to tell", evidence)
    how = "is the same in every layer" if even else "rises with every layer" if rising else "neither stays nor rises"
    evidence = (
        f"the energy of the stream {how} ({profile[0]:.3g} to {profile[-1]:.3g}), {how_normed}, and the last layer's "
        f"gradient goes like L^{exponent.exponent:.2f} [{exponent.low:.2f}, {exponent.high:.2f}]"
    )
    if even and branches < _WEAKER:
        weaker = f"; the energy of its branches over the stream's goes like L^{branches:.2f} (DeepNorm -1.5, Keel -2)"
        return LayerKind(part, "DeepNorm-like" if branches > _WEAKEST else "Keel-like", evidence + weaker)
    kind = _kind(even, rising and not normed, float(exponent.low), float(exponent.high))
    return LayerKind(part, kind, evidence + _PRE * (kind == "Pre-like"))


def _branches(rows: pd.DataFrame) -> float:
    """The exponent in the depth of 1/c^2 - 1, with c the part of its input in a layer's output behind a norm."""
    logs = {}
    for depth, of in rows[(rows["layer"] > 1) & (rows["quantity"] == "stream_coefficient")].groupby("depth"):
        kept = of["value"].median()
        if 0 < kept < 1:
            logs[np.log(float(str(depth)))] = np.log(1 / kept**2 - 1)
    return float(np.polyfit(list(logs), list(logs.values()), 1)[0]) if len(logs) >= LEAST_POINTS else float("nan")


def _normed(rows: pd.DataFrame) -> tuple[bool, str]:
    """Whether layers end in a norm, with the number that says so."""
    responses = rows[(rows["quantity"] == "scale_response") & (rows["layer"] > 1)]["value"]
    if len(responses):
        response = float(responses.median())
        words = "does not answer" if abs(response) < NORMED_RESPONSE else f"answers with {response:.2g}"
        return abs(response) < NORMED_RESPONSE, f"a layer's output {words} to the scale of its input"
    energies = rows[rows["quantity"] == "hidden_energy"].groupby("layer")["value"]
    spread = float((energies.std() / energies.mean()).median())
    return spread < _NORMED_SPREAD, f"energies differ by {100 * spread:.2g}% between draws"


def _kind(even: bool, rising: bool, low: float, high: float) -> Kind:
    if even:
        if -_FLAT < low and high < _FLAT:
            return "Post-like"
        return "neither" if low > _FLAT or high < -_FLAT else "undecided"
    if rising:
        if high < 0:
            return "Pre-like"
        return "neither" if low > 0 else "undecided"
    return "neither"
