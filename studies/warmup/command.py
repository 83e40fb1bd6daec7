"""`python -m studies warmup`, as the dataclass of its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gradbounds.flags import Flag, WithJson, optional
from studies.committed import Checked


@dataclass(frozen=True, kw_only=True)
class Warmup(Checked, WithJson):
    """Train the paper's translation models on your texts with and without warm-up, and judge what it says of them."""

    source: Annotated[Path, Flag(help="text to translate from, UTF-8, a sentence a line")]
    target: Annotated[Path, Flag(help="text to translate to, line by line")]
    out: Annotated[Path, Flag(help="folder; a run that has finished there is never run again")]
    preset: Annotated[
        str,
        Flag(
            help="grid of runs: small, prefix (1000 updates at d = 512), paper (for a GPU), or a TOML file like these",
            metavar="NAME|FILE",
        ),
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

    def found(self) -> Any:
        """What was found, or an exit code."""
        from studies.warmup.reproduce import WarmupRequest, reproduce_warmup

        return reproduce_warmup(WarmupRequest(
            preset=self.preset, source=self.source, target=self.target, out=self.out, known=self.known,
            seeds=self.seeds, workers=self.workers, dask=self.dask, device=self.device,
        ), dry_run=self.dry_run)  # fmt: skip
