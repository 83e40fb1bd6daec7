"""`gradbounds relax`: its flags."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from gradbounds.flags import Flag, WithJson, given, network
from gradbounds.grid import field_name
from theory import Stack

_BASE = Stack(depth=4, vocab=64)
Network = network(_BASE)


@dataclass(frozen=True, kw_only=True)
class Relax(WithJson):
    """Switch the paper's assumptions off in turn and together: what changes, and whether theory still predicts it."""

    out: Annotated[Path, Flag(help="folder of the run; the same command continues it")]
    base: Annotated[Network, Flag(name="", help="")] = field(default_factory=Network)  # type: ignore[valid-type]
    widths: Annotated[
        tuple[str, ...], Flag(help="widths for the exponent in d", metavar="VALUE|A:B:xF|A:B:+S [...]")
    ] = ("128:1024:x2",)
    depths: Annotated[
        tuple[str, ...], Flag(help="depths for the exponent in L", metavar="VALUE|A:B:xF|A:B:+S [...]")
    ] = ("2:16:x2",)
    along: Annotated[
        str, Flag(help="one field of numbers to go along instead, as query-key-scale", metavar="FIELD")
    ] = ""
    values: Annotated[tuple[str, ...], Flag(help="values of that field", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ()
    draws: Annotated[int, Flag(help="least number of networks per cell")] = 64
    seed: Annotated[int, Flag(help="root seed")] = 0
    workers: Annotated[int, Flag(help="processes, each with one thread")] = 1

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.relax import relax

        steps: dict[str, Any] = {"along": field_name(self.along), "values": self.values}
        sampling: dict[str, Any] = {"draws": self.draws, "seed": self.seed, "workers": self.workers}
        return relax(self.out, replace(_BASE, **given(self.base)), self.widths, self.depths, **steps, **sampling)
