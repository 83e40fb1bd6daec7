"""The commands on translation models, as the dataclasses of their flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gradbounds.commands.flags import Flag, WithJson, optional


@dataclass(frozen=True, kw_only=True)
class IntoFolder(WithJson):
    """Flags of commands that make networks and keep what they measure of them."""

    out: Annotated[Path, Flag(help="folder; what it holds already is not done again")]
    seed: Annotated[int, Flag(help="seed of the first network")] = 0
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    dry_run: Annotated[bool, Flag(help="say how much it is, and stop")] = False


@dataclass(frozen=True, kw_only=True)
class OnTexts(IntoFolder):
    """Flags of commands that make translation models on two texts."""

    source: Annotated[Path, Flag(help="text to translate from, UTF-8, a sentence a line")]
    target: Annotated[Path, Flag(help="text to translate to, line by line")]
    placement: Annotated[tuple[Literal["post", "pre"], ...], Flag(help="placements of LayerNorm")] = ("post", "pre")
    heads: Annotated[int, Flag(help="heads of every attention")] = 4
    smoothing: Annotated[float, Flag(help="label smoothing")] = 0.1
    units: Annotated[
        Literal["words", "bpe"], Flag(help="units of the vocabulary: words, or pieces of them by sentencepiece")
    ] = "words"
    accept: Annotated[bool, Flag(help="commit the verdicts: write them to checks/data and paper_checks.md here")] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class Figure3(OnTexts):
    """Measure the paper's translation models at initialization on your texts: Fig. 3, and what makes it as it is."""

    depth: Annotated[
        tuple[str, ...],
        Flag(help="layers of encoder and decoder; most is measured at the least", metavar="VALUE|A:B:+S [...]"),
    ] = ("6:14:+2",)
    width: Annotated[int, Flag(help="hidden width d")] = 512
    ffn_width: Annotated[int, Flag(help="feed-forward units")] = 1024
    dropout: Annotated[float, Flag(help="share that is dropped of what branches and embeddings give")] = 0.1
    initialization: Annotated[
        tuple[Literal["xavier", "pytorch"], ...],
        Flag(help="the paper's, and that of torch.nn's layers; the first at every depth"),
    ] = ("xavier", "pytorch")
    vocab: Annotated[int, Flag(help="number of ids")] = 10000
    pairs: Annotated[int | None, optional("only the first so many lines", "INT", "all")] = None
    batch_tokens: Annotated[int, Flag(help="target tokens of a mini-batch")] = 4096
    batches: Annotated[int, Flag(help="mini-batches of a model of the least depth; others have one")] = 2
    seeds: Annotated[int, Flag(help="models of each kind")] = 2
    ingredients: Annotated[bool, Flag(help="switch each ingredient off in turn too")] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.reproduce import Fig3Request, reproduce
        from gradbounds.grid import field_values
        from simulate.translation.model import Translation
        from simulate.translation.parallel_text import read_pairs

        depths = field_values("depth", self.depth)
        models = [
            Translation(
                placement=placement, width=self.width, depth=min(depths), heads=self.heads, ffn_width=self.ffn_width,
                vocab=self.vocab, initialization=initialization, dropout=self.dropout, smoothing=self.smoothing,
            )
            for initialization in self.initialization for placement in self.placement
        ]  # fmt: skip
        request = Fig3Request(
            models=models, depths=depths, batches=self.batches, batch_tokens=self.batch_tokens, seeds=self.seeds,
            seed=self.seed, ingredients=self.ingredients, device=self.device,
        )  # fmt: skip
        text = read_pairs(self.source, self.target, vocab=self.vocab, units=self.units, pairs=self.pairs)
        return reproduce(request, text, self.out, dry_run=self.dry_run, accept=self.accept)


@dataclass(frozen=True, kw_only=True)
class Warmup(WithJson):
    """Train the paper's translation models on your texts with and without warm-up, and judge what it says of them."""

    source: Annotated[Path, Flag(help="text to translate from, UTF-8, a sentence a line")]
    target: Annotated[Path, Flag(help="text to translate to, line by line")]
    out: Annotated[Path, Flag(help="folder; a run that has finished there is never run again")]
    preset: Annotated[
        str, Flag(help="grid of runs: small, paper (for a GPU), or a TOML file of the same form", metavar="NAME|FILE")
    ] = "small"
    seeds: Annotated[int | None, optional("only the first so many seeds of the grid", "INT", "all")] = None
    known: Annotated[
        Path | None, optional("rows.json of another folder, whose runs are not run again", "FILE", "none")
    ] = None
    workers: Annotated[int, Flag(help="processes, of one thread each")] = 1
    dask: Annotated[
        str | None,
        optional("address of a Dask scheduler whose workers train instead; they share the folder", "tcp://HOST:PORT"),
    ] = None
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    dry_run: Annotated[bool, Flag(help="say how many runs are left and how long they take, and stop")] = False
    accept: Annotated[bool, Flag(help="commit rows and verdicts: write checks/data and paper_checks.md here")] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.warmup.command import WarmupRequest, reproduce_warmup

        request = WarmupRequest(
            preset=self.preset, source=self.source, target=self.target, out=self.out, known=self.known,
            seeds=self.seeds, workers=self.workers, dask=self.dask, device=self.device,
        )  # fmt: skip
        return reproduce_warmup(request, dry_run=self.dry_run, accept=self.accept)


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Repeat an experiment of the paper on your own texts: Fig. 3 at initialization, or training with warm-up."""

    what: Annotated[Figure3, tyro.conf.subcommand("fig3")] | Annotated[Warmup, tyro.conf.subcommand("warmup")]

    def run(self) -> int:
        """Exit code."""
        return self.what.run()
