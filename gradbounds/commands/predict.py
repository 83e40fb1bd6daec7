"""`gradbounds predict`: its flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from gradbounds.flags import Flag, given, network, optional
from theory import Stack

# One that is not given is None: a published model keeps its own there.
Changes = network(Stack())


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Print what large-width theory has for one network: every matrix's gradient in every layer, beside samples.

    The network is that of the flags, of a model's config.json, or of a published model; of the latter two, flags that
    are given change fields.
    """

    stack: Annotated[Changes, Flag(name="", help="")] = field(default_factory=Changes)  # type: ignore[valid-type]
    config: Annotated[
        Path | None, optional("config.json of a model, as Hugging Face or nanoGPT have it", "FILE", default="none")
    ] = None
    like: Annotated[
        str | None, optional("a published model, such as gpt2 or llama-3-8b; a wrong name lists them", "NAME", "none")
    ] = None
    ignore: Annotated[
        tuple[str, ...],
        optional("keys of the file to leave out, whose part at initialization is not known", "KEY [...]", "none"),
    ] = ()
    compare: Annotated[
        tuple[str, ...],
        optional(
            "predict the network with these fields changed beside it; one given again is another network",
            "FIELD=VALUE [...]",
            "none",
        ),
    ] = ()
    draws: Annotated[
        int | None, optional("networks to sample beside theory", "N", default="none; 16 where theory has no rule")
    ] = None
    seed: Annotated[int, Flag(help="root seed of the samples")] = 0
    patterns: Annotated[
        int | None,
        optional("attention patterns that theory samples, where it does", "N", default="what takes some seconds"),
    ] = None
    max_time: Annotated[
        str, Flag(help="time theory may take; samples stand in where tied embeddings take longer", metavar="90s|10m|2h")
    ] = "1m"
    out: Annotated[
        Path | None, optional("folder for the table and the figure", "FOLDER", default="none are written")
    ] = None
    json: Annotated[bool, Flag(help="print one JSON object instead")] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.predict import predict_stack

        changes = given(self.stack)
        return predict_stack(
            changes, config=self.config, like=self.like, ignore=self.ignore, compare=self.compare, draws=self.draws,
            seed=self.seed,
            patterns=self.patterns, max_time=self.max_time, out=self.out, as_json=self.json,
        )  # fmt: skip
