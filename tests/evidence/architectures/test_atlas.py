"""An atlas of published models at initialization, by theory alone, and what single choices of theirs do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.evidence_file import kept_case, record, rounded
from theory import Stack, predict
from theory.configurations import PUBLISHED, published, stack_from_config

pytestmark = pytest.mark.evidence

TOKENS, PATTERNS = 16, 16
SWITCHED = ("gpt2-xl", "llama-3-8b", "qwen3-8b", "gemma-2-2b", "gpt-j-6b")
CHOICES: dict[str, dict[str, Any]] = {
    "embeddings of unit size": {"embedding_scale": 1.0},
    "fan-in standard deviations": {"init_std": None, "initialization": "fan_in"},
    "W^O and W2 over sqrt(2 L)": {"depth_scaling": "depth"},
    "no such scaling": {"depth_scaling": "none"},
    "norms of queries and keys": {"query_key_norm": "head"},
    "no such norms": {"query_key_norm": "none"},
    "no rotations": {"rotary": 0.0},
    "branches one after the other": {"layout": "sequential"},
    "Pre-LN": {"placement": "pre"},
    "Peri-LN": {"placement": "peri"},
}


LENGTHS = {4: 64, 16: 16, 64: 4}
"""Patterns by the number of tokens of llama-3-8b: more tokens average over more of a pattern, and cost more."""


def as_trained(stack: Stack) -> Stack:
    """The network of GPT-NeoX's `small_init` and `wang_init`, which Pythia was trained from.

    Source: EleutherAI/pythia, models/1.4B/pythia-1.4b.yml; EleutherAI/gpt-neox, megatron/model/init_functions.py.
    """
    small, wang = (2 / (5 * stack.width)) ** 0.5, 2 / (stack.depth * stack.width**0.5)
    root = stack.width**0.5
    return replace(
        stack, init_std=small, embedding_scale=small, output_scale=small * root, query_key_scale=small * root,
        projection_gain=wang / small, down_gain=wang / small,
    )  # fmt: skip


def described(stack: Stack, patterns: int = PATTERNS) -> dict[str, Any]:
    """First over last layer's norms by matrix, the stream's energies, and the cosine of two tokens."""
    found = predict(stack, patterns=patterns)
    energy, product = found["hidden_energy"], found["token_correlation"]
    norms = {name[8:]: np.sqrt(one) for name, one in found.items() if name.startswith("grad_sq_") and one.ndim}
    return rounded(
        {
            "first over last": {role: float(one[0] / one[-1]) for role, one in norms.items()},
            "energy": [float(energy[0]), float(energy[-1])],
            "cosine": [float((product / energy)[0]), float((product / energy)[-1])],
            "W_emb": float(np.sqrt(found["grad_sq_Wemb"])),
        }
    )


def test_atlas(kept_folder):
    """Theory alone, so that there is nothing to hold but that every number is one."""
    found: dict[str, Any] = {"tokens": TOKENS, "patterns": PATTERNS, "models": {}, "choices": {}}
    stacks = {name: stack_from_config(published(name), tokens=TOKENS, embeddings="untied")[0] for name in PUBLISHED}
    stacks = {name: stack for name, stack in stacks.items() if not stack.experts}  # docs/experts.md has these
    for name, stack in stacks.items():
        found["models"][name] = kept_case(kept_folder, f"atlas {name}", lambda stack=stack: described(stack))
    for name in SWITCHED:
        found["choices"][name] = {}
        for choice, fields in CHOICES.items():
            other = replace(stacks[name], **fields)
            if other != stacks[name]:
                key = f"atlas {name} {choice}"
                found["choices"][name][choice] = kept_case(kept_folder, key, lambda other=other: described(other))
    trained = as_trained(stacks["pythia-1.4b"])
    found["choices"]["pythia-1.4b"] = {
        "as its training code draws": kept_case(kept_folder, "atlas pythia-1.4b trained", lambda: described(trained))
    }
    found["lengths of llama-3-8b"] = {
        str(tokens): kept_case(
            kept_folder, f"atlas llama-3-8b {tokens} {patterns}",
            lambda tokens=tokens, patterns=patterns: described(replace(stacks["llama-3-8b"], tokens=tokens), patterns),
        )
        for tokens, patterns in LENGTHS.items()
    }  # fmt: skip
    record("atlas", found)
    ratios = [one["first over last"].values() for one in found["models"].values()]
    assert all(np.isfinite(list(each)).all() for each in ratios)
