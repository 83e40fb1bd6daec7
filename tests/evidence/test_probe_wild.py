"""Reports on many modules that nothing is wrong with, fresh and trained: how many raise an alarm.

Seeds, sizes, data and bars were chosen before the first of these modules was made; no threshold was set on them.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from checks.models.judge import judged_module
from tests.evidence.test_probe_models import interval
from tests.helpers.evidence_file import kept_cases, record
from tests.helpers.model_families import FAMILIES as EVERY, TOKENS, VOCAB
from tests.helpers.single_modules import HEALTHY, Single, next_word, of_a_family

pytestmark = pytest.mark.evidence

# Builders by family; of two every other seed has one.
FAMILIES = {
    "nanoGPT-like": ("nanoGPT-like",), "Llama": ("Llama",), "BERT": ("BERT",), "ViT-like": ("ViT-like",),
    "torch.nn": ("torch.nn, Pre-LN", "torch.nn, Post-LN"), "without attention": ("without attention",),
    "GPT-2": ("GPT-2",),
}  # fmt: skip
# Of fresh modules alone; without a factor before its softmax, it was what thresholds had not been held against.
LATER = {"T5": ("T5",)}
BUILDERS = HEALTHY | {"T5": of_a_family(EVERY["T5"])}
FRESH = {"widths": [32, 64], "depths": [3, 6], "seeds": 25, "first seed": 710_000}
TRAINED = {"widths": [32, 48, 64], "depths": [3, 4, 5, 6], "seeds": 15, "first seed": 720_000, "steps": 200,
           "sequences": 16, "learning rate": 1e-3}  # fmt: skip
TEXT = Path(__file__).parents[2] / "LICENSE"
MASK, MASKED = 0, 0.15
# Reports with an alarm that are allowed in all, and among those on trained modules.
MOST, MOST_TRAINED = 8, 1


def made(family: str, width: int, depth: int, seed: int) -> Single:
    builders = (FAMILIES | LATER)[family]
    torch.manual_seed(seed)
    return BUILDERS[builders[seed % len(builders)]](width, depth)


def fresh(family: str, seed: int) -> list[str]:
    """The first alarm of every module of a family and seed; "" where there is none."""
    found = []
    for width in FRESH["widths"]:
        for depth in FRESH["depths"]:
            alarms = judged_module(*made(family, width, depth, seed)).alarms
            found.append(f"{family}, width {width}, depth {depth}, seed {seed}: {alarms[0]}" if alarms else "")
    return found


def text() -> Tensor:
    return torch.tensor([letter for letter in TEXT.read_bytes() if MASK < letter < VOCAB])


class Data:
    """Batches from which a family can learn: letters of a page, or vectors and images near one of ten centres."""

    def __init__(self, family: str, width: int) -> None:
        self.family, self.letters = family, text()
        shape = (TOKENS, width) if family == "torch.nn" else (3, 16, 16)
        self.centres = torch.randn(10, *shape)

    def batch(self, sequences: int) -> tuple[Any, Any]:
        if self.family in ("torch.nn", "ViT-like"):
            labels = torch.randint(10, (sequences,))
            x = self.centres[labels] + torch.randn(sequences, *self.centres.shape[1:])
            if self.family == "ViT-like":
                return x, lambda y: functional.cross_entropy(y, labels)
            every = labels.repeat_interleave(TOKENS)
            return x, lambda y: functional.cross_entropy(y.flatten(0, 1), every)
        starts = torch.randint(len(self.letters) - TOKENS, (sequences, 1))
        words = self.letters[starts + torch.arange(TOKENS)]
        if self.family != "BERT":
            return words, next_word(words)
        hidden = torch.rand(words.shape) < MASKED
        hidden[:, 0] |= ~hidden.any(1)  # a sequence without a mask has no loss
        labels = words.masked_fill(~hidden, -100)
        return {"input_ids": words.masked_fill(hidden, MASK)}, lambda y: functional.cross_entropy(
            y.logits.flatten(0, 1), labels.flatten()
        )


def trained(family: str, number: int) -> dict[str, Any]:
    """A module after its steps: losses before and after, and the first alarm of its report."""
    width, depth = (TRAINED[name][number % len(TRAINED[name])] for name in ("widths", "depths"))
    module, *_ = made(family, width, depth, TRAINED["first seed"] + number)
    data, optimizer = Data(family, width), torch.optim.AdamW(module.parameters(), lr=TRAINED["learning rate"])
    module.train()
    losses = []
    for _ in range(TRAINED["steps"]):
        inputs, loss = data.batch(TRAINED["sequences"])
        value = loss(run(module, inputs))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    report = judged_module(module, *data.batch(2), trained=True)
    said = f"{family}, width {width}, depth {depth}, number {number}: {report.alarms[0]}" if report.alarms else ""
    return {"first": losses[0], "last": sum(losses[-10:]) / 10, "said": said}


def run(module: nn.Module, inputs: Any) -> Any:
    return module(**inputs) if isinstance(inputs, dict) else module(inputs)


def fresh_cases(_):
    seeds = range(FRESH["first seed"], FRESH["first seed"] + FRESH["seeds"])
    return {("fresh", family, seed): partial(fresh, family, seed) for family in FAMILIES | LATER for seed in seeds}


def trained_cases(_):
    numbers = range(TRAINED["seeds"])
    return {("trained", family, k): partial(trained, family, k) for family in FAMILIES for k in numbers}


def of_family(found, family):
    return [one for (_, name, _), one in found.items() if name == family]


def test_fresh_modules(kept_folder):
    pytest.importorskip("transformers")
    cases = kept_cases(kept_folder, fresh_cases(kept_folder))
    found = {family: sum(of_family(cases, family), []) for family in FAMILIES | LATER}
    said = [one for of in found.values() for one in of if one]
    modules = sum(map(len, found.values()))
    record("probe-fresh", FRESH | {
        "modules": {family: len(of) for family, of in found.items()}, "in all": modules, "with an alarm": len(said),
        "95% of the rate": interval(len(said), modules), "said": said,
    })  # fmt: skip
    assert modules >= 700
    assert len(said) <= MOST


def test_trained_modules(kept_folder):
    pytest.importorskip("transformers")
    cases = kept_cases(kept_folder, trained_cases(kept_folder))
    found = {family: of_family(cases, family) for family in FAMILIES}
    said = [one["said"] for of in found.values() for one in of if one["said"]]
    modules = sum(map(len, found.values()))
    losses = {
        family: {when: round(sum(one[when] for one in of) / len(of), 3) for when in ("first", "last")}
        for family, of in found.items()
    }
    record("probe-trained", TRAINED | {
        "text": TEXT.name, "modules": {family: len(of) for family, of in found.items()}, "in all": modules,
        "mean loss": losses, "with an alarm": len(said), "95% of the rate": interval(len(said), modules), "said": said,
    })  # fmt: skip
    assert all(of["last"] < 0.9 * of["first"] for of in losses.values())  # they did learn
    assert modules >= 100
    assert len(said) <= MOST_TRAINED
