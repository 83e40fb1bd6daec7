"""The cards of three published models: lines and CPU seconds. Critical rates by a card's few positions and by 64."""

import os
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from gradbounds.actions import card
from gradbounds.actions.first_line import FirstLine, masked_share
from gradbounds.described_network import Description, changed_values
from gradbounds.result import Result
from tests.helpers.evidence_file import kept_cases, record, rounded
from theory.configurations import stack_from_config

pytestmark = pytest.mark.evidence


@pytest.mark.parametrize("model", ["gpt2", "llama-3-8b", "qwen3-30b-a3b"])
def test_a_card_fits_a_screen_within_seconds(model):
    """On one thread, with imports; rates of experts take too long, and the line has the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = subprocess.run(
        [sys.executable, "-m", "gradbounds", "predict", "--like", model], capture_output=True, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    ).stdout.splitlines()  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(lines) <= 18 and max(map(len, lines)) <= 118 and ", before clipping (" in "\n".join(lines)
    (rates,) = (line for line in lines if line.startswith("Learning rate of step 1"))
    assert ("not computed here" in rates) == (model == "qwen3-30b-a3b")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 10.0


# Models by name, with changed fields. The list was fixed before the first ratio was known.
MODELS = [
    "gpt2", "llama-2-7b", "bert-base", "llama-3.2-1b", "gpt2 embeddings=untied embedding_scale=1",
    "llama-2-7b embedding_scale=1", "llama-2-7b init_std=0.006", "gemma-2-2b", "pythia-1.4b", "llama-3-8b",
    "qwen3-0.6b", "olmo-1b",
]  # fmt: skip
# For the limits that the first list set, fixed before the first ratio of them was known.
HELD = [
    "gpt2-xl", "gpt-j-6b", "gpt-neox-20b", "phi-2", "phi-3-mini", "mistral-7b", "qwen2.5-0.5b", "qwen2.5-7b",
    "qwen3-8b", "gemma-2b", "gemma-7b", "gemma-3-1b", "olmo-2-7b", "roberta-base", "qwen2.5-0.5b embedding_scale=1",
    "pythia-1.4b embedding_scale=1", "mistral-7b init_std=0.006",
]  # fmt: skip
# Experts, those of a token, vocabulary, depth, width, heads, heads of keys, tokens, embeddings, and weights' sum.
EXPERTS = [
    (8, 1, 1000, 2, 256, 4, 0, 256, 0.02, "none"), (8, 2, 32000, 4, 512, 8, 4, 1024, 0.02, "sum"),
    (16, 2, 4096, 4, 512, 8, 0, 512, 1.0, "sum"), (16, 4, 8192, 8, 512, 8, 2, 2048, 0.02, "sum"),
    (32, 4, 16384, 4, 1024, 16, 4, 1024, 0.02, "sum"), (32, 8, 2048, 6, 256, 4, 0, 512, 0.04, "sum"),
    (64, 8, 32000, 6, 1024, 16, 0, 1024, 0.02, "none"), (64, 6, 10000, 3, 512, 8, 4, 4096, 0.01, "sum"),
    (64, 1, 4096, 4, 512, 8, 0, 512, 0.02, "none"), (8, 2, 1000, 12, 256, 4, 0, 256, 1.0, "sum"),
]  # fmt: skip


def ratios(stack, notes, text, counts):
    """Critical rates by 64 positions, divided by those of the last count; the batch's squared gradient cancels."""
    line = FirstLine(0.0, 0.0, 1.0, 0.0, masked=masked_share(notes))
    values = {"stack": stack, "notes": notes, "batch": card.BATCH, "matrices_sq": 1.0, "line": line}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card, "_positions", lambda *_: counts)
        few, fine = (
            card.critical_rates(stack, text, Result(about="", values=values), fine=fine) for fine in (False, True)
        )
    return few if "no_rule" in few else {name: fine[name]["rate"] / few[name]["rate"] for name in card.RATES}


def of_model(name):
    """Compare the rates of a published model's card with those by 64 positions."""
    like, *changes = name.split()
    of, limits = Description(like=like), dict.fromkeys(("patterns", "max_time", "memory"))
    asked = card.at_context(changed_values(changes), of, limits)
    stack, notes = of.read(asked.given)
    return {"positions": max(counts := card._positions(stack, notes), default=0)} | ratios(
        stack, notes, asked.text, counts
    )


def of_experts(experts, chosen, vocab, depth, width, heads, kv_heads, tokens, size, router_norm):
    """Compare rates by 16 positions with those by 64, in a network like Mixtral."""
    stack = replace(
        stack_from_config(like="mixtral-8x7b")[0], experts=experts, experts_per_token=chosen, vocab=vocab, depth=depth,
        width=width, heads=heads, kv_heads=kv_heads, tokens=tokens, embedding_scale=size, router_norm=router_norm,
        init_std=(std := size if size < 1.0 else 0.02), output_scale=std * width**0.5,
    )  # fmt: skip
    return ratios(stack, (), "english" if vocab >= 32000 else "zipf:1", [16])


def test_rates_by_few_positions(kept_folder):
    """With experts, they differ from those by 64 positions by more than the limits of a card allow."""
    cases = {
        (key, name): partial(of_model, name) for key, names in (("model", MODELS), ("held", HELD)) for name in names
    }
    cases |= {("experts", *each): partial(of_experts, *each) for each in EXPERTS}
    measured = rounded({" ".join(map(str, key)): of for key, of in kept_cases(kept_folder, cases).items()})
    record("few-positions", measured)
    assert min(each["sgd"] for name, each in measured.items() if name.startswith("experts ")) < card._FEWER["sgd"] - 0.1
