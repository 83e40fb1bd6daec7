"""`python -m studies hessian`, as the dataclasses of its flags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from gradbounds.commands.sweep import Fields
from gradbounds.flags import Flag, given, optional
from gradbounds.grid import FIELDS, stacks
from studies.committed import Checked
from studies.flags import IntoFolder, OnTexts

if TYPE_CHECKING:
    from gradbounds.result import Result
    from studies.hessian.spectra import SpectraRequest
    from studies.hessian.subjects import Subject

_SIZES = ("placement", "width", "depth")

# Small enough for minutes on a CPU, wide enough to be judged at the last width.
_STACKS = {"width": ["32:128:x2"], "depth": ["2:8:x2"], "tokens": ["4"], "vocab": ["8"]}


@dataclass(frozen=True, kw_only=True)
class SpectraFlags(Checked, IntoFolder):
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
        from studies.hessian.spectra import SpectraRequest, cost_summary

        request = SpectraRequest(
            subjects=subjects, seeds=self.seeds, seed=self.seed, steps=self.steps, probes=self.probes,
            blocks=self.blocks, extreme=not self.no_extreme, reorthogonalize=not self.no_reorthogonalization,
            device=self.device,
        )  # fmt: skip
        if self.dry_run:
            return cost_summary(request, of_what)
        return measure(request)


@dataclass(frozen=True, kw_only=True)
class Texts(SpectraFlags, OnTexts):
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

    def found(self) -> "Result":
        """What was found."""
        from gradbounds.grid import field_values
        from studies.hessian.reproduce import models_on_text
        from studies.hessian.subjects import on_text
        from studies.parallel_text import read_pairs
        from studies.translation_model import Translation

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
class Stacks(SpectraFlags):
    """Spectra of the Hessian and the Gauss-Newton matrix of simplified stacks, and theory beside the latter."""

    grid: Annotated[Fields, Flag(name="", help="")] = field(default_factory=Fields)
    seeds: Annotated[int, Flag(help="networks of each size")] = 8

    def found(self) -> "Result":
        """What was found.

        Raises:
            ValueError: another field than placement, width and depth has several values.
        """
        from studies.hessian.reproduce import simplified_stacks
        from studies.hessian.subjects import of_stack

        networks = list(stacks(_STACKS | {name: list(each) for name, each in given(self.grid).items()}))
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
class Spectrum(Checked, OnTexts):
    """One run of Lanczos for each model, matrix and seed, whose steps are kept: for models of the paper's width."""

    width: Annotated[int, Flag(help="hidden width d")] = 512
    depth: Annotated[int, Flag(help="layers of encoder and decoder")] = 6
    ffn_width: Annotated[int, Flag(help="feed-forward units")] = 1024
    vocab: Annotated[int, Flag(help="number of ids")] = 2000
    pairs: Annotated[int, Flag(help="only the first so many lines")] = 1000
    matrix: Annotated[tuple[Literal["hessian", "gauss-newton"], ...], Flag(help="matrices")] = ("hessian",)
    seeds: Annotated[int, Flag(help="models of each kind")] = 3
    steps: Annotated[int, Flag(help="steps of Lanczos")] = 30

    def found(self) -> "Result":
        """Rows of finished runs, and H1 of them."""
        from studies.hessian.text_spectrum import TextSpectrum, spectra_on_text
        from studies.parallel_text import read_pairs
        from studies.translation_model import Translation

        text = read_pairs(self.source, self.target, vocab=self.vocab, units=self.units, pairs=self.pairs)
        runs = [
            TextSpectrum(
                model=Translation(
                    placement=placement, width=self.width, depth=self.depth, heads=self.heads,
                    ffn_width=self.ffn_width, vocab=self.vocab, dropout=0.0, smoothing=self.smoothing,
                ),
                text=text, matrix=matrix, seed=seed, steps=self.steps, device=self.device,
            )
            for matrix in self.matrix for seed in range(self.seed, self.seed + self.seeds)
            for placement in self.placement
        ]  # fmt: skip
        return spectra_on_text(runs, self.out, dry_run=self.dry_run)


@dataclass(frozen=True, kw_only=True)
class Eigenvalue(Checked, IntoFolder):
    """The largest eigenvalue of stacks' Hessians over the Gauss-Newton matrix's, measured beside theory."""

    placement: Annotated[tuple[Literal["post", "pre"], ...], Flag(help="placements of LayerNorm")] = ("post", "pre")
    width: Annotated[tuple[int, ...], Flag(help="hidden widths d")] = (16,)
    tokens: Annotated[tuple[int, ...], Flag(help="tokens n")] = (4,)
    vocab: Annotated[tuple[int, ...], Flag(help="classes V")] = (4, 64, 1024)
    seeds: Annotated[int, Flag(help="networks of each size")] = 8
    samples: Annotated[int, Flag(help="samples of the theory")] = 8

    def found(self) -> "Result":
        """A row for every size."""
        from itertools import product

        from studies.hessian.eigenvalue import eigenvalue_ratios
        from theory.stack import Stack

        networks = [
            Stack(placement=placement, width=width, depth=2, tokens=tokens, vocab=vocab)
            for placement, width, tokens, vocab in product(self.placement, self.width, self.tokens, self.vocab)
        ]
        return eigenvalue_ratios(
            networks, self.out, seeds=range(self.seed, self.seed + self.seeds), samples=self.samples,
            dry_run=self.dry_run,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Hessian:
    """Spectra of the Hessian and the Gauss-Newton matrix at initialization, of stacks or on texts."""

    what: (
        Annotated[Stacks, tyro.conf.subcommand("stack")]
        | Annotated[Texts, tyro.conf.subcommand("texts")]
        | Annotated[Spectrum, tyro.conf.subcommand("spectrum")]
        | Annotated[Eigenvalue, tyro.conf.subcommand("eigenvalue")]
    )

    def run(self) -> Any:
        """What was found, or an exit code."""
        return self.what.run()
