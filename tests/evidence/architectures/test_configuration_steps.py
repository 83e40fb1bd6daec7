"""First steps of models of transformers, built by their own classes and taken by torch's optimizers, against theory.

Reduced in width, depth and vocabulary, nothing downloaded, attention written out. Every matrix of a layer and the
output matrix are stepped, each parameter as the class holds it, and no table of inputs, bias or gain. Words differ,
labels are independent and uniform at all positions, embeddings are untied but where a name says so. Theory is given
every network's logits and labels, and patterns are sampled for each.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from checks.step_errors import MEASURED, Number, step_errors
from simulate.curvature.first_step import direction
from simulate.curvature.operators import plain_operations
from tests.helpers.evidence_file import kept_case, record, rounded
from theory.configurations import stack_from_config
from theory.first_step.prediction import first_step_given
from theory.stack import Stack

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

from tests.helpers import model_classes  # noqa: E402  # it needs transformers

WIDTH, VOCAB, TOKENS = 256, 512, 8
DRAWS, MOST, ERROR = 64, 128, 0.015
WIDE = 512
"""Where families are built again that are off at the width, to see what that does: corrections are O(1/d)."""
FAMILIES = {
    "llama": {}, "gpt2": {}, "qwen3": {}, "gemma2": {}, "olmo2": {}, "gpt_neox": {}, "mistral": {}, "starcoder2": {},
    "phi": {}, "falcon": {"new_decoder_architecture": False},
}  # fmt: skip
TIED = {"bert": {}, "llama": {}, "gpt2": {}}
"""Of tied embeddings: BERT's head, and what nanoGPT has, which is GPT-2's class where no bias is stepped."""
SPLIT = ("bert", "llama", "qwen3", "gemma2", "olmo2", "mistral", "starcoder2", "phi")
"""Families whose queries, keys and values have matrices of their own, as a polar factor asks."""
TABLES = ("embed", "wte", "wpe", "position", "token_type", "relative")
NUMBERS: dict[str, Number] = {"gain": "gain", "curvature": "curvature", "change": "logit_change_sq"}
"""What theory calls them given outputs, and otherwise."""


def fields_of(family: str, width: int = WIDTH, *, tied: bool = False) -> dict[str, Any]:
    """The configuration that is built."""
    sizes = {"width": width, "heads": width // 32, "head": 32, "hidden": 2 * width, "vocab": VOCAB, "std": 0.02}
    known = model_classes.field_defaults(family)
    changed = {name: sizes[size] for size in sizes for name in model_classes.BY_SIZE[size] if name in known}
    changed |= {"rotary_dim": 16} if "rotary_dim" in known else {}
    changed |= {"query_pre_attn_scalar": 32} if "query_pre_attn_scalar" in known else {}
    others = (TIED if tied else FAMILIES)[family]
    return model_classes.small_fields(family, **changed, tie_word_embeddings=tied, **others)


def network(family: str, fields: dict[str, Any], stack: Stack, seed: int) -> dict[str, Any]:
    """One network's numbers by optimizer, theory's given its outputs, and the share of Adam's small gradients."""
    model = model_classes.build(family, fields, seed=seed)
    output = model.get_output_embeddings()
    tied = stack.embeddings == "tied"
    assert not tied or output.weight is model.get_input_embeddings().weight
    if output.weight is model.get_input_embeddings().weight and not tied:
        output.weight = torch.nn.Parameter(torch.randn_like(output.weight) * output.weight.std())
    model, ids, labels = model.double(), 3 + torch.randperm(VOCAB - 3)[None, :TOKENS], torch.randint(VOCAB, (TOKENS,))
    parameters = {
        name: p for name, p in model.named_parameters()
        if p.ndim == 2 and (p is output.weight or not any(table in name for table in TABLES))
    }  # fmt: skip
    logits = model(input_ids=ids).logits[0]
    gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), list(parameters.values()))
    gradient, p = dict(zip(parameters, gradients, strict=True)), logits.detach().softmax(-1)
    r = (p - torch.nn.functional.one_hot(labels, VOCAB)) / TOKENS
    # The words' classes first.
    classes = torch.cat([ids[0], torch.tensor(sorted(set(range(VOCAB)) - set(ids[0].tolist())))])
    outputs = p[None][..., classes].numpy(), r[None][..., classes].numpy()
    rows: dict[str, Any] = {}
    for optimizer in ("sgd", "adam") + (("polar",) if family in SPLIT else ()):
        u = direction(gradient, optimizer, turned=False)
        w = motion(model, parameters, u, ids)
        curvature = float(((p * w**2).sum(-1) - (p * w).sum(-1) ** 2).mean())
        gain = float(sum((gradient[name] * u[name]).sum() for name in u))
        theory = first_step_given(stack, *outputs, optimizer, seed=seed)
        numbers = [gain, curvature, float(w.square().mean())]
        rows[optimizer] = {"network": numbers, "theory": [float(theory[name][0]) for name in NUMBERS]}
    every = torch.cat([g.flatten() for g in gradients]).abs()
    rows["below 1e-8"] = float((every < 1e-8).double().mean())
    # Adam's first step with torch's own epsilon.
    rows["gain with 1e-8"] = float((every**2 / (every + 1e-8)).sum() / every.sum())
    return rows


def motion(model: torch.nn.Module, parameters: dict[str, Any], u: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """What logits move by along a step, (N, V)."""
    values = {name: p.detach() for name, p in parameters.items()}

    def logits(rate: torch.Tensor) -> torch.Tensor:
        moved = {name: value + rate * u[name] for name, value in values.items()}
        found: torch.Tensor = torch.func.functional_call(model, moved, (), {"input_ids": ids}).logits[0]
        return found

    zero = torch.zeros((), dtype=torch.float64)
    with plain_operations():
        pair: Any = torch.func.jvp(logits, (zero,), (torch.ones_like(zero),))
    moved: torch.Tensor = pair[1]
    return moved


def case(family: str, drawn: Callable[[str, Any], Any], width: int = WIDTH, *, tied: bool = False) -> dict[str, Any]:
    """Numbers of networks over theory's, with standard errors of the quotients of means."""
    fields = fields_of(family, width, tied=tied)
    stack, notes = stack_from_config({"model_type": family, **fields}, tokens=TOKENS)
    draws: list[dict[str, Any]] = []
    while True:
        for seed in range(len(draws), len(draws) + DRAWS):
            draws.append(
                drawn(
                    f"step {family} {seed}" + f", {width}" * (width != WIDTH) + ", tied" * tied,
                    lambda seed=seed: network(family, fields, stack, seed),
                )
            )
        rows = {
            optimizer: dict(zip(NUMBERS, quotients([one[optimizer] for one in draws]), strict=True))
            for optimizer in draws[0] if isinstance(draws[0][optimizer], dict)
        }  # fmt: skip
        if len(draws) >= (MOST if width == WIDTH else DRAWS) or max(row["sem"] for row in of_numbers(rows)) < ERROR:
            break
    adam = {name: float(np.mean([one[name] for one in draws])) for name in ("below 1e-8", "gain with 1e-8")}
    left = [str(note) for note in notes if note.what == "left out"]
    return rounded({"draws": len(draws), "optimizers": rows, "adam": adam, "left out": left})


def of_numbers(rows: dict[str, Any]) -> list[dict[str, float]]:
    """Every number's row."""
    return [row for numbers in rows.values() for row in numbers.values()]


def quotients(draws: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Of means over networks, of every number: of networks over theory."""
    network, theory = (np.array([one[name] for one in draws]) for name in ("network", "theory"))
    ratio = network.mean(0) / theory.mean(0)
    errors = (network - ratio * theory).std(0, ddof=1) / len(draws) ** 0.5 / theory.mean(0)
    return [{"ratio": float(one), "sem": float(sem)} for one, sem in zip(ratio, errors, strict=True)]


@pytest.mark.filterwarnings("ignore")
def test_first_steps_of_classes(kept_folder):
    """At least 8 of 10 families have all numbers within 5%, or 10% and 3 standard errors.

    With 7 at this width that is expected to fail; those that are not within it are at twice the width.
    """

    def kept(name: str, make: Callable[[], Any]) -> Any:
        return kept_case(kept_folder, name, make)

    found = {family: case(family, kept) for family in FAMILIES}
    wide = {family: case(family, kept, WIDE) for family, one in found.items() if not near(one)}
    about = {"depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "transformers": transformers.__version__}
    record("configuration-steps", about | {"width": WIDTH, "models": found, "at width 512": wide})
    assert not [family for family, one in found.items() if not as_stated(one, family)]
    assert not [family for family, one in wide.items() if not as_stated(one, family, WIDE)]
    assert sum(near(one) or near(wide[family]) for family, one in found.items()) >= 8
    if (within := sum(near(one) for one in found.values())) < 8:
        pytest.xfail(f"{within} of {len(found)} families are within it at width {WIDTH} (docs/first_step.md)")


@pytest.mark.filterwarnings("ignore")
def test_first_steps_of_tied_classes(kept_folder):
    """All families have all numbers within 5%, or 10% and 3 standard errors; expected to fail by Llama's SGD."""
    found = {family: case(family, lambda name, make: kept_case(kept_folder, name, make), tied=True) for family in TIED}
    about = {"depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "transformers": transformers.__version__}
    record("configuration-steps-tied", about | {"width": WIDTH, "models": found})
    assert all(as_stated(one, family, tied=True) for family, one in found.items())
    if beyond := [family for family, one in found.items() if not near(one)]:
        assert beyond == ["llama"], beyond
        pytest.xfail("what SGD changes of Llama's logits is just beyond it (docs/first_step.md)")


def near(found: dict[str, Any]) -> bool:
    """Whether every number is."""
    rows = of_numbers(found["optimizers"])
    return all(abs(row["ratio"] - 1) < max(0.05, min(0.1, 3 * row["sem"])) for row in rows)


def as_stated(found: dict[str, Any], family: str, width: int = WIDTH, *, tied: bool = False) -> bool:
    """Whether every number is within its implied error, 5% or 3 standard errors."""
    stated = stated_errors(family, width, tied=tied)
    return all(
        abs(row["ratio"] - 1) < max(0.05, stated[optimizer][name], 3 * row["sem"])
        for optimizer, numbers in found["optimizers"].items() for name, row in numbers.items()
    )  # fmt: skip


def stated_errors(family: str, width: int = WIDTH, *, tied: bool = False) -> dict[str, dict[str, float]]:
    """The implied error of every optimizer and number, by coefficients that other networks were measured for."""
    fields = fields_of(family, width, tied=tied)
    stack, _ = stack_from_config({"model_type": family, **fields}, tokens=TOKENS)
    errors = {optimizer: step_errors(stack, optimizer) for optimizer in MEASURED}
    return {optimizer: {name: of[named] for name, named in NUMBERS.items()} for optimizer, of in errors.items()}
