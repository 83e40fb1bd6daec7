"""The files of a figure, with the same format and options for every command."""

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from figures.style import style
from simulate.runs.files import write_whole


def save(
    figure: Figure, folder: Path, name: str, *, drawn_from: str = "", suffixes: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Write a figure as one file of each format; the same figure always gives identical files.

    Args:
        figure: the figure.
        folder: folder of the files.
        name: file name without suffix.
        drawn_from: description of the networks in the figure, which is saved in the files' metadata.
        suffixes: kinds of file, among svg, png and pdf.

    Raises:
        ValueError: the folder cannot be written.
    """
    paths = []
    _lay_out(figure)
    for suffix in suffixes:
        picture = io.BytesIO()
        with style():
            # Dates in the metadata would make equal figures differ.
            dated: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
            metadata = dated.get(suffix, {})
            if drawn_from:
                metadata |= {"Subject" if suffix == "pdf" else "Description": drawn_from}
            figure.savefig(picture, format=suffix, metadata=metadata)
        paths.append(folder / f"{name}.{suffix}")
        write_whole(paths[-1], picture.getvalue())
    return paths


def _lay_out(figure: Figure) -> None:
    """Compute the figure's layout once for all files, as in an SVG; saving would draw everything again for it."""
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None:
        return
    with style():
        FigureCanvasSVG(figure)
        figure.dpi = 72.0
        engine.execute(figure)
    figure.dpi = dpi
    figure.set_layout_engine(None)
