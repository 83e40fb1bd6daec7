"""The Hessian and the Gauss-Newton matrix of a loss, as operators: products by curvlinops, extremes, and probes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from simulate.curvature.lanczos import Quadrature, quadrature
from simulate.curvature.problems import Problem

Matrix = Literal["hessian", "gauss-newton"]
# Of Arnoldi's method: vectors between restarts, and restarts before it gives up.
_VECTORS = 20
_RESTARTS = 200
MATRICES: tuple[Matrix, ...] = ("hessian", "gauss-newton")


def operator(problem: Problem, matrix: Matrix, patterns: Sequence[str] = ("*",)) -> Any:
    """The operator of the parameters that match one of some globs: the whole matrix, or a block on its diagonal.

    Raises:
        ValueError: curvlinops is not installed, or no parameter matches.
    """
    try:
        import curvlinops
    except ImportError as error:
        raise ValueError("curvlinops must be installed: pip install 'gradbounds[hessian]'") from error
    kind = {"hessian": curvlinops.HessianLinearOperator, "gauss-newton": curvlinops.GGNLinearOperator}[matrix]
    return kind(
        problem.model, problem.loss, problem.parameters(patterns), list(problem.data), check_deterministic=False,
        batch_size_fn=lambda inputs: 1,
    )  # fmt: skip


@contextmanager
def plain_operations() -> Iterator[None]:
    """Attention and LayerNorm as plain operations.

    Fused attention has no second derivative. Fused LayerNorm has a wrong one: the forward-mode derivative of its
    backward pass, which products with a Hessian ask for, is off for its weight (torch 2.13; the suite shows it).
    """
    fused = F.layer_norm
    F.layer_norm = _layer_norm  # type: ignore[assignment]
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        F.layer_norm = fused


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    over = tuple(range(-len(shape), 0))
    centred = x - x.mean(over, keepdim=True)
    normed = centred * (centred.square().mean(over, keepdim=True) + eps).rsqrt()
    scaled = normed if weight is None else normed * weight
    return scaled if bias is None else scaled + bias


def asymmetry(problem: Problem, matrix: Matrix) -> float:
    """|uᵀ A v − vᵀ A u| over |A u| |v| of two random vectors: rounding, or an operation with a wrong derivative."""
    linear = operator(problem, matrix)
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, linear.shape[1], generator=generator).to(linear.device, linear.dtype)
    first, second = product(linear, u), product(linear, v)
    return float((u @ second - v @ first).abs() / (first.norm() * v.norm()))


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


def probe_spectrum(
    problem: Problem,
    matrix: Matrix,
    *,
    steps: int,
    seed: int,
    patterns: Sequence[str] = ("*",),
    reorthogonalize: bool = True,
) -> Quadrature:
    """Lanczos quadrature of one probe of independent signs."""
    linear = operator(problem, matrix, patterns)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (linear.shape[1],), generator=generator).to(linear.device, linear.dtype) * 2 - 1
    return quadrature(lambda v: product(linear, v), signs, steps, reorthogonalize=reorthogonalize)


def extreme_eigenvalues(
    problem: Problem, matrix: Matrix, *, seed: int, patterns: Sequence[str] = ("*",), tolerance: float = 1e-4
) -> tuple[float, float]:
    """The smallest and the largest eigenvalue, by Arnoldi's method as scipy has it.

    A Gauss-Newton matrix has no negative eigenvalue, and many that are 0, which no such method tells apart: its
    smallest is NaN here.

    Args:
        problem: of the model.
        matrix: which.
        seed: of the first vector.
        patterns: globs of the parameters.
        tolerance: relative, of eigenvalues; 0 is machine precision.

    Raises:
        ValueError: it does not converge.
    """
    linear = operator(problem, matrix, patterns)
    if linear.shape[1] < 2:
        raise ValueError(f"patterns must match at least 2 numbers for extreme eigenvalues, got {linear.shape[1]}.")
    if matrix == "gauss-newton":
        return float("nan"), float(_eigsh(linear, 1, "LA", seed, tolerance)[0][0])
    # Both ends of one Krylov space, which costs what one end does; scipy asks for more dimensions than eigenvalues.
    if linear.shape[1] > 2:
        low, high = np.sort(_eigsh(linear, 2, "BE", seed, tolerance)[0])
    else:
        low, high = (_eigsh(linear, 1, which, seed, tolerance)[0][0] for which in ("SA", "LA"))
    return float(low), float(high)


def top_direction(
    problem: Problem, *, seed: int, patterns: Sequence[str] = ("*",), tolerance: float = 1e-4
) -> dict[str, Tensor]:
    """The unit eigenvector of the Gauss-Newton matrix's largest eigenvalue, by the names of parameters.

    Args:
        problem: of the model.
        seed: of the first vector.
        patterns: globs of the parameters.
        tolerance: relative, of the eigenvalue.

    Raises:
        ValueError: it does not converge.
    """
    linear = operator(problem, "gauss-newton", patterns)
    vector = torch.as_tensor(_eigsh(linear, 1, "LA", seed, tolerance)[1][:, 0]).to(linear.device, linear.dtype)
    chosen = problem.parameters(patterns)
    names = {id(p): name for name, p in problem.model.named_parameters()}
    parts = vector.split([p.numel() for p in chosen])
    return {names[id(p)]: part.view_as(p) for p, part in zip(chosen, parts, strict=True)}


def _eigsh(linear: Any, k: int, which: str, seed: int, tolerance: float) -> tuple[Any, Any]:
    """Eigenvalues and vectors of an operator, by scipy.

    Raises:
        ValueError: they do not converge, or a product is not finite.
    """
    size = linear.shape[1]
    dtype = np.float64 if linear.dtype == torch.float64 else np.float32
    start = np.random.default_rng(seed).standard_normal(size).astype(dtype)

    def applied(vector: Any) -> Any:
        image = product(linear, torch.as_tensor(vector.ravel()).to(linear.device, linear.dtype))
        if not torch.isfinite(image).all():
            raise ValueError("operator must give finite products, and gave one that is not: is the loss finite?")
        return image.cpu().numpy()

    exported = LinearOperator((size, size), matvec=applied, dtype=dtype)
    how = {"v0": start, "tol": tolerance, "ncv": min(size, _VECTORS), "maxiter": _RESTARTS}
    try:
        values, vectors = eigsh(exported, k=k, which=which, **how)
    except ArpackError as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"tolerance must be one that is reached, got {tolerance:g}: {first}") from error
    return values, vectors
