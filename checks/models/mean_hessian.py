"""The mean over the output matrix of the Hessian below it, judged."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from checks.statistics import estimate
from checks.verdict import Verdict, Word, interval_of
from simulate.curvature.output_draws import random_line
from theory.mean_field.mean_hessian import softmax_left
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
            `simulate.curvature.output_draws.measured`.
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
    widths = f"d = {table['width'].min()}..{table['width'].max()}"
    placements = ", ".join(title(name) for name in dict.fromkeys(table["placement"]))
    rows = [
        Verdict(
            claim="H3", part="mean of v'Hv below W_emb, over that of v'Gv", verdict=word, claimed="0", predicted=0.0,
            measured=mean, interval=(mean - 1.96 * sem, mean + 1.96 * sem),
            agreement="differs" if far else "agrees" if precise else "undecided",
            setting=f"{len(table)} settings, {widths}, {placements}, {int(table['draws'].min())} output matrices each",
            note=f"mean over settings, each one network and one random line v; the farthest is {distances.max():.2g} "
            f"standard errors from 0, the largest standard error {100 * table['hessian_sem'].max():.2g}%",
        )
    ]  # fmt: skip
    for stack, values, expected in traces:
        trace = estimate(values)
        off = abs(float(trace.mean) - expected) > FAR * float(trace.sem)
        fine = float(trace.sem) <= PRECISE * expected
        rows.append(
            Verdict(
                claim="H3", part=f"E tr H, {title(stack.placement)}", verdict="fails" if off else "holds" if fine else
                "undecided", claimed=f"{expected:.4g}", predicted=expected, measured=float(trace.mean),
                interval=interval_of(trace), agreement="differs" if off else "agrees" if fine else "undecided",
                setting=f"d = {stack.width}, L = {stack.depth}, n = {stack.tokens}, V = {stack.vocab}, "
                f"one network with {len(values)} output matrices",
                note="trace of the whole Hessian, a unit vector at a time; theory: d (1 - E sum p^2)",
            )
        )  # fmt: skip
    return rows
