"""The verdicts on Theorem 1's bound: whether it holds in samples, and how loose it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from checks.fits import PowerLaw, bootstrap_interval, local_exponents, power_law
from checks.statistics import (
    MARGIN,
    Estimate,
    estimate,
    exceeds,
    scalar_agreement,
    share,
)
from checks.theory_and_samples import cell_fields, prediction_of
from checks.trust import Trust
from checks.verdict import LOOSE, Subject, Verdict, Word, by_key, names, sentence, setting, significant
from simulate import Samples
from theory.paper.theorem1 import allowed_failure, bound_value

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LastLayer:
    """The gradient norms of W^{2,L}, the second feed-forward matrix of the last layer, for several networks.

    Attributes:
        squares: squared norms of all draws, one array per network.
        norm: root mean square over draws.
        predicted: root of the predicted mean square.
        bound: Theorem 1's bound, averaged over draws if ‖W_emb‖₂ is known for each; NaN for networks outside the
            paper's setting.
    """

    squares: list[Array]
    norm: list[Estimate]
    predicted: Array
    bound: Array

    @property
    def measured(self) -> Array:
        """The measured root mean square gradient norms, one for each network, (networks,)."""
        return np.array([float(n.mean) for n in self.norm])

    @property
    def errors(self) -> Array:
        """The standard errors of the measured root mean square gradient norms, (networks,)."""
        return np.array([float(n.sem) for n in self.norm])

    def exponent(self, x: Array, values: Array) -> PowerLaw:
        """Fit the exponent in x of a curve of norms; points are weighted as for the measured norms."""
        return power_law(x, values, self.errors / self.measured * values)

    def bootstrap(self, x: Array) -> tuple[float, float]:
        """Return the 95% interval of the measured exponent in x, by resampling the draws (bootstrap)."""
        return bootstrap_interval(self.exponent(x, self.measured), self.squares)

    def local(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the measured slopes on log-log axes between neighbouring x: positions, slopes and standard errors.

        `x` must be increasing.
        """
        return local_exponents(x, self.measured, self.errors)


def last_layers(cells: Sequence[Samples]) -> LastLayer:
    """Collect the last layer's gradient norms of several networks, with their predictions and Theorem 1's bounds."""
    squares = [s["grad_sq_W2"][:, -1].astype(float) for s in cells]
    return LastLayer(
        squares=squares,
        norm=[estimate(values).root() for values in squares],
        predicted=np.array([np.sqrt(prediction_of(s)["grad_sq_W2"][-1]) for s in cells]),
        bound=np.array(
            [np.mean(bound_value(s.stack, s.get("head_norm")).value) if s.stack.in_paper else np.nan for s in cells]
        ),
    )


def last_layer_table(cells: Sequence[Samples]) -> pd.DataFrame:
    """Return a table with one row for each network: the last layer's gradient norm, its prediction and its bound."""
    last = last_layers(cells)
    return pd.DataFrame([cell_fields(s) for s in cells]).assign(
        draws=[s.draws for s in cells],
        norm=[float(n.mean) for n in last.norm],
        sem=[float(n.sem) for n in last.norm],
        predicted=last.predicted,
        bound=last.bound,
    )


def bound_kept(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge in every sampled network whether Theorem 1's bound holds, with the network's own ‖W_emb‖₂ if known."""
    rows = []
    for placement, group in by_key(cells, lambda s: s.stack.placement):
        with np.errstate(divide="ignore"):  # a gradient that underflowed to 0 is below any bound
            ratios = np.concatenate([bound_value(s.stack, s.get("head_norm")).value / _norms(s) for s in group])
        last = last_layers(group)
        tightest = int((last.bound / last.predicted).argmin())
        bound, predicted, norm = float(last.bound[tightest]), float(last.predicted[tightest]), last.norm[tightest]
        low, high = norm.interval()
        allowed = float(np.average([allowed_failure(s.stack) for s in group], weights=[s.draws for s in group]))
        word = _bound_word(ratios < 1, allowed, bound / float(norm.mean))
        stack = group[tightest].stack
        rows.append(
            Verdict(
                claim="T1",
                subject=Subject(placement=placement, quantity="bound", kind="bound"),
                verdict=word,
                claimed=sentence("at least {}", 1),
                predicted=bound / predicted,
                measured=bound / float(norm.mean),
                interval=(bound / float(high), bound / float(low)),
                agreement=scalar_agreement(float(norm.mean), predicted, float(norm.sem), MARGIN * predicted)
                if not Trust.of(stack).why
                else "beyond",
                setting=setting(group),
                cells=names(group),
                loose=bound / float(norm.mean) if word == "holds, loose" else None,
                note=sentence(
                    "bound over root mean square in the tightest cell (d = {}, L = {}, V = {}, sigma_e = {:.4g}); {} "
                    "of {} draws exceed their bound, of which the theorem lets {}%, and the closest is below it by a "
                    "factor {:.0f}",
                    *(stack.width, stack.depth, stack.vocab, stack.output_scale, int((ratios < 1).sum()), len(ratios)),
                    *(significant(100 * allowed, 2), ratios.min()),
                ),
            )
        )
    return rows


def _norms(samples: Samples) -> Array:
    return np.sqrt(samples["grad_sq_W2"][:, -1].astype(float))


def _bound_word(exceeded: NDArray[np.bool_], allowed: float, loose: float) -> Word:
    """Return the verdict on a bound that the theorem states with a probability, from the draws that exceed it.

    Args:
        exceeded: whether each draw exceeds the bound, (draws,).
        allowed: the share of draws that may exceed it, `theory.paper.theorem1.allowed_failure`.
        loose: bound divided by measured value.
    """
    if exceeds(exceeded, allowed):
        return "fails"
    if share(exceeded)[1][1] > allowed:
        return "undecided"
    return "holds, loose" if loose > LOOSE else "holds"
