"""First steps of models of transformers, built by their own classes and taken by torch's optimizers, against theory.

Reduced in width, depth and vocabulary, nothing downloaded, attention written out. Every matrix of a layer and the
output matrix are stepped, each parameter as the class holds it, and no table of inputs, bias or gain. Words differ,
labels are independent and uniform at all positions, embeddings are untied but where a name says so. Theory is given
every network's logits and labels, and patterns are sampled for each.

STEPS names a folder for wide networks' draws, so that processes side by side can make them.
"""

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checks.trust import MEASURED, Number
from simulate.curvature.first_step import Direction, direction, polar_factor
from simulate.runs.files import write_whole
from tests.helpers.evidence_file import DEVICE, kept_case, record, rounded
from tests.helpers.given_outputs import first_step_given
from tests.helpers.width_families import step_errors
from theory.configurations import stack_from_config
from theory.stack import Stack

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

from tests.helpers import model_classes  # noqa: E402  # it needs transformers

WIDTH, VOCAB, TOKENS = 256, 512, 8
DRAWS, MOST, ERROR = 64, 128, 0.015
FAMILIES = {
    "llama": {}, "gpt2": {}, "qwen3": {}, "gemma2": {}, "olmo2": {}, "gpt_neox": {}, "mistral": {}, "starcoder2": {},
    "phi": {}, "falcon": {"new_decoder_architecture": False},
}  # fmt: skip
# Of tied embeddings: BERT's head, and what nanoGPT has, which is GPT-2's class where no bias is stepped.
TIED = {"bert": {}, "llama": {}, "gpt2": {}}
# Families whose queries, keys and values have matrices of their own, as a polar factor asks.
SPLIT = ("bert", "llama", "qwen3", "gemma2", "olmo2", "mistral", "starcoder2", "phi")
TABLES = ("embed", "wte", "wpe", "position", "token_type", "relative")
# What theory calls them given outputs, and otherwise.
NUMBERS: dict[str, Number] = {"gain": "gain", "curvature": "curvature", "change": "logit_change_sq"}


def fields_of(family: str, width: int = WIDTH, *, tied: bool = False) -> dict[str, Any]:
    sizes = {"width": width, "heads": width // 32, "head": 32, "hidden": 2 * width, "vocab": VOCAB, "std": 0.02}
    sizes["shared"] = width // 128  # by four heads each: few values make deviations of their own
    known = model_classes.field_defaults(family)
    changed = {name: sizes[size] for size in sizes for name in model_classes.BY_SIZE[size] if name in known}
    changed |= {"rotary_dim": 16} if "rotary_dim" in known else {}
    changed |= {"query_pre_attn_scalar": 32} if "query_pre_attn_scalar" in known else {}
    others = (TIED if tied else FAMILIES)[family]
    return model_classes.small_fields(family, **changed, tie_word_embeddings=tied, **others)


# A model, the parameters that are stepped, words (1, N) and labels (N,).
Drawn = tuple[torch.nn.Module, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]


def drawn_model(family: str, fields: dict[str, Any], stack: Stack, seed: int, device: str = "cpu") -> Drawn:
    """One network with its words and labels, in float64."""
    with torch.device(device):
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
    return model, parameters, ids, labels


def network(
    family: str, fields: dict[str, Any], stack: Stack, seed: int, optimizers: Collection[str], device: str = "cpu"
) -> dict[str, Any]:
    """One network's numbers by optimizer, theory's given its outputs, and the share of Adam's small gradients."""
    model, parameters, ids, labels = drawn_model(family, fields, stack, seed, device)
    logits = model(input_ids=ids.to(device)).logits[0]
    p = logits.detach().softmax(-1)
    r = (p - torch.nn.functional.one_hot(labels, VOCAB).to(p)) / TOKENS
    # The gradient, linear in that at the logits.
    at_logits = r.clone().requires_grad_()
    parts = torch.autograd.grad(logits, [*parameters.values()], at_logits, create_graph=True)
    held = dict(zip(parameters, parts, strict=True))
    gradient = {name: part.detach() for name, part in held.items()}
    # The words' classes first.
    classes = torch.cat([ids[0], torch.tensor(sorted(set(range(VOCAB)) - set(ids[0].tolist())))])
    outputs = p.cpu()[None][..., classes].numpy(), r.cpu()[None][..., classes].numpy()
    rows: dict[str, Any] = {}
    for optimizer in optimizers:
        u = polar(gradient) if optimizer == "polar" else direction(gradient, optimizer, turned=False)
        w = motion(held, at_logits, u)
        curvature = float(((p * w**2).sum(-1) - (p * w).sum(-1) ** 2).mean())
        gain = float(sum((gradient[name] * u[name]).sum() for name in u))
        theory = first_step_given(stack, *outputs, optimizer, seed=seed)
        numbers = [gain, curvature, float(w.square().mean())]
        rows[optimizer] = {"network": numbers, "theory": [float(theory[name][0]) for name in NUMBERS]}
    if "adam" in optimizers:
        every = torch.cat([part.flatten() for part in gradient.values()]).abs()
        rows["below 1e-8"] = float((every < 1e-8).double().mean())
        # Adam's first step with torch's own epsilon.
        rows["gain with 1e-8"] = float((every**2 / (every + 1e-8)).sum() / every.sum())
    return rows


def motion(held: Direction, at_logits: torch.Tensor, u: Direction) -> torch.Tensor:
    """What logits move by along a step, (N, V): J u, the slope of g·u = r·J u by the gradients r at the logits."""
    along = torch.stack([(held[name] * u[name]).sum() for name in u]).sum()
    (moved,) = torch.autograd.grad(along, at_logits, retain_graph=True)
    return moved


def polar(gradient: Direction) -> Direction:
    """Polar factors. A gradient has a row of each token in its range, and of a tied word's two: P C R with few rows.

    So they are those of C, by orthonormal bases of the range and of the domain, of more dimensions than these.
    """
    found: Direction = {}
    for name, part in gradient.items():
        probes = torch.randn(part.shape[1], 2 * TOKENS + 2, dtype=part.dtype).to(part)
        left = torch.linalg.qr(part @ probes)[0]
        right = torch.linalg.qr(part.T @ left)[0]
        core = polar_factor((left.T @ part @ right).cpu()[None], *part.shape[::-1])[0]
        found[name] = left @ core.to(part) @ right.T
    return found


@pytest.mark.filterwarnings("ignore")
def test_motion_and_polar_factors():
    """Beside differences of the logits of moved parameters, and the factors of whole matrices."""
    fields = fields_of("bert", tied=True)
    stack, _ = stack_from_config({"model_type": "bert", **fields}, tokens=TOKENS)
    model, parameters, ids, _ = drawn_model("bert", fields, stack, 0)
    logits = model(input_ids=ids).logits[0]
    at_logits = torch.randn_like(logits).requires_grad_()
    parts = torch.autograd.grad(logits, [*parameters.values()], at_logits, create_graph=True)
    held = dict(zip(parameters, parts, strict=True))
    gradient = {name: part.detach() for name, part in held.items()}
    u, whole = polar(gradient), direction(gradient, "polar", turned=False)
    for name in u:
        torch.testing.assert_close(u[name], whole[name], rtol=0, atol=1e-6)
    rate, ends = 1e-5, list[torch.Tensor]()
    for sign in (1, -1):
        moved = {name: p.detach() + sign * rate * u[name] for name, p in parameters.items()}
        ends.append(torch.func.functional_call(model, moved, (), {"input_ids": ids}).logits[0].detach())
    difference = (ends[0] - ends[1]) / (2 * rate)
    torch.testing.assert_close(motion(held, at_logits, u), difference, rtol=1e-6, atol=1e-6 * float(difference.std()))


def optimizers_of(family: str) -> tuple[str, ...]:
    """The optimizers whose steps theory has."""
    return ("sgd", "adam") + (("polar",) if family in SPLIT else ())


def case(family: str, drawn: Callable[[str, Any], Any], *, tied: bool = False) -> dict[str, Any]:
    """Numbers of networks over theory's, with standard errors of the quotients of means."""
    fields = fields_of(family, tied=tied)
    stack, notes = stack_from_config({"model_type": family, **fields}, tokens=TOKENS)
    draws: list[dict[str, Any]] = []
    while True:
        draws.extend(
            drawn(
                f"step {family} {seed}" + ", tied" * tied,
                lambda seed=seed: network(family, fields, stack, seed, optimizers_of(family)),
            )
            for seed in range(len(draws), len(draws) + DRAWS)
        )
        found = summary(draws)
        if len(draws) >= MOST or max(row["sem"] for row in of_numbers(found["optimizers"])) < ERROR:
            break
    left = [str(note) for note in notes if note.what == "left out"]
    return rounded({"draws": len(draws), **found, "left out": left})


def summary(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """Quotients by optimizer, and means of Adam's small gradients, over the networks that were stepped by each."""
    names = ("below 1e-8", "gain with 1e-8")
    adam = {name: float(np.mean([one[name] for one in draws if name in one])) for name in names}
    rows = {
        optimizer: dict(zip(NUMBERS, quotients([one[optimizer] for one in draws if optimizer in one]), strict=True))
        for optimizer in draws[0] if isinstance(draws[0][optimizer], dict)
    }  # fmt: skip
    return {"optimizers": rows, "adam": adam}


def of_numbers(rows: dict[str, Any]) -> list[dict[str, float]]:
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

    With 7 at this width that is expected to fail; wide ones are beside it.
    """
    found = {family: case(family, lambda name, make: kept_case(kept_folder, name, make)) for family in FAMILIES}
    about = {"depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "transformers": transformers.__version__}
    record("configuration-steps", about | {"width": WIDTH, "models": found})
    assert not [family for family, one in found.items() if not as_stated(one, family)]
    if (within := sum(near(one) for one in found.values())) < 8:
        pytest.xfail(f"{within} of {len(found)} families are within it at width {WIDTH} (docs/report.md)")


@pytest.mark.filterwarnings("ignore")
def test_first_steps_of_tied_classes(kept_folder):
    """All families have all numbers within 5%, or 10% and 3 standard errors; expected to fail by Llama's SGD."""
    found = {family: case(family, lambda name, make: kept_case(kept_folder, name, make), tied=True) for family in TIED}
    about = {"depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "transformers": transformers.__version__}
    record("configuration-steps-tied", about | {"width": WIDTH, "models": found})
    assert all(as_stated(one, family, tied=True) for family, one in found.items())
    if beyond := [family for family, one in found.items() if not near(one)]:
        assert beyond == ["llama"], beyond
        pytest.xfail("what SGD changes of Llama's logits is just beyond it (docs/report.md)")


WIDE = (512, 1024)
# Blocks of 64 networks for each width, fixed before any of them was drawn.
#
# With the deviation of one network of width 256, which falls like 1/sqrt(d), 1.4 times as many as bring standard
# errors of all numbers to 1.5%. Falcon's, with one key and value head of 32 at any width, was taken not to fall. At
# 1024 GPT-2 came to 1.53% by this and BERT to 1.58%, and were given one block more.
PLAN: dict[str, dict[str, tuple[int, int]]] = {
    "llama": {"sgd": (17, 9), "adam": (4, 2), "polar": (4, 2)},
    "gpt2": {"sgd": (5, 4), "adam": (2, 1)},
    "qwen3": {"sgd": (12, 6), "adam": (3, 2), "polar": (3, 2)},
    "gemma2": {"sgd": (14, 7), "adam": (3, 2), "polar": (3, 2)},
    "olmo2": {"sgd": (22, 11), "adam": (4, 2), "polar": (4, 2)},
    "gpt_neox": {"sgd": (5, 3), "adam": (2, 1)},
    "phi": {"sgd": (6, 3), "adam": (2, 1), "polar": (1, 1)},
    "bert, tied": {"sgd": (1, 2), "adam": (1, 1), "polar": (1, 1)},
    "llama, tied": {"sgd": (21, 11), "adam": (4, 2), "polar": (5, 3)},
    "gpt2, tied": {"sgd": (6, 3), "adam": (2, 1)},
    "falcon": {"sgd": (13, 13), "adam": (4, 4)},
}
# Blocks of a test.
TOGETHER = 3


def wide_folder(kept: Path) -> Path:
    return Path(os.environ.get("STEPS", kept))


def block_file(folder: Path, width: int, name: str, block: int) -> Path:
    return folder / f"{width}-{name.replace(', ', '-')}-{block}.json"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("width", "name", "first"),
    [
        pytest.param(width, name, first, id=f"{width}-{name.replace(', ', '-')}-{first}")
        for at, width in enumerate(WIDE) for name, plan in PLAN.items() for first in range(0, plan["sgd"][at], TOGETHER)
    ],
)  # fmt: skip
def test_draws(kept_folder, width, name, first):
    """Draws of a wide class that are not there yet, in files of 64."""
    plan = {optimizer: blocks[WIDE.index(width)] for optimizer, blocks in PLAN[name].items()}
    family, tied = named(name)
    fields = fields_of(family, width, tied=tied)
    stack, _ = stack_from_config({"model_type": family, **fields}, tokens=TOKENS)
    for block in range(first, min(first + TOGETHER, plan["sgd"])):
        if (file := block_file(wide_folder(kept_folder), width, name, block)).is_file():
            continue
        optimizers = [optimizer for optimizer, blocks in plan.items() if block < blocks]
        drawn = [network(family, fields, stack, DRAWS * block + k, optimizers, DEVICE) for k in range(DRAWS)]
        write_whole(file, json.dumps({"device": device_name(), "draws": drawn}).encode())


def device_name() -> str:
    return "cpu" if DEVICE == "cpu" else torch.cuda.get_device_name()


def wide_case(folder: Path, width: int, name: str) -> dict[str, Any]:
    """As `case`, of the planned blocks, with the implied error of every number."""
    read = [
        json.loads(block_file(folder, width, name, block).read_text(encoding="utf-8"))
        for block in range(PLAN[name]["sgd"][WIDE.index(width)])
    ]
    draws = [one for block in read for one in block["draws"]]
    counts = {optimizer: sum(optimizer in one for one in draws) for optimizer in PLAN[name]}
    found, stated = summary(draws), stated_errors(*named(name), width)
    for optimizer, rows in found["optimizers"].items():
        for number, row in rows.items():
            row["stated"] = stated[optimizer][number]
    return rounded({"draws": counts, **found, "devices": sorted({block["device"] for block in read})})


def test_first_steps_of_wide_classes(kept_folder):
    """Standard errors are at most 1.5%, all numbers as stated, and 9 of 11 classes within 5%, or what was stated.

    That is expected to fail at 512, where OLMo 2's signs are off by 0.3% more than was stated; at 1024 it holds.
    """
    folder = wide_folder(kept_folder)
    found = {str(width): {name: wide_case(folder, width, name) for name in PLAN} for width in WIDE}
    about = {"depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "transformers": transformers.__version__}
    record("configuration-steps-wide", about | {"models": found})
    rows = [row for models in found.values() for one in models.values() for row in of_numbers(one["optimizers"])]
    assert max(row["sem"] for row in rows) <= ERROR
    near_ones = {width: sum(within(one) for one in models.values()) for width, models in found.items()}
    beyond = {
        width: [name for name, one in models.items() if not as_stated(one, *named(name), int(width))]
        for width, models in found.items()
    }
    assert near_ones["1024"] >= len(PLAN) - 2
    assert not beyond["1024"]
    if near_ones["512"] < len(PLAN) - 2 or beyond["512"]:
        pytest.xfail(
            f"at 512 {near_ones['512']} of {len(PLAN)} are within it, and beyond what was stated: {beyond['512']}"
        )


def named(name: str) -> tuple[str, bool]:
    family, _, ends = name.partition(", ")
    return family, bool(ends)


def within(found: dict[str, Any]) -> bool:
    """Whether every number is within 5%, or within its implied error where that is at most 10%."""
    rows = of_numbers(found["optimizers"])
    return all(
        round(abs(row["ratio"] - 1), 4) <= max(0.05, row["stated"] if row["stated"] <= 0.1 else 0.0) for row in rows
    )


def near(found: dict[str, Any]) -> bool:
    rows = of_numbers(found["optimizers"])
    return all(abs(row["ratio"] - 1) < max(0.05, min(0.1, 3 * row["sem"])) for row in rows)


def as_stated(found: dict[str, Any], family: str, tied: bool = False, width: int = WIDTH) -> bool:
    """Whether every number is within its implied error, 5% or 3 standard errors."""
    stated = stated_errors(family, tied, width)
    return all(
        abs(row["ratio"] - 1) < max(0.05, stated[optimizer][name], 3 * row["sem"])
        for optimizer, numbers in found["optimizers"].items() for name, row in numbers.items()
    )  # fmt: skip


def stated_errors(family: str, tied: bool = False, width: int = WIDTH) -> dict[str, dict[str, float]]:
    """The implied error of every optimizer and number, by coefficients that other networks were measured for."""
    fields = fields_of(family, width, tied=tied)
    stack, _ = stack_from_config({"model_type": family, **fields}, tokens=TOKENS)
    errors = {optimizer: step_errors(stack, optimizer) for optimizer in MEASURED}
    return {optimizer: {name: of[named] for name, named in NUMBERS.items()} for optimizer, of in errors.items()}
