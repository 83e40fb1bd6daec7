"""The views `gradbounds verify --source` and `--claims`: predict, sample and judge the claims in a file."""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from checks.results import difference_lines, field_results, results
from checks.stacks.statements import Means, Network, judge, networks, theory_of, variants
from checks.verdict import Verdict
from gradbounds.actions.first_step_cost import network_seconds
from gradbounds.progress import counted, progress
from gradbounds.result import Result
from gradbounds.units import duration, seconds_of
from simulate import Cell, Execution, Run
from simulate.curvature.first_step import sampled_steps
from simulate.runs.cost import block_work
from simulate.runs.files import write_whole
from simulate.runs.manifests import MANIFEST
from simulate.runs.provenance import manifest, session
from simulate.runs.sweep import sample_into
from theory import Claim
from theory.paper.claims import read_claims, sources

MOST_SECONDS = "20m"
"""The default limit on the estimated time of sampling."""
CLAIMS_RUN = "verify claims"
"""The command's name in the manifest of a run folder."""


def verify_claims(
    claims: Sequence[Claim] | Path | str,
    out: Path | str,
    *,
    draws: int | None = None,
    workers: int = 1,
    max_time: str | None = None,
) -> Result:
    """Predict, sample and judge a list of claims; each kind of claim has its own rule of decision.

    Args:
        claims: claims, or a file of claims.
        out: folder of the run; samples of earlier claims in it are kept, and reused for the same networks.
        draws: number of random networks of each kind; None for the number of each claim.
        workers: number of sampling processes.
        max_time: limit on the estimated time of sampling; 20 minutes if None.

    Returns:
        The verdicts; a changed committed verdict and a deviation of samples from theory count as differences.

    Raises:
        ValueError: a statement cannot be judged, or sampling would take longer.
    """
    listed = [*read_claims(claims).values()] if isinstance(claims, Path | str) else list(claims)
    listed = listed if draws is None else [replace(claim, draws=draws) for claim in listed]
    judged = [claim for claim in listed if claim.quantity and not claim.unjudged]
    wanted: dict[tuple[Network, int], int] = defaultdict(int)
    for claim in judged:
        for network in networks(claim):
            wanted[network, claim.seed] = max(wanted[network, claim.seed], claim.draws)
    seconds = sum(_seconds(network, draws) for (network, _), draws in wanted.items()) / workers
    takes = f"{len(judged)} of {len(listed)} claims are judged; sampling takes about {duration(seconds)}"
    print(f"{takes}.", file=sys.stderr, flush=True)
    if seconds > seconds_of(max_time or MOST_SECONDS):
        raise ValueError(
            f"max_time must be longer, got {max_time or MOST_SECONDS}: {takes}; or use fewer or smaller networks."
        )
    numbers = _sampled(wanted, Path(out), workers) if wanted else {}
    theory = cache(theory_of)
    verdicts = [_verdict(each, numbers, theory) for claim in judged for each in variants(claim)]
    if verdicts:
        write_whole(Path(out) / "verdicts.json", results(verdicts, [], session()["command"]).encode())
    left = [
        f"{claim.id} is not judged: {claim.unjudged or 'it has no quantity'}."
        for claim in listed
        if claim not in judged
    ]
    about = {claim.id: claim for claim in judged}
    remarks = [
        line for name in dict.fromkeys(v.claim for v in verdicts) for line in about_verdict(about[name], verdicts)
    ]
    return Result(
        about=f"verdicts on {len(judged)} claims", verdicts=verdicts, below=["", *remarks, *left],
        differences=difference_lines(verdicts, [v for known in field_results().values() for v in known.verdicts]),
    )  # fmt: skip


def about_verdict(claim: Claim, verdicts: Sequence[Verdict]) -> list[str]:
    """Return the remarks on a claim as lines of text; for a claim that fails, also its gap and its correction."""
    fails = any(v.claim == claim.id and v.verdict == "fails" for v in verdicts)
    lines = [f"{claim.id} leaves out: {claim.left_out}"] if fails and claim.left_out else []
    lines += [f"{claim.id} corrected: {claim.corrected}"] if fails and claim.corrected else []
    return [*lines, *([f"{claim.id} remark: {claim.remark}"] if claim.remark else [])]


def _verdict(claim: Claim, numbers: Mapping[tuple[Network, int], Means], theory: Any) -> Verdict:
    def samples(network: Network) -> Means:
        return {name: values[: claim.draws] for name, values in numbers[network, claim.seed].items()}

    try:
        return judge(claim, samples, theory)
    except KeyError as error:
        raise ValueError(f"quantity of claim {claim.id!r}: {str(error.args[0])[:200]}") from error
    except ValueError as error:
        raise ValueError(f"claim {claim.id!r}: {error}") from error


def _seconds(network: Network, draws: int) -> float:
    # Estimate the seconds in which one core samples this many networks.
    if network.optimizer:
        return draws * network_seconds(network.stack, 1)
    cell = Cell(network.stack)
    return cell.blocks(draws) * block_work(cell).cost


def _sampled(wanted: Mapping[tuple[Network, int], int], out: Path, workers: int) -> dict[tuple[Network, int], Means]:
    # Return the sampled numbers of every network and seed, with one random network per entry of the first axis.
    plain = {key: draws for key, draws in wanted.items() if not key[0].optimizer}
    numbers: dict[tuple[Network, int], Means] = {}
    if plain:
        cells = {cell.name: cell for cell in (Cell(network.stack) for network, _ in plain)}
        asked = manifest(CLAIMS_RUN, [*cells.values()], draws=2, seed=0)
        if (out / MANIFEST).exists() and (before := Run.open(out).request).get("command") == CLAIMS_RUN:
            asked["request"] = before  # an edited file continues the folder
        run = Run.create(out, asked)
        for seed in sorted({seed for _, seed in plain}):
            draws = {Cell(n.stack).name: count for (n, at), count in plain.items() if at == seed}
            with progress() as on_block:
                sample_into(
                    [cells[name] for name in draws], draws=draws, seed=seed, run=run,
                    execution=Execution(workers=workers), on_block=on_block,
                )  # fmt: skip
        samples = {each.cell.name: each for each in run.samples()}
        for network, seed in plain:
            of = samples[Cell(network.stack).name]
            numbers[network, seed] = {name: values[of.seeds == seed].astype(float) for name, values in of.items()}
    steps = [(key, draws) for key, draws in wanted.items() if key[0].optimizer]
    with counted("stepping") as done:
        for k, (key, count) in enumerate(steps):
            numbers[key] = _steps(key[0], key[1], count, out / "steps")
            done(k + 1, len(steps))
    return numbers


def _steps(network: Network, seed: int, draws: int, folder: Path) -> Means:
    # Measure first steps of sampled networks, and save them after each network so that the next call continues.
    file = folder / f"{Cell(network.stack).name}-{network.optimizer}-{seed}.json"
    rows: list[dict[str, float]] = json.loads(file.read_bytes()) if file.exists() else []
    for draw in range(len(rows), draws):
        measured = sampled_steps(network.stack, (network.optimizer,), seed=seed + draw, ends=False)
        rows.append({name: value for name, value in asdict(measured[network.optimizer]).items() if value == value})
        write_whole(file, json.dumps(rows).encode())
    return {name: np.array([row[name] for row in rows]) for name in ("gain", "curvature", "logit_change_sq")}


def verify_source(name: str, out: Path | None, *, workers: int = 1, max_time: str | None = None) -> Result:
    """Judge the claims of one paper that ships with gradbounds, or of all such papers.

    Raises:
        ValueError: there is no such source, or as in `verify_claims`.
    """
    known = sources()
    if name not in (*known, "all"):
        from theory.stack.registry import nearest

        raise ValueError(f"source must be one of {', '.join(known)} or all, got {name[:60]!r}.{nearest(name, known)}")
    listed = [claim for each, claims in known.items() if name in (each, "all") for claim in claims.values()]
    return verify_claims(listed, out or Path("runs") / f"claims-{name}", workers=workers, max_time=max_time)
