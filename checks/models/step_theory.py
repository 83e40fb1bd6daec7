"""How far the first step moves the logits of a factory's modules, and large-width theory of that beside it."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from simulate.modules.coordinates import Stepped
from simulate.modules.weight_places import ROOT
from theory import NoRuleError, Stack
from theory.first_step.prediction import first_step
from theory.mean_field.inputs import loss_positions
from theory.stack.optimizers import Optimizer

COLUMNS = ["width", "depth", "measured", "sem", "theory", "ratio", "why"]
_RULES: tuple[Optimizer, ...] = ("sgd", "adam", "muon")


def step_theory(stepped: Stepped, stack: Callable[[int, int], Stack] | None) -> pd.DataFrame:
    """The change of logits in the first step, measured and predicted.

    Args:
        stepped: what was measured.
        stack: the network of a width and a depth, whose matrices, inputs and loss the modules have; None where none is
            known.

    Returns:
        A row for each size: width, depth, measured (root mean square over logits and seeds), sem (its standard error,
        NaN of one seed), theory (to first order in the rate, of a step of matrices alone; NaN where there is none),
        ratio, why (there is none, or "").
    """
    changes: dict[tuple[int, int], list[float]] = {}
    for width, depth, _, step, place, _, quantity, value in stepped.rows:
        if quantity == "change" and place == ROOT and step == 1:
            changes.setdefault((width, depth), []).append(value)
    rows = []
    for (width, depth), values in sorted(changes.items()):
        squares = np.square(values)
        measured = float(np.sqrt(squares.mean()))
        count = len(squares)
        sem = float(squares.std(ddof=1) / count**0.5 / (2 * measured)) if count > 1 and measured else float("nan")
        theory, why = _predicted(stepped, stack, (width, depth))
        rows.append((width, depth, measured, sem, theory, measured / theory if theory else float("nan"), why))
    return pd.DataFrame(rows, columns=COLUMNS)


def _predicted(stepped: Stepped, stack: Callable[[int, int], Stack] | None, size: tuple[int, int]) -> tuple[float, str]:
    if stack is None:
        return float("nan"), "the factory has no stack"
    network = stack(*size)
    if not isinstance(network, Stack):
        raise ValueError(f"stack must give a Stack at width {size[0]}, depth {size[1]}, got {network!r}.")
    matrices = [owner for owner in stepped.owners[size] if len(owner.shape) > 1]
    kinds = sorted({stepped.rules.get(owner.weight, "nothing") for owner in matrices})
    rules = [rule for rule in _RULES if kinds == [rule]]
    rates = _rates(stepped, size, {owner.weight for owner in matrices})
    why = ""
    if not rules:
        why = f"theory has steps of one of {', '.join(_RULES)}, and matrices have {', '.join(kinds)}"
    elif len(rates) != 1:
        why = f"theory has one rate, and matrices have {len(rates)}"
    elif not all(owner.inputs for owner in matrices):
        why = "a table of inputs is stepped, which theory leaves as it is"
    elif loss_positions(network).min() == 0 or network.loss_share != 1.0:
        why = "the Stack's loss does not count all positions"
    if why:
        return float("nan"), why
    try:
        return float(rates[0] * first_step(network, rules[0]).logit_change_sq ** 0.5), ""
    except NoRuleError as error:
        return float("nan"), str(error).partition(", got ")[0]


def _rates(stepped: Stepped, size: tuple[int, int], names: set[str]) -> list[float]:
    """The different rates of the first step."""
    return sorted({
        value for width, depth, _, step, place, _, quantity, value in stepped.rows
        if (width, depth, step, quantity) == (*size, 0, "rate") and place in names
    })  # fmt: skip


def theory_lines(table: pd.DataFrame) -> list[str]:
    """The table as text; why there is no theory once."""
    if table.empty:
        return []
    seen = table["theory"].notna()
    whys = list(dict.fromkeys(table.loc[~seen, "why"]))
    if not seen.any():
        return [f"No theory of the first step beside it: {why}." for why in whys]
    lines = [
        "Change of logits in step 1, root mean square; theory is that of a Stack's matrices at large width:",
        f"  {'width':>6}  {'depth':>6} {'measured':>10} {'s.e.':>9} {'theory':>10} {'ratio':>7}",
    ]
    for row in table.itertuples():
        ends = f"{row.theory:10.3g} {row.ratio:7.3f}" if np.isfinite(row.theory) else f"{'-':>10} {'-':>7}"
        lines.append(f"  {row.width:>6}  {row.depth:>6} {row.measured:10.3g} {row.sem:9.1g} {ends}")
    return lines + [f"No theory of the first step at some sizes: {why}." for why in whys]
