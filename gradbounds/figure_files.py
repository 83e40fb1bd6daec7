"""The files of a figure, written in the same way by every command."""

import io
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from figures.style import style
from simulate.runs.files import write_whole


_DESCRIBED = {"pdf": "Subject"}
"""What a kind of file calls its description."""


def save(figure: Figure, folder: Path, name: str, *, drawn_from: str = "") -> list[Path]:
    """Write a figure as NAME.svg, NAME.png and NAME.pdf; equal figures are equal files.

    Args:
        figure: the figure.
        folder: where its files go.
        name: their name without suffix.
        drawn_from: which networks it is of, which the files' metadata then say as their description.

    Raises:
        ValueError: the folder cannot be written.
    """
    paths = []
    _lay_out(figure)
    for suffix in ("svg", "png", "pdf"):
        picture = io.BytesIO()
        with style():
            # Dates in the metadata would make equal figures differ.
            dated: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
            metadata = dated.get(suffix, {}) | (
                {_DESCRIBED.get(suffix, "Description"): drawn_from} if drawn_from else {}
            )
            figure.savefig(picture, format=suffix, metadata=metadata)
        paths.append(folder / f"{name}.{suffix}")
        write_whole(paths[-1], picture.getvalue())
    return paths


def _lay_out(figure: Figure) -> None:
    """Find where things are, once for all files and as in an SVG; to save would draw everything once more for that."""
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None:
        return
    with style():
        FigureCanvasSVG(figure)
        figure.dpi = 72.0
        engine.execute(figure)
    figure.dpi = dpi
    figure.set_layout_engine(None)
