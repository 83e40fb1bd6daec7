"""What `gradbounds hessian` measures: networks of one kind and size."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from simulate.counts import check_count
from simulate.curvature.operators import asymmetry
from simulate.curvature.problems import Problem, module_problem, stack_problem, translation_problem
from simulate.modules.catalogue import BUILTINS, load_factory
from simulate.modules.layers import layer_lists
from simulate.translation.model import Translation, parameter_count
from simulate.translation.parallel_text import ParallelText
from theory.coverage import require
from theory.stack import Stack
from theory.stack.weights import weight_shapes

# Of activations: forward and backward, and their tangents.
_COPIES = 4
_PIECE = 48
# What rounding leaves of a symmetric matrix is far below.
_SYMMETRIC = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """Networks that differ in their seed alone.

    Attributes:
        placement: where norms stand, or the module's name.
        width: hidden width.
        depth: layers.
        key: what a kept spectrum is of, but for the seed and what was asked.
        problem: one network, of a seed and a device.
        blocks: parts on the diagonal, by globs of their parameters' names.
        parameters: how many.
        activations: numbers that a product holds besides them; 0 where that is not known.
    """

    placement: str
    width: int
    depth: int
    key: dict[str, Any]
    problem: Callable[[int, str], Problem]
    blocks: dict[str, tuple[str, ...]]
    parameters: int
    activations: int


def on_text(model: Translation, text: ParallelText) -> Subject:
    """Translation models on a text."""
    blocks: dict[str, tuple[str, ...]] = {
        "embeddings": ("*source.weight", "*target.weight", "*output.weight"),
        "attention": ("*attn*",),
        "feed-forward": ("*linear*",),
        "norms": ("*norm*",),
        "encoder": ("*encoder.*",),
        "decoder": ("*decoder.*",),
    }
    for part in ("encoder", "decoder"):
        blocks |= {f"{part} {n + 1}": (f"*{part}.{n}.*",) for n in range(model.depth)}
    of_a_token = model.depth * 2 * (14 * model.width + 2 * model.ffn_width) + 3 * model.vocab
    return Subject(
        placement=model.placement, width=model.width, depth=model.depth, blocks=blocks,
        key={"model": model.non_default(), "text": text.digest, "pairs": len(text)},
        problem=lambda seed, device: translation_problem(model, text, seed=seed, piece=_PIECE, device=device),
        parameters=parameter_count(model),
        activations=_COPIES * _PIECE * max(len(ids) for ids in text.targets) * of_a_token,
    )  # fmt: skip


def of_stack(stack: Stack) -> Subject:
    """Simplified stacks, dense.

    Raises:
        ValueError: something is dropped, or embeddings are tied.
    """
    require(stack, "hessian")
    blocks: dict[str, tuple[str, ...]] = {
        "output": ("Wemb",),
        "attention": ("*W[QKVO]_*", "*X[QKVO]_*"),
        "feed-forward": ("*W[12G]_*",),
        "last W2": (f"W2_{stack.depth}",),
    }
    if stack.source_tokens:
        blocks |= {"encoder": ("encoder_*",)}
    blocks |= {f"layer {n}": (f"[WX]?_{n}",) for n in range(1, stack.depth + 1)}
    matrices = sum(part.depth * d_in * d_out for part in stack.parts for d_in, d_out in weight_shapes(part).values())
    of_a_layer = 8 * stack.width + 2 * stack.ffn_width + stack.heads * stack.tokens
    of_a_token = stack.most_layers * of_a_layer + 3 * stack.vocab
    return Subject(
        placement=stack.placement, width=stack.width, depth=stack.depth, blocks=blocks,
        key={"stack": stack.non_default()}
        | ({"registered": stack.versions} if stack.versions else {}),
        problem=lambda seed, device: stack_problem(stack, seed=seed, dtype=torch.float32, device=device),
        parameters=matrices + stack.width * stack.vocab,
        activations=_COPIES * (stack.rows + stack.sequences * stack.source_tokens) * of_a_token,
    )  # fmt: skip


def of_module(name: str, width: int, depth: int) -> Subject:
    """Modules of a factory as `probe` takes it: a built-in name, or MODULE:FACTORY.

    Raises:
        ValueError: there is none, it fails, or the module has no list of layers.
    """
    for given, value in (("width", width), ("depth", depth)):
        check_count(given, value, 1)
    factory = BUILTINS[name].factory if name in BUILTINS else load_factory(name)
    first = module_problem(factory, width, depth, seed=0)
    model: Any = first.model

    def problem(seed: int, device: str) -> Problem:
        drawn = module_problem(factory, width, depth, seed=seed, device=device)
        if (off := asymmetry(drawn, "hessian")) > _SYMMETRIC:
            raise ValueError(
                f"factory must make modules whose Hessian is symmetric, but that of {name!r} is off by {off:.2g}: "
                "dropout must be off, and every operation's second derivative right."
            )
        return drawn

    return Subject(
        placement=name, width=width, depth=depth,
        blocks={f"{layer}": (f"module.{layer}.*",)
                for part in layer_lists(model.module, (), depth) for layer in part.names},
        key={"factory": name, "made": _digest(first), "width": width, "depth": depth}, problem=problem,
        parameters=sum(p.numel() for p in first.parameters()), activations=0,
    )  # fmt: skip


def _digest(problem: Problem) -> str:
    """Of parameters, loss and gradient: what was computed for another module or batch is not taken for this one."""
    ((inputs, labels),) = problem.data
    loss = problem.loss(problem.model(inputs), labels)
    gradient = torch.autograd.grad(loss, problem.parameters())
    # Sums may be in another order another time.
    sums = f"{float(loss.detach()):.4e} {float(torch.stack([part.norm() for part in gradient]).norm()):.4e}"
    digest = hashlib.sha256(sums.encode())
    for name, parameter in problem.model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
