"""Tables of the pages that are made of committed results alone; `rendered_pages` puts them between their marks."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from gradbounds.studies.stable_rate.predictors import predictor, table_of_networks
from theory.stack import TITLES

ROOT = Path(__file__).parents[3]
TWO = {"post": "Post-LN", "pre": "Pre-LN"}
STATISTICS = (
    "break-even rate", "Hessian rate", "critical rate", "2/λ", "1/tr G", "1/rms change of logits", "1/|g|²", "1/d",
)  # fmt: skip
_ROUNDING = 1e-5
_ROWS = ROOT / "tests" / "evidence" / "text_spectra"
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "muon": "Muon"}
MATRICES = {"hessian": "Hessian", "gauss-newton": "Gauss-Newton"}


def families() -> str:
    """The coefficient of the finite-width error of every family of stacks, with its standard error."""
    found = _committed("checks/data/large_width/coefficients.json")["families"]
    columns = {
        "all but queries and keys": ("uniform", "others"),
        "with a source": ("uniform, source", "others"),
        "random queries and keys: the rest": ("queries", "others"),
        "W^Q, W^K": ("queries", "queries"),
        "with a source: X^Q, X^K": ("queries, source", "queries of a source"),
    }
    said, rows = {"no norms": "Pre-LN without its norms", "unnormed": "no norm, branches over √L"}, []
    for norms, units in dict.fromkeys(tuple(name.split(", ")[:2]) for name in found):
        title = said[norms] if norms in said else TITLES[norms]
        numbers = [found.get(f"{norms}, {units}, {attention}", {}).get(kind) for attention, kind in columns.values()]
        rows.append(
            [title, units, *(_minus(f"{one['c']:.1f} ± {one['error']:.1f}") if one else "–" for one in numbers)]
        )
    return _table(["norms", "units", *columns], rows)


def pre_norm() -> str:
    """Pre-LN's law at one token: d times the mean and variance of the logarithm and what W2's mean is above theory."""
    found = _committed("tests/evidence/finite-width-pre.json")
    titles = {
        "mean of the logarithm": "mean of ln(W² of layer 1 / of layer L)", "variance of the logarithm": "its variance",
        "grad_sq_W2": "mean square of W², layer 1", "grad_sq_W1": "of W¹", "grad_sq_WV": "of W^V",
    }  # fmt: skip
    rows = []
    for depth in (2, 8, 32):
        cells = [found[f"d = {width}, L = {depth}"] for width in (64, 128, 256)]
        for name, title in titles.items():
            measured = [f"{c[name]['measured']:.2f} ± {c[name]['its standard error']:.2f}" for c in cells]
            rows.append([str(depth), title, *map(_minus, [*measured, f"{cells[0][name]['theory']:.2f}"])])
    return _table(["L", "d times", "d = 64", "128", "256", "theory"], rows)


def h1_at_nine_sizes() -> str:
    """Largest eigenvalue of Post-LN over Pre-LN with its interval, and the verdict on H1 where there is one."""
    found, rows = _committed("tests/evidence/hessian-sizes.json"), []
    for matrix, title in MATRICES.items():
        for width in (8, 16, 32):
            cells = []
            for depth in (2, 4, 8):
                word, *numbers = found[f"H1, {matrix}"][f"d = {width}, L = {depth}"]
                cells.append(_interval(numbers) + (f" **{word}**" if word != "undecided" else ""))
            rows.append([f"{title}, $d = {width}$", *cells])
    return _table(["", "$L = 2$", "$L = 4$", "$L = 8$"], rows)


def spectra_at_the_papers_width() -> str:
    """Extreme eigenvalues of every finished run with the residuals that bound them, and the placements' ratio.

    A bound is no smaller than what float32 rounds: CPU and GPU differ by 3e-6 of an eigenvalue.
    """
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in _ROWS.glob("*.json")]
    found = {(row["matrix"], row["seed"], row["placement"]): row for row in rows}
    lines = []
    for matrix, title in MATRICES.items():
        for seed in sorted({row["seed"] for row in rows if row["matrix"] == matrix}):
            two = [found.get((matrix, seed, placement)) for placement in TWO]
            ends = ["smallest", "largest"] if matrix == "hessian" else ["largest"]
            cells = [
                "; ".join(
                    f"{value:.4g} ± {max(bound, _ROUNDING * abs(value)):.1g}" for value, bound in map(one.get, ends)
                )
                if one
                else "not run yet"
                for one in two
            ]
            ratio = f"{two[0]['largest'][0] / two[1]['largest'][0]:.2f}" if all(two) else "–"
            lines.append([title, str(seed), *map(_minus, cells), ratio])
    if not lines:
        return "No run has finished."
    return _table(["", "seed", *TWO.values(), "ratio of the largest"], lines)


def exponents_of_curvature() -> str:
    """Exponents of three numbers of each matrix in the depth and in the width, where every value is positive."""
    found, rows = _committed("tests/evidence/hessian-sizes.json"), []
    words = {"largest": "largest eigenvalue", "trace": "trace", "frobenius": "Frobenius norm"}
    for matrix, title in MATRICES.items():
        for quantity, said in words.items():
            for placement, name in TWO.items():
                key = f"{placement}, {matrix}, {quantity}"
                depth = found["exponents in depth"].get(f"{key}, width = 32")
                width = found["exponents in width"].get(f"{key}, depth = 8")
                if depth is not None:
                    rows.append([f"{name}, {title}, {said}", _interval(depth), _interval(width)])
    return _table(["", "in $L$ at $d = 32$", "in $d$ at $L = 8$"], rows)


def along_the_top_direction() -> str:
    """What the Hessian is made of along Gauss-Newton's top direction, by classes and positions."""
    found = _committed("tests/evidence/along-top-direction.json")["over v'Gv"]
    heads = [f"{title}, {part}" for title in TWO.values() for part in ("radial", "rest", "λ(H)/λ(G)")]
    rows = []
    for label in (key.removeprefix("post, ") for key in found if key.startswith("post")):
        sizes = [word.partition(" = ")[2] for word in label.split(", ")]
        numbers = [f"{mean:.2f} ± {sem:.2f}" for name in TWO for mean, sem in found[f"{name}, {label}"].values()]
        rows.append([*sizes, *map(_minus, numbers)])
    return _table(["$n$", "$V$", *heads], rows)


def largest_eigenvalues_beside_theory() -> str:
    """Largest eigenvalue of the Hessian over Gauss-Newton's, measured and in theory, by tokens, classes and width."""
    found = _committed("tests/evidence/hessian-eigenvalue.json")["settings"]
    rows = []
    for name, title in TWO.items():
        sizes = {tuple(label.split(", ")[2:]) for label in found if label.startswith(name)}
        for tokens, vocab in sorted(sizes, key=lambda pair: [int(word.partition(" = ")[2]) for word in pair]):
            cells = []
            for width in (16, 32, 64, 128):
                line = found.get(f"{name}, d = {width}, {tokens}, {vocab}")
                ratio = line and line["measured"]["ratio"]
                cells.append(f"{ratio[0]:.2f} ± {ratio[1]:.2f} / {line['theory']['ratio']:.2f}" if line else "")
            rows.append([title, tokens.partition(" = ")[2], vocab.partition(" = ")[2], *cells])
    return _table(["", "$n$", "$V$", "$d=16$", "32", "64", "128"], rows)


def largest_stable_rates() -> str:
    """Medians over networks at d = 128, and in parentheses over 2/λ, each network's own."""
    table, rows = networks_of_stable_rates().query("width == 128"), []
    depths = sorted(set(table["depth"]))
    for (loss, placement), one in table.groupby(["loss", "placement"], sort=False):
        numbers = []
        for depth in depths:
            here = one[one["depth"] == depth]
            many = (here["eta_max"] * here["bounded"].astype(float)).median() > 0
            ratio = (here["eta_max"] / here["2/λ"]).median()
            numbers.append(f"{here['eta_max'].median():.2g} ({ratio:.2g})" if many else "none found")
        rows.append([loss, TITLES[str(placement)], *numbers])
    return _table(["loss", "", *(f"$L = {depth}$" for depth in depths)], sorted(rows))


def stable_rates_in_the_width() -> str:
    """Slopes of the logarithm of the stable rate in that of d, over networks of every width."""
    table, rows = networks_of_stable_rates().query("bounded"), []
    depths = sorted(set(table["depth"]))
    for (loss, placement), one in table.groupby(["loss", "placement"], sort=False):
        numbers = []
        for depth in depths:
            here = one[one["depth"] == depth]
            if here["width"].nunique() < 3:
                numbers.append("–")
                continue
            line = stats.linregress(np.log(here["width"]), np.log(here["eta_max"]))
            numbers.append(_minus(f"{line.slope:.2f} ± {line.stderr:.2f}"))
        rows.append([loss, TITLES[str(placement)], *numbers])
    return _table(["loss", "", *(f"$L = {depth}$" for depth in depths)], sorted(rows))


def predictors_of_stable_rates() -> str:
    """Every statistic of initialization: fitted at d ≤ 128, L ≤ 4, judged on what is wider or deeper."""
    return _predictors(lambda rows: (rows["width"] > 128) | (rows["depth"] > 4))


def predictors_at_larger_widths() -> str:
    """The same, judged on what is wider alone."""
    return _predictors(lambda rows: rows["width"] > 128)


def _predictors(judged: Callable[[pd.DataFrame], pd.Series]) -> str:
    """Every statistic of initialization: fitted at d ≤ 128, L ≤ 4, judged on some of the others."""
    table, rows = networks_of_stable_rates(), []
    for loss, one in table.groupby("loss", sort=False):
        small = ((one["width"] <= 128) & (one["depth"] <= 4)).to_numpy()
        for statistic in STATISTICS:
            found = predictor(one, statistic, small, judged(one).to_numpy())
            rows.append([
                loss, statistic.replace("|g|", "‖g‖"), f"{found.exponent:.2f}",
                f"{_percent(found.coverage)} [{_percent(found.coverage_low)}, {_percent(found.coverage_high)}]",
                f"{found.interval_ratio:.1f}", f"{found.off:.2f}",
            ])  # fmt: skip
    return _table(["loss", "statistic", "exponent", "covered by 90% intervals", "upper over lower end", "off by"], rows)


def networks_of_stable_rates() -> pd.DataFrame:
    """Every network of which `make evidence` has recorded the largest stable rate."""
    files = sorted((ROOT / "tests" / "evidence").glob("stable-rate-*.json"))
    return table_of_networks([_committed(str(file.relative_to(ROOT))) for file in files])


def _committed(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _interval(value: Sequence[float]) -> str:
    return f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"


def _percent(value: float) -> str:
    return _minus(f"{100 * value:.0f}%".replace("-0%", "0%"))


def _minus(text: str) -> str:
    return text.replace("-", "−")
