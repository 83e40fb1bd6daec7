"""Spectra at initialization, measured into a folder that a later command continues; what is printed and drawn."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from simulate.curvature.problems import Problem
from simulate.runs.cell import check_device
from studies.hessian.claims import ALONG, WHOLE, curvature_exponents, densities, residual_shares, summaries
from studies.hessian.figure import curvature
from studies.hessian.krylov import Krylov
from studies.hessian.loss_along import curvature_along
from studies.hessian.operators import MATRICES, Matrix, by_names, probe_seed, probe_spectrum
from studies.hessian.subjects import Subject
from studies.table_cache import cached
from theory.stack import title

Job = tuple[Subject, int, Matrix, str, int]
"""Subject, seed, matrix, block and probe."""


# The CPU's generator keeps the last 32 bits of a seed.
# 2: the inputs of a stack are independent of its first W^V. 3: the first probe of a whole matrix has its extremes.
_VERSION = 3
_LARGEST_SEED = 2**32

# Of extreme eigenvalues, and what that takes mostly.
_TOLERANCE = 1e-4
_EXTREME_PRODUCTS = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class SpectraRequest:
    """What is asked of which networks.

    Attributes:
        subjects: of every placement, width and depth.
        seeds: networks of each.
        seed: of the first.
        steps: of Lanczos.
        probes: of each matrix.
        blocks: whether parts and layers have spectra of their own.
        extreme: whether the extreme eigenvalues are asked for.
        reorthogonalize: whether Lanczos keeps its vectors.
        device: where.
    """

    subjects: Sequence[Subject]
    seeds: int
    seed: int
    steps: int
    probes: int
    blocks: bool
    extreme: bool
    reorthogonalize: bool
    device: str

    def check(self) -> None:
        """Refuse numbers outside their range, and devices that are not there.

        Raises:
            ValueError: there is one.
        """
        for name, least in (("seeds", 1), ("seed", 0), ("steps", 2), ("probes", 1)):  # a norm is a moment of two steps
            check_count(name, getattr(self, name), least)
        if self.seed + self.seeds > _LARGEST_SEED:
            raise ValueError(f"seed must be below {_LARGEST_SEED} with its successors, got {self.seed}.")
        check_device(self.device)

    def jobs(self) -> Iterator[Job]:
        """Everything."""
        for subject in self.subjects:
            blocks = [WHOLE, *(subject.blocks if self.blocks else ())]
            for seed in range(self.seed, self.seed + self.seeds):
                for matrix in MATRICES:
                    for block in blocks:
                        for probe in range(self.probes):
                            yield subject, seed, matrix, block, probe

    def to_the_ends(self, block: str, probe: int) -> bool:
        """Whether a probe's steps go on until they have the extreme eigenvalues."""
        return self.extreme and block == WHOLE and probe == 0


@dataclass(frozen=True, slots=True, eq=False)
class Spectra:
    """What was measured.

    Attributes:
        table: nodes and weights of every probe.
        found: `studies.hessian.claims.summaries` of it.
    """

    table: pd.DataFrame
    found: pd.DataFrame


def run_spectra(request: SpectraRequest, out: Path) -> Spectra:
    """Measure; what the folder holds already is not measured again.

    Raises:
        ValueError: an argument is outside its range, there is no such device, or a loss is not finite.
    """
    request.check()
    jobs = list(request.jobs())
    frames, start, fresh = [], time.perf_counter(), 0
    wanted: dict[str, Any] = {"steps": request.steps, "device": request.device,
                              "reorthogonalize": request.reorthogonalize}  # fmt: skip
    latest: tuple[tuple[Subject, int], Problem] | None = None

    def spectrum(subject: Subject, seed: int, matrix: Matrix, block: str, probe: int) -> pd.DataFrame:
        nonlocal latest
        if latest is None or latest[0] != (subject, seed):
            latest = None  # one network is in memory at a time
            latest = (subject, seed), subject.problem(seed, request.device)
        return _one(request, latest[1], matrix, (subject.blocks | {WHOLE: ("*",)})[block], probe, seed, block=block)

    for number, (subject, seed, matrix, block, probe) in enumerate(jobs, start=1):
        key = subject.key | {"seed": seed, "matrix": matrix, "block": block, "probe": probe} | wanted
        key |= {"extreme": True} if request.to_the_ends(block, probe) else {}
        rows, new = cached(out, key, _VERSION, partial(spectrum, subject, seed, matrix, block, probe))
        fresh += new
        frames.append(rows.assign(placement=subject.placement, width=subject.width, depth=subject.depth, seed=seed,
                                  matrix=matrix, block=block))  # fmt: skip
        if new:
            left = (time.perf_counter() - start) * (len(jobs) - number) / fresh
            print(f"{number} of {len(jobs)} spectra, {duration(left)} left", file=sys.stderr, flush=True)
    table = pd.concat(frames, ignore_index=True)
    return Spectra(table, summaries(table))


def spectra_result(spectra: Spectra, *, extreme: bool, beside: pd.DataFrame | None = None) -> Result:
    """The whole matrices and exponents in words, the tables, and the figure where extreme eigenvalues were asked for.

    Args:
        spectra: what was measured.
        extreme: whether extreme eigenvalues were asked for.
        beside: predictions, `studies.hessian.beside_theory.predictions`, for the figure.
    """
    drawn = {"curvature": lambda: curvature(densities(spectra.table), spectra.found, beside)} if extreme else {}
    tables = {"summaries": spectra.found, "spectra": spectra.table}
    return Result(about="spectra", tables=tables, lines=format_summaries(spectra.found), figures=drawn)


def _one(
    request: SpectraRequest, problem: Problem, matrix: Matrix, patterns: tuple[str, ...], probe: int, seed: int, *,
    block: str,
) -> pd.DataFrame:  # fmt: skip
    """Nodes, weights and residuals of a probe; the latter are NaN, and v'Hv in parts is missing, without the ends."""
    own_seed = probe_seed(seed, probe)
    size = sum(p.numel() for p in problem.parameters(patterns))
    if not request.to_the_ends(block, probe):
        spectrum = probe_spectrum(
            problem, matrix, steps=request.steps, seed=own_seed, patterns=patterns,
            reorthogonalize=request.reorthogonalize,
        )  # fmt: skip
        return _rows(probe, spectrum.nodes, spectrum.weights, float("nan"), size)
    kept = Krylov()
    spectrum = probe_spectrum(problem, matrix, steps=request.steps, seed=own_seed, kept=kept, tolerance=_TOLERANCE)
    rows = _rows(probe, spectrum.nodes, spectrum.weights, spectrum.residuals, size)
    if matrix != "gauss-newton":
        return rows
    parts = asdict(curvature_along(problem, by_names(problem, kept.top_vector())))
    return pd.concat([rows, _rows(ALONG, list(parts.values()), float("nan"), float("nan"), size)], ignore_index=True)


def _rows(probe: int, nodes: Any, weights: Any, residuals: Any, size: int) -> pd.DataFrame:
    return pd.DataFrame({"probe": probe, "node": nodes, "weight": weights, "residual": residuals, "dimension": size})


def cost_summary(request: SpectraRequest, of_what: str = "") -> Result:
    """Number of spectra and of products, and memory of the largest.

    Args:
        request: what is asked.
        of_what: said after the products, as " over 200 pairs".
    """
    request.check()
    jobs = list(request.jobs())
    most = max(request.steps, _EXTREME_PRODUCTS) if request.extreme else request.steps
    products = sum(most if request.to_the_ends(block, probe) else request.steps for *_, block, probe in jobs)
    largest = max(request.subjects, key=lambda subject: subject.parameters)
    kept_vectors = most if request.reorthogonalize or request.extreme else 3
    memory = 4 * (largest.parameters * (kept_vectors + 8) + largest.activations)
    aside = "" if largest.activations else " besides its activations"
    words = (
        f"{len(jobs)} spectra, about {products} products{of_what}; the largest network has "
        f"{largest.parameters / 1e6:.2f} million parameters and takes about {memory / 2**30:.2g} GiB{aside}."
    )
    return Result(about="what spectra take", values={"takes": words}, lines=[words])


def _or_dash(value: float, width: int) -> str:
    """A number, or a dash where there is none: an error of one probe, an end that was not asked for."""
    return f"{value:{width}.3g}" if np.isfinite(value) else f"{'-':>{width}}"


def format_summaries(found: pd.DataFrame) -> list[str]:
    """Whole matrices, exponents, and what Gauss-Newton has of the Hessian."""
    text = [f"{'':46}{'smallest':>10}{'largest':>10}{'trace':>18}{'Frobenius':>18}{'negative':>9}"]
    for row in found[found["block"] == WHOLE].itertuples():
        name = f"{title(row.placement)} d = {row.width}, L = {row.depth}, seed {row.seed}, {row.matrix}"
        text.append(
            f"{name:46}{_or_dash(row.smallest, 10)}{_or_dash(row.largest, 10)}"
            f"{row.trace:9.3g} +-{_or_dash(row.trace_sem, 6)}"
            f"{row.frobenius:9.3g} +-{_or_dash(row.frobenius_sem, 6)} {100 * row.negative:6.1f}%"
        )
    shares = residual_shares(found[found["block"] == WHOLE])
    for placement, group in shares.groupby("placement"):
        part = f"largest eigenvalue {group['eigenvalue'].mean():.3f}, Frobenius norm {group['norm'].mean():.3f}"
        text.append(f"{title(placement)}, Gauss-Newton over Hessian: {part}")
    along = found[found["block"] == WHOLE].dropna(subset="along_gauss_newton")
    for placement, group in along.groupby("placement"):
        radial, rest = ((group[f"along_{part}"] / group["along_gauss_newton"]).mean() for part in ("radial", "rest"))
        parts = f"1 (Gauss-Newton) {radial:+.3f} (radial) {rest:+.3f} (rest)"
        text.append(f"{title(placement)}, v'Hv over v'Gv along Gauss-Newton's top direction: {parts}")
    for against, letter in (("depth", "L"), ("width", "d")):
        for row in curvature_exponents(found[found["block"] == WHOLE], against).itertuples():
            other = f"d = {row.width}" if against == "depth" else f"L = {row.depth}"
            name = f"{title(row.placement)}, {other}, {row.matrix}, {row.quantity}"
            text.append(f"{name} ~ {letter}^{row.exponent:.2f} [{row.low:.2f}, {row.high:.2f}]")
    return text
