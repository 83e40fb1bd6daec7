"""The residual H − G of a small stack in explicit matrices: the coupling of pairs of matrices, and the norms' own part.

Written anew, one matrix after another: of the paper's Post-LN and Pre-LN alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / centred.square().mean(-1, keepdim=True).sqrt()


@dataclass
class Pass:
    """Inputs h and outputs o of every matrix in order, sums y before norms and x after them, and the loss."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    sums: list[Tensor]
    normed: list[Tensor]
    loss: Tensor


class SmallStack:
    """One network. `matrices` are W^V, W^1, W^2 of every layer and the output matrix."""

    def __init__(self, placement, width, depth, tokens, vocab, seed):
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        self.placement, self.depth, self.tokens, self.width = placement, depth, tokens, width
        matrices = [normal(width, width) / width**0.5 for _ in range(3 * depth)]
        self.matrices = [one.requires_grad_() for one in [*matrices, normal(width, vocab) / width**0.5]]
        # The inputs have a graph, so that what is before the first matrix has derivatives too.
        self.x = normal(tokens, width).requires_grad_()
        self.labels = torch.randint(vocab, (tokens,), generator=draw)

    def run(self, matrices=None) -> Pass:
        seen = Pass([], [], [], [], torch.zeros(()))
        matrices = self.matrices if matrices is None else matrices

        def times(h, index):
            seen.inputs.append(h * 1.0)
            seen.outputs.append(seen.inputs[-1] @ matrices[index])
            return seen.outputs[-1]

        def norm(y):
            seen.sums.append(y * 1.0)
            seen.normed.append(layer_norm(seen.sums[-1]))
            return seen.normed[-1]

        x, post = self.x, self.placement == "post"
        for layer in range(self.depth):
            x = x + times((x if post else norm(x)).mean(0, keepdim=True), 3 * layer)
            x = norm(x) if post else x
            x = x + times(torch.relu(times(x if post else norm(x), 3 * layer + 1)), 3 * layer + 2)
            x = norm(x) if post else x
        logits = times(x if post else norm(x), 3 * self.depth)
        seen.loss = torch.nn.functional.cross_entropy(logits, self.labels)
        return seen


def coupling(stack: SmallStack) -> Tensor:
    """M, whose singular values are ± the eigenvalues of the residual but for what norms add.

    Rows are what goes into matrices, columns what comes out of later ones.
    """
    seen = stack.run()
    slopes = torch.autograd.grad(seen.loss, seen.outputs, retain_graph=True)
    one, count = torch.eye(stack.width, dtype=torch.float64), len(seen.inputs)
    rows = [[torch.zeros(len(seen.inputs[a]) * stack.width, len(seen.inputs[b]) * stack.width, dtype=torch.float64)
             for b in range(1, count)] for a in range(count - 1)]  # fmt: skip
    for b in range(1, count):
        h = seen.inputs[b]
        reached = torch.autograd.grad(
            h, seen.outputs[:b], torch.eye(h.numel(), dtype=torch.float64).view(-1, *h.shape), retain_graph=True,
            is_grads_batched=True, allow_unused=True,
        )  # fmt: skip
        of_gradients = torch.kron(_root(slopes[b]), one)
        for a, jacobian in enumerate(reached):
            if jacobian is not None:
                of_inputs = torch.kron(_root(seen.inputs[a].detach()), one)
                rows[a][b - 1] = of_inputs @ jacobian.reshape(h.numel(), -1).T @ of_gradients
    return torch.cat([torch.cat(row, 1) for row in rows], 0)


def _root(rows: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def parts_along(stack: SmallStack, direction: list[Tensor]) -> tuple[float, float, float]:
    """v'(H − G)v along a direction; 2 Σ_W ⟨δ_W, h_W' Δ_W⟩; and Σ over norms of ⟨∂L/∂x, x''⟩ with x(y + t y').

    x = √d c/|c| of the centred sum c: x'' = −2 (c·c')/|c|² x'  − |x'|²/d x.
    """
    zero = torch.zeros((), dtype=torch.float64)

    def moved(t):
        return stack.run([one + t * part for one, part in zip(stack.matrices, direction, strict=True)])

    def tangents(names):
        def nodes_at(t):
            return [tensor for name in names for tensor in getattr(moved(t), name)]

        return [one.detach() for one in torch.func.jvp(nodes_at, (zero,), (torch.ones_like(zero),))[1]]

    seen = stack.run()
    slopes = torch.autograd.grad(seen.loss, [*seen.outputs, *seen.normed])
    of_outputs, of_normed = slopes[: len(seen.outputs)], slopes[len(seen.outputs) :]
    pairs = sum(
        2 * float((slope.detach() * (h @ part)).sum())
        for slope, h, part in zip(of_outputs, tangents(["inputs"]), direction, strict=True)
    )
    norms = 0.0
    for slope, y, x, of_sum, of_x in zip(
        of_normed, seen.sums, seen.normed, tangents(["sums"]), tangents(["normed"]), strict=True
    ):
        c, c_moved = (one - one.mean(-1, keepdim=True) for one in (y, of_sum))
        along = (c * c_moved).sum(-1, keepdim=True) / c.square().sum(-1, keepdim=True)
        second = -2 * along * of_x - of_x.square().sum(-1, keepdim=True) / stack.width * x
        norms += float((slope * second).sum().detach())
    whole = float(torch.func.hessian(lambda t: moved(t).loss)(zero).detach())
    logits, change = seen.outputs[-1], tangents(["outputs"])[-1]
    p = logits.detach().softmax(-1)
    gauss_newton = float(((p * change.square()).sum(-1) - (p * change).sum(-1).square()).mean())
    return whole - gauss_newton, pairs, norms
