"""The command-line flags that several studies share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from gradbounds.flags import Flag, WithJson


@dataclass(frozen=True, kw_only=True)
class IntoFolder(WithJson):
    """The command-line flags of commands that sample networks and save their measurements in a folder."""

    out: Annotated[Path, Flag(help="output folder; finished parts in it are not repeated")]
    seed: Annotated[int, Flag(help="seed of the first network")] = 0
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    dry_run: Annotated[bool, Flag(help="print the cost and stop")] = False


@dataclass(frozen=True, kw_only=True)
class OnTexts(IntoFolder):
    """The command-line flags of commands that train translation models on pairs of sentences."""

    source: Annotated[Path, Flag(help="text to translate from, UTF-8, a sentence a line")]
    target: Annotated[Path, Flag(help="text to translate to, line by line")]
    placement: Annotated[tuple[Literal["post", "pre"], ...], Flag(help="placements of LayerNorm")] = ("post", "pre")
    heads: Annotated[int, Flag(help="heads of every attention")] = 4
    smoothing: Annotated[float, Flag(help="label smoothing")] = 0.1
    units: Annotated[Literal["words", "bpe"], Flag(help="vocabulary: words, or subwords by sentencepiece")] = "words"
