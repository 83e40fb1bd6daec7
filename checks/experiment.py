"""The default experiment: the networks that `gradbounds verify` samples to test all claims, in minutes on two cores."""

from collections.abc import Iterator
from pathlib import Path

from simulate import Cell, read_windows
from simulate.text import TEXTS
from theory import Stack
from theory.stack import PAPER

PAPER_WIDTH = 512
"""The width of the paper's model."""

DRAWS = 128
SEED = 0
TEXT = TEXTS["lighthouse"]
"""The text file for the networks with real inputs."""


def verify_cells(text: str | Path = TEXT) -> list[Cell]:
    """Return all configurations of the default experiment, as a list of `Cell` objects.

    Most have Gaussian inputs; the last ones, one per placement, read a text file.

    Args:
        text: the path of the text file.

    Raises:
        ValueError: the text cannot be read or is shorter than a window.
    """
    stacks = [stack for placement in PAPER for stack in _gaussian_stacks(placement)]
    words = [Stack(placement=placement, width=512, depth=4, tokens=16, vocab=256) for placement in PAPER]
    windows = read_windows(text, tokens=words[0].tokens, vocab=words[0].vocab)
    return [Cell(stack) for stack in dict.fromkeys(stacks)] + [Cell(stack, text=windows) for stack in words]


def _gaussian_stacks(placement: str) -> Iterator[Stack]:
    # Against d, at fixed V, where the norm's own exponent shows, and at V = d, where B does not bend the bound's.
    for width in (64, 256, 1024, 4096, 16384):
        yield Stack(placement=placement, width=width, vocab=512, depth=6)
        yield Stack(placement=placement, width=width, vocab=width, depth=6)
    yield Stack(placement=placement, width=65536, vocab=65536, depth=6)
    # Against d with a saturated softmax, where the paper's ||dL_i/dx_i|| = O(1) fails.
    widths = (512, 2048, 8192, 32768)
    yield from (Stack(placement=placement, width=d, vocab=64, depth=2, output_scale=d**0.5) for d in widths)
    # Against L.
    yield from (Stack(placement=placement, width=1024, vocab=1024, depth=depth) for depth in (2, 4, 8, 16, 32, 64))
    # Against n, for the chain of the proof, which averages over positions.
    yield from (Stack(placement=placement, width=1024, vocab=1024, depth=6, tokens=tokens) for tokens in (1, 32))
    # The profile over layers, deep and still wide.
    yield Stack(placement=placement, width=2048, vocab=2048, depth=24)
