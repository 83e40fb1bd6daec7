"""The chain of inequalities s0 ≤ ... ≤ s6 in Theorem 1's proof: verdicts from samples, and its figure's table."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from checks.series import longest_series
from checks.statistics import exceeds, share
from checks.theory_and_samples import cell_fields
from checks.verdict import Subject, Verdict, Word, by_key, names, sentence, setting
from simulate import Samples
from theory import predict
from theory.paper.proof_chain import STEPS, chain
from theory.paper.theorem1 import OUTPUT_FAILURE

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
