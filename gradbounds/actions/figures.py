"""Every figure of a set of samples, saved as SVG and PNG."""

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from checks.series import local_exponent_table, longest_series
from checks.stacks.concentration import excess_table
from checks.stacks.profiles import layer_draws, profile_cells
from checks.stacks.proof_chain import chain_table
from checks.stacks.theorem1 import last_layer_table
from checks.theory_and_samples import comparison, prediction_of
from figures import concentration, distribution, hidden_energy, layer_profile, local_exponents, scaling, slack, style
from gradbounds.actions.runs import judged_samples
from gradbounds.progress import counted, working
from simulate import Cell, Run, Samples
from simulate.runs.files import write_whole


def draw(folder: Path, out: Path) -> int:
    """Draw every figure that a run can give, and print their files."""
    for path in draw_figures(judged_samples(Run.open(folder)), out):
        print(path)
    return 0


def draw_figures(cells: Sequence[Samples], folder: Path) -> list[Path]:
    """Draw what these cells can show; a scaling figure needs two widths or depths.

    Raises:
        ValueError: the folder cannot be written, or theory has no rule for any of the networks.
    """
    drawn_from = networks_line([s.cell for s in cells], min(s.draws for s in cells)) if cells else ""
    cells = [s for s in cells if prediction_of(s) and s.stack.branches != "attention"]
    if not cells:
        raise ValueError(
            "run must have networks that large-width theory has a rule for, with feed-forward units, and has none."
        )
    with working("predicting"):
        last, shown = last_layer_table(cells), profile_cells(cells)
        profiles = comparison(shown)
    makers: dict[str, Callable[[], Figure]] = {
        "gradient_against_width": lambda: scaling(longest_series(last, "width"), "width"),
        "gradient_against_depth": lambda: scaling(longest_series(last, "depth"), "depth"),
        "local_exponents_in_width": lambda: _local(last, "width"),
        "local_exponents_in_depth": lambda: _local(last, "depth"),
        "distribution_of_draws": lambda: distribution(layer_draws(shown)),
        "gradient_over_layers": lambda: layer_profile(profiles),
        "concentration_of_norms": lambda: concentration(excess_table(cells)),
        "slack_of_the_proof": lambda: slack(chain_table(cells)),
        "hidden_energy": lambda: hidden_energy(profiles),
    }
    written: list[Path] = []
    without = []
    with counted("drawing") as on_figure:
        for done, (name, make) in enumerate(makers.items()):
            on_figure(done, len(makers))
            try:
                figure = make()
            except ValueError as reason:
                without.append(f"not drawn: {name}: {reason}")
                continue
            written += save(figure, folder, name, drawn_from=drawn_from)
    for line in without:
        print(line)
    return written


def networks_line(cells: Sequence[Cell], draws: int) -> str:
    """Which networks a figure is of, for its files to say: what they have in common, what varies, and a digest of all.

    Args:
        cells: what was sampled; the digest tells any two sets of cells apart.
        draws: the least number of draws of a cell.
    """
    fields = {"placement", "width", "depth", "tokens", "vocab"}.union(*(cell.stack.non_default() for cell in cells))
    values = {name: {getattr(cell.stack, name) for cell in cells} for name in sorted(fields)}
    ordered = {name: sorted(these, key=lambda value: (type(value).__name__, value)) for name, these in values.items()}
    text = "; ".join(f"{name} {', '.join(map(str, these))}" for name, these in ordered.items())
    digest = hashlib.sha256("".join(sorted(cell.name for cell in cells)).encode()).hexdigest()[:16]
    return f"{len(cells)} networks, {draws} draws of each: {text}; digest {digest}"


def save(figure: Figure, folder: Path, name: str, *, drawn_from: str = "") -> list[Path]:
    """Write a figure as NAME.svg and NAME.png; equal figures are equal files.

    Args:
        figure: the figure.
        folder: where its files go.
        name: their name without suffix.
        drawn_from: which networks it is of, which the files' metadata then say as their description.

    Raises:
        ValueError: the folder cannot be written.
    """
    paths = []
    for suffix in ("svg", "png"):
        picture = io.BytesIO()
        with style():
            # Dates in the metadata would make equal figures differ.
            metadata: dict[str, str | None] = {"Date": None} if suffix == "svg" else {}
            metadata |= {"Description": drawn_from} if drawn_from else {}
            figure.savefig(picture, format=suffix, metadata=metadata)
            figure.set_layout_engine(None)  # keeps where things are: to find it takes a third of the time
        paths.append(folder / f"{name}.{suffix}")
        write_whole(paths[-1], picture.getvalue())
    return paths


def _local(last: pd.DataFrame, against: str) -> Figure:
    series = longest_series(last, against)
    return local_exponents(local_exponent_table(series, against), against)
