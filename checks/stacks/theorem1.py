"""The verdicts on Theorem 1's bound: whether it holds in samples, how loose it is, and the inequalities of its proof.

The proof is the chain s0 ≤ ... ≤ s6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from checks.fits import PowerLaw, bootstrap_interval, local_exponents, power_law
from checks.series import longest_series
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
from theory import predict
from theory.paper.proof_chain import STEPS, chain
from theory.paper.theorem1 import OUTPUT_FAILURE, allowed_failure, bound_value

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


# What a step may fall short of the one before it by rounding in float32.
ROUNDING = 1e-5

RECORDED = {"chain_positions_sq", "chain_jacobian_sq", "loss_through_norm_sq"}


def chain_kept(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge the chain of inequalities s0 ≤ ... ≤ s6 of Theorem 1's proof in every sampled network.

    Some steps hold always, and two may fail with a small probability. The proof lets the two steps fail with
    probability 0.01 per position (E1), plus δ + ε/(0.9 + ε) with unknown δ and ε. The claim therefore holds if the
    share is below 0.01, and fails only if most draws break a step. If ‖W_emb‖₂ is not known for each draw, the last
    step may fail with probability `OUTPUT_FAILURE`.

    Args:
        cells: sampled networks; those that did not record the chain are left out.

    Returns:
        Two verdicts per placement.
    """
    rows = []
    for placement, group in by_key([s for s in cells if RECORDED <= set(s)], lambda s: s.stack.placement):
        steps = np.concatenate([chain(s.stack, s, s.get("head_norm")) for s in group], axis=1)
        short = steps[1:] < steps[:-1] * (1 - ROUNDING)
        for sure, part in ((True, "sure steps"), (False, "steps that may fail")):
            broken = np.asarray(short[[step.sure == sure for step in STEPS]].any(0))
            proportion, interval = share(broken)
            allowed = OUTPUT_FAILURE if sure else 0.01
            rows.append(
                Verdict(
                    claim="T1",
                    subject=Subject(placement=placement, quantity=f"the proof's chain, {part}", kind="share"),
                    verdict=_sure_word(broken) if sure else _probable_word(broken, interval[1], allowed),
                    claimed=sentence("at most {:g}", allowed),
                    predicted=0.0,
                    measured=proportion,
                    interval=interval,
                    agreement="beyond" if broken.any() else "agrees",
                    setting=setting(group),
                    cells=names(group),
                    note=sentence(
                        "share of {} draws in which some such step of s0 <= ... <= s6 is not kept; the product of the "
                        "six factors is bound over norm in every draw",
                        steps.shape[1],
                    ),
                )
            )
    return rows


def _sure_word(broken: NDArray[np.bool_]) -> Word:
    return "fails" if exceeds(broken, OUTPUT_FAILURE) else "undecided" if broken.any() else "holds"


def _probable_word(broken: NDArray[np.bool_], upper: float, allowed: float) -> Word:
    return "holds" if upper <= allowed else "fails" if exceeds(broken, 0.5) else "undecided"


def factor_exponents(cells: Sequence[Samples]) -> list[float]:
    """Return the exponents in d of the six ratios of neighbours in the chain s0 ≤ ... ≤ s6 of Theorem 1's proof.

    Args:
        cells: sampled networks of one placement with different widths that recorded the chain.
    """
    steps = [np.sqrt(np.mean(chain(s.stack, s, s.get("head_norm")) ** 2, axis=1)) for s in cells]
    factors = np.array([s[1:] / s[:-1] for s in steps])
    widths = np.log([s.stack.width for s in cells])
    return [float(stats.linregress(widths, np.log(factor)).slope) for factor in factors.T]


def chain_table(cells: Sequence[Samples]) -> pd.DataFrame:
    """Return a table of the steps s0, ..., s6 of Theorem 1's proof, measured and predicted, at the ends of each series.

    A series contains networks that differ only in width, only in depth or only in the number of tokens.

    Args:
        cells: sampled networks.

    Returns:
        One row per network and step k = 0..6: the network's fields, step, and the root mean squares over draws
        `measured` and `predicted`.

    Raises:
        ValueError: no network recorded the quantities of the chain.
    """
    judged = [s for s in cells if s.cell.text is None and s.stack.in_paper and RECORDED <= set(s)]
    if not judged:
        raise ValueError("cells must have recorded the chain of Theorem 1's proof, which older runs have not.")
    about = pd.DataFrame([cell_fields(s) | {"draws": s.draws, "cell": k} for k, s in enumerate(judged)])
    chosen: list[int] = []
    for against in ("width", "depth", "tokens"):
        try:
            series = longest_series(about, against)
        except ValueError:
            continue
        ends = series.groupby("placement")["cell"].agg(["first", "last"])
        chosen += [int(cell) for cell in ends.to_numpy().ravel()]
    parts = []
    for s in [judged[k] for k in dict.fromkeys(chosen or [0])]:
        steps = np.sqrt(np.mean(chain(s.stack, s, s.get("head_norm")) ** 2, axis=1))
        values = {"step": range(len(steps)), "measured": steps, "predicted": chain(s.stack, predict(s.stack))}
        parts.append(pd.DataFrame(values).assign(**cell_fields(s)))
    return pd.concat(parts, ignore_index=True)
