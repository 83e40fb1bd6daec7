"""`python -m tests.helpers.pictures [NAME ...]` draws the pictures of docs/figures whose numbers are committed.

All of them without a name. Those of other runs are drawn by the commands in docs/figures/manifest.toml. The digests in
there are to be written by hand.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bench.drawing import cost_table, growth_tables
from bench.engine_cost import engine_cost
from bench.layer_growth import layer_growth
from checks.experiment import DRAWS, verify_cells
from figures.scaling import scaling
from gradbounds.actions.figures import networks_line
from gradbounds.figure_files import save
from studies.fig3.figure import fig3
from tests.helpers.rendered.tables import committed
from theory import Stack, predict
from theory.paper.theorem1 import bound_value
from tools.paper_page import bound_stack

ROOT = Path(__file__).parents[2]


def _fig3() -> Figure:
    found = committed("studies/fig3/data/fig3.json")
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


def _against_width(path: str, chosen: Callable[[Stack], bool]) -> Figure:
    """Theorem 1's bound, theory and the committed cells of these networks."""
    rows = []
    for cell in committed(path)["cells"]:
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


def _growth() -> Figure:
    return layer_growth(*growth_tables([ROOT / "checks/data" / f"{name}.json" for name in ("growth", "growth-gains")]))


PICTURES: dict[str, Callable[[], Figure]] = {
    "engine_cost": lambda: engine_cost(cost_table(committed("bench/results/engines-epyc-avx512-2cores.json"))),
    "fig3": _fig3,
    "gradient_against_width": lambda: _against_width("checks/data/paper_checks.json", _of_verify),
    "gradient_to_a_million": lambda: _against_width("checks/data/wide.json", lambda stack: True),
    "layer_growth": _growth,
}


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        # The one whose numbers `make verify` committed says so, as it does where that command draws it.
        said = networks_line(verify_cells(), DRAWS) if name == "gradient_against_width" else ""
        save(PICTURES[name](), ROOT / "docs" / "figures", name, drawn_from=said)


if __name__ == "__main__":
    main(sys.argv[1:])
