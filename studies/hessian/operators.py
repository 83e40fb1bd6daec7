"""The Hessian and the Gauss-Newton matrix of a loss, as operators: products by curvlinops, extremes, and probes."""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from simulate.curvature.problems import Problem, plain_operations
from studies.hessian.krylov import Krylov
from studies.hessian.lanczos import Quadrature, quadrature

Matrix = Literal["hessian", "gauss-newton"]
# Of Lanczos' method before it gives up.
_MOST_STEPS = 1000
MATRICES: tuple[Matrix, ...] = ("hessian", "gauss-newton")


def operator(problem: Problem, matrix: Matrix, patterns: Sequence[str] = ("*",)) -> Any:
    """The operator of the parameters that match one of some globs: the whole matrix, or a block on its diagonal.

    Raises:
        ValueError: curvlinops is not installed, or no parameter matches.
    """
    try:
        import curvlinops
    except ImportError as error:
        raise ValueError("curvlinops must be installed: pip install 'gradbounds[studies]'") from error
    return {"hessian": curvlinops.HessianLinearOperator, "gauss-newton": curvlinops.GGNLinearOperator}[matrix](
        problem.model, problem.loss, problem.parameters(patterns), list(problem.data), check_deterministic=False,
        batch_size_fn=lambda inputs: 1,
    )  # fmt: skip


def product(found: Any, vector: Tensor) -> Tensor:
    """Operator times vector.

    Raises:
        ValueError: there is none.
    """
    try:
        with plain_operations():
            image: Tensor = found @ vector
    except (RuntimeError, NotImplementedError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"model must have second derivatives (plain operations, no dropout, a loss that is not linear), but "
            f"{type(error).__name__}: {first}"
        ) from error
    return image


def probe_seed(seed: int, probe: int) -> int:
    """Of a probe of the network of a seed: every one is a vector of its own."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{probe}".encode()).digest()[:4], "big")


def probe_spectrum(
    problem: Problem,
    matrix: Matrix,
    *,
    steps: int,
    seed: int,
    patterns: Sequence[str] = ("*",),
    reorthogonalize: bool = True,
    kept: Krylov | None = None,
    tolerance: float | None = None,
) -> Quadrature:
    """Lanczos quadrature of one probe of independent signs, and with it extreme eigenvalues.

    Args:
        problem: of the model.
        matrix: which.
        steps: products: at most, or at least where there is a tolerance.
        seed: of the probe.
        patterns: globs of the parameters.
        reorthogonalize: as `quadrature` has it.
        kept: as `quadrature` has it.
        tolerance: of the outer nodes' residuals, relative to these: more steps are taken until they are as small; of a
            Gauss-Newton matrix the largest node's alone, as it has no negative eigenvalue and many that are 0.

    Raises:
        ValueError: a product is not finite, or the tolerance is not reached.
    """
    linear = operator(problem, matrix, patterns)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (linear.shape[1],), generator=generator).to(linear.device, linear.dtype) * 2 - 1
    if tolerance is None:
        return quadrature(lambda v: product(linear, v), signs, steps, reorthogonalize=reorthogonalize, kept=kept)
    ends = [-1] if matrix == "gauss-newton" else [0, -1]
    # A residual is not below what rounding makes of a product.
    least = max(tolerance, 10 * torch.finfo(linear.dtype).eps)

    def reached(spectrum: Quadrature) -> bool:
        small = (spectrum.residuals[ends] <= least * np.abs(spectrum.nodes[ends])).all()
        return len(spectrum.nodes) >= min(steps, _MOST_STEPS) and bool(small)

    spectrum = quadrature(
        lambda v: product(linear, v), signs, max(steps, _MOST_STEPS), kept=kept, until=reached,
        reorthogonalize=reorthogonalize,
    )  # fmt: skip
    if not reached(spectrum) and len(spectrum.nodes) >= _MOST_STEPS:
        raise ValueError(f"tolerance must be one that is reached, got {tolerance:g}, and not in {_MOST_STEPS} steps.")
    return spectrum


def extreme_eigenvalues(
    problem: Problem, matrix: Matrix, *, seed: int, patterns: Sequence[str] = ("*",), tolerance: float = 1e-4
) -> tuple[float, float]:
    """The smallest and the largest eigenvalue.

    A Gauss-Newton matrix has no negative eigenvalue, and many that are 0, which no such method tells apart: its
    smallest is NaN here.

    Args:
        problem: of the model.
        matrix: which.
        seed: of the first vector.
        patterns: globs of the parameters.
        tolerance: of residuals, relative to eigenvalues; 0 is machine precision.

    Raises:
        ValueError: as `probe_spectrum`.
    """
    nodes = probe_spectrum(problem, matrix, steps=1, seed=seed, patterns=patterns, tolerance=tolerance).nodes
    return float("nan") if matrix == "gauss-newton" else float(nodes[0]), float(nodes[-1])


def by_names(problem: Problem, vector: Tensor, patterns: Sequence[str] = ("*",)) -> dict[str, Tensor]:
    """A vector of parameters, (n,), in the shapes of these, by their names."""
    chosen = problem.parameters(patterns)
    names = {id(p): name for name, p in problem.model.named_parameters()}
    parts = vector.split([p.numel() for p in chosen])
    return {names[id(p)]: part.view_as(p) for p, part in zip(chosen, parts, strict=True)}
