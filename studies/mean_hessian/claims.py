"""The mean over the output matrix of the Hessian below it, judged."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from checks.statistics import estimate
from checks.verdict import Setting, Subject, Verdict, Word, interval_of, sentence, sizes
from studies.mean_hessian.draws import random_line
from studies.mean_hessian.theory import softmax_left
from theory.stack import Stack, title

FAR = 4.0
"""Standard errors from 0 that chance does not make: one false alarm in 16000."""
PRECISE = 0.03
"""Standard error of vᵀHv over the mean of vᵀGv from which on a setting says something."""


def expected_gauss_newton(stack: Stack, seed: int) -> float:
    """E vᵀGv of the line of `gaussian_draw` by the closed form: σ_e²/d times the mean |x'|², times 1 − E Σ p²."""
    path, _ = random_line(stack, seed)
    return float(path.first.square().sum(-1).mean()) * stack.output_scale**2 / stack.width * softmax_left(stack)


def mean_hessian_verdicts(table: pd.DataFrame, traces: Sequence[tuple[Stack, Sequence[float], float]]) -> list[Verdict]:
    """H3: below the output matrix, and of the trace.

    Args:
        table: of settings within the theorem; columns placement, width, and those of
            `studies.mean_hessian.draws.measured`.
        traces: a stack, tr H with each of some output matrices, and what theory has for their mean.

    Returns:
        A row for the settings together, and one for every stack of traces. "fails" where one is farther than `FAR`
        standard errors from theory; "undecided" where one has a standard error above `PRECISE`.
    """
    distances = (table["hessian"] / table["hessian_sem"]).abs()
    far = int((distances > FAR).sum())
    precise = bool((table["hessian_sem"] <= PRECISE).all())
    mean, sem = float(table["hessian"].mean()), float(np.hypot.reduce(table["hessian_sem"])) / len(table)
    word: Word = "fails" if far else "holds" if precise else "undecided"
    placements = ", ".join(title(name) for name in dict.fromkeys(table["placement"]))
    rows = [
        Verdict(
            claim="H3", subject=Subject(quantity="mean of v'Hv below W_emb, over that of v'Gv", kind="ratio"),
            verdict=word, claimed=sentence("{}", 0), predicted=0.0,
            measured=mean, interval=(mean - 1.96 * sem, mean + 1.96 * sem),
            agreement="differs" if far else "agrees" if precise else "undecided",
            setting=Setting(
                networks=f"{len(table)} settings",
                ranges=(("d", int(table["width"].min()), int(table["width"].max())),),
                more=f"{placements}, {int(table['draws'].min())} output matrices each",
            ),
            note=sentence(
                "mean over settings, each one network and one random line v; the farthest is {:.2g} standard errors "
                "from 0, the largest standard error {:.2g}%", distances.max(), 100 * table["hessian_sem"].max(),
            ),
        )
    ]  # fmt: skip
    for stack, values, expected in traces:
        trace = estimate(values)
        off = abs(float(trace.mean) - expected) > FAR * float(trace.sem)
        fine = float(trace.sem) <= PRECISE * expected
        rows.append(
            Verdict(
                claim="H3",
                subject=Subject(placement=stack.placement, quantity="E tr H"),
                verdict="fails" if off else "holds" if fine else "undecided",
                claimed=sentence("{:.4g}", expected),
                predicted=expected,
                measured=float(trace.mean),
                interval=interval_of(trace),
                agreement="differs" if off else "agrees" if fine else "undecided",
                setting=Setting(ranges=sizes(stack), more=f"one network with {len(values)} output matrices"),
                note=sentence("trace of the whole Hessian, a unit vector at a time; theory: d (1 - E sum p^2)"),
            )
        )
    return rows
