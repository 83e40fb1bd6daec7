"""What `python -m studies hessian` measures: networks of one kind and size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from simulate.curvature.problems import Problem, stack_problem
from studies.hessian.text_problem import translation_problem
from studies.parallel_text import ParallelText
from studies.translation_model import Translation, parameter_count
from theory.coverage import require
from theory.stack import Stack
from theory.stack.weights import weight_shapes

# Of activations: forward and backward, and their tangents.
_COPIES = 4
_PIECE = 48


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """Networks that differ in their seed alone.

    Attributes:
        placement: where norms stand, as a key of `theory.stack.TITLES`.
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
