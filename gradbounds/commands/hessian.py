"""The commands on curvature, as the dataclasses of their flags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gradbounds.commands.sweep import Fields
from gradbounds.flags import Flag, Group, IntoFolder, OnTexts, Positional, given, optional
from gradbounds.grid import FIELDS, stacks

if TYPE_CHECKING:
    from gradbounds.actions.hessian_subjects import Subject
    from gradbounds.actions.spectra import SpectraRequest
    from gradbounds.result import Result

_SIZES = ("placement", "width", "depth")

# Small enough for minutes on a CPU, wide enough to be judged at the last width.
_STACKS = {"width": ["32:128:x2"], "depth": ["2:8:x2"], "tokens": ["4"], "vocab": ["8"]}


@dataclass(frozen=True, kw_only=True)
class OfSpectra(IntoFolder):
    """Flags of every command on curvature."""

    seeds: Annotated[int, Flag(help="networks of each kind")] = 4
    steps: Annotated[int, Flag(help="steps of Lanczos")] = 40
    probes: Annotated[int, Flag(help="random probes of each matrix")] = 2
    blocks: Annotated[bool, Flag(help="spectra of parts and layers too")] = False
    no_extreme: Annotated[bool, Flag(help="leave the extreme eigenvalues out, and the figure")] = False
    no_reorthogonalization: Annotated[bool, Flag(help="keep three vectors of Lanczos instead of all")] = False

    def spectra_of(
        self, subjects: "Sequence[Subject]", measure: "Callable[[SpectraRequest], Result]", of_what: str = ""
    ) -> "Result":
        """Measure the spectra of networks, or say how much that is.

        Args:
            subjects: the networks.
            measure: what is found of them.
            of_what: said after the number of products, as " over 200 pairs".
        """
        from gradbounds.actions.spectra import SpectraRequest, cost_summary

        request = SpectraRequest(
            subjects=subjects, seeds=self.seeds, seed=self.seed, steps=self.steps, probes=self.probes,
            blocks=self.blocks, extreme=not self.no_extreme, reorthogonalize=not self.no_reorthogonalization,
            device=self.device,
        )  # fmt: skip
        if self.dry_run:
            return cost_summary(request, of_what)
        return measure(request)


@dataclass(frozen=True, kw_only=True)
class Texts(OfSpectra, OnTexts):
    """Spectra of the Hessian and the Gauss-Newton matrix of translation models at initialization, on your texts."""

    depth: Annotated[tuple[str, ...], Flag(help="layers of encoder and decoder", metavar="VALUE|A:B:+S [...]")] = ("6",)
    width: Annotated[tuple[str, ...], Flag(help="hidden widths d", metavar="VALUE|A:B:xF [...]")] = ("32",)
    ffn_ratio: Annotated[int, Flag(help="feed-forward units over the width")] = 2
    initialization: Annotated[Literal["xavier", "pytorch"], Flag(help="the paper's, or that of torch.nn's layers")] = (
        "xavier"
    )
    untied: Annotated[bool, Flag(help="give the output matrix its own rows, not the embeddings'")] = False
    vocab: Annotated[int, Flag(help="number of ids")] = 2000
    pairs: Annotated[int | None, optional("only the first so many lines", "INT", "200")] = 200
    seeds: Annotated[int, Flag(help="models of each kind")] = 3

    def run(self) -> "Result":
        """What was found."""
        from gradbounds.actions.hessian import models_on_text
        from gradbounds.actions.hessian_subjects import on_text
        from gradbounds.grid import field_values
        from simulate.translation.model import Translation
        from simulate.translation.parallel_text import read_pairs

        models = [
            Translation(
                placement=placement, width=width, depth=depth, heads=self.heads, ffn_width=self.ffn_ratio * width,
                vocab=self.vocab, initialization=self.initialization, dropout=0.0, smoothing=self.smoothing,
                tied=not self.untied,
            )
            for width in field_values("width", self.width) for depth in field_values("depth", self.depth)
            for placement in self.placement
        ]  # fmt: skip
        text = read_pairs(self.source, self.target, vocab=self.vocab, units=self.units, pairs=self.pairs)
        subjects = [on_text(model, text) for model in models]
        return self.spectra_of(
            subjects, lambda request: models_on_text(request, text, self.out), f" over {len(text)} pairs"
        )


@dataclass(frozen=True, kw_only=True)
class Stacks(OfSpectra):
    """Spectra of the Hessian and the Gauss-Newton matrix of simplified stacks, and theory beside the latter."""

    grid: Annotated[Fields, Flag(name="", help="")] = field(default_factory=Fields)
    seeds: Annotated[int, Flag(help="networks of each size")] = 8

    def run(self) -> "Result":
        """What was found.

        Raises:
            ValueError: another field than placement, width and depth has several values.
        """
        from gradbounds.actions.hessian import simplified_stacks
        from gradbounds.actions.hessian_subjects import of_stack

        values = {name: list(each) for name, each in given(self.grid).items()}
        networks = list(stacks(_STACKS | values))
        several = [
            name for name in FIELDS if len({getattr(stack, name) for stack in networks}) > 1 and name not in _SIZES
        ]
        if several:
            raise ValueError(
                f"{several[0]} must have one value here, where placement, width and depth alone may have several; run "
                f"the command once for each, got {sorted({getattr(stack, several[0]) for stack in networks})}."
            )
        subjects = [of_stack(stack) for stack in networks]
        return self.spectra_of(subjects, lambda request: simplified_stacks(request, networks, self.out))


@dataclass(frozen=True, kw_only=True)
class Module(OfSpectra):
    """Spectra of the Hessian and the Gauss-Newton matrix of any torch module, from a factory as `probe` takes it."""

    factory: Annotated[
        str,
        Positional,
        Flag(
            name="factory",
            help="MODULE:FACTORY, FILE.py:FACTORY, or a built-in name such as encoder-post; docs/probe.md",
        ),
    ]
    width: Annotated[tuple[str, ...], Flag(help="widths", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ("32",)
    depth: Annotated[tuple[str, ...], Flag(help="depths", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ("2:8:x2",)

    def run(self) -> "Result":
        """What was found."""
        from gradbounds.actions.hessian import modules
        from gradbounds.actions.hessian_subjects import of_module
        from gradbounds.grid import field_values

        subjects = [
            of_module(self.factory, width, depth)
            for width in field_values("width", self.width) for depth in field_values("depth", self.depth)
        ]  # fmt: skip
        return self.spectra_of(subjects, lambda request: modules(request, self.out))


@dataclass(frozen=True, kw_only=True)
class Hessian(Group):
    """Spectra and largest eigenvalues of the Hessian and the Gauss-Newton matrix: of stacks, a module, or on texts."""

    what: (
        Annotated[Stacks, tyro.conf.subcommand("stack")]
        | Annotated[Module, tyro.conf.subcommand("module")]
        | Annotated[Texts, tyro.conf.subcommand("texts")]
    )
