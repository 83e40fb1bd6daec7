"""The samples in the folders of runs, and the differences between two runs."""

from pathlib import Path
from typing import TYPE_CHECKING

from checks.stacks.two_runs import RATE, can_differ, only_in_one, run_differences, set_apart
from gradbounds.grid import FIELDS, said, with_words
from gradbounds.result import Result
from simulate import Run, Samples

if TYPE_CHECKING:
    from checks.models.reference import Reference

_SHOWN = 30


def judged_samples(run: Run) -> list[Samples]:
    """Return the samples of a run for every configuration with at least two networks, which a standard error requires.

    Raises:
        ValueError: no cell has two draws.
    """
    samples = run.samples()
    enough = [s for s in samples if s.draws >= 2]
    if not enough:
        raise ValueError(f"run must have cells with at least 2 draws, for errors, but {str(run.folder)!r} has none.")
    if len(enough) < len(samples):
        print(
            f"left out: {len(samples) - len(enough)} of {len(samples)} cells, because they have only one random network"
        )
    return enough


def diff(first: Path, second: Path) -> Result:
    """Report the differences between two runs, or between two stored reports of `gradbounds probe`.

    Returns:
        For runs, the table `numbers`: a row for every quantity and layer of the networks in both runs.

    Raises:
        ValueError: one of them is neither a run nor a probe, or they have nothing in common.
    """
    about, kept = f"{first} against {second}", [_kept_probe(path) for path in (first, second)]
    if kept[0] is not None and kept[1] is not None:
        from checks.models.reference import against_reference  # late: runs need no libraries of modules

        alarms = against_reference(kept[1], kept[0])
        differences = [str(alarm) for alarm in alarms]
        none = [] if differences else [f"No difference between {first} and {second}."]
        return Result(about=about, values={"differences": alarms}, lines=none, differences=differences)
    runs = [judged_samples(Run.open(path)) for path in (first, second)]
    table, alone = run_differences(*runs), only_in_one(*runs)
    if table.empty:
        raise ValueError(f"runs must have a network in common, but {str(first)!r} and {str(second)!r} have none.")
    differs = table[table["differs"]]
    lines = [
        f"note: {name} is {said(name, ours)} in {first} and {said(name, other)} in {second}, and is not used to match "
        "networks."
        for name, (ours, other) in set_apart(*runs).items()
    ]
    networks = table.drop_duplicates([name for name in FIELDS if name in table])
    few = sum(not can_differ(*draws) for draws in zip(networks["first_draws"], networks["second_draws"], strict=True))
    lines += [
        f"Networks: {len(networks)} in both runs, {alone[0]} only in {first}, {alone[1]} only in {second}.",
        f"Numbers: {len(table)} compared, {len(differs)} differ; runs of equal networks show a difference in "
        f"{RATE:.0%} of cases.",
    ]
    if few:
        lines.append(
            f"note: {few} networks have too few samples to show any difference (4 per run are too few). Sample more."
        )
    shown: list[str] = []
    if len(differs):
        varying = [name for name in FIELDS if name in table and table[name].nunique(dropna=False) > 1]
        worst = differs.sort_values("errors", key=abs, ascending=False).head(_SHOWN)
        columns = [*varying, "quantity", "layer", "first", "second", "errors"]
        shown = with_words(worst)[columns].to_string(index=False).splitlines()
        shown += [f"... and {len(differs) - _SHOWN} more: --json has all"] if len(differs) > _SHOWN else []
    values = {"only_in_first": alone[0], "only_in_second": alone[1], "differing": len(differs)}
    return Result(about=about, tables={"numbers": table}, values=values, lines=lines, differences=shown)


def _kept_probe(path: Path) -> "Reference | None":
    # Read what `probe --out` saved in a folder or a file; None if it is not a saved probe.
    from checks.models.reference import FILE, Reference

    file = path / FILE if path.is_dir() else path
    return Reference.read(file) if file.is_file() and file.suffix == ".json" else None
