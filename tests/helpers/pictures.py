"""`python -m tests.helpers.pictures [NAME ...]` draws the pictures of docs/figures whose numbers are committed.

All of them without a name. Those of other runs are drawn by the commands in docs/figures/manifest.toml. The digests in
there are to be written by hand.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bench.drawing import cost_table, growth_tables
from bench.engine_cost import engine_cost
from bench.layer_growth import layer_growth
from checks.experiment import DRAWS, verify_cells
from figures.eigenvalues import (
    eigenvalue_ratios,
    eigenvalues_beside_theory,
    eigenvalues_further_out,
    eigenvalues_of_seeds,
)
from figures.scaling import scaling
from gradbounds.actions.figures import networks_line
from gradbounds.figure_files import save
from gradbounds.studies.bert.figure import pretraining_losses
from gradbounds.studies.bert.reproduce import COMMITTED
from gradbounds.studies.fig3.figure import fig3
from gradbounds.studies.mean_hessian.figure import mean_hessian
from gradbounds.studies.stable_rate.figure import stable_rates
from gradbounds.studies.text_spectrum import tails
from gradbounds.studies.warmup.figures import warmup_ends, warmup_gradients, warmup_losses, warmup_rates
from tests.evidence.curvature.test_hessian_eigenvalue import figure_of as eigenvalue_figure
from tests.evidence.test_mean_hessian import OUTSIDE, SETTINGS
from tests.helpers.rendered.tables import networks_of_stable_rates
from tests.helpers.rendered.warmup import PREFIXES, rows_of
from theory import Stack, predict
from theory.paper.theorem1 import bound_value
from tools.paper_sections import bound_stack

ROOT = Path(__file__).parents[2]


def _committed(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def _sizes(name: str) -> dict[str, int]:
    """Of "post, d = 32, L = 2, all": width, depth."""
    words = dict(part.split(" = ") for part in name.split(", ") if " = " in part)
    return {"width": int(words["d"]), "depth": int(words["L"])}


def _curvature() -> Figure:
    found = _committed("tests/evidence/hessian.json")
    rows = [
        {"placement": placement, "matrix": matrix, "largest": largest, "smallest": smallest}
        for placement in ("post", "pre") for matrix in ("gauss-newton", "hessian")
        for values in [found[f"{placement}, {matrix}"]]
        for largest, smallest in zip(values["largest"], values["smallest"], strict=True)
    ]  # fmt: skip
    return eigenvalues_of_seeds(pd.DataFrame(rows).astype({"smallest": float}))


def _curvature_stacks() -> Figure:
    found = _committed("tests/evidence/hessian-stacks.json")["sizes"]["theory, measured, s.e."]
    rows = [
        {"placement": name.split(",")[0], **_sizes(name), "predicted": theory, "largest": measured, "sem": sem}
        for name, (theory, measured, sem) in found.items() if name.endswith("all, largest")
    ]  # fmt: skip
    return eigenvalues_beside_theory(pd.DataFrame(rows).sort_values(["placement", "width", "depth"]))


def _curvature_sizes() -> Figure:
    found = _committed("tests/evidence/hessian-sizes.json")
    rows = [
        {"matrix": title, **_sizes(name), "ratio": ratio, "low": low, "high": high}
        for key, title in (("hessian", "Hessian"), ("gauss-newton", "Gauss-Newton matrix"))
        for name, (_, ratio, low, high) in found[f"H1, {key}"].items()
    ]
    return eigenvalue_ratios(pd.DataFrame(rows))


def _spectrum_512() -> Figure:
    rows = [json.loads(file.read_text()) for file in sorted((ROOT / "tests/evidence/text_spectra").glob("*.json"))]
    (steps,) = {row["steps"] for row in rows}
    return eigenvalues_further_out(
        tails(rows), f"a line a seed; marks: nodes of {steps} steps from one probe, on the axis below 0.5"
    )


def _fig3() -> Figure:
    found = _committed("tests/evidence/fig3.json")
    rows = []
    for name, values in found["W2"].items():
        placement, initialization, part, without = name.split(", ")
        columns = zip(values["mean norm"], values["sem"], values["theory"], strict=True)
        rows += [
            {"placement": placement, "initialization": initialization, "part": part, "matrix": "W2", "depth": 6,
             "without": without.removeprefix("without "), "layer": layer, "mean norm": norm, "mean norm sem": sem,
             "predicted": theory}
            for layer, (norm, sem, theory) in enumerate(columns, 1)
        ]  # fmt: skip
    table = pd.DataFrame(rows)
    last = [(*name.split(", L = "), value) for name, value in found["last W2"].items()]
    shares = [{"placement": "post", "without": name} | one for name, one in found["shares of growth, Post-LN"].items()]
    return fig3(
        table[table["initialization"] == "xavier"],
        pd.DataFrame(last, columns=["placement", "depth", "value"]).astype({"depth": int}),
        pd.DataFrame(shares),
    )


def _mean_hessian() -> Figure:
    found = _committed("tests/evidence/mean-hessian.json")
    fields = SETTINGS | {name: fields for name, (_, fields) in OUTSIDE.items()}
    rows = [
        {"setting": f"{name}, d = {fields[name]['width']}", "outside": kind == "outside"} | one
        for kind in ("settings", "outside") for name, one in found[kind].items()
    ]  # fmt: skip
    return mean_hessian(pd.DataFrame(rows))


def _against_width(path: str, chosen: Callable[[Stack], bool]) -> Figure:
    """Theorem 1's bound, theory and the committed cells of these networks."""
    rows = []
    for cell in _committed(path)["cells"]:
        stack, square = Stack(**cell["stack"]), cell.get("grad_sq_W2")
        if cell["text"] or square is None or not chosen(stack):
            continue
        norm = square["mean"] ** 0.5
        sizes = {name: getattr(stack, name) for name in ("placement", "width", "depth", "tokens", "vocab")}
        predicted = float(np.sqrt(predict(stack)["grad_sq_W2"][-1]))
        numbers = {"norm": norm, "sem": square["sem"] / (2 * norm), "predicted": predicted}
        rows.append(sizes | numbers | {"bound": float(np.mean(bound_value(stack).value))})
    return scaling(pd.DataFrame(rows).sort_values(["placement", "width"]), "width")


def _of_verify(stack: Stack) -> bool:
    return stack == bound_stack(stack.placement, stack.width)


def _warmup(draw: Callable[[list[Any]], Figure]) -> Callable[[], Figure]:
    return lambda: draw(_committed("checks/data/warmup/warmup-small.json")["rows"])


def _of_adam(rows: list[Any]) -> list[Any]:
    return [row for row in rows if row["optimizer"] == "adam"]


def _growth() -> Figure:
    return layer_growth(*growth_tables([ROOT / "checks/data" / f"{name}.json" for name in ("growth", "growth-gains")]))


# The rates of warm-up are those that `gradbounds reproduce warmup` draws at: of the paper's own, scaled.
PICTURES: dict[str, Callable[[], Figure]] = {
    "curvature": _curvature,
    "curvature_sizes": _curvature_sizes,
    "curvature_stacks": _curvature_stacks,
    "engine_cost": lambda: engine_cost(cost_table(_committed("bench/results/engines-epyc-avx512-2cores.json"))),
    "fig3": _fig3,
    "gradient_against_width": lambda: _against_width("checks/data/paper_checks.json", _of_verify),
    "gradient_to_a_million": lambda: _against_width("checks/data/wide.json", lambda stack: True),
    "hessian_eigenvalue": lambda: eigenvalue_figure(_committed("tests/evidence/hessian-eigenvalue.json")),
    "layer_growth": _growth,
    "mean_hessian": _mean_hessian,
    "pretraining_losses": lambda: pretraining_losses(rows_of(COMMITTED)),
    "spectrum_512": _spectrum_512,
    "stable_rates": lambda: stable_rates(networks_of_stable_rates(), 128),
    "warmup_ends": _warmup(warmup_ends),
    "warmup_gradients": _warmup(lambda rows: warmup_gradients(rows, 8e-3)),
    "warmup_losses": _warmup(lambda rows: warmup_losses(rows, 8e-3, 2.5e-2)),
    "warmup_losses_least": _warmup(lambda rows: warmup_losses(_of_adam(rows), 4e-3, 2.5e-2)),
    "warmup_losses_wide": lambda: warmup_losses(rows_of(PREFIXES), 1e-3, 0.0),
    "warmup_rates": _warmup(lambda rows: warmup_rates(rows, 8e-3)),
}


def main(names: list[str]) -> None:
    """Draw these, or all."""
    for name in names or PICTURES:
        # The one whose numbers `make verify` committed says so, as it does where that command draws it.
        said = networks_line(verify_cells(), DRAWS) if name == "gradient_against_width" else ""
        for path in save(PICTURES[name](), ROOT / "docs" / "figures", name, drawn_from=said):
            if path.suffix == ".svg":
                path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
