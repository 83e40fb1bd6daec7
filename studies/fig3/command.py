"""`python -m studies fig3`, as the dataclass of its flags."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from gradbounds.flags import Flag, optional
from studies.committed import Checked
from studies.flags import OnTexts


@dataclass(frozen=True, kw_only=True)
class Figure3(Checked, OnTexts):
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

    def found(self) -> Any:
        """What was found, or an exit code."""
        from gradbounds.grid import field_values
        from studies.fig3.reproduce import Fig3Request, reproduce
        from studies.parallel_text import read_pairs
        from studies.translation_model import Translation

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
        return reproduce(request, text, self.out, dry_run=self.dry_run)
