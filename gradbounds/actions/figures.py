"""The figures of a set of sampled networks, saved as files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from checks.stacks.run_tables import RUN_TABLES
from checks.theory_and_samples import prediction_of
from figures.registry import run_figures
from gradbounds.actions.runs import judged_samples
from gradbounds.figure_files import save
from gradbounds.progress import counted, working
from simulate import Cell, Run, Samples


def draw(folder: Path, out: Path) -> int:
    """Draw all figures for which a run has data, and print the names of their files."""
    for path in draw_figures(judged_samples(Run.open(folder)), out, ("svg", "png", "pdf")):
        print(path)
    return 0


def draw_figures(cells: Sequence[Samples], folder: Path, suffixes: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Draw all figures for which the sampled networks suffice.

    A figure of a scaling law needs two widths or two depths.

    Raises:
        ValueError: the folder cannot be written, or theory has no rule for any of the networks.
    """
    drawn_from = networks_line([s.cell for s in cells], min(s.draws for s in cells)) if cells else ""
    with working("predicting"):
        cells = [s for s in cells if prediction_of(s) and s.stack.branches != "attention"]
    if not cells:
        raise ValueError(
            "run must have networks with a feed-forward branch that large-width theory can predict, and has none."
        )
    figures = sorted(run_figures().values(), key=lambda figure: (list(RUN_TABLES).index(figure.needs), figure.name))
    written: list[Path] = []
    without = []
    with counted("drawing") as on_figure:
        for done, figure in enumerate(figures):
            on_figure(done, len(figures))
            try:
                drawn = figure.draw(RUN_TABLES[figure.needs](cells))
            except ValueError as reason:
                without.append(f"not drawn: {figure.name}: {reason}")
                continue
            written += save(drawn, folder, figure.name, drawn_from=drawn_from, suffixes=suffixes)
    for line in without:
        print(line)
    return written


def networks_line(cells: Sequence[Cell], draws: int) -> str:
    """Describe the networks of a figure in one line: their fields, and a checksum that identifies the set.

    Args:
        cells: the sampled cells.
        draws: the smallest number of draws of a cell.
    """
    fields = {"placement", "width", "depth", "tokens", "vocab"}.union(*(cell.stack.non_default() for cell in cells))
    values = {name: {getattr(cell.stack, name) for cell in cells} for name in sorted(fields)}
    ordered = {name: sorted(these, key=lambda value: (type(value).__name__, value)) for name, these in values.items()}
    text = "; ".join(f"{name} {', '.join(map(str, these))}" for name, these in ordered.items())
    digest = hashlib.sha256("".join(sorted(cell.name for cell in cells)).encode()).hexdigest()[:16]
    return f"{len(cells)} networks, {draws} draws of each: {text}; digest {digest}"
