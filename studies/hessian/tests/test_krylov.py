"""Lanczos' steps in a folder: orthonormal, the same after a kill, and what is refused."""

import numpy as np
import pytest
import torch

from studies.hessian.krylov import Krylov, KrylovFolder
from studies.hessian.lanczos import quadrature

VALUES = torch.cat([torch.linspace(0, 1, 196), torch.tensor([-30.0, 20.0, 50.0, 100.0])])
STEPS = 40


def folder(path, about=None, steps=STEPS):
    return KrylovFolder(path, about or {"seed": 0}, steps=steps, size=len(VALUES), dtype=torch.float32)


def run(kept, product=lambda v: VALUES * v, reorthogonalize=True):
    return quadrature(product, torch.ones(len(VALUES)), STEPS, kept=kept, reorthogonalize=reorthogonalize)


def test_vectors_in_float32_stay_orthonormal(tmp_path):
    """To rounding, and the extremes to their residuals; a run that does not reorthogonalize keeps neither."""
    found, lost = (folder(tmp_path / name) for name in ("whole", "lost"))
    spectrum, copies = run(found), run(lost, reorthogonalize=False)
    for kept, word in ((found, True), (lost, False)):
        basis = torch.stack(kept.vectors).double()
        off = (basis @ basis.T - torch.eye(len(basis), dtype=torch.float64)).abs().max()
        assert bool(off < 1e-5) is word
    outer = np.array([-30.0, 20.0, 50.0, 100.0])
    for one, word in ((spectrum, True), (copies, False)):
        assert (int((np.abs(one.nodes) > 10).sum()) == len(outer)) is word
    ends = spectrum.nodes[[0, -1]]
    assert (np.abs(ends - outer[[0, -1]]) <= spectrum.residuals[[0, -1]] + 1e-4).all()


@pytest.mark.parametrize("left_over", [False, True])
def test_a_killed_run_goes_on_with_the_same_numbers(tmp_path, left_over):
    """From the last finished step, also where the next one's vector was there already."""
    whole = folder(tmp_path / "whole")
    run(whole)
    calls = []

    def dying(vector):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return VALUES * vector

    with pytest.raises(KeyboardInterrupt):
        run(folder(tmp_path / "killed"), dying)
    if left_over:
        (tmp_path / "killed" / "vector-0008.npy").write_bytes(b"half")
    kept = folder(tmp_path / "killed")
    assert len(kept.alphas) == 7
    second = run(kept, lambda v: calls.append(1) or VALUES * v)
    assert len(calls) == STEPS + 1, "the step that was not finished is made again, no other"
    assert (kept.alphas, kept.betas) == (whole.alphas, whole.betas)
    np.testing.assert_array_equal(run(Krylov()).nodes, second.nodes)
    assert float(kept.top_vector() @ (VALUES * kept.top_vector())) == pytest.approx(100.0, rel=1e-5)
    assert np.array(kept.seconds).shape == (STEPS, 2)


def test_an_exhausted_space_is_kept(tmp_path):
    """Its last vector has none after it."""
    product = lambda v: torch.where(VALUES > 10, 2.0, 1.0) * v  # noqa: E731
    first = run(folder(tmp_path), product)
    second = run(folder(tmp_path), lambda _: pytest.fail("no further product"))
    np.testing.assert_array_equal(first.nodes, second.nodes)
    assert second.nodes == pytest.approx([1.0, 2.0], rel=1e-5)
    assert second.residuals.max() == 0.0
