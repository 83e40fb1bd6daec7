"""Gradients of the families that `test_configurations` has not, built by their own classes, against their predictions.

Reduced in width, depth and vocabulary, nothing downloaded, attention written out. Source and target are words that all
differ; labels are independent and uniform at all positions. Embeddings are untied but in encoders; where a class ties
them whatever the configuration says, an output matrix of its own, of the same law, takes its place. A number is that of
a matrix over all layers: the root of the mean over layers and draws of squared norms over the predicted ones.
"""

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.evidence_file import kept_case, record, rounded
from theory import predict
from theory.configurations import stack_from_config
from theory.configurations.classes import CLASSES
from theory.stack import Stack

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

from tests.helpers import model_classes  # noqa: E402  # it needs transformers

WIDTH, VOCAB, TOKENS, SEQUENCES = 512, 512, 16, 2
DRAWS, MOST, ERROR = 48, 384, 0.015
BEFORE = {
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "phi", "phi3", "gpt2",
    "gptj", "gpt_neox", "bert", "roberta", "t5",
}  # fmt: skip
"""Families that the older part has."""

WIDER = dict.fromkeys(("blenderbot", "megatron-bert", "xlm-roberta-xl", "gpt_bigcode", "hunyuan_v1_dense"), 1024)
"""Widths of families whose queries and keys are 5 to 8% off at 512, which falls with the width."""

OWN: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 32},
    "granite": {
        "attention_multiplier": 1 / 16, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "vaultgemma": {"query_pre_attn_scalar": 64},
}  # fmt: skip
"""Fields that published models of a family have, where its class has others by default."""


def fields_of(family: str) -> dict[str, Any]:
    """The configuration that is built."""
    width = WIDER.get(family, WIDTH)
    sizes = {"width": width, "heads": width // 64, "hidden": 2 * width, "vocab": VOCAB, "std": 0.02}
    known = model_classes.field_defaults(family)
    changed = {name: sizes[size] for size in sizes for name in model_classes.BY_SIZE[size] if name in known}
    tied = {} if "WH" in CLASSES[family].deviations else {"tie_word_embeddings": False}
    return model_classes.small_fields(family, **changed, **tied, **OWN.get(family, {}))


def draw(family: str, fields: dict[str, Any], stack: Stack, seed: int) -> dict[str, list[float]]:
    """Squared norms of the gradients of one network, by matrix and layer, averaged over sequences."""
    model = model_classes.build(family, fields, seed=seed)
    output = model.get_output_embeddings()
    if stack.embeddings == "untied" and output.weight is model.get_input_embeddings().weight:
        output.weight = torch.nn.Parameter(torch.randn_like(output.weight) * output.weight.std())
    found: dict[str, list[float]] = {}
    for _ in range(SEQUENCES):
        # No special words, one of which has embeddings of 0.
        ids, labels = 3 + torch.randperm(VOCAB - 3)[None], torch.randint(VOCAB, (TOKENS,))
        given = {"input_ids": ids[:, :TOKENS]}
        given |= {"decoder_input_ids": ids[:, TOKENS : 2 * TOKENS]} if stack.source_tokens else {}
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(**given).logits[0], labels).backward()
        for role, layer, gradient in model_classes.matrices(model, gradient=True):
            layers = found.setdefault(role, [0.0] * (1 if role == "WH" else stack.depth))
            layers[layer] += float(gradient.square().sum()) / SEQUENCES
    return found


def case(family: str) -> dict[str, Any]:
    """Norms of each matrix over predicted ones, with standard errors; and what its configuration leaves out."""
    fields = fields_of(family)
    stack, notes = stack_from_config({"model_type": family, **fields}, tokens=TOKENS)
    expected = dict(predict(stack, patterns=256))
    for note in notes:
        for role in [role for role in expected if role.endswith(("Q", "K"))]:
            if f"W^{role[-1]}" in note.field:
                expected[role] = expected[role] / note.value**2
    draws: list[dict[str, Any]] = []
    while True:
        draws += [draw(family, fields, stack, seed) for seed in range(len(draws), len(draws) + DRAWS)]
        rows = {}
        for role in draws[0]:
            prefix = "encoder_" if role.startswith("encoder_") else ""
            theory = np.atleast_1d(expected[f"{prefix}grad_sq_{role.removeprefix('encoder_')}"])
            values = np.array([one[role] for one in draws]) / theory
            pooled = values.mean(1)
            ratio = float(pooled.mean() ** 0.5)
            error = float(pooled.std(ddof=1) / len(draws) ** 0.5 / (2 * ratio))
            layers = [float(one) for one in values.mean(0) ** 0.5]
            rows[role] = {"ratio": ratio, "sem": error, "layers": layers}
        if max(one["sem"] for one in rows.values()) < ERROR or len(draws) >= MOST:
            left = [str(note) for note in notes if note.what == "left out"]
            return rounded({"width": stack.width, "draws": len(draws), "matrices": rows, "left out": left})


@pytest.mark.filterwarnings("ignore")
def test_families_are_as_their_configurations_predict(kept_folder):
    """Every matrix's norm within 5%, with standard errors of at most 1.5%."""
    found = {}
    for family in model_classes.read_families():
        if family not in BEFORE:
            name = f"gradients {family} {WIDER.get(family, '')}".strip()
            found[family] = {"width": WIDTH} | kept_case(kept_folder, name, lambda family=family: case(family))
    about = {"depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "sequences": SEQUENCES}
    record("configuration-gradients", about | {"transformers": transformers.__version__, "models": found})
    rows = [(family, role, one) for family, case in found.items() for role, one in case["matrices"].items()]
    assert not [row for row in rows if row[2]["sem"] > ERROR]
    assert not [row for row in rows if abs(row[2]["ratio"] - 1) > 0.05]
