"""Every figure of a set of samples, saved as SVG and PNG."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from checks.comparison import comparison
from checks.profiles import profile_cells
from checks.theorem1 import last_layer_table
from figures import hidden_energy, layer_profile, scaling, style
from simulate import Samples
from simulate.store import write_whole


def draw_figures(cells: Sequence[Samples], folder: Path) -> list[Path]:
    """Draw what these cells can show; a scaling figure needs two widths or depths.

    Raises:
        ValueError: the folder cannot be written.
    """
    last, profiles = last_layer_table(cells), comparison(profile_cells(cells))
    makers: dict[str, Callable[[], Figure]] = {
        "gradient_against_width": lambda: scaling(last, "width"),
        "gradient_against_depth": lambda: scaling(last, "depth"),
        "gradient_over_layers": lambda: layer_profile(profiles),
        "hidden_energy": lambda: hidden_energy(profiles),
    }
    written = []
    for name, make in makers.items():
        try:
            figure = make()
        except ValueError as reason:
            print(f"not drawn: {name}: {reason}")
            continue
        for suffix in ("svg", "png"):
            picture = io.BytesIO()
            with style():
                # Dates in the metadata would make equal figures differ.
                figure.savefig(picture, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
            write_whole(folder / f"{name}.{suffix}", picture.getvalue())
            written.append(folder / f"{name}.{suffix}")
    return written
