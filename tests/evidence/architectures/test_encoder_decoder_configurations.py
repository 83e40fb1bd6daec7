"""T5, built by its own code with random weights, against the prediction of its own configuration.

As in `test_configurations`: reduced in width, depth and vocabulary, nothing downloaded; source and target of 16 words
each that all differ; an output matrix of its own, of the same law.
"""

from typing import Any

import pytest
import torch

from tests.evidence.architectures.test_configuration_gradients import quantity
from tests.evidence.architectures.test_configurations import (
    DEPTH,
    DRAWS,
    TOKENS,
    VOCAB,
    WIDTH,
    rows_of,
    squares,
    summary,
)
from tests.helpers.evidence_file import kept_case, record
from theory import predict
from theory.configurations import stack_from_config

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

HEAD_WIDTH = 64
UNITS = {"T5": "relu", "T5 1.1": "gated-gelu"}


def draw(config: Any, seed: int) -> dict[str, list[float]]:
    """Squared norms of the gradients of one network by number and layer."""
    torch.manual_seed(seed)
    model = transformers.T5Model._from_config(config, attn_implementation="eager").eval()
    ids, labels = torch.randperm(VOCAB)[None], torch.randint(VOCAB, (TOKENS,))
    output = model(input_ids=ids[:, :TOKENS], decoder_input_ids=ids[:, TOKENS : 2 * TOKENS]).last_hidden_state
    logits = output @ (torch.randn(WIDTH, VOCAB) * WIDTH**-0.5)
    torch.nn.functional.cross_entropy(logits[0], labels).backward()
    return {quantity(role): values for role, values in squares(model).items()}


def case(unit: str) -> list[dict[str, Any]]:
    """Every gradient over its prediction, with standard errors; those of W^Q over d_kv besides, as notes say."""
    config = transformers.T5Config(
        d_model=WIDTH, d_kv=HEAD_WIDTH, num_heads=8, d_ff=2 * WIDTH, num_layers=DEPTH, vocab_size=VOCAB,
        feed_forward_proj=unit,
    )  # fmt: skip
    stack, _ = stack_from_config(config.to_dict(), tokens=TOKENS)
    expected, draws = predict(stack, patterns=512), [draw(config, seed) for seed in range(DRAWS)]
    return rows_of(draws, {name: expected[name] * (HEAD_WIDTH if name.endswith("Q") else 1) for name in draws[0]})


@pytest.mark.filterwarnings("ignore")
def test_t5_is_as_its_config_predicts(kept_folder):
    """Every matrix of every layer within 5% or 4 standard errors, which errs in at most 6e-5 each."""
    found = {}
    for name, unit in UNITS.items():
        rows = kept_case(kept_folder, f"{name} {DRAWS}", lambda unit=unit: case(unit))
        found[name] = summary(rows)
    about = {"width": WIDTH, "depth": DEPTH, "vocab": VOCAB, "tokens": TOKENS, "draws": DRAWS}
    record("configurations-t5", about | {"transformers": transformers.__version__, "models": found})
    assert not [name for name, one in found.items() if one["beyond"]]
