"""T5, built by its own code with random weights, against the prediction of its own configuration.

As in `test_configurations`: reduced in width, depth and vocabulary, nothing downloaded; source and target of 16 words
each that all differ; an output matrix of its own, of the same law.
"""

from typing import Any

import numpy as np
import pytest
import torch

from tests.evidence.architectures.test_configurations import DEPTH, DRAWS, TOKENS, VOCAB, WIDTH
from tests.helpers.evidence_file import kept_case, record
from theory import predict
from theory.configurations import stack_from_config

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

HEAD_WIDTH = 64
UNITS = {"T5": "relu", "T5 1.1": "gated-gelu"}
_FEED_FORWARD = {"wi": "W1", "wi_0": "WG", "wi_1": "W1", "wo": "W2"}


def role(name: str) -> str:
    """Our name of a parameter of a layer."""
    leaf = name.split(".")[-2]
    own = _FEED_FORWARD.get(leaf) or ("X" if "EncDecAttention" in name else "W") + leaf.upper()
    return ("encoder_" if name.startswith("encoder") else "") + f"grad_sq_{own}"


def draw(config: Any, seed: int) -> dict[str, list[float]]:
    """Squared norms of the gradients of one network by role and layer; those of W^Q over d_kv, as notes say."""
    torch.manual_seed(seed)
    model = transformers.T5Model._from_config(config, attn_implementation="eager").eval()
    ids, labels = torch.randperm(VOCAB)[None], torch.randint(VOCAB, (TOKENS,))
    output = model(input_ids=ids[:, :TOKENS], decoder_input_ids=ids[:, TOKENS : 2 * TOKENS]).last_hidden_state
    logits = output @ (torch.randn(WIDTH, VOCAB) * WIDTH**-0.5)
    torch.nn.functional.cross_entropy(logits[0], labels).backward()
    found: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        if ".block." not in name or parameter.ndim < 2 or "relative" in name:
            continue
        layer = int(name.split(".block.")[1].split(".")[0])
        square = float(parameter.grad.square().sum())
        of_queries = name.split(".")[-2] == "q"
        found.setdefault(role(name), [0.0] * DEPTH)[layer] += square / (HEAD_WIDTH if of_queries else 1)
    return found


def case(unit: str) -> list[dict[str, Any]]:
    """Every gradient over its prediction, with standard errors."""
    config = transformers.T5Config(
        d_model=WIDTH, d_kv=HEAD_WIDTH, num_heads=8, d_ff=2 * WIDTH, num_layers=DEPTH, vocab_size=VOCAB,
        feed_forward_proj=unit,
    )  # fmt: skip
    stack, _ = stack_from_config(config.to_dict(), tokens=TOKENS)
    expected, draws = predict(stack, patterns=512), [draw(config, seed) for seed in range(DRAWS)]
    rows = []
    for name in draws[0]:
        values = np.array([one[name] for one in draws])
        ratios, sems = values.mean(0) / expected[name], values.std(0, ddof=1) / DRAWS**0.5 / expected[name]
        for layer, (ratio, sem) in enumerate(zip(ratios, sems, strict=True), start=1):
            beyond = bool(abs(ratio - 1) > max(0.05, 4 * sem))
            rows.append({"of": name, "layer": layer, "ratio": float(ratio), "sem": float(sem), "beyond": beyond})
    return rows


@pytest.mark.filterwarnings("ignore")
def test_t5_is_as_its_config_predicts(kept_folder):
    """Every matrix of every layer within 5% or 4 standard errors, which errs in at most 6e-5 each."""
    found = {}
    for name, unit in UNITS.items():
        rows = kept_case(kept_folder, f"{name} {DRAWS}", lambda unit=unit: case(unit))
        found[name] = {
            "numbers": len(rows),
            "beyond": [row for row in rows if row["beyond"]],
            "largest deviation": max(rows, key=lambda row: abs(row["ratio"] - 1)),
            "median sem": float(np.median([row["sem"] for row in rows])),
            "mean ratio": float(np.mean([row["ratio"] for row in rows])),
        }
    about = {"width": WIDTH, "depth": DEPTH, "vocab": VOCAB, "tokens": TOKENS, "draws": DRAWS}
    record("configurations-t5", about | {"transformers": transformers.__version__, "models": found})
    assert not [name for name, one in found.items() if one["beyond"]]
