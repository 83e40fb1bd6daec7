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

from simulate import sample
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
# Families that the older part has.
BEFORE = {
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "phi", "phi3", "gpt2",
    "gptj", "gpt_neox", "bert", "roberta", "t5",
}  # fmt: skip

# Networks of the Stack itself that stand beside a class where a matrix is off by more than 5%: what its width does.
OUR_DRAWS = 1000

# Fields that published models of a family have, where its class has others by default.
OWN: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 32},
    "granite": {
        "attention_multiplier": 1 / 16, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "vaultgemma": {"query_pre_attn_scalar": 64},
}  # fmt: skip


def fields_of(family: str) -> dict[str, Any]:
    sizes = {"width": WIDTH, "heads": WIDTH // 64, "hidden": 2 * WIDTH, "vocab": VOCAB, "std": 0.02}
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


def described(family: str, given: dict[str, Any] | None) -> tuple[dict[str, Any], Stack, dict[str, Any], list[str]]:
    """What is built, the Stack that its configuration describes, its prediction, and what that leaves out.

    Gradients of queries and keys are multiplied by the factor that a note of the reading has.
    """
    fields = given or fields_of(family)
    stack, notes = stack_from_config({"model_type": family, **fields}, tokens=TOKENS)
    expected = dict(predict(stack, patterns=256))
    for note in notes:
        for role in [role for role in expected if role.endswith(("Q", "K"))]:
            if f"W^{role[-1]}" in note.field:
                expected[role] = expected[role] / note.value**2
    return fields, stack, expected, [str(note) for note in notes if note.what == "left out"]


def over_predicted(values: Any) -> dict[str, Any]:
    """The norm over its prediction, from squared ones of every draw and layer over theirs; its error; every layer's."""
    values = values[:, ~np.isnan(values).any(0)]  # layers that have the matrix
    pooled = values.mean(1)
    ratio = float(pooled.mean() ** 0.5)
    error = float(pooled.std(ddof=1) / len(values) ** 0.5 / (2 * ratio))
    return {"ratio": ratio, "sem": error, "layers": [float(one) for one in values.mean(0) ** 0.5]}


def quantity(role: str) -> str:
    encoder = "encoder_" if role.startswith("encoder_") else ""
    return f"{encoder}grad_sq_{role.removeprefix('encoder_')}"


def case(family: str, given: dict[str, Any] | None = None, error: float = ERROR) -> dict[str, Any]:
    """Norms of each matrix over predicted ones, with standard errors; and what its configuration leaves out.

    So many networks that errors are below one, or `MOST`.
    """
    fields, stack, expected, left = described(family, given)
    draws: list[dict[str, Any]] = []
    while True:
        draws += [draw(family, fields, stack, seed) for seed in range(len(draws), len(draws) + DRAWS)]
        rows = {
            role: over_predicted(np.array([one[role] for one in draws]) / np.atleast_1d(expected[quantity(role)]))
            for role in draws[0]
        }
        if max(one["sem"] for one in rows.values()) < error or len(draws) >= MOST:
            return rounded({"draws": len(draws), "matrices": rows, "left out": left})


def ours(family: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same of networks of the Stack, which differ from the prediction by their width alone."""
    _, stack, expected, _ = described(family, given)
    plain = predict(stack, patterns=256)
    samples = sample(stack, draws=OUR_DRAWS, seed=0)
    names = [name for name in expected if "grad_sq_" in name and name in samples and expected[name].ndim]
    rows = {name.replace("grad_sq_", ""): over_predicted(samples[name] / plain[name]) for name in names}
    return rounded({"draws": OUR_DRAWS, "matrices": rows})


def beyond(found: dict[str, Any]) -> list[str]:
    return [role for role, one in found["matrices"].items() if abs(one["ratio"] - 1) > 0.05]


@pytest.mark.filterwarnings("ignore")
def test_families_are_as_their_configurations_predict(kept_folder):
    """Every matrix's norm within 5%, or as in networks of the Stack itself, whose width then makes the difference.

    Those may differ by 4 standard errors, which by chance one in 16000 does; standard errors are at most 1.5%.
    """
    found: dict[str, dict[str, Any]] = {}
    for family in model_classes.read_families():
        if family not in BEFORE | model_classes.with_experts():
            found[family] = kept_case(kept_folder, f"gradients {family}", lambda family=family: case(family))
    for family in [family for family in found if beyond(found[family])]:
        of_stack = kept_case(kept_folder, f"gradients {family}, the Stack's", lambda family=family: ours(family))
        found[family] = found[family] | {"networks of the Stack": of_stack}
    about = {"width": WIDTH, "depth": model_classes.DEPTH, "vocab": VOCAB, "tokens": TOKENS, "sequences": SEQUENCES}
    record("configuration-gradients", about | {"transformers": transformers.__version__, "models": found})
    assert not [row for one in found.values() for row in one["matrices"].values() if row["sem"] > ERROR]
    assert not differing(found)


def differing(found: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Matrices that are off by more than 5%, and otherwise than in networks of the Stack."""
    others = {}
    for family, one in found.items():
        for role in beyond(one):
            theirs, own = one["matrices"][role], one["networks of the Stack"]["matrices"][role]
            if abs(theirs["ratio"] - own["ratio"]) > 4 * np.hypot(theirs["sem"], own["sem"]):
                others[family, role] = theirs["ratio"], own["ratio"]
    return others
