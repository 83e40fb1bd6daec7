"""Second derivatives along lines of parameters, over draws of the output matrix, of several laws."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from simulate.curvature.problems import stack_problem
from studies.mean_hessian.path import OutputPath, output_path, second_derivative
from theory.stack import Stack

PARTS = ("hessian", "gauss_newton", "radial", "rest")
_AT_ONCE = 2**24
# Of generators: torch keeps 32 bits of a seed, and the matrices have the small ones.
_LINES, _OUTPUTS = 2**31, 2**30

Draw = Callable[[int, torch.Generator], tuple[OutputPath, Tensor]]
"""Of a number of draws and a generator: the path, one for all or one a draw, and the output matrices."""


def targets(stack: Stack, labels: Tensor) -> Tensor:
    """What the softmax should be, (positions, V): labels, smoothed as the stack has it."""
    certain = F.one_hot(labels, stack.vocab).double()
    return certain * (1 - stack.label_smoothing) + stack.label_smoothing / stack.vocab


def gaussian_draw(stack: Stack, seed: int) -> tuple[Draw, Tensor]:
    """One network and one random line; output matrices anew. The law is sampled in the span of x, x' and x'' alone.

    Returns:
        The draw, and the target.
    """
    path, target = random_line(stack, seed)
    basis = torch.linalg.qr(torch.cat([path.x, path.first, path.second]).T).Q
    seen = OutputPath(path.x @ basis, path.first @ basis, path.second @ basis)
    std = stack.output_scale * stack.width**-0.5

    def draw(count: int, generator: torch.Generator) -> tuple[OutputPath, Tensor]:
        return seen, std * torch.randn(count, basis.shape[1], stack.vocab, generator=generator, dtype=torch.float64)

    return draw, target


def sparse_draw(stack: Stack, seed: int) -> tuple[Draw, Tensor]:
    """The same with output matrices seven eighths of whose entries are 0, whose law is not that of their rotations."""
    path, target = random_line(stack, seed)
    std = stack.output_scale * stack.width**-0.5

    def draw(count: int, generator: torch.Generator) -> tuple[OutputPath, Tensor]:
        shape = count, stack.width, stack.vocab
        kept = torch.rand(shape, generator=generator, dtype=torch.float64) < 1 / 8
        return path, std * 8**0.5 * kept * torch.randn(shape, generator=generator, dtype=torch.float64)

    return draw, target


def tied_draw(stack: Stack, seed: int) -> tuple[Draw, Tensor]:
    """The same with the first rows of the output matrix as inputs, as tied embeddings have it."""
    problem = stack_problem(stack, seed=seed)
    ((_, labels),) = problem.data
    direction = _direction(problem.model, seed)
    std = stack.output_scale * stack.width**-0.5

    def draw(count: int, generator: torch.Generator) -> tuple[OutputPath, Tensor]:
        output = std * torch.randn(count, stack.width, stack.vocab, generator=generator, dtype=torch.float64)
        words = {"x": output[..., : stack.tokens].mT / std}
        path = output_path(problem.model, words, direction)  # type: ignore[arg-type]
        shape = count, stack.tokens, stack.width
        return OutputPath(path.x.view(shape), path.first.view(shape), path.second.view(shape)), output

    return draw, targets(stack, labels)


def random_line(stack: Stack, seed: int) -> tuple[OutputPath, Tensor]:
    """The path of one network's output along one random line, and the target."""
    problem = stack_problem(stack, seed=seed)
    ((inputs, labels),) = problem.data
    path = output_path(problem.model, inputs, _direction(problem.model, seed))  # type: ignore[arg-type]
    return path, targets(stack, labels)


def _direction(model: torch.nn.Module, seed: int) -> dict[str, Tensor]:
    """Independent normal entries of every matrix below the output; the matrices themselves have other seeds."""
    generator = torch.Generator().manual_seed(_LINES + seed)
    return {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in model.named_parameters() if name != "Wemb"
    }  # fmt: skip


def second_derivatives(draw: Draw, target: Tensor, *, draws: int, seed: int) -> dict[str, float]:
    """Means over output matrices of vᵀHv and its parts, with standard errors, all over the mean of vᵀGv."""
    generator = torch.Generator().manual_seed(_OUTPUTS + seed)
    # The largest arrays are (draws, positions, V).
    at_once = max(1, min(draws, _AT_ONCE // (8 * target.numel())))
    pieces = []
    for start in range(0, draws, at_once):
        path, output = draw(min(at_once, draws - start), generator)
        parts = second_derivative(path, output, target)
        pieces.append(torch.stack([getattr(parts, name) for name in PARTS]))
    values = torch.cat(pieces, 1).numpy()
    scale = float(values[PARTS.index("gauss_newton")].mean())
    statistics: dict[str, float] = {"draws": draws, "gauss_newton_mean": scale}
    for name, shares in zip(PARTS, values / scale, strict=True):
        statistics |= {name: float(shares.mean()), f"{name}_sem": float(shares.std(ddof=1)) / draws**0.5}
    return statistics


def hessian_traces(stack: Stack, *, draws: int, seed: int) -> list[float]:
    """The trace of the whole Hessian of one network with each of some output matrices, a unit vector at a time."""
    problem = stack_problem(stack, seed=seed)
    ((inputs, labels),) = problem.data
    generator, target = torch.Generator().manual_seed(_OUTPUTS + seed), targets(stack, labels)
    std = stack.output_scale * stack.width**-0.5
    output = std * torch.randn(draws, stack.width, stack.vocab, generator=generator, dtype=torch.float64)
    total = torch.zeros(draws, dtype=torch.float64)
    for name, p in problem.model.named_parameters():
        for unit in torch.eye(p.numel(), dtype=p.dtype).view(-1, *p.shape) if name != "Wemb" else ():
            path = output_path(problem.model, inputs, {name: unit})  # type: ignore[arg-type]
            total += second_derivative(path, output, target).hessian
    x = problem.model.output(inputs).detach()  # type: ignore[operator]
    p = (x @ output).softmax(-1)
    # Logits are linear in the output matrix.
    of_output = x.square().sum(-1) * (p * (1 - p)).sum(-1)
    traces: list[float] = (total + of_output.mean(-1)).tolist()
    return traces
