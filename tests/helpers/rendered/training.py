"""Tables of docs/training.md, of committed results alone."""

from typing import Any

from tests.helpers.rendered.atlas import committed, table
from theory.stack import TITLES


def placements_in_training() -> str:
    """Exponents in d of the change of features, with half their 95% intervals, and what a placement is by the last."""
    found, rows = committed("training-placements")["exponents of rms changes"], []
    for placement in dict.fromkeys(name.partition(", ")[0] for name in found):
        cells = [TITLES[placement]]
        for rates in ("standard", "mu-P"):
            these = {
                row["step"]: row for row in found[f"{placement}, {rates}"] if row["quantity"] == "feature_change_sq"
            }
            cells += [_exponent(these.get(step)) for step in (1, 5, 20)] + [_learns(these.get(20))]
        rows.append(cells)
    heads = [f"{rates}, $k = {k}$" for rates in ("critical rate", "$\\mu$P") for k in (1, 5, 20)]
    return table(["", *heads[:3], "so", *heads[3:], "so"], rows)


def _exponent(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['exponent']:.2f} ± {(row['high'] - row['low']) / 2:.2f}".replace("-", "−")


def _learns(row: dict[str, Any] | None) -> str:
    """On which side of -1/4 the interval lies: halfway from a network that is lazy to one whose features move."""
    if row is None:
        return "–"
    return "lazy" if row["high"] < -0.25 else "learns" if row["low"] > -0.25 else "undecided"


def limits_of_training() -> str:
    """Limits at d = ∞ in mu-P with 95% intervals, and how many of all steps the widest network supports."""
    words = {"loss": "loss", "feature_change_sq": "features' change", "logit_change_sq": "logits' change"}
    rows = []
    for placement, limits in committed("training-limits")["limits"].items():
        for quantity, said in words.items():
            these = [row for row in limits if row["quantity"] == quantity and row["step"] > 1]
            cells = {row["step"]: f"{row['limit']:.3g} [{row['low']:.3g}, {row['high']:.3g}]" for row in these}
            count = [sum(row["verdict"] == word for row in these) for word in ("holds", "undecided", "fails")]
            residual = max(row["residual"] for row in these)
            steps = [cells.get(step, "–") for step in (2, 5, 10, 20)]
            rows.append([f"{TITLES[placement]}, {said}", *steps, f"{residual:.1f}", ", ".join(map(str, count))])
    heads = [f"$k = {k}$" for k in (2, 5, 10, 20)]
    return table(["", *heads, "largest residual", "holds, undecided, fails"], rows)


def meetings_of_gradients() -> str:
    """The step at which Post-LN's gradient of the last W2 has fallen to Pre-LN's, and the ratio of the norms."""
    rows = []
    for one in committed("training-meetings")["pairs"]:
        step, low, high = (f"> {one['steps']}" if one[k] is None else f"{one[k]:.0f}" for k in ("step", "low", "high"))
        ratios = [f"{one[name]:.2f}" for name in ("first", "last")]
        losses = [f"{one['last loss'][name]:.2g}" for name in ("post", "pre")]
        rows.append([str(one["depth"]), f"{one['rate over critical']:g}", f"{step} [{low}, {high}]", *ratios, *losses])
    heads = ["$L$", "rate over critical", "step", "ratio at first", "ratio at last", "loss, Post-LN", "loss, Pre-LN"]
    return table(heads, rows)
