"""Spectra of Hessians and Gauss-Newton matrices: moments with errors, exponents, and which placement has more."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats

from checks.fits import LEAST_POINTS
from checks.statistics import estimate, scalar_agreement
from checks.verdict import Setting, Subject, Verdict, Word, interval_of, sentence
from studies.hessian.lanczos import Quadrature
from theory.stack import TITLES

MODEL = ["placement", "width", "depth", "seed", "matrix", "block"]
"""What names one matrix in a table of nodes."""

WHOLE = "all"
"""The block that is the whole matrix."""

NAMES = {"hessian": "Hessian", "gauss-newton": "Gauss-Newton matrix"}
"""Matrices in prose."""

ALONG = -2
"""A probe that is none: v'Gv, the radial part and the rest of v'Hv, with v Gauss-Newton's top direction."""

LEAST_SEEDS = 3
RATIO_MARGIN = 0.1
"""Of a ratio's logarithm."""


def summaries(table: pd.DataFrame) -> pd.DataFrame:
    """One row per matrix: trace, Frobenius norm and negative mass over probes, and extreme eigenvalues.

    Args:
        table: columns of `MODEL`, probe, node, weight, residual and dimension: the quadrature of every probe, with
            residuals where its outer nodes are the extreme eigenvalues; `ALONG` has what it says, with no weight.

    Returns:
        Columns of `MODEL`; dimension; trace, frobenius (by Hutchinson's estimate from the same probes), negative (share
        of the spectrum below −1e-3 of the largest absolute node), each with _sem over probes (NaN for one); smallest
        (NaN of Gauss-Newton matrices) and largest; along_gauss_newton, along_radial and along_rest, of Gauss-Newton
        matrices; the last five NaN where extremes were not asked for.
    """
    rows = []
    for key, group in table.groupby(MODEL, sort=False):
        probes = group[group["probe"] >= 0]
        ends = probes.loc[probes["residual"].notna(), "node"]
        along = group.loc[group["probe"] == ALONG, "node"].tolist() or [float("nan")] * 3
        row = dict(zip(MODEL, key, strict=True)) | {"dimension": int(group["dimension"].iloc[0])}
        row |= dict(zip(("along_gauss_newton", "along_radial", "along_rest"), along, strict=True))
        # Of many eigenvalues 0 no such method has the smallest.
        low = float("nan") if row["matrix"] == "gauss-newton" else ends.min()
        row |= {"smallest": low, "largest": ends.max()}
        if len(probes):
            edge = -1e-3 * probes["node"].abs().max()
            parts = [_moments(probe, edge) for _, probe in probes.groupby("probe")]
            for name, values in zip(("trace", "square", "negative"), zip(*parts, strict=True), strict=True):
                row |= {name: float(np.mean(values)), f"{name}_sem": _sem(values)}
            # The norm is the root of a mean over probes; its error by the delta method.
            row["frobenius"] = row["square"] ** 0.5
            row["frobenius_sem"] = 0.5 * row["square_sem"] / row["frobenius"] if row["frobenius"] else 0.0
        rows.append(row)
    return pd.DataFrame(rows).drop(columns=["square", "square_sem"], errors="ignore")


def _moments(probe: pd.DataFrame, edge: float) -> tuple[float, float, float]:
    nodes, weights, residuals = (probe[name].to_numpy() for name in ("node", "weight", "residual"))
    quadrature = Quadrature(nodes, weights, residuals, int(probe["dimension"].iloc[0]))
    return quadrature.moment(1), quadrature.moment(2), quadrature.mass_below(edge)


def _sem(values: tuple[float, ...]) -> float:
    return float(stats.sem(values)) if len(values) > 1 else float("nan")


def residual_shares(found: pd.DataFrame) -> pd.DataFrame:
    """Of every Hessian beside its Gauss-Newton matrix: largest eigenvalues and Frobenius norms, as ratios.

    The Hessian is the Gauss-Newton matrix and a residual term, which is linear in the loss's slope at the logits.
    Columns of `MODEL` but matrix; eigenvalue and frobenius: Gauss-Newton over Hessian.
    """
    keys = [name for name in MODEL if name != "matrix"]
    whole, part = (found[found["matrix"] == name].set_index(keys) for name in ("hessian", "gauss-newton"))
    joined = whole.join(part[["largest", "frobenius"]].add_suffix(" of part"), how="inner")
    return joined.assign(
        eigenvalue=joined["largest of part"] / joined["largest"], norm=joined["frobenius of part"] / joined["frobenius"]
    ).reset_index()[[*keys, "eigenvalue", "norm"]]  # fmt: skip


def curvature_exponents(found: pd.DataFrame, against: str) -> pd.DataFrame:
    """Exponents of largest eigenvalue, trace and Frobenius norm in the depth or the width, over seeds.

    Args:
        found: of `summaries`.
        against: "depth" or "width".

    Returns:
        One row per placement, matrix, block, the other size and quantity: exponent, low and high of its 95% interval,
        seeds. A seed has a slope of its own, since its networks share random numbers; the interval is Student's t over
        seeds. Where fewer than three sizes or seeds, or a value that is not positive, there is none.
    """
    other = "width" if against == "depth" else "depth"
    rows = []
    for key, group in found.groupby(["placement", "matrix", "block", other]):
        for name in ("largest", "trace", "frobenius"):
            if name not in group or group[against].nunique() < LEAST_POINTS or not (group[name] > 0).all():
                continue
            logs = np.log(group.pivot_table(index="seed", columns=against, values=name).dropna())
            if len(logs) < LEAST_SEEDS:
                continue
            sizes = np.log(logs.columns.to_numpy(dtype=float))
            fit = estimate([stats.linregress(sizes, row).slope for row in logs.to_numpy()])
            rows.append((*key, name, float(fit.mean), *interval_of(fit), len(logs)))
    columns = ["placement", "matrix", "block", other, "quantity", "exponent", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def more_curvature(
    found: pd.DataFrame,
    kind: str,
    about: str,
    *,
    matrix: str = "hessian",
    predicted: Mapping[tuple[int, int], float] | None = None,
) -> list[Verdict]:
    """H1: at every width and depth, a matrix's largest eigenvalue of Post-LN over Pre-LN's.

    Args:
        found: of `summaries`.
        kind: what networks, in short.
        about: the rest of their setting.
        matrix: which.
        predicted: the ratio by theory, for some widths and depths.
    """
    rows = found[(found["matrix"] == matrix) & (found["block"] == WHOLE) & (found["largest"] > 0)]
    verdicts, over = [], f"{TITLES['post']} over {TITLES['pre']}"
    for (width, depth), group in rows.groupby(["width", "depth"]):
        logs = np.log(group.pivot_table(index="seed", columns="placement", values="largest"))
        if not {"post", "pre"} <= set(logs) or len(logs := logs[["post", "pre"]].dropna()) < LEAST_SEEDS:
            continue
        # Networks of one seed share random numbers, so that their ratio scatters less than they do.
        found_ratio = estimate(logs["post"] - logs["pre"])
        difference, (low, high) = float(found_ratio.mean), interval_of(found_ratio)
        word: Word = "holds" if low > 0 else "fails" if high < 0 else "undecided"
        ratio = (predicted or {}).get((int(width), int(depth)), float("nan"))
        # As wide as Student's t has it, for few seeds.
        sem = (high - low) / (2 * float(stats.norm.ppf(0.975)))
        verdicts.append(
            Verdict(
                claim="H1",
                subject=Subject(
                    quantity=f"largest eigenvalue of the {NAMES[matrix]}, {over}, {kind}",
                    kind="ratio",
                    held=(("d", str(width)), ("L", str(depth))),
                ),
                verdict=word,
                claimed=sentence("above {}", 1),
                predicted=ratio,
                measured=float(np.exp(difference)),
                interval=(float(np.exp(low)), float(np.exp(high))),
                agreement=scalar_agreement(difference, float(np.log(ratio)), sem, RATIO_MARGIN)
                if np.isfinite(ratio)
                else "undecided",
                setting=Setting(
                    networks=kind,
                    ranges=(("d", int(width), int(width)), ("L", int(depth), int(depth))),
                    more=f"{about}{len(logs)} seeds",
                ),
                note=sentence("geometric mean over seeds of their ratios, interval by Student's t of the logarithms; ")
                + sentence("theory: large-width means" if np.isfinite(ratio) else "no theory of the whole spectrum"),
            )
        )
    return verdicts


def densities(table: pd.DataFrame, points: int = 400, broadening: float = 0.01) -> pd.DataFrame:
    """Spectral densities on a grid, each probe's nodes broadened by a Gaussian.

    Args:
        table: as for `summaries`.
        points: of the grid, which is common to all matrices of a width and depth.
        broadening: its standard deviation, of the range of all nodes.

    Returns:
        Columns placement, width, depth, matrix, eigenvalue, and density of whole matrices: mean over seeds (of each
        seed's mean over its probes), low and high (least and greatest) over probes and seeds; one: a tenth of the peak
        that one eigenvalue has in one of them.
    """
    frames = []
    whole = table[(table["probe"] >= 0) & (table["block"] == WHOLE)]
    for (width, depth, matrix), group in whole.groupby(["width", "depth", "matrix"]):
        low, high = group["node"].min(), group["node"].max()
        spread = max(high - low, 1e-12) * broadening
        grid = np.linspace(low - 4 * spread, high + 4 * spread, points)
        for placement, models in group.groupby("placement"):
            curves = pd.DataFrame(
                {
                    key: stats.norm.pdf(grid[:, None], probe["node"].to_numpy(), spread) @ probe["weight"].to_numpy()
                    for key, probe in models.groupby(["seed", "probe"])
                }
            )
            values = {"eigenvalue": grid, "mean": curves.T.groupby(level=0).mean().T.mean(axis=1)}
            values |= {"low": curves.min(axis=1), "high": curves.max(axis=1)}
            values["one"] = 0.1 * stats.norm.pdf(0.0, scale=spread) / models["dimension"].iloc[0] / curves.shape[1]
            frames.append(pd.DataFrame(values).assign(placement=placement, width=width, depth=depth, matrix=matrix))
    return pd.concat(frames, ignore_index=True)
