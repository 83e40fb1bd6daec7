"""`python -m studies mean_hessian`: its flags, and what it finds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from gradbounds.flags import Flag
from studies.committed import Checked
from studies.flags import IntoFolder

if TYPE_CHECKING:
    import pandas as pd

    from gradbounds.result import Result
    from theory.stack import Stack

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class MeanHessian(Checked, IntoFolder):
    """The mean of the Hessian over the output matrix, along random lines below it: 0 where theory says so (H3)."""

    seed: Annotated[int, Flag(help="seed of networks, lines and output matrices")] = 1
    settings: Annotated[int, Flag(help="only the first so many of the twelve settings within the theorem")] = 12
    draws: Annotated[int, Flag(help="output matrices for each setting; four times as many outside the theorem")] = 2**15
    traces: Annotated[int, Flag(help="output matrices for the trace of the whole Hessian")] = 2**17

    def found(self) -> "Result":
        """The steps of the derivation, and a row for every setting.

        Raises:
            ValueError: no setting is asked for.
        """
        import pandas as pd

        from gradbounds.result import Result
        from studies.mean_hessian.claims import mean_hessian_verdicts
        from studies.mean_hessian.figure import mean_hessian
        from studies.mean_hessian.settings import OUTSIDE, SETTINGS
        from studies.mean_hessian.theory import DERIVATION, mean_hessian_trace
        from studies.table_cache import cached
        from theory.stack import Stack

        if self.settings < 1 or self.draws < 2:
            raise ValueError(f"settings must be at least 1 and draws at least 2, got {self.settings}, {self.draws}.")
        if self.dry_run:
            return Result(about="settings", lines=[f"{self.settings} settings of {self.draws} output matrices each."])

        def kept(key: Mapping[str, Any], make: "Callable[[], pd.DataFrame]") -> "pd.DataFrame":
            return cached(self.out, {"seed": self.seed, "draws": self.draws} | dict(key), _VERSION, make)[0]

        rows = []
        for name, fields in list(SETTINGS.items())[: self.settings]:
            row = kept({"setting": name, "stack": fields}, partial(_within, Stack(**fields), self.draws, self.seed))
            rows.append(row.assign(setting=f"{name}, d = {fields['width']}", outside=False))
        for name, (maker, outside) in OUTSIDE.items() if self.settings == len(SETTINGS) else ():
            draw, target = maker(Stack(**outside), self.seed)
            make = partial(_line, draw, target, 4 * self.draws, self.seed)
            row = kept({"without": name, "stack": outside}, make).assign(placement=outside.get("placement", "post"))
            rows.append(row.assign(setting=f"{name}, d = {outside['width']}", outside=True, width=outside["width"]))
        table, traces = pd.concat(rows, ignore_index=True), []
        for placement in ("post", "pre"):
            stack = Stack(placement=placement, width=4, depth=1, tokens=3, vocab=5)
            values = kept(
                {"trace": placement, "traces": self.traces},
                partial(_traces, stack, self.traces, self.seed),
            )["trace"]
            traces.append((stack, list(values), mean_hessian_trace(stack)))
        verdicts = mean_hessian_verdicts(table[~table["outside"]], traces)
        shown = table[["setting", "outside", "hessian", "hessian_sem", "radial", "rest"]]
        steps = [f"{words}: {derive()}" for words, derive in DERIVATION]
        figures = {"mean_hessian": partial(mean_hessian, table)} if table["outside"].any() else {}
        return Result(
            about="mean Hessian", tables={"settings": table},
            lines=[*steps, "", *shown.to_string(index=False).split("\n")],
            verdicts=verdicts, figures=figures,
            differences=[f"DIFFERS {v.claim}, {v.part}" for v in verdicts if v.agreement == "differs"],
        )  # fmt: skip


def _within(stack: "Stack", draws: int, seed: int) -> "pd.DataFrame":
    from studies.mean_hessian.claims import expected_gauss_newton
    from studies.mean_hessian.draws import gaussian_draw

    return _line(*gaussian_draw(stack, seed), draws, seed).assign(
        placement=stack.placement, width=stack.width, gauss_newton_theory=expected_gauss_newton(stack, seed)
    )


def _line(draw: Any, target: Any, draws: int, seed: int) -> "pd.DataFrame":
    import pandas as pd

    from studies.mean_hessian.draws import second_derivatives

    return pd.DataFrame([second_derivatives(draw, target, draws=draws, seed=seed)])


def _traces(stack: "Stack", draws: int, seed: int) -> "pd.DataFrame":
    import pandas as pd

    from studies.mean_hessian.draws import hessian_traces

    return pd.DataFrame({"trace": hessian_traces(stack, draws=draws, seed=seed)})
