"""`gradbounds hessian stack`, `module` and `texts`: spectra measured, judged and drawn."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from checks.models.gauss_newton import beside_theory, predicted_exponents, predictions
from checks.models.spectra import LEAST_SEEDS, WHOLE, curvature_exponents, more_curvature
from checks.results import results
from checks.verdict import Verdict
from gradbounds.actions.spectra import SpectraRequest, measured, size, written
from gradbounds.actions.verify import accept_verdicts, check_checkout
from gradbounds.json_output import tell
from gradbounds.result import say_verdicts
from simulate.runs.files import write_whole
from simulate.runs.provenance import session
from simulate.translation.parallel_text import ParallelText
from theory.stack import Stack, title


def models_on_text(request: SpectraRequest, text: ParallelText, out: Path, *, dry_run: bool, accept: bool) -> int:
    """Translation models, and H1 of their Hessians.

    Raises:
        ValueError: as `gradbounds.actions.spectra.measured`, or `accept` outside a checkout.
    """
    if accept:
        _check_accept(request)
    if dry_run:
        print(size(request, f" over {len(text)} pairs"))
        return 0
    spectra = measured(request, out)
    written(request, spectra, out)
    about = f"{len(text)} pairs of {text.names[0]} and {text.names[1]}, V = {text.vocab}, "
    return _judged(more_curvature(spectra.found, "encoder-decoder", about), out, accept=accept)


def simplified_stacks(
    request: SpectraRequest, stacks: Sequence[Stack], out: Path, *, dry_run: bool, accept: bool
) -> int:
    """Simplified stacks: the Gauss-Newton matrix beside theory, and H1 at the largest width.

    Returns:
        1 where theory and measurement differ, else 0.

    Raises:
        ValueError: as `gradbounds.actions.spectra.measured`, or `accept` outside a checkout.
    """
    if accept:
        _check_accept(request)
        if any(not stack.in_paper for stack in stacks):
            raise ValueError(f"accept must be given for the paper's stacks, got {stacks[0].relaxed}.")
    if dry_run:
        print(size(request))
        return 0
    spectra = measured(request, out)
    predicted = predictions(stacks)
    written(request, spectra, out, predicted)
    beside = beside_theory(spectra.found, predicted)
    tell(theory=beside)
    for line in _theory_lines(spectra.found, beside, predicted):
        print(line)
    write_whole(out / "theory.csv", beside.to_csv(index=False).encode())
    kind = f"simplified stack with n = {stacks[0].tokens} and V = {stacks[0].vocab}"
    about = "".join(f"{name} = {value}, " for name, value in stacks[0].relaxed.items())
    widest = spectra.found[spectra.found["width"] == spectra.found["width"].max()]
    verdicts = more_curvature(widest, kind, about)
    verdicts += more_curvature(widest, kind, about, matrix="gauss-newton", predicted=_ratios(predicted))
    differs = bool((beside["agreement"] == "differs").any())
    return _judged(verdicts, out, accept=accept, differs=differs)


def modules(request: SpectraRequest, out: Path, *, dry_run: bool) -> int:
    """Modules of a factory.

    Raises:
        ValueError: as `gradbounds.actions.spectra.measured`.
    """
    if dry_run:
        print(size(request))
        return 0
    written(request, measured(request, out), out)
    return 0


def _check_accept(request: SpectraRequest) -> None:
    """Refuse what gives no verdict to commit.

    Raises:
        ValueError: this is no checkout, one placement is missing, there are too few seeds, or no eigenvalues.
    """
    check_checkout()
    placements = {subject.placement for subject in request.subjects}
    if not {"post", "pre"} <= placements or request.seeds < LEAST_SEEDS or not request.extreme:
        raise ValueError(
            f"accept must be given with placements post and pre, at least {LEAST_SEEDS} seeds and extreme eigenvalues, "
            f"which make a verdict, got {', '.join(sorted(placements))} and {request.seeds} seeds."
        )


def _judged(verdicts: list[Verdict], out: Path, *, accept: bool, differs: bool = False) -> int:
    """Print verdicts, and commit them unless theory and measurement differ; 1 where they do."""
    say_verdicts(verdicts)
    differs = differs or any(v.agreement == "differs" for v in verdicts)
    if accept and differs:
        print("Not accepted: theory and measurement differ.")
    elif accept:
        accept_verdicts(f"{out.resolve().name}.json", results(verdicts, [], session()["command"]))
    return int(differs)


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
        lines.append(f"{name:46} {row.predicted:10.4g} {row.measured:10.4g} +- {row.sem:8.2g} {row.agreement}")
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
