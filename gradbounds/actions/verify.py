"""The commands `gradbounds verify` and `check`: judge the samples of a run, and compare with stored verdicts."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from checks.experiment import DRAWS, SEED, TEXT, verify_cells
from checks.report import agreement_lines, html
from checks.results import COMMITTED, committed_results, common, difference_lines, load_results, missing
from checks.stacks.gradients_by_layer import layer_table
from checks.stacks.judge import MINIMUM_DRAWS, verdicts
from checks.theory_and_samples import comparison, prediction_of
from checks.verdict import DECIDING, Verdict
from figures.registry import run_figures
from gradbounds.actions.figures import draw_figures
from gradbounds.actions.runs import judged_samples
from gradbounds.network_comparison import sample_comparison_lines
from gradbounds.network_text import network_lines, title
from gradbounds.progress import progress, working
from gradbounds.result import Result
from simulate import Execution, Run, Samples
from simulate.counts import check_count
from simulate.runs.files import write_whole
from simulate.runs.provenance import manifest
from simulate.runs.sweep import check_sweep, sample_into
from theory import NoRuleError, predict

_COMMAND = "gradbounds verify"
_NOT_COMMITTED = "None of these verdicts can be compared with a committed verdict."
# The largest number of networks for which `check` prints a table each.
_NETWORKS = 4


def verify(out: Path, draws: int | None, seed: int | None, text: Path | None, workers: int | None) -> Result:
    """Sample the default experiment, judge all claims, and write data, figures and an HTML report into a folder.

    Raises:
        ValueError: an argument is outside its range.
    """
    draws, seed = DRAWS if draws is None else draws, SEED if seed is None else seed
    # Cores that this process may use, or all cores on macOS and Windows.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    execution = Execution(workers=cores if workers is None else workers)
    check_count("draws", draws, MINIMUM_DRAWS)
    cells = verify_cells(text or TEXT)
    check_sweep(cells, draws=draws, seed=seed, execution=execution)
    run = Run.create(out, manifest("verify", cells, draws=draws, seed=seed), replace=True)
    (out / "report.html").unlink(missing_ok=True)  # it would show what is being replaced
    with progress() as on_block:
        sample_into(cells, draws=draws, seed=seed, run=run, execution=execution, on_block=on_block)
    sampled = run.samples()
    committed = load_results(COMMITTED).verdicts
    result = _judged(sampled, committed, about=f"verify in {out}")
    lost = [
        f"MISSING {before.claim}, {before.part}: was {before.verdict!r}, but this run gives no verdict"
        for before in missing(result.verdicts, committed)
    ]
    drawn, known = draw_figures(sampled, out / "figures"), run_figures()
    page = html(
        result.verdicts,
        result.to_frame(),
        [(known[path.stem], path.read_bytes()) for path in drawn if path.suffix == ".svg"],
        command=_command(draws, seed, text),
        networks=f"{len(cells)} kinds of networks, {draws} networks of each, seed {seed}",
        committed=committed_results(),
    )
    write_whole(out / "report.html", page.encode())
    files = ["", f"Report  {out / 'report.html'}", f"Figures {out / 'figures'}", f"Data    {out / 'blocks'} (Parquet)"]
    return replace(result, differences=[*result.differences, *lost], below=[*result.below, *files])


def _command(draws: int, seed: int, text: Path | None) -> str:
    # Return the command that reproduces the numbers, without the folders of this machine.
    flags = {"draws": draws if draws != DRAWS else None, "seed": seed if seed != SEED else None}
    given = [f"--{name} {value}" for name, value in flags.items() if value is not None]
    return " ".join([_COMMAND, *given, *([f"--text {text.name}"] if text else [])])


def check(run: Run | Path | str, *, layers: bool = False) -> Result:
    """Return all verdicts that a run allows, and a comparison of its samples with theory.

    Args:
        run: a run or its folder.
        layers: whether each network's gradients are shown layer by layer.

    Returns:
        Table `comparison`, with a row per network, quantity and layer; and the verdicts, failing ones first.
        Differences are a verdict that differs from the committed one, samples that differ from theory, and numbers that
        are not finite.

    Raises:
        ValueError: there is no run, or none of its cells has two draws, which a standard error requires.
    """
    run = run if isinstance(run, Run) else Run.open(Path(run))
    sampled = judged_samples(run)
    committed = [v for results in committed_results() for v in results.verdicts]
    # What is not finite is counted and said; NumPy would warn of it once more.
    with np.errstate(invalid="ignore", over="ignore") if any(map(_not_finite, sampled)) else nullcontext():
        result = _judged(sampled, committed, about=f"check of {run.folder}")
        lines: list[str] = []
        for samples in sampled if layers else ():
            table = layer_table(prediction_of(samples), samples)
            lines += [*network_lines(samples.stack, table, "there is no rule for this network."), ""]
        shown = lines if layers else [*_network_tables(sampled), *[""] * bool(result.verdicts)]
    below = [*result.below, *_without_rule(sampled)]
    if result.verdicts:
        compared = len(common(result.verdicts, committed))
        sentence = f"{compared} of these {len(result.verdicts)} verdicts were compared with committed verdicts."
        below.append(sentence if compared else _NOT_COMMITTED)
    ordered = sorted(result.verdicts, key=lambda v: DECIDING.index(v.verdict))
    return replace(result, lines=shown, verdicts=ordered, below=below)


def _judged(sampled: Sequence[Samples], committed: Sequence[Verdict], *, about: str) -> Result:
    # Return verdicts, the comparison with theory, and the differences from theory and from committed verdicts.
    with working("judging"):
        judged, table = verdicts(sampled), comparison(sampled)
    below = ["", *agreement_lines(table, "all layers")]
    without = [line for samples in sampled for line in _not_finite(samples)]
    differences = [*_differences(table), *difference_lines(judged, committed), *without]
    return Result(
        about=about, tables={"comparison": table}, values={"wrong": differences}, verdicts=judged, below=below,
        differences=differences, not_finite=bool(without),
    )  # fmt: skip


def _network_tables(sampled: Sequence[Samples]) -> list[str]:
    # Format a table for each of a few networks: measured numbers in the first and the last layer, next to theory.
    if len(sampled) > _NETWORKS:
        return [f"{len(sampled)} networks: --layers prints each with its prediction, --json prints all."]
    lines: list[str] = []
    for samples in sampled:
        text = samples.cell.text
        lines += [
            *[""] * bool(lines),
            title(samples.stack) + (f", {text.source}" if text else ""),
            *sample_comparison_lines(samples.stack, comparison([samples])),
        ]
    return lines


def _without_rule(sampled: Sequence[Samples]) -> list[str]:
    # State for how many networks theory has no rule, and the reason for the first of them.
    without = [samples.stack for samples in sampled if not prediction_of(samples)]
    for stack in without[:1]:
        try:
            predict(stack, patterns=2)
        except NoRuleError as error:
            count = f"{len(without)} of {len(sampled)} networks"
            return [f"Theory has no rule for {count}: {error} Their numbers are in --layers and --json."]
    return []


def _differences(table: pd.DataFrame) -> list[str]:
    # Return a line for every number in which theory and samples differ.
    rows = table[table["agreement"] == "differs"].itertuples()
    return [
        f"DIFFERS {row.quantity} layer {row.layer} at {row.placement}, d = {row.width}, L = {row.depth}: "
        f"samples {row.mean:.4g} +- {row.sem:.2g}, theory {row.predicted:.4g}"
        for row in rows
    ]


def _not_finite(samples: Samples) -> list[str]:
    """Report the quantities that are infinite or NaN, and in how many draws of a network; empty if all are finite.

    With one token the correlation of two tokens is undefined, and NaN in every draw.
    """
    s = samples.stack
    defined = {"token_correlation": s.tokens > 1, "encoder_token_correlation": s.source_tokens > 1}
    damaged = {
        name: (~np.isfinite(values)).reshape(samples.draws, -1).any(axis=1)
        for name, values in samples.items()
        if defined.get(name, True) and not np.isfinite(values).all()
    }
    if not damaged:
        return []
    names = [*damaged][:3] + ([f"{len(damaged) - 3} more"] if len(damaged) > 3 else [])
    count = int(np.any([*damaged.values()], axis=0).sum())
    where = f"{s.placement}, d = {s.width}, L = {s.depth}"
    return [f"NOT FINITE {', '.join(names)} at {where}: in {count} of {samples.draws} draws"]
