"""`python -m studies hessian stack` and `texts`: spectra measured, judged and drawn."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from checks.statistics import agreement_text
from checks.verdict import Verdict
from gradbounds.result import Result
from studies.hessian.beside_theory import beside_theory, predicted_exponents, predictions
from studies.hessian.claims import WHOLE, curvature_exponents, more_curvature
from studies.hessian.spectra import SpectraRequest, run_spectra, spectra_result
from studies.parallel_text import ParallelText
from theory.stack import Stack, title


def models_on_text(request: SpectraRequest, text: ParallelText, out: Path) -> Result:
    """Translation models, and H1 of their Hessians.

    Raises:
        ValueError: as `studies.hessian.spectra.run_spectra`.
    """
    spectra = run_spectra(request, out)
    about = f"{len(text)} pairs of {text.names[0]} and {text.names[1]}, V = {text.vocab}, "
    verdicts = more_curvature(spectra.found, "encoder-decoder", about)
    return _with_verdicts(spectra_result(spectra, extreme=request.extreme), verdicts)


def simplified_stacks(request: SpectraRequest, stacks: Sequence[Stack], out: Path) -> Result:
    """Simplified stacks: the Gauss-Newton matrix beside theory, and H1 at the largest width.

    Returns:
        Tables `summaries`, `spectra`, and `theory`: every number beside its prediction.

    Raises:
        ValueError: as `studies.hessian.spectra.run_spectra`.
    """
    spectra = run_spectra(request, out)
    predicted = predictions(stacks)
    beside = beside_theory(spectra.found, predicted)
    kind = f"simplified stack with n = {stacks[0].tokens} and V = {stacks[0].vocab}"
    about = "".join(f"{name} = {value}, " for name, value in stacks[0].relaxed.items())
    widest = spectra.found[spectra.found["width"] == spectra.found["width"].max()]
    verdicts = more_curvature(widest, kind, about)
    verdicts += more_curvature(widest, kind, about, matrix="gauss-newton", predicted=_ratios(predicted))
    result = spectra_result(spectra, extreme=request.extreme, beside=predicted)
    result = replace(
        result, tables={**result.tables, "theory": beside},
        lines=[*result.lines, *_theory_lines(spectra.found, beside, predicted)],
        differences=[
            f"DIFFERS {row.quantity} of {row.block} at {row.placement}, d = {row.width}, L = {row.depth}"
            for row in beside[beside["agreement"] == "differs"].itertuples()
        ],
    )  # fmt: skip
    return _with_verdicts(result, verdicts)


def _with_verdicts(result: Result, verdicts: list[Verdict]) -> Result:
    """What was found with verdicts, and where theory and measurement differ in one."""
    differs = [f"DIFFERS {v.claim}, {v.part}" for v in verdicts if v.agreement == "differs"]
    return replace(result, verdicts=verdicts, differences=[*result.differences, *differs])


def _ratios(predicted: pd.DataFrame) -> dict[tuple[int, int], float]:
    """Of Post-LN's largest eigenvalue over Pre-LN's, by width and depth, where stacks are wide enough to be judged."""
    rows = predicted[(predicted["quantity"] == "largest") & predicted["judged"]]
    table = rows.pivot_table(index=["width", "depth"], columns="placement", values="predicted")
    if not {"post", "pre"} <= set(table.columns):
        return {}
    ratios = (table["post"] / table["pre"]).dropna()
    return {(int(width), int(depth)): float(value) for (width, depth), value in ratios.items()}


def _theory_lines(table: pd.DataFrame, beside: pd.DataFrame, predicted: pd.DataFrame) -> list[str]:
    """Every number beside its prediction, and exponents in depth and width beside those of theory."""
    lines = [f"{'Gauss-Newton matrix':46} {'theory':>10} {'measured':>10}"]
    for row in beside.itertuples():
        name = f"{title(row.placement)} d = {row.width}, L = {row.depth}, {row.block}, {row.quantity}"
        word = agreement_text(row.agreement)
        lines.append(f"{name:46} {row.predicted:10.4g} {row.measured:10.4g} +- {row.sem:8.2g} {word}")
    for against, letter in (("depth", "L"), ("width", "d")):
        other = "width" if against == "depth" else "depth"
        keys = ["placement", "block", other, "quantity"]
        exponents = curvature_exponents(table[table["matrix"] == "gauss-newton"], against)
        for row in exponents.merge(
            predicted_exponents(predicted, against), on=keys, suffixes=("", "_theory")
        ).itertuples():
            at = getattr(row, other)
            name = f"{title(row.placement)}, {'d' if other == 'width' else 'L'} = {at}, "
            name += ("" if row.block == WHOLE else f"{row.block}, ") + str(row.quantity)
            interval = f"[{row.low:.2f}, {row.high:.2f}]"
            lines.append(f"{name} ~ {letter}^{row.exponent:.2f} {interval}, theory {row.exponent_theory:.2f}")
    return lines
