"""What a product with a Hessian costs beside a second backward pass by hand, and theory beside what it predicts."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from bench.store import seconds
from simulate.curvature.operators import extreme_eigenvalues, operator, plain_operations, probe_spectrum, product
from simulate.curvature.problems import Problem, stack_problem, translation_problem
from simulate.translation.model import Translation
from simulate.translation.parallel_text import ParallelText, read_pairs
from theory.mean_field.gauss_newton import gauss_newton_norms
from theory.stack import Stack

REPETITIONS = 7
MODEL = Translation(width=32, depth=6, heads=4, ffn_width=64, vocab=500, dropout=0.0)
PAIRS = 100
STACK = Stack(width=128, depth=8, tokens=4, vocab=8)


def text() -> ParallelText:
    """Pairs of lines of 3 to 30 words each, common words common."""
    draw = np.random.default_rng(0)
    ranks = 1.0 / np.arange(1, 497)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "source", Path(folder) / "target"
        for file in files:
            # All words once, so that the text has them.
            lines = [" ".join(f"w{k}" for k in range(496))] + [
                " ".join(f"w{k}" for k in draw.choice(496, draw.integers(3, 30), p=ranks / ranks.sum()))
                for _ in range(PAIRS)
            ]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        whole = read_pairs(*files, vocab=MODEL.vocab)
    return replace(whole, sources=whole.sources[1:], targets=whole.targets[1:])


def problem() -> Problem:
    """A translation model on it."""
    return translation_problem(MODEL, text(), seed=0)


def by_hand(problem: Problem, vector: Tensor) -> Tensor:
    """A Hessian product as users write it: the gradient of ⟨gradient, v⟩, piece by piece."""
    parameters = problem.parameters()
    parts = vector.split([p.numel() for p in parameters])
    total = torch.zeros_like(vector)
    with plain_operations():
        for inputs, labels in problem.data:
            loss = problem.loss(problem.model(inputs), labels)
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            along = sum((g * v.view_as(g)).sum() for g, v in zip(gradients, parts, strict=True))
            total += torch.cat([g.flatten() for g in torch.autograd.grad(along, parameters)])
    return total


def ours(problem: Problem, vector: Tensor) -> Tensor:
    """As `gradbounds hessian` has it."""
    return product(operator(problem, "hessian"), vector)


def peak(call: str) -> float:
    """MiB at most of a process of its own that makes such a product."""
    code = (
        "import torch; torch.set_num_threads(1); from bench.curvature import *; one = problem(); "
        f"{call}(one, torch.ones(sum(p.numel() for p in one.parameters())))\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def sampled() -> None:
    """What one network says of the largest eigenvalue, the trace and the norm."""
    built = stack_problem(STACK, seed=0, dtype=torch.float32)
    extreme_eigenvalues(built, "gauss-newton", seed=0)
    probe_spectrum(built, "gauss-newton", steps=2, seed=0)


def report() -> dict[str, object]:
    """Medians of repetitions, taken in turn, and peak memory."""
    torch.set_num_threads(1)
    built = problem()
    vector = torch.randn(sum(p.numel() for p in built.parameters()), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(built, vector), by_hand(built, vector), rtol=1e-3, atol=1e-4)
    times = [
        (seconds(lambda: by_hand(built, vector)), seconds(lambda: ours(built, vector))) for _ in range(REPETITIONS)
    ]
    theory = [(seconds(lambda: gauss_newton_norms(STACK)), seconds(sampled)) for _ in range(3)]
    whole, network = (median(column) for column in zip(*theory, strict=True))
    return {
        "width, depth, pairs, parameters": [MODEL.width, MODEL.depth, PAIRS, vector.numel()],
        "product by hand, seconds": round(median(first for first, _ in times), 3),
        "product, seconds": round(median(second for _, second in times), 3),
        "product over by hand": round(median(second / first for first, second in times), 3),
        "peak MiB, by hand and ours": [round(peak(call)) for call in ("by_hand", "ours")],
        "stack of width, depth, tokens, vocab": [STACK.width, STACK.depth, STACK.tokens, STACK.vocab],
        "theory of its Gauss-Newton matrix, seconds": round(whole, 3),
        "one network measured, seconds": round(network, 3),
    }
