"""The samples in the folders of runs, and the differences between two runs."""

from pathlib import Path

from checks.stacks.two_runs import RATE, can_differ, only_in_one, run_differences, set_apart
from gradbounds.grid import FIELDS, said, with_words
from gradbounds.result import Result
from simulate import Run, Samples

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
    """Report the differences between two runs.

    Returns:
        The table `numbers`: a row for every quantity and layer of the networks in both runs.

    Raises:
        ValueError: one of them is not a run, or they have nothing in common.
    """
    about = f"{first} against {second}"
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
