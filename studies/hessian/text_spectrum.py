"""The spectrum of one matrix of one translation model on a text, from one run of Lanczos whose steps lie on a disk."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from checks.verdict import Setting, Subject, Verdict, sentence
from gradbounds.result import Result
from simulate.curvature.problems import Problem
from simulate.runs.files import write_whole
from simulate.runs.provenance import processor
from studies.hessian.claims import WHOLE, more_curvature
from studies.hessian.krylov import KrylovFolder
from studies.hessian.lanczos import from_coefficients
from studies.hessian.operators import Matrix, operator, probe_seed, probe_spectrum, product
from studies.hessian.text_problem import translation_problem
from studies.parallel_text import ParallelText
from studies.translation_model import Translation

# Pairs of a piece of the data, which bound the memory of a product: a GPU is filled by more.
_PIECES = {"cpu": 24, "cuda": 250}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextSpectrum:
    """A run.

    Attributes:
        model: without dropout.
        text: all of whose pairs count.
        matrix: which.
        seed: of the model and of the probe.
        steps: of Lanczos.
        device: of the model, the text and, besides the folder's files, the vectors.
    """

    model: Translation
    text: ParallelText
    matrix: Matrix
    seed: int
    steps: int
    device: str = "cpu"

    @property
    def name(self) -> str:
        """What the run is of, in short."""
        return f"{self.model.placement}-{self.matrix}-{self.seed}"

    def problem(self, dtype: torch.dtype = torch.float32) -> Problem:
        """The model and the text in pieces."""
        piece = _PIECES[torch.device(self.device).type]
        return translation_problem(self.model, self.text, seed=self.seed, piece=piece, dtype=dtype, device=self.device)

    def row(self, folder: Path, on_step: Callable[[str], None] = print) -> dict[str, Any]:
        """The run, from the last finished step on that the folder has.

        Args:
            folder: of this run, for its vectors: steps + 1 of the size of the model.
            on_step: told each step's time.

        Returns:
            What was run, where and in how many hours; the coefficients of Lanczos; the two extreme nodes, each with its
            residual; trace and Frobenius norm as one probe has them.

        Raises:
            ValueError: as `KrylovFolder` and `quadrature`.
        """
        problem = self.problem()
        size = sum(p.numel() for p in problem.parameters())
        # Without the placement two models would differ by nothing where it is the default.
        about = {
            "placement": self.model.placement, "model": self.model.non_default(), "text": self.text.digest,
            "pairs": len(self.text), "matrix": self.matrix, "seed": self.seed, "size": size, "dtype": "float32",
        }  # fmt: skip
        kept = _Told(folder, about, steps=self.steps, size=size, dtype=torch.float32)
        kept.on_step = on_step
        spectrum = probe_spectrum(problem, self.matrix, steps=self.steps, seed=probe_seed(self.seed, 0), kept=kept)
        (low, high), (low_residual, high_residual) = spectrum.nodes[[0, -1]], spectrum.residuals[[0, -1]]
        return about | {
            "names": list(self.text.names), "steps": len(kept.alphas), "alphas": kept.alphas, "betas": kept.betas,
            "smallest": [float(low), float(low_residual)], "largest": [float(high), float(high_residual)],
            "trace": spectrum.moment(1), "frobenius": spectrum.moment(2) ** 0.5,
            "hours": _hours(kept, 0), "processor hours": _hours(kept, 1),
            "processor": processor(self.device),
            "torch": torch.__version__, "threads": torch.get_num_threads(),
            "date": datetime.now(UTC).date().isoformat(),
        }  # fmt: skip


def _hours(kept: KrylovFolder, which: int) -> float:
    """Of all finished steps, on the clock or of the processor."""
    return round(sum(seconds[which] for seconds in kept.seconds) / 3600, 3)


class _Told(KrylovFolder):
    on_step: Callable[[str], None]

    def append(self, alpha: float, beta: float, following: torch.Tensor | None) -> None:
        super().append(alpha, beta, following)
        self.on_step(f"step {len(self.alphas)}: alpha {alpha:.6g}, beta {beta:.6g}, {self.seconds[-1][0]:.0f} s")


def price(run: TextSpectrum) -> tuple[float, float]:
    """Seconds of the processor that a run's products take, from those that one of them takes on one piece of the text.

    Returns:
        Of all steps, and of the timed piece.
    """
    problem = run.problem()
    middle = problem.data[len(problem.data) // 2]
    linear = operator(Problem(problem.model, problem.loss, [middle]), run.matrix)
    vector = torch.ones(linear.shape[1], device=run.device)
    float(product(linear, vector).sum())  # what starts up
    start = time.process_time()
    float(product(linear, vector).sum())  # a GPU's work has ended when its number is there
    seconds = time.process_time() - start
    words = [inputs["source"].numel() + inputs["target"].numel() for inputs, _ in problem.data]
    there = middle[0]["source"].numel() + middle[0]["target"].numel()
    return run.steps * seconds * sum(words) / there, seconds


def more_curvature_in_rows(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """H1 of one size: the largest eigenvalue of the Hessian, Post-LN over Pre-LN, from finished runs.

    Of fewer than three seeds there is no interval, and the row is undecided: it has their range.

    Args:
        rows: of `TextSpectrum.row`, of one text and size.
    """
    table = pd.DataFrame(
        {
            "placement": row["placement"], "width": _field(row, "width"), "depth": _field(row, "depth"),
            "seed": row["seed"], "matrix": row["matrix"], "block": WHOLE, "largest": row["largest"][0],
        }
        for row in rows if row["matrix"] == "hessian"
    )  # fmt: skip
    if table.empty:
        return []
    first, kind = rows[0], "encoder-decoder"
    about = f"{first['pairs']} pairs of {first['names'][0]} and {first['names'][1]}, V = {_field(first, 'vocab')}, "
    if judged := more_curvature(table, kind, about):
        return judged
    values = table.pivot_table(index="seed", columns="placement", values="largest")
    if not {"post", "pre"} <= set(values) or not len(values := values.dropna()):
        return []
    ratios, width, depth = values["post"] / values["pre"], int(table["width"].iloc[0]), int(table["depth"].iloc[0])
    count = "one seed" if len(ratios) == 1 else "two seeds"
    return [
        Verdict(
            claim="H1",
            subject=Subject(
                quantity=f"largest eigenvalue of the Hessian, Post-LN over Pre-LN, {kind}", kind="ratio",
                held=(("d", str(width)), ("L", str(depth))),
            ),
            verdict="undecided", claimed=sentence("above {}", 1), predicted=float("nan"),
            measured=float(np.exp(np.log(ratios).mean())), interval=(float(ratios.min()), float(ratios.max())),
            agreement="undecided",
            setting=Setting(
                networks=kind, ranges=(("d", width, width), ("L", depth, depth)), more=about + count,
            ),
            note=sentence(f"{count}: the range, no interval; no theory of the whole spectrum"),
        )
    ]  # fmt: skip


def tails(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """How many eigenvalues lie further out than each node of finished runs, as their probe has it.

    A density would show the width that its peaks are given. A probe of norm 1 counts an eigenvalue as n c², with c its
    component there; what it counts at or beyond a node lies between the sums of the quadrature's weights without that
    node's and with it (Chebyshev, Markov and Stieltjes). Random probes count m eigenvalues to within √(2m) or so.

    Args:
        rows: of `TextSpectrum.row`.

    Returns:
        Columns placement, matrix, seed; end, 1 of nodes from the heaviest upwards and -1 from there downwards, both
        from the outermost inwards; node; without and through, the counts.

    Source: Szegő, Orthogonal Polynomials, section 3.41.
    """
    frames = []
    for row in rows:
        spectrum = from_coefficients(row["alphas"], row["betas"], row["size"])
        about = {name: row[name] for name in ("placement", "matrix", "seed")}
        heaviest, counts = int(spectrum.weights.argmax()), row["size"] * spectrum.weights
        for end, nodes in ((1, np.arange(len(counts) - 1, heaviest - 1, -1)), (-1, np.arange(heaviest + 1))):
            through = counts[nodes].cumsum()
            values = {"end": end, "node": spectrum.nodes[nodes], "without": through - counts[nodes], "through": through}
            frames.append(pd.DataFrame(about | values))
    return pd.concat(frames, ignore_index=True)


def spectra_on_text(runs: Sequence[TextSpectrum], out: Path, *, dry_run: bool = False) -> Result:
    """Runs that have not finished, each from its last finished step on, and H1 of all.

    Args:
        runs: of one text and size.
        out: folder with a file for every finished run, and while one runs a folder of its vectors.
        dry_run: whether only the price is said.
    """
    files = [out / f"{run.name}.json" for run in runs]
    left = [run for run, file in zip(runs, files, strict=True) if not file.exists()]
    if dry_run:
        hours = sum(price(run)[0] for run in left) / 3600
        return Result(
            about="spectra", lines=[f"{len(left)} of {len(runs)} runs are left: {hours:.2f} hours of a core."]
        )
    for run in left:
        row = run.row(out / run.name)
        write_whole(out / f"{run.name}.json", json.dumps(row).encode())
        shutil.rmtree(out / run.name)
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    lines = [
        f"{run.name}: largest {row['largest'][0]:.4g} +- {row['largest'][1]:.2g}, smallest {row['smallest'][0]:.4g}"
        for run, row in zip(runs, rows, strict=True)
    ]
    return Result(about="spectra", tables={"tails": tails(rows)}, lines=lines, verdicts=more_curvature_in_rows(rows))


def _field(row: Mapping[str, Any], name: str) -> int:
    """Of a row's model, which has what differs from the defaults."""
    return int(row["model"].get(name, getattr(Translation(), name)))
