"""Gauss-Newton matrices of simplified stacks beside large-width theory."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from checks.fits import LEAST_POINTS
from checks.statistics import Estimate, agreement_word, estimate
from studies.hessian.claims import WHOLE
from studies.hessian.gauss_newton import gauss_newton_norms, gauss_newton_traces
from theory import NoRuleError
from theory.stack import Stack

MARGIN = 0.1
"""Equivalence margin of a mean, relative to its prediction, where networks are wide enough to be judged."""

_WIDE_ENOUGH = 1 / 8
"""Largest (2L + V)/d at which they are, in the paper's setting: corrections are of that order, and
those of gated units or of attention to a source several times as large."""

_SIZE = ["placement", "width", "depth"]


def predictions(stacks: Sequence[Stack]) -> pd.DataFrame:
    """What theory says of every stack's Gauss-Newton matrix.

    Returns:
        Columns placement, width, depth, block (as the command names them), quantity ("trace", of the
        whole matrix "frobenius" and "largest" too), predicted, predicted_sem (logits are sampled), and judged: whether
        the stack is the paper's and wide enough for that. No rows of a stack that has no rule.
    """
    rows = []
    for stack in stacks:
        judged = stack.in_paper and (2 * stack.depth + stack.vocab) / stack.width <= _WIDE_ENOUGH
        for row in _predicted(stack):
            rows.append((stack.placement, stack.width, stack.depth, *row, judged))
    return pd.DataFrame(rows, columns=[*_SIZE, "block", "quantity", "predicted", "predicted_sem", "judged"])


def _predicted(stack: Stack) -> Iterator[tuple[str, str, float, float]]:
    """Block, quantity, value and its standard error."""
    try:
        traces = gauss_newton_traces(stack)
    except NoRuleError:
        return
    parts = {WHOLE: float(sum(value.sum() for value in traces.values())), "output": float(traces["Wemb"])}
    for role, value in traces.items():
        if role != "Wemb":
            own_role = role.removeprefix("encoder_")
            kind = "feed-forward" if own_role in ("W1", "W2", "WG") else "attention"
            parts[kind] = parts.get(kind, 0.0) + float(value.sum())
            if role == own_role:
                for layer, of_layer in enumerate(value, start=1):
                    parts[f"layer {layer}"] = parts.get(f"layer {layer}", 0.0) + float(of_layer)
            else:
                parts["encoder"] = parts.get("encoder", 0.0) + float(value.sum())
    parts["last W2"] = float(traces["W2"][-1])
    yield from ((block, "trace", value, 0.0) for block, value in parts.items())
    try:
        norms = gauss_newton_norms(stack)
    except ValueError:
        return
    yield WHOLE, "frobenius", norms.frobenius, norms.frobenius_sem
    yield WHOLE, "largest", norms.largest, norms.largest_sem


def beside_theory(found: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Measured means over seeds beside predictions.

    Args:
        found: of `studies.hessian.claims.summaries`.
        predicted: of `predictions`.

    Returns:
        The columns of `predicted`; measured (of Frobenius norms the root of the mean square) with sem, seeds, and
        agreement within `MARGIN`: "beyond" where a stack is not judged. Rows with two seeds at least.
    """
    measured = dict(list(found[found["matrix"] == "gauss-newton"].groupby([*_SIZE, "block"])))
    rows = []
    for row in predicted.itertuples():
        seeds = measured.get((row.placement, row.width, row.depth, row.block))
        if seeds is None or row.quantity not in seeds or len(values := seeds[row.quantity].dropna().to_numpy()) < 2:
            continue
        found_here = estimate(values**2).root() if row.quantity == "frobenius" else estimate(values)
        both = Estimate(found_here.mean, np.hypot(found_here.sem, row.predicted_sem), found_here.draws)
        word = agreement_word(both, row.predicted, MARGIN) if row.judged else "beyond"
        rows.append((*row[1:], float(found_here.mean), float(found_here.sem), len(values), word))
    return pd.DataFrame(rows, columns=[*predicted.columns, "measured", "sem", "seeds", "agreement"])


def predicted_exponents(predicted: pd.DataFrame, against: str) -> pd.DataFrame:
    """Exponents of theory over the same sizes: columns placement, block, the other size, quantity, exponent."""
    other = "width" if against == "depth" else "depth"
    keys = ["placement", "block", other, "quantity"]
    rows = [
        (*key, stats.linregress(np.log(part[against]), np.log(part["predicted"])).slope)
        for key, part in predicted[predicted["predicted"] > 0].groupby(keys) if part[against].nunique() >= LEAST_POINTS
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*keys, "exponent"])
