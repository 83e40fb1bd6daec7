"""`gradbounds hessian`: spectra of translation models at initialization, in a folder that a later command continues."""

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from checks.curvature import curvature_exponents, densities, more_curvature, residual_shares, summaries
from checks.results import results
from figures import curvature as drawn
from gradbounds.drawing import save
from gradbounds.judging import accept_verdicts, check_checkout
from gradbounds.kept import kept
from gradbounds.manifest import session
from gradbounds.progress import duration
from simulate.cell import check_device
from simulate.curvature import MATRICES, Matrix, extreme_eigenvalues, probe_spectrum
from simulate.files import write_whole
from simulate.parallel_text import ParallelText
from simulate.problems import Problem, translation_problem
from simulate.sample import check_count
from simulate.translator import Translation, parameter_count
from theory.stack import TITLES

BLOCKS: dict[str, tuple[str, ...]] = {
    "embeddings": ("*source.weight", "*target.weight", "*output.weight"),
    "attention": ("*attn*",),
    "feed-forward": ("*linear*",),
    "norms": ("*norm*",),
    "encoder": ("*encoder.*",),
    "decoder": ("*decoder.*",),
}
"""Parts of a translation model, by globs of their parameters' names."""

WHOLE = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of which models.

    Attributes:
        models: of every placement, width and depth.
        seeds: models of each.
        seed: of the first.
        steps: of Lanczos.
        probes: of each matrix.
        blocks: whether parts and layers have spectra of their own.
        extreme: whether the extreme eigenvalues are asked for.
        reorthogonalize: whether Lanczos keeps its vectors.
        device: where.
    """

    models: Sequence[Translation]
    seeds: int
    seed: int
    steps: int
    probes: int
    blocks: bool
    extreme: bool
    reorthogonalize: bool
    device: str

    def jobs(self) -> Iterator[tuple[Translation, int, Matrix, str, int]]:
        """(model, seed, matrix, block, probe) of everything; probe -1 are the extreme eigenvalues."""
        for model in self.models:
            blocks = [WHOLE, *(_blocks(model) if self.blocks else ())]
            for seed in range(self.seed, self.seed + self.seeds):
                for matrix in MATRICES:
                    for block in blocks:
                        for probe in range(-1 if self.extreme and block == WHOLE else 0, self.probes):
                            yield model, seed, matrix, block, probe


def _blocks(model: Translation) -> dict[str, tuple[str, ...]]:
    layers = {f"{part} {n + 1}": (f"*{part}.{n}.*",) for part in ("encoder", "decoder") for n in range(model.depth)}
    return BLOCKS | layers


def spectra(request: Request, text: ParallelText, out: Path, *, dry_run: bool, accept: bool) -> int:
    """Measure, judge and draw; what the folder holds already is not measured again.

    Raises:
        ValueError: an argument is outside its range, there is no such device, a loss is not finite, or `accept`
            outside a checkout.
    """
    if accept:
        check_checkout()
    for name, least in (("seeds", 1), ("steps", 2), ("probes", 1)):  # a norm is a moment of two steps
        check_count(name, getattr(request, name), least)
    check_device(request.device)
    jobs = list(request.jobs())
    if dry_run:
        print(_size(request, text, jobs))
        return 0
    table = _measured(request, text, out, jobs)
    found = summaries(table)
    about = f"{len(text)} pairs of {text.names[0]}, {text.names[1]}, V = {text.vocab}"
    verdicts = more_curvature(found, about)
    for line in _lines(found):
        print(line)
    for v in verdicts:
        low, high = v.interval
        print(f"{v.claim:4} {v.part:70} {v.words}\n     measured {v.measured:.3g} [{low:.3g}, {high:.3g}]")
    write_whole(out / "spectra.csv", table.to_csv(index=False).encode())
    write_whole(out / "summaries.csv", found.to_csv(index=False).encode())
    write_whole(out / "about.json", (json.dumps(session() | {"device": request.device}, indent=1) + "\n").encode())
    print(f"Table   {out / 'spectra.csv'} (nodes and weights), {out / 'summaries.csv'}")
    if request.extreme:
        print(f"Figure  {save(drawn(densities(table), found), out, 'curvature')[-1]}")
    if accept:
        accept_verdicts(f"{out.resolve().name}.json", results(verdicts, [], session()["command"]))
    return 0


def _measured(
    request: Request, text: ParallelText, out: Path, jobs: list[tuple[Translation, int, Matrix, str, int]]
) -> pd.DataFrame:
    frames, start, fresh = [], time.perf_counter(), 0
    problems: dict[tuple[Translation, int], Problem] = {}
    wanted: dict[str, Any] = {"text": text.digest, "pairs": len(text), "steps": request.steps, "device": request.device,
                              "reorthogonalize": request.reorthogonalize}  # fmt: skip
    for number, (model, seed, matrix, block, probe) in enumerate(jobs, start=1):
        if (model, seed) not in problems:
            # One model is in memory at a time.
            problems = {(model, seed): translation_problem(model, text, seed=seed, device=request.device)}
        problem = problems[model, seed]
        patterns = (_blocks(model) | {WHOLE: ("*",)})[block]
        key = {"model": asdict(model), "seed": seed, "matrix": matrix, "block": block, "probe": probe} | wanted
        rows, new = kept(out, key, partial(_one, request, problem, matrix, patterns, probe, seed))
        fresh += new
        frames.append(rows.assign(placement=model.placement, width=model.width, depth=model.depth, seed=seed,
                                  matrix=matrix, block=block, probe=probe))  # fmt: skip
        if new:
            left = (time.perf_counter() - start) * (len(jobs) - number) / fresh
            print(f"{number} of {len(jobs)} spectra, {duration(left)} left", file=sys.stderr, flush=True)
    return pd.concat(frames, ignore_index=True)


def _one(
    request: Request, problem: Problem, matrix: Matrix, patterns: tuple[str, ...], probe: int, seed: int
) -> pd.DataFrame:
    """Nodes and weights of one probe, or the two extreme eigenvalues."""
    own = int.from_bytes(hashlib.sha256(f"{seed}:{probe}".encode()).digest()[:4], "big")
    size = sum(p.numel() for p in problem.parameters(patterns))
    if probe < 0:
        low, high = extreme_eigenvalues(problem, matrix, seed=own)
        return pd.DataFrame({"node": [low, high], "weight": [float("nan")] * 2, "dimension": size})
    found = probe_spectrum(
        problem, matrix, steps=request.steps, seed=own, patterns=patterns, reorthogonalize=request.reorthogonalize
    )  # fmt: skip
    return pd.DataFrame({"node": found.nodes, "weight": found.weights, "dimension": size})


def _size(request: Request, text: ParallelText, jobs: Sequence[tuple[Translation, int, Matrix, str, int]]) -> str:
    """Number of spectra and of products, and memory of the largest, in words."""
    largest = max(request.models, key=lambda model: model.width**2 * model.depth + model.vocab * model.width)
    size = parameter_count(largest)
    kept_vectors = request.steps if request.reorthogonalize else 3
    longest = max(len(ids) for ids in text.targets)
    # Four copies of activations: forward and backward, and their tangents.
    activations = (
        4 * 48 * longest * (largest.depth * 2 * (14 * largest.width + 2 * largest.ffn_width) + 3 * largest.vocab)
    )
    memory = 4 * (size * (kept_vectors + 8) + activations)
    return (
        f"{len(jobs)} spectra, at most {len(jobs) * request.steps} products over {len(text)} pairs; the largest model "
        f"has {size / 1e6:.2f} million parameters and takes about {memory / 2**30:.2g} GiB."
    )


def _lines(found: pd.DataFrame) -> list[str]:
    """Whole matrices, exponents, and what Gauss-Newton has of the Hessian."""
    lines = [f"{'':34}{'smallest':>11}{'largest':>11}{'trace':>18}{'Frobenius':>18}{'negative':>10}"]
    for row in found[found["block"] == WHOLE].itertuples():
        name = f"{TITLES[str(row.placement)]} d = {row.width}, L = {row.depth}, seed {row.seed}, {row.matrix}"
        lines.append(
            f"{name:46} {row.smallest:9.3g} {row.largest:9.3g} {row.trace:8.3g} +- {row.trace_sem:5.2g} "
            f"{row.frobenius:8.3g} +- {row.frobenius_sem:5.2g} {100 * row.negative:6.1f}%"
        )
    shares = residual_shares(found[found["block"] == WHOLE])
    for placement, one in shares.groupby("placement"):
        said = f"largest eigenvalue {one['eigenvalue'].mean():.3f}, Frobenius norm {one['norm'].mean():.3f}"
        lines.append(f"{TITLES[str(placement)]}, Gauss-Newton over Hessian: {said}")
    for against, letter in (("depth", "L"), ("width", "d")):
        for row in curvature_exponents(found[found["block"] == WHOLE], against).itertuples():
            name = f"{TITLES[str(row.placement)]}, {row.matrix}, {row.quantity}"
            lines.append(f"{name} ~ {letter}^{row.exponent:.2f} [{row.low:.2f}, {row.high:.2f}]")
    return lines
