"""`python -m studies stable_rate`: its flags, and what it finds."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from gradbounds.flags import Flag
from studies.flags import IntoFolder

if TYPE_CHECKING:
    import pandas as pd

    from gradbounds.result import Result
    from studies.stable_rate.search import Loss
    from theory.stack import Stack

_VERSION = 1
# Numbers in a call, which bound its memory.
_AT_ONCE = 2**27


@dataclass(frozen=True, kw_only=True)
class StableRates(IntoFolder):
    """The largest stable rates of gradient descent, network by network, beside statistics of initialization."""

    placement: Annotated[tuple[str, ...], Flag(help="placements")] = ("post", "pre")
    width: Annotated[tuple[int, ...], Flag(help="hidden widths d")] = (32,)
    depth: Annotated[tuple[int, ...], Flag(help="depths L")] = (1, 2, 4)
    loss: Annotated[tuple[Literal["cross-entropy", "squared"], ...], Flag(help="losses")] = ("cross-entropy",)
    networks: Annotated[int, Flag(help="networks of each size")] = 4
    steps: Annotated[int, Flag(help="steps of a training")] = 100
    committed: Annotated[bool, Flag(help="show what the committed networks say, and measure none")] = False

    def run(self) -> "Result":
        """A row for every network, and how well each statistic predicts the rate."""
        import pandas as pd

        from gradbounds.result import Result
        from studies.stable_rate.figure import stable_rates
        from studies.stable_rate.predictors import committed_networks, format_predictors, with_bounds
        from studies.table_cache import cached
        from theory.stack import Stack

        stacks = [
            Stack(placement=placement, width=width, depth=depth, tokens=8, vocab=16)
            for width in self.width for depth in self.depth for placement in self.placement
        ]  # fmt: skip
        if self.dry_run:
            count = len(stacks) * len(self.loss)
            return Result(about="stable rates", lines=[f"{count} sizes and losses of {self.networks} networks each."])
        if self.committed:
            table = committed_networks()
        else:
            frames = [
                cached(
                    self.out,
                    {"stack": stack.non_default(), "loss": loss, "networks": self.networks, "steps": self.steps,
                     "seed": self.seed},
                    _VERSION, partial(_measured, stack, loss, range(self.seed, self.seed + self.networks), self.steps),
                )[0]
                for stack in stacks for loss in self.loss
            ]  # fmt: skip
            table = with_bounds(pd.concat(frames, ignore_index=True))
        return Result(
            about="stable rates", tables={"networks": table}, lines=format_predictors(table),
            figures={"stable_rates": partial(stable_rates, table, int(table["width"].max()))},
        )  # fmt: skip


def _measured(stack: "Stack", loss: "Loss", seeds: range, steps: int) -> "pd.DataFrame":
    """Rows of the networks of one stack; few train at once, so that memory suffices."""
    import pandas as pd

    from studies.stable_rate.initial_statistics import initial_statistics
    from studies.stable_rate.search import largest_stable_rates
    from theory.first_step.prediction import first_step

    start, rows = 4 * float(first_step(stack).critical_rate), []
    at_once = max(1, min(len(seeds), _AT_ONCE // (stack.depth * stack.width**2 * 3)))
    for first in range(seeds.start, seeds.stop, at_once):
        batch = range(first, min(first + at_once, seeds.stop))
        rates = largest_stable_rates(stack, batch, start, loss=loss, steps=steps)
        for seed, rate in zip(batch, rates, strict=True):
            statistics = initial_statistics(stack, seed=seed, loss=loss).rates(stack.width)
            rows.append({"seed": seed, "eta_max": rate.rate, "failure": rate.failure} | statistics)
    about = {"placement": stack.placement, "width": stack.width, "depth": stack.depth, "loss": loss}
    return pd.DataFrame(rows).assign(**about)
