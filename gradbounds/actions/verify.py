"""The commands `verify` and `check`: verdicts of a run, printed, reported, and held against the committed ones."""

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from checks import Verdict, comparison, verdicts
from checks.experiment import DRAWS, SEED, TEXT, verify_cells
from checks.paper_page import PAGES
from checks.report import agreement_counts, html, shown_only
from checks.results import COMMITTED, changed, committed_results, common, load_results, missing, results
from checks.stacks.gradients_by_layer import layer_table
from checks.stacks.judge import MINIMUM_DRAWS
from checks.stacks.own_claims import without_own
from checks.theory_and_samples import prediction_of
from figures.registry import run_figures
from gradbounds.actions.figures import draw_figures
from gradbounds.actions.runs import judged_samples
from gradbounds.help_text import folded
from gradbounds.json_output import tell
from gradbounds.network_text import network_lines, theory_table, title
from gradbounds.plain_text import console
from gradbounds.progress import progress, working
from gradbounds.result import say_verdicts
from simulate import Run, Samples
from simulate.counts import check_count
from simulate.runs.execution import Execution
from simulate.runs.files import write_whole
from simulate.runs.provenance import manifest
from simulate.runs.sweep import check_sweep, sample_into
from theory import NoRuleError, predict

_COMMAND = "gradbounds verify"
_CHECKS = Path("checks/data")
_NOT_COMMITTED = "None of these verdicts has a committed one to be compared with."
_NETWORKS = 4
"""Networks of which `check` prints a table each; of more it says how to see them."""
_REASONS = 5
"""Reasons why numbers are not judged that `check` prints."""


def verify(
    out: Path, draws: int | None, seed: int | None, text: Path | None, workers: int | None, *, accept: bool
) -> int:
    """Sample the default experiment, judge it, and leave data, figures and a report; 1 if anything changed.

    Raises:
        ValueError: an argument is outside its range, or `accept` outside a checkout.
    """
    if accept:
        check_checkout()
    if accept and (draws, seed, text) != (None, None, None):
        raise ValueError(
            "accept must be given without draws, seed and text: what is committed is the default experiment."
        )
    draws, seed = DRAWS if draws is None else draws, SEED if seed is None else seed
    execution = Execution(workers=_cores() if workers is None else workers)
    check_count("draws", draws, MINIMUM_DRAWS)
    cells = verify_cells(text or TEXT)
    check_sweep(cells, draws=draws, seed=seed, execution=execution)
    run = Run.create(out, manifest("verify", cells, draws=draws, seed=seed), replace=True)
    (out / "report.html").unlink(missing_ok=True)  # it would show what is being replaced
    with progress() as on_block:
        sample_into(cells, draws=draws, seed=seed, run=run, execution=execution, on_block=on_block)
    sampled = run.samples()
    with working("judging"):
        judged, table = verdicts(sampled), comparison(sampled)
    drawn = draw_figures(sampled, out / "figures")
    # What is accepted is judged against theory, not against what it replaces.
    committed = [] if accept else load_results(COMMITTED).verdicts
    _say(judged, table)
    wrong = [*_differences(judged, table), *_changes(judged, committed)]
    wrong += [
        f"MISSING {before.claim}, {before.part}: was {before.verdict!r}, and this run gives no verdict"
        for before in missing(judged, committed)
    ]
    known = run_figures()
    figures = [(known[path.stem], path.read_bytes()) for path in drawn if path.suffix == ".svg"]
    networks = f"{len(cells)} kinds of networks, {draws} networks of each, seed {seed}"
    page = html(
        judged, table, figures, command=_command(draws, seed, text), networks=networks, committed=committed_results()
    )
    write_whole(out / "comparison.csv", table.to_csv(index=False).encode())
    write_whole(out / "report.html", page.encode())
    tell(wrong=wrong)
    for line in wrong:
        print(line)
    print(f"\nReport   {out / 'report.html'}\nFigures  {out / 'figures'}\nData     {out / 'blocks'} (Parquet)")
    if accept and wrong:
        print("Not accepted: theory and samples differ.")
    elif accept:
        accept_verdicts(COMMITTED.name, results(without_own(judged), sampled, _COMMAND))
    return 1 if wrong else 0


def _command(draws: int, seed: int, text: Path | None) -> str:
    """The command that gives the same numbers, without the folders of this machine."""
    flags = {"draws": draws if draws != DRAWS else None, "seed": seed if seed != SEED else None}
    given = [f"--{name} {value}" for name, value in flags.items() if value is not None]
    return " ".join([_COMMAND, *given, *([f"--text {text.name}"] if text else [])])


def check(folder: Path, csv: Path | None, *, strict: bool, accept: bool = False, layers: bool = False) -> int:
    """Print every verdict a run can give and how theory and samples compare; with `layers` every network's table first.

    If `strict`, 1 when a verdict is another than the committed one, or theory and samples differ. If `accept`, commit
    the verdicts on its networks under its name and the command that made it, unless theory and samples differ.

    Raises:
        ValueError: there is no run, or `accept` outside a checkout.
    """
    if accept:
        check_checkout()
    run = Run.open(folder)
    sampled = judged_samples(run)
    with working("judging"):
        judged, table = verdicts(sampled), comparison(sampled)
    name = f"{folder.resolve().name}.json"
    # What is accepted is judged against theory and the other files, not against what it replaces.
    committed = [v for r in committed_results(omit=name if accept else "") for v in r.verdicts]
    if csv is not None:
        write_whole(csv, table.to_csv(index=False).encode())
    for samples in sampled if layers else ():
        known = prediction_of(samples)
        lines = network_lines(samples.stack, layer_table(known, samples), "there is no rule for this network.")
        print("\n".join([*lines, ""]))
    if not layers:
        _show_networks(sampled)
        print("\n" * bool(judged), end="")
    _say(judged, table)
    _say_what_has_no_rule(sampled)
    wrong = [*_differences(judged, table), *_changes(judged, committed)]
    if judged:
        compared = len(common(judged, committed))
        sentence = f"{compared} of these {len(judged)} verdicts were compared with committed ones."
        print(folded(sentence if compared else _NOT_COMMITTED))
    tell(wrong=wrong)
    for line in wrong:
        print(line)
    if accept and _differences(judged, table):
        print("Not accepted: theory and samples differ.")
    elif accept:
        # A run of relaxations has the paper's setting beside them, whose verdicts other files have.
        built_in = without_own(judged)
        about = [v for v in built_in if v.relaxed] or built_in
        kept = [v for v in about if v.cells]
        accept_verdicts(name, results(kept, sampled, run.manifest["sessions"][0]["command"]))
    return 1 if wrong and (strict or accept) else 0


def check_checkout() -> None:
    """Refuse to accept outside a checkout.

    Raises:
        ValueError: there is no checks/data here.
    """
    if not _CHECKS.is_dir():
        raise ValueError("accept must be given in a checkout of gradbounds, but there is no checks/data here.")


def accept_verdicts(name: str, content: str) -> None:
    """Commit a results file, and write the pages of all of them again."""
    write_whole(_CHECKS / name, content.encode())
    committed = committed_results(folder=_CHECKS)
    for page, render in PAGES.items():
        Path(page).parent.mkdir(exist_ok=True)
        write_whole(Path(page), render(committed).encode())
    print(f"Accepted {_CHECKS / name}, {', '.join(PAGES)}")


def _say(judged: Sequence[Verdict], table: pd.DataFrame) -> None:
    """Print verdicts and how many numbers agree with theory."""
    say_verdicts(judged)
    tell(comparison=table)
    print("\n" + folded(f"Theory against samples, every layer: {agreement_counts(table)}."))
    reasons = shown_only(table)
    if not table["agreement"].isin(["agrees", "undecided", "differs"]).any():
        print(folded("Nothing is judged; docs/verdicts.md says what it takes." if reasons else "Nothing is predicted."))
    for line in reasons[:_REASONS]:
        print(folded(f"     shown only, {line}"))
    if len(reasons) > _REASONS:
        print(f"     and {len(reasons) - _REASONS} more reasons, in the column `reason` of --csv")


def _show_networks(sampled: Sequence[Samples]) -> None:
    """Print a table for each of a few networks: what was measured in the first and the last layer, beside theory."""
    if len(sampled) > _NETWORKS:
        print(f"{len(sampled)} networks: --layers prints each beside theory, --csv writes all.")
        return
    for samples in sampled:
        text = samples.cell.text
        print("\n" * (samples is not sampled[0]) + folded(title(samples.stack) + (f", {text.source}" if text else "")))
        console().print(theory_table(samples.stack, comparison([samples])))


def _say_what_has_no_rule(sampled: Sequence[Samples]) -> None:
    """Say how many networks theory has no rule for, and why it has none for the first of them."""
    without = [samples.stack for samples in sampled if not prediction_of(samples)]
    for stack in without[:1]:
        try:
            predict(stack, patterns=2)
        except NoRuleError as error:
            count = f"{len(without)} of {len(sampled)} networks"
            print(f"Theory has no rule for {count}: {error} Their numbers are in --layers and --csv.")


def _differences(judged: Sequence[Verdict], table: pd.DataFrame) -> list[str]:
    """Where theory and samples differ, a line each."""
    rows = table[table["agreement"] == "differs"].itertuples()
    return [
        f"DIFFERS {row.quantity} layer {row.layer} at {row.placement}, d = {row.width}, L = {row.depth}: "
        f"samples {row.mean:.4g} +- {row.sem:.2g}, theory {row.predicted:.4g}"
        for row in rows
    ] + [
        f"DIFFERS {v.claim}, {v.part}: samples {v.measured:.4g}, theory {v.predicted:.4g}"
        for v in judged
        if v.agreement == "differs"
    ]


def _changes(judged: Sequence[Verdict], committed: Sequence[Verdict]) -> list[str]:
    """Where a verdict is another than the committed one, a line each."""
    pairs = changed(judged, committed)
    return [f"CHANGED {now.claim}, {now.part}: was {old.verdict!r}, is {now.verdict!r}" for now, old in pairs]


def _cores() -> int:
    """Cores that this process may use; macOS and Windows do not say which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
