"""Tables of docs/configurations.md and docs/training.md, of committed results alone.

`rendered_pages` puts them between their marks.
"""

import json
from pathlib import Path
from typing import Any

from theory.stack import TITLES

_FOLDER = Path(__file__).parents[1] / "evidence"
_ROLES = ("WQ", "WV", "W1", "W2")


def _committed(name: str) -> Any:
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def architectures() -> str:
    """Architectures built by their own code, over what their configs predict."""
    found = _committed("configurations")
    rows = []
    for name, one in found["models"].items():
        worst = one["largest deviation"]
        rows.append(
            [
                name, str(one["numbers"]), str(len(one["beyond"])), f"{100 * one['median sem']:.1f}%",
                f"{100 * (one['mean ratio'] - 1):+.1f}%".replace("-", "−"),
                f"{worst['ratio']:.3f} ± {worst['sem']:.3f} (dL/d{worst['of']}, layer {worst['layer']})",
            ]
        )  # fmt: skip
    return _table(
        ["architecture", "numbers", "beyond", "median error", "mean deviation", "largest ratio to theory"], rows
    )


def setting() -> str:
    """What those architectures were reduced to."""
    found = _committed("configurations")
    return (
        f"d = {found['width']}, L = {found['depth']}, V = {found['vocab']}, n = {found['tokens']}, {found['draws']} "
        f"networks each, transformers {found['transformers']}."
    )


def atlas() -> str:
    """Published models at initialization."""
    rows = []
    for name, one in _committed("atlas")["models"].items():
        rows.append([name, *_of(one)])
    return _table(["model", *_HEAD], rows)


_HEAD = [*(f"dL/d{role}" for role in _ROLES), "stream, first", "last", "cosine, first", "last"]


def _of(one: dict[str, Any]) -> list[str]:
    ratios = [f"{one['first over last'][role]:.3g}" for role in _ROLES]
    return [*ratios, *(f"{value:.3g}" for value in one["energy"]), *(f"{value:.2f}" for value in one["cosine"])]


def choices() -> str:
    """The same with one choice of the model undone, or another's taken over."""
    found = _committed("atlas")
    rows = []
    for name, others in found["choices"].items():
        rows.append([f"**{name}**", *_of(found["models"][name])])
        rows += [[f"{name}: {choice}", *_of(one)] for choice, one in others.items()]
    return _table(["model and change", *_HEAD], rows)


def placements_in_training() -> str:
    """Exponents in d of the change of features, with half their 95% intervals, and what a placement is by the last."""
    found, rows = _committed("training-placements")["exponents of rms changes"], []
    for placement in dict.fromkeys(name.partition(", ")[0] for name in found):
        cells = [TITLES[placement]]
        for rates in ("standard", "mu-P"):
            these = {
                row["step"]: row for row in found[f"{placement}, {rates}"] if row["quantity"] == "feature_change_sq"
            }
            cells += [_exponent(these.get(step)) for step in (1, 5, 20)] + [_learns(these.get(20))]
        rows.append(cells)
    heads = [f"{rates}, $k = {k}$" for rates in ("critical rate", "$\\mu$P") for k in (1, 5, 20)]
    return _table(["", *heads[:3], "so", *heads[3:], "so"], rows)


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
    for placement, limits in _committed("training-limits")["limits"].items():
        for quantity, said in words.items():
            these = [row for row in limits if row["quantity"] == quantity and row["step"] > 1]
            cells = {row["step"]: f"{row['limit']:.3g} [{row['low']:.3g}, {row['high']:.3g}]" for row in these}
            count = [sum(row["verdict"] == word for row in these) for word in ("holds", "undecided", "fails")]
            residual = max(row["residual"] for row in these)
            steps = [cells.get(step, "–") for step in (2, 5, 10, 20)]
            rows.append([f"{TITLES[placement]}, {said}", *steps, f"{residual:.1f}", ", ".join(map(str, count))])
    heads = [f"$k = {k}$" for k in (2, 5, 10, 20)]
    return _table(["", *heads, "largest residual", "holds, undecided, fails"], rows)


def meetings_of_gradients() -> str:
    """The step at which Post-LN's gradient of the last W2 has fallen to Pre-LN's, and the ratio of the norms."""
    rows = []
    for one in _committed("training-meetings")["pairs"]:
        step, low, high = (f"> {one['steps']}" if one[k] is None else f"{one[k]:.0f}" for k in ("step", "low", "high"))
        ratios = [f"{one[name]:.2f}" for name in ("first", "last")]
        losses = [f"{one['last loss'][name]:.2g}" for name in ("post", "pre")]
        rows.append([str(one["depth"]), f"{one['rate over critical']:g}", f"{step} [{low}, {high}]", *ratios, *losses])
    heads = ["$L$", "rate over critical", "step", "ratio at first", "ratio at last", "loss, Post-LN", "loss, Pre-LN"]
    return _table(heads, rows)
