"""Spectra: Lanczos against the exact Hessian in float64, what breaks down, how data are cut, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from simulate.curvature import problems
from simulate.curvature.problems import Problem, plain_operations, stack_problem
from studies.hessian.krylov import Krylov
from studies.hessian.lanczos import quadrature
from studies.hessian.loss_along import curvature_along
from studies.hessian.operators import MATRICES, by_names, extreme_eigenvalues, operator, probe_spectrum, product
from studies.hessian.text_problem import translation_problem
from studies.mean_hessian.path import output_path, second_derivative
from studies.parallel_text import read_pairs
from studies.translation_model import Translation
from theory import Stack

# curvlinops' functional calls warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SMALL = Translation(width=8, depth=2, heads=2, ffn_width=8, vocab=20, dropout=0.0)


def exact(problem, patterns=("*",)):
    """The Hessian by a second derivative of the summed loss of all pieces."""
    parameters = problem.parameters(patterns)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = sum(problem.loss(problem.model(inputs), labels) for inputs, labels in problem.data)
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
        rows = []
        for outputs in torch.eye(len(flat), dtype=flat.dtype).split(128):
            some = torch.autograd.grad(
                flat, parameters, outputs, retain_graph=True, is_grads_batched=True, allow_unused=True,
                materialize_grads=True,
            )  # fmt: skip
            rows.append(torch.cat([g.flatten(1) for g in some], 1))
    return torch.cat(rows)


@pytest.fixture(scope="module")
def text(parallel_files):
    return read_pairs(*parallel_files, vocab=20, pairs=11)


def test_the_exact_hessian():
    """D = 8, L = 2, n = 4, V = 16 in float64: extremes to 1e-6, mass, the trace within its error over probes."""
    problem = stack_problem(Stack(placement="post", width=8, depth=2, tokens=4, vocab=16), seed=3)
    hessian = exact(problem)
    values = torch.linalg.eigvalsh(hessian).numpy()
    assert extreme_eigenvalues(problem, "hessian", seed=0, tolerance=0) == pytest.approx(values[[0, -1]], rel=1e-6)
    probes = [probe_spectrum(problem, "hessian", steps=4, seed=seed) for seed in range(12)]
    for one in probes:
        nearest = np.abs(values - one.nodes[:, None]).min(1)
        assert (nearest <= one.residuals + 1e-12).all()
        assert nearest[[0, -1]].max() > 1e-6, "not converged: the bound is no rounding"
    assert all(abs(one.weights.sum() - 1) < 1e-6 for one in probes)
    for power, target in ((1, hessian.trace()), (2, hessian.square().sum())):
        found = [one.moment(power) for one in probes]
        # 5 standard errors: false alarm 1e-4 with 12 probes.
        assert abs(np.mean(found) - float(target)) < 5 * np.std(found, ddof=1) / 12**0.5


@pytest.mark.quick
def test_all_steps_are_the_whole_spectrum():
    """As many steps as dimensions give v's own components on every eigenvector, and a mass below any value."""
    problem = stack_problem(Stack(width=4, depth=1, tokens=2, vocab=3), seed=0)
    values, vectors = torch.linalg.eigh(exact(problem))
    found = probe_spectrum(problem, "hessian", steps=1000, seed=5)
    signs = torch.randint(2, (len(values),), generator=torch.Generator().manual_seed(5)).double() * 2 - 1
    weights = (vectors.T @ signs).square() / len(values)
    for value in (-0.1, 0.05, 0.3):
        assert found.mass_below(value) == pytest.approx(float(weights[values < value].sum()), abs=1e-5)


def test_breakdown_and_repeated_eigenvalues():
    """Three different eigenvalues, each many times: three steps, exact nodes and weights; zero; without storage."""
    values = torch.tensor([2.0] * 40 + [-1.0] * 30 + [5.0] * 30, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(100, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[
        0
    ]
    matrix = rotation @ torch.diag(values) @ rotation.T
    probe = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for reorthogonalize in (True, False):
        found = quadrature(lambda v: matrix @ v, probe, 50, reorthogonalize=reorthogonalize)
        heavy = found.weights > 1e-10
        np.testing.assert_allclose(found.nodes[heavy], [-1.0, 2.0, 5.0], rtol=1e-9)
    shares = (rotation.T @ (probe / probe.norm())).square()
    expected = [float(shares[values == value].sum()) for value in (-1.0, 2.0, 5.0)]
    np.testing.assert_allclose(found.weights[heavy], expected, rtol=1e-9)
    nothing = quadrature(torch.zeros_like, probe, 10)
    assert (nothing.nodes.tolist(), nothing.weights.tolist()) == ([0.0], [1.0])
    with pytest.raises(ValueError, match="^probe must not be 0"):
        quadrature(torch.zeros_like, torch.zeros(3), 2)


@pytest.mark.parametrize("matrix", MATRICES)
def test_how_data_are_cut_does_not_matter(text, matrix):
    """One piece, or pieces of unequal numbers of pairs and labels; a mean of means is not that."""
    one, many = (translation_problem(SMALL, text, seed=2, piece=piece, dtype=torch.float64) for piece in (100, 4))
    assert len({len(labels) for _, labels in many.data}) > 1
    first, second = (probe_spectrum(problem, matrix, steps=4, seed=0) for problem in (one, many))
    np.testing.assert_allclose(first.nodes, second.nodes, rtol=1e-8)
    np.testing.assert_allclose(first.weights, second.weights, rtol=1e-6)


def test_a_translation_model(text, monkeypatch):
    """Hessian and Gauss-Newton matrix of a model with norms' weights, against autograd; a block is on the diagonal.

    With torch's fused LayerNorm the product is another.
    """
    problem = translation_problem(SMALL, text, seed=2, dtype=torch.float64)
    hessian = exact(problem, ("*encoder.0*",))
    vector = torch.randn(len(hessian), dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def image():
        return product(operator(problem, "hessian", ("*encoder.0*",)), vector)

    torch.testing.assert_close(image(), hessian @ vector, rtol=1e-7, atol=1e-10)
    monkeypatch.setattr(problems, "_layer_norm", torch.nn.functional.layer_norm)
    assert (image() - hessian @ vector).abs().max() > 0.01


def test_the_gauss_newton_matrix(text):
    """J^T (diag(p) - p p^T) J v by hand, J v from a derivative of J^T u; its smallest eigenvalue is not asked for."""
    problem = translation_problem(replace(SMALL, smoothing=0.1), text, seed=2, piece=100, dtype=torch.float64)
    ((inputs, labels),) = problem.data
    parameters = problem.parameters()
    vector = torch.randn(sum(p.numel() for p in parameters), generator=torch.Generator().manual_seed(0)).double()
    parts = [
        one.view(p.shape) for one, p in zip(vector.split([p.numel() for p in parameters]), parameters, strict=True)
    ]
    with plain_operations():
        logits = problem.model(inputs)
        u = torch.zeros_like(logits, requires_grad=True)
        pulled = torch.autograd.grad(logits, parameters, u, create_graph=True)
        pushed = torch.autograd.grad(sum((a * b).sum() for a, b in zip(pulled, parts, strict=True)), u)[0]
        p = logits.detach().softmax(-1)
        curved = (p * pushed - p * (p * pushed).sum(-1, keepdim=True)) / len(labels)
        expected = torch.autograd.grad(problem.model(inputs), parameters, curved)
    found = product(operator(problem, "gauss-newton"), vector)
    torch.testing.assert_close(found, torch.cat([one.flatten() for one in expected]), rtol=1e-9, atol=1e-12)
    low, high = extreme_eigenvalues(problem, "gauss-newton", seed=0)
    assert np.isnan(low)
    assert high > 0


def test_a_stack_is_what_is_sampled():
    """Inputs, labels and matrices have the stack's laws: correlated tokens, common labels, uniform entries."""
    stack = Stack(width=64, depth=1, tokens=50, vocab=50, input_correlation=0.9, labels="zipf",
                  initialization="xavier_uniform")  # fmt: skip
    problem = stack_problem(stack, seed=0)
    ((inputs, labels),) = problem.data
    assert float((inputs["x"][0] @ inputs["x"][0].T / 64).mean()) > 0.5
    assert int(labels.mode().values) == 0
    entries = problem.model.W1_1.detach()
    assert float(entries.abs().max()) <= 3**0.5 / 8
    assert float(entries.std()) == pytest.approx(1 / 8, rel=0.05)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_inputs_are_independent_of_the_matrices(seed):
    """No matrix begins with the inputs' numbers, nor holds them later (false alarm 1e-6 a comparison)."""
    stack = Stack(width=32, depth=2, tokens=4, vocab=5, output_projection="random")
    problem = stack_problem(stack, seed=seed)
    x = problem.data[0][0]["x"][0].flatten()
    for name, matrix in problem.model.named_parameters():
        rows = torch.nn.functional.normalize(matrix.detach().flatten().unfold(0, len(x), len(x)), dim=1)
        assert float((rows @ (x / x.norm())).abs().max()) < 5.6 / len(x) ** 0.5, name


@pytest.mark.gpu
def test_on_cuda(text):
    """The same networks there, and the same spectra up to rounding."""
    stack = Stack(width=16, depth=2, tokens=3, vocab=5, source_tokens=2)
    for make in (
        lambda device: translation_problem(SMALL, text, seed=2, device=device),
        lambda device: stack_problem(stack, seed=2, dtype=torch.float32, device=device),
    ):
        here, there = (probe_spectrum(make(device), "hessian", steps=4, seed=0) for device in ("cpu", "cuda"))
        np.testing.assert_allclose(there.nodes, here.nodes, rtol=1e-3, atol=1e-4)
        assert extreme_eigenvalues(make("cuda"), "gauss-newton", seed=0)[1] > 0


class _Fused(nn.Module):
    """Its backward pass is once differentiable."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.Once.apply(self.linear(inputs["x"]))


class _Sum(nn.Module):
    reduction = "sum"

    def forward(self, output, _):
        return output.square().sum()


def test_what_has_no_hessian_is_refused(text):
    fused = Problem(_Fused(), _Sum(), [({"x": torch.ones(2, 3)}, torch.zeros(1))])
    with pytest.raises(ValueError, match="^model must have second derivatives"):
        probe_spectrum(fused, "hessian", steps=2, seed=0)
    problem = translation_problem(SMALL, text, seed=0)
    with torch.no_grad():
        next(problem.model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="^operator must give finite products"):
        probe_spectrum(problem, "hessian", steps=2, seed=0)
    with pytest.raises(ValueError, match="^patterns must match a parameter of translator"):
        probe_spectrum(problem, "hessian", steps=2, seed=0, patterns=("nothing*",))
    with pytest.raises(ValueError, match="^stack must have no dropout"):
        stack_problem(Stack(dropout=0.1), seed=0)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_the_curvature_along_the_top_direction(placement):
    """The parts against the exact matrices and the path's own second derivative, which the sphere's is part of."""
    stack = Stack(placement=placement, width=8, depth=1, tokens=3, vocab=5)
    problem = stack_problem(stack, seed=2)
    kept = Krylov()
    probe_spectrum(problem, "gauss-newton", steps=1, seed=0, kept=kept, tolerance=1e-4)
    top = by_names(problem, kept.top_vector())
    hessian = exact(problem)
    gauss_newton = product(operator(problem, "gauss-newton"), torch.eye(len(hessian)).double())
    vector = torch.cat([part.flatten() for part in top.values()])
    values, vectors = torch.linalg.eigh(gauss_newton)
    assert abs(float(vector @ vectors[:, -1])) == pytest.approx(1.0, abs=1e-4)
    found = curvature_along(problem, top)
    assert found.gauss_newton == pytest.approx(float(values[-1]), rel=1e-5)
    assert found.gauss_newton + found.radial + found.rest == pytest.approx(float(vector @ hessian @ vector), rel=1e-8)
    # With W_emb at rest the parts are those of a path of the output.
    below = top | {"Wemb": torch.zeros_like(top["Wemb"])}
    ((inputs, labels),) = problem.data
    path = output_path(problem.model, inputs, {name: one for name, one in below.items() if name != "Wemb"})
    target = torch.nn.functional.one_hot(labels, stack.vocab).double()
    parts = second_derivative(path, problem.model.Wemb.detach()[None], target)
    along = curvature_along(problem, below)
    assert along.radial == pytest.approx(float(parts.radial), rel=1e-8)
    assert along.rest == pytest.approx(float(parts.rest), rel=1e-6)
    assert abs(along.radial) > 0.01 * along.gauss_newton
