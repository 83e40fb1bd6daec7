"""The largest eigenvalue of the Hessian over the Gauss-Newton matrix's: networks beside theory."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from checks.statistics import estimate
from gradbounds.result import Result
from simulate.curvature.problems import stack_problem
from studies.hessian.largest_eigenvalue import largest_eigenvalues
from studies.hessian.largest_eigenvalue_figure import hessian_eigenvalue
from studies.hessian.operators import extreme_eigenvalues
from studies.stable_rate.initial_statistics import largest_eigenvalue
from studies.table_cache import cached
from theory.stack import Stack

_VERSION = 1
_TOLERANCE = 1e-3


def eigenvalue_ratios(
    stacks: Sequence[Stack], out: Path, *, seeds: Sequence[int], samples: int, dry_run: bool = False
) -> Result:
    """A row for every stack: the mean ratio over networks with its standard error, and theory.

    Args:
        stacks: of the paper's setting.
        out: folder that keeps every row; the same row is not measured again.
        seeds: of the networks, at least two.
        samples: of the theory.
        dry_run: whether only the count is said.

    Raises:
        ValueError: fewer than two seeds, or a stack has no rule.
    """
    if len(seeds) < 2:
        raise ValueError(f"seeds must be at least 2, to give errors, got {len(seeds)}.")
    if dry_run:
        return Result(about="ratios", lines=[f"{len(stacks)} sizes of {len(seeds)} networks each."])
    rows = []
    for stack in stacks:
        key = {"stack": stack.non_default(), "seeds": list(seeds), "samples": samples}
        rows.append(cached(out, key, _VERSION, partial(_row, stack, seeds, samples))[0])
    table = pd.concat(rows, ignore_index=True)
    figure = partial(hessian_eigenvalue, table, tokens=stacks[0].tokens, vocab=stacks[-1].vocab)
    return Result(
        about="largest eigenvalues", tables={"ratios": table}, lines=table.to_string(index=False).splitlines(),
        figures={"hessian_eigenvalue": figure} if table["placement"].nunique() == 2 else {},
    )  # fmt: skip


def _row(stack: Stack, seeds: Sequence[int], samples: int) -> pd.DataFrame:
    ratios = []
    for seed in seeds:
        problem = stack_problem(stack, seed=seed, dtype=torch.float32)
        gauss_newton = extreme_eigenvalues(problem, "gauss-newton", seed=seed, tolerance=_TOLERANCE)[1]
        ratios.append(largest_eigenvalue(problem, seed=seed) / gauss_newton)
    measured, theory = estimate(ratios), largest_eigenvalues(stack, samples=samples)
    row = {"placement": stack.placement, "width": stack.width, "tokens": stack.tokens, "vocab": stack.vocab}
    row |= {"ratio": float(measured.mean), "ratio_sem": float(measured.sem)}
    return pd.DataFrame([row | {"theory": theory.ratio, "theory_sem": theory.ratio_sem}])
