"""`python -m studies fig3`: translation models at initialization on two line-aligned texts, and why they are so."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from simulate.runs.cell import check_device
from simulate.runs.files import write_whole
from simulate.runs.provenance import session
from studies.fig3.claims import section_3_4
from studies.fig3.figure import fig3, fig3_matrices
from studies.fig3.table import (
    LEAST_PAIRS,
    ablated,
    excess_shares,
    growth,
    labelled,
    last_norms,
    predicted,
    profiles,
    shares,
)  # fmt: skip
from studies.measurements import measure
from studies.parallel_text import ParallelText
from studies.table_cache import cached
from studies.translation_model import Translation, parameter_count
from theory.stack import TITLES

# Statistics, and rules, as they are since some of the same name meant others.
_MEASURED_VERSION = 2
_PREDICTED_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fig3Request:
    """What is measured.

    Attributes:
        models: placements and initializations at the least depth, whole.
        depths: of the last layer's gradient.
        batches: mini-batches of the whole models of the least depth; the others have one.
        batch_tokens: target tokens of a mini-batch.
        seeds: models of each kind.
        seed: of the first.
        ingredients: whether each ingredient is switched off in turn, at the least depth of the first initialization.
        device: where.
    """

    models: Sequence[Translation]
    depths: Sequence[int]
    batches: int
    batch_tokens: int
    seeds: int
    seed: int
    ingredients: bool
    device: str

    def jobs(self) -> list[tuple[Translation, int, int]]:
        """(model, mini-batches, seed) of everything that is measured, what matters most first."""
        least, first = min(self.depths), self.models[0].initialization
        asked = [(model, self.batches) for model in self.models]
        asked += [
            (replace(model, depth=depth), 1)
            for depth in sorted(self.depths) if depth > least
            for model in self.models if model.initialization == first
        ]  # fmt: skip
        # Where branches are weak, a tied output matrix is what theory lacks.
        asked += [
            (replace(model, tied=False), 1) for model in self.models if model.initialization != first and model.tied
        ]
        if self.ingredients:
            asked += [
                (lacking, 1) for model in self.models if model.initialization == first for lacking in ablated(model)
            ]
        seeds = range(self.seed, self.seed + self.seeds)
        return [(model, batches, seed) for model, batches in asked for seed in seeds]


def reproduce(request: Fig3Request, text: ParallelText, out: Path, *, dry_run: bool) -> Result:
    """Measure, predict, judge and draw; what the folder holds already is not measured again.

    Raises:
        ValueError: an argument is outside its range, or there is no such device.
    """
    for name in ("batches", "batch_tokens", "seeds"):
        check_count(name, getattr(request, name), 1)
    check_device(request.device)
    if len(text) < LEAST_PAIRS or min(request.depths) < 2:
        raise ValueError(
            f"pairs must be at least {LEAST_PAIRS}, and depth at least 2 for a growth over layers, got {len(text)} "
            f"pairs and depth {min(request.depths)}."
        )
    jobs = request.jobs()
    if dry_run:
        size = parameter_count(max(jobs, key=lambda job: job[0].depth)[0])
        words = (f"{len(jobs)} models, {sum(batches for _, batches, _ in jobs)} mini-batches of {request.batch_tokens} "
              f"target tokens; the largest has {size / 1e6:.1f} million parameters, three times kept: "
              f"{12 * size / 2**30:.2g} GiB.")  # fmt: skip
        return Result(about="what fig3 takes", values={"takes": words}, lines=[words])
    frame = _measured(request, text, out, jobs)
    about = f"{len(text)} pairs of {text.names[0]}, {text.names[1]}, {request.batch_tokens} tokens a batch"
    verdicts = section_3_4(frame, about)
    grown = growth(frame)
    first = frame[frame["initialization"] == request.models[0].initialization]
    result = Result(
        about="translation models at initialization",
        tables={"fig3": frame, "profiles": profiles(frame), "growth": grown},
        lines=[*_profile_lines(frame), *_growth_lines(grown)],
        verdicts=verdicts,
        figures={
            "fig3": lambda: fig3(profiles(first), last_norms(first), shares(growth(first))),
            "fig3_matrices": lambda: fig3_matrices(profiles(first), excess_shares(first)),
        },
        differences=[f"DIFFERS {v.claim}, {v.part}" for v in verdicts if v.agreement == "differs"],
    )
    write_whole(out / "about.json", (json.dumps(session() | {"device": request.device}, indent=1) + "\n").encode())
    return result


def _measured(
    request: Fig3Request, text: ParallelText, out: Path, jobs: list[tuple[Translation, int, int]]
) -> pd.DataFrame:
    """Every model's rows and, at the least depth, those of theory; one file each, which a later command finds again."""
    frames, start, fresh = [], time.perf_counter(), 0
    wanted = {"batch_tokens": request.batch_tokens, "text": text.digest, "pairs": len(text)}
    size = 0.0
    for number, (model, batches, seed) in enumerate(jobs):
        key = {"model": model.non_default(), "batches": batches, "seed": seed, "device": request.device} | wanted
        how: dict[str, Any] = {
            "batches": batches,
            "batch_tokens": request.batch_tokens,
            "seed": seed,
            "device": request.device,
        }
        rows, new = cached(out, key, _MEASURED_VERSION, partial(measure, model, text, **how))
        fresh += new
        frames.append(labelled(rows, model, seed, request.models[0]))
        size = float(rows.loc[rows["statistic"] == "effective pairs", "value"].iloc[0])
        left = (time.perf_counter() - start) * (len(jobs) - number - 1) / fresh if fresh else 0.0
        print(f"measured {number + 1} of {len(jobs)} models, {duration(left)} left", file=sys.stderr, flush=True)
    least = min(request.depths)
    models = list(dict.fromkeys(model for model, _, _ in jobs if model.depth == least))
    for number, model in enumerate(models, start=1):
        key = {"predicted": model.non_default(), "size": round(size)} | wanted
        rows, _ = cached(out, key, _PREDICTED_VERSION, partial(predicted, model, text, effective_pairs=round(size)))
        frames.append(labelled(rows, model, request.seed, request.models[0]))
        print(f"predicted {number} of {len(models)} models", file=sys.stderr, flush=True)
    return pd.concat(frames, ignore_index=True)


def _profile_lines(frame: pd.DataFrame) -> list[str]:
    """‖∇_{W2}‖ of every layer of whole models of the least depth, measured and by theory."""
    table = profiles(frame)
    table = table[(table["matrix"] == "W2") & (table["without"] == "nothing")]
    table = table[table["depth"] == table["depth"].min()]
    lines = [f"{'layer':39}" + "".join(f"{layer:8d}" for layer in sorted(table["layer"].unique()))[1:]]
    for (placement, initialization, part), rows in table.groupby(["placement", "initialization", "part"]):
        rows = rows.sort_values("layer")
        for name, column in (("E||grad||", "mean norm"), ("||E grad||", "norm of mean"), ("theory", "predicted")):
            numbers = " ".join(f"{value:7.3f}" for value in rows[column])
            lines.append(f"{TITLES[str(placement)]:8} {initialization:7} {part:7} W2 {name:11}{numbers}")
    return lines


def _growth_lines(grown: pd.DataFrame) -> list[str]:
    """Growth a layer of the decoder's W2, as a factor, whole and without each ingredient."""
    lines = []
    for row in grown[grown["depth"] == grown["depth"].min()].itertuples():
        what = "whole" if row.without == "nothing" else f"without {row.without}"
        label = f"{TITLES[str(row.placement)]:8} {row.initialization:7} decoder {what:28}"
        lines.append(f"{label} slope of ln||dL/dW2|| {row.growth:7.3f} +- {row.sem:.3f}, theory {row.predicted:7.3f}")
    return lines
