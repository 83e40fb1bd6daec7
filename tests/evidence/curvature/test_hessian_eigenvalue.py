"""The largest eigenvalue of stacks' Hessians over the Gauss-Newton matrix's, and what its theory leaves out."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from scipy.sparse.linalg import LinearOperator, eigsh

from gradbounds.figure_files import save
from gradbounds.studies.initial_statistics import largest_eigenvalue
from gradbounds.studies.largest_eigenvalue.figure import hessian_eigenvalue
from gradbounds.studies.largest_eigenvalue.prediction import largest_eigenvalues, residual_edge, residual_frobenius
from simulate.curvature.operators import extreme_eigenvalues
from simulate.curvature.problems import stack_problem
from tests.evidence.test_mean_hessian import ALONG
from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.twins.residual import SmallStack, coupling
from theory import Stack

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
CLASSES = [(4, vocab) for vocab in (4, 64, 1024, 10000)]
SETTINGS = {
    16: [*CLASSES, (64, 1024)],
    32: [*CLASSES, (64, 1024), (256, 1024), (1000, 10000)],
    64: [*CLASSES, (64, 1024)],
    128: [*CLASSES, (64, 1024)],
}
"""Tokens and classes of every width."""
COUPLED = {"depth": 2, "tokens": 4, "vocab": 4096}
COUPLED_WIDTHS = (32, 128)


def networks(width: int, tokens: int, vocab: int) -> int:
    return 2 if tokens * vocab > 10**6 else 8


def samples(width: int, tokens: int) -> int:
    """Of theory, which takes longer in wide networks and with many tokens."""
    return 2 if tokens > 64 else 4 if width > 64 else 8


def of_networks(placement: str, width: int, tokens: int, vocab: int) -> dict[str, Any]:
    """Means and standard errors over networks."""
    torch.set_num_threads(1)
    stack, rows = Stack(placement=placement, width=width, depth=ALONG["depth"], tokens=tokens, vocab=vocab), []
    for seed in range(networks(width, tokens, vocab)):
        problem = stack_problem(stack, seed=seed, dtype=torch.float32)
        gauss_newton = extreme_eigenvalues(problem, "gauss-newton", seed=seed, tolerance=1e-3)[1]
        hessian = largest_eigenvalue(problem, seed=seed)
        rows.append([hessian / gauss_newton, hessian, gauss_newton])
    means, errors = np.mean(rows, 0), np.std(rows, 0, ddof=1) / len(rows) ** 0.5
    names = ("ratio", "hessian", "gauss_newton")
    return {"networks": len(rows)} | {
        name: [float(one), float(sem)] for name, one, sem in zip(names, means, errors, strict=True)
    }


def in_theory(placement: str, width: int, tokens: int, vocab: int) -> dict[str, Any]:
    stack = Stack(placement=placement, width=width, depth=ALONG["depth"], tokens=tokens, vocab=vocab)
    return asdict(largest_eigenvalues(stack, samples=samples(width, tokens)))


def coupled(placement: str, width: int) -> dict[str, Any]:
    """M of explicit networks over theory, and the ends of the whole Hessian's spectrum over M's largest value."""
    torch.set_num_threads(1)
    stack, rows = Stack(placement=placement, width=width, **COUPLED), []
    edge, frobenius = residual_edge(stack), residual_frobenius(stack)
    for seed in range(4):
        network = SmallStack(placement, width, *COUPLED.values(), seed)
        m = coupling(network).numpy()
        operator = LinearOperator((len(m), len(m)), matvec=lambda v, m=m: m @ (m.T @ v), dtype=float)
        start = np.random.default_rng(seed).standard_normal(len(m))
        largest = eigsh(operator, k=1, which="LA", v0=start, tol=1e-3, return_eigenvectors=False)[0] ** 0.5
        low, high = hessian_ends(network, seed)
        rows.append([2**0.5 * float((m**2).sum()) ** 0.5 / frobenius, largest / edge, (high - low) / 2 / largest])
    means, errors = np.mean(rows, 0), np.std(rows, 0, ddof=1) / len(rows) ** 0.5
    names = ("Frobenius norm over theory", "largest over the edge", "Hessian over largest")
    return {name: [float(one), float(sem)] for name, one, sem in zip(names, means, errors, strict=True)}


def hessian_ends(network: SmallStack, seed: int) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of the Hessian."""
    gradient = torch.cat([
        one.flatten() for one in torch.autograd.grad(network.run().loss, network.matrices, create_graph=True)
    ])  # fmt: skip

    def product(vector: Any) -> Any:
        parts = torch.autograd.grad(gradient @ torch.as_tensor(vector.ravel()), network.matrices, retain_graph=True)
        return torch.cat([one.flatten() for one in parts]).numpy()

    size = gradient.numel()
    start = np.random.default_rng(seed).standard_normal(size)
    values = eigsh(
        LinearOperator((size, size), matvec=product, dtype=float), k=2, which="BE", v0=start, tol=1e-3,
        return_eigenvectors=False,
    )  # fmt: skip
    return float(min(values)), float(max(values))


def figure_of(found: dict[str, Any]) -> Figure:
    """The figure of the page."""
    rows = []
    for name, line in found["settings"].items():
        placement, *sizes = (word.rpartition(" ")[2] for word in name.split(", "))
        ratio, error = line["measured"]["ratio"]
        rows.append([placement, *map(int, sizes), ratio, error, line["theory"]["ratio"]])
    columns = ["placement", "width", "tokens", "vocab", "ratio", "ratio_sem", "theory"]
    return hessian_eigenvalue(pd.DataFrame(rows, columns=columns), tokens=4, vocab=1024)


def draw(found: dict[str, Any]) -> None:
    """Into the page's folder."""
    for path in save(figure_of(found), Path("docs/figures"), "hessian_eigenvalue"):
        if path.suffix == ".svg":
            path.unlink()


def test_the_largest_eigenvalue(kept_folder):
    """Theory is within a quarter of every measured ratio, plus twice the error of both."""
    found: dict[str, Any] = {"settings": {}, "coupling": {}}
    for placement in ("post", "pre"):
        for width, pairs in SETTINGS.items():
            for tokens, vocab in pairs:
                key = (placement, width, tokens, vocab)
                found["settings"][f"{placement}, d = {width}, n = {tokens}, V = {vocab}"] = {
                    about: kept_case(kept_folder, f"{about} {key} {ALONG['depth']}", partial(make, *key))
                    for about, make in (("measured", of_networks), ("theory", in_theory))
                }
        for width in COUPLED_WIDTHS:
            found["coupling"][f"{placement}, d = {width}"] = kept_case(
                kept_folder, f"coupled {placement} {width} {COUPLED}", partial(coupled, placement, width)
            )
    record("hessian-eigenvalue", rounded(found), short=True)
    draw(found)
    for line in found["settings"].values():
        (ratio, error), theory = line["measured"]["ratio"], line["theory"]
        assert abs(theory["ratio"] / ratio - 1) < 0.25 + 2 * np.hypot(error, theory["ratio_sem"]) / ratio
