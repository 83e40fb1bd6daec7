"""The verdicts on the claims of Appendix F about gradient norms over the layers."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from checks.fits import log_contrast, slope_weights
from checks.statistics import CHANCE, Estimate, scalar_agreement
from checks.theory_and_samples import prediction_of
from checks.verdict import (
    EXPONENT_MARGIN,
    Sentence,
    Subject,
    Verdict,
    Word,
    interval_of,
    names,
    sentence,
    setting,
)
from simulate import Samples
from theory.paper.claims import CLAIMS


def post_profile(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claim F1 on Post-LN: the slope of ln‖∂L/∂W^{2,l}‖ over the layer number l, against ln(3/2)/2."""
    cell = _deepest(cells, "post")
    if cell is None:
        return []
    weights = slope_weights(np.arange(1, cell.stack.depth + 1))
    claimed = -0.5 * math.log(CLAIMS["F1"].numbers["square"])
    note = sentence("least-squares slope of ln(root mean square) over l; the law (2/3)^((L-l)/2) has ln(3/2)/2")
    quantity = "ln of the growth of ||dL/dW2|| per layer"
    subject = Subject(placement="post", quantity=quantity, kind="growth", against="layer")
    return [_slope("F1", subject, cell, weights, claimed, note)]


def pre_profile(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claim F2 on Pre-LN: the exponent of ‖∂L/∂W^{2,l}‖ in the layer number l, over the upper two thirds."""
    cell = _deepest(cells, "pre")
    if cell is None:
        return []
    layers = np.arange(1, cell.stack.depth + 1)
    large = layers > cell.stack.depth // 3
    weights = np.zeros(len(layers))
    weights[large] = slope_weights(np.log(layers[large]))
    words = "over l = {}; the recursion's limit is -1/2, E||dL/dW2||^2 ~ 1/l"
    note = sentence(words, f"{layers[large][0]}..{layers[-1]}")
    subject = Subject(placement="pre", quantity="exponent of ||dL/dW2|| in l", kind="exponent", against="layer")
    return [_slope("F2", subject, cell, weights, float(CLAIMS["F2"].numbers["exponent"]), note)]


def _slope(
    claim: str, subject: Subject, cell: Samples, weights: NDArray[np.float64], claimed: float, note: Sentence
) -> Verdict:
    weights = weights / 2  # of the squared norm, for the norm
    slope = log_contrast(cell["grad_sq_W2"], weights)
    predicted = float(weights @ np.log(prediction_of(cell)["grad_sq_W2"]))
    return Verdict(
        claim=claim,
        subject=subject,
        verdict=_word(slope, predicted, claimed),
        claimed=sentence("{:.4g}", claimed),
        predicted=predicted,
        measured=float(slope.mean),
        interval=interval_of(slope),
        agreement=scalar_agreement(float(slope.mean), predicted, float(slope.sem), EXPONENT_MARGIN),
        setting=setting([cell]),
        cells=names([cell]),
        note=note,
    )


def _word(slope: Estimate, predicted: float, claimed: float) -> Word:
    """Return the verdict on a slope: "fails" if samples exclude the claimed slope, "holds" if theory agrees."""
    if abs(slope.mean - claimed) > max(EXPONENT_MARGIN, CHANCE * float(slope.sem)):
        return "fails"
    return "holds" if abs(predicted - claimed) <= EXPONENT_MARGIN else "undecided"


def _deepest(cells: Sequence[Samples], placement: str) -> Samples | None:
    """Return a placement's deepest network with 6 <= L <= d/40, where large-width theory holds, or None."""
    fitting = [s for s in cells if s.stack.placement == placement and s.stack.depth >= 6 and _wide(s)]
    return max(fitting, key=lambda s: (s.stack.depth, s.stack.width), default=None)


def _wide(samples: Samples) -> bool:
    """Check that a network is wide enough for the slope of its profile over layers: L <= d/40.

    An error of L/d in the first layer changes a slope over L layers by 1/d only, so `Trust` does not matter.
    """
    return samples.stack.depth <= samples.stack.width / 40


def profile_cells(cells: Sequence[Samples]) -> list[Samples]:
    """Select one network of each placement for figures over the layers.

    Wide networks come first, then networks with all assumptions of the paper, then the deepest. Networks on texts come
    last.
    """
    best: dict[str, Samples] = {}
    for s in sorted(
        cells, key=lambda s: (s.cell.text is None, _wide(s), not s.stack.relaxed, s.stack.depth, s.stack.width)
    ):
        best[s.stack.placement] = s
    return [best[placement] for placement in sorted(best)]
