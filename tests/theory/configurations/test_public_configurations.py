"""108 configurations of 2025 and 2026, compared with tables that are older than the reader's rules for them."""

import re
import tomllib
from pathlib import Path

import pytest

from theory import Stack
from theory.configurations import stack_from_config

FOLDER = Path(__file__).parents[2] / "data" / "public_configs"
ROWS = [
    row
    for name in ("configs", "more_configs")
    for row in tomllib.loads((FOLDER / f"{name}.toml").read_text())["config"]
]

PLACEMENTS = {"pre": "pre", "output": "output", "peri": "pre and output"}
UNITS = {"relu_squared": "relu2", "gelu_tanh": "gelu"}
NORMS = {"none": None, "head": "heads", "all": "all heads together"}
# What a message says where the table's reason has the words.
SAID = {
    "MLA": "low-rank matrices",
    "recurrence": "recurrence|attention is linear|of kind (indexed_attention or )?(mamba|linear_attention)",
    "convolutions": "convolutions|of kind conv",
    "bias in the choice": "a bias is added to its router's scores",
    "gate on attention": "a gate multiplies its attention output",
    "no class in transformers": "has no class of it",
    "without a class in transformers": "has no class of it",
    "its class": "its class in transformers .* has not been compared",
    "a norm on the embeddings": "its class in transformers .* has not been compared",
    "output norms with experts": "its class in transformers .* has not been compared",
    "xIELU": "xIELU",
    "three values": "three values",
    "SparseMixer": "sparse mixer",
    "heads of full layers that are wider": "heads of its full layers are wider",
    "run several times": "run several times",
    "difference of two": "difference of two",
    "the values decide": "its values decide",
    "AltUp": "several mixed streams",
    "sinks": "its attention has sinks",
    "indexed_attention": "of kind (linear_attention or )?indexed_attention",
    "of kind hybrid": "of kind hybrid",
    "of their own each": "several models, each with its own configuration",
}


def found(stack: Stack) -> dict[str, object]:
    # The fields of a network by the table's names.
    units = UNITS.get(stack.activation, stack.activation)
    return {
        "placement": ("parallel " if stack.layout == "parallel" else "") + PLACEMENTS.get(stack.placement, "post"),
        "norm": stack.normalization,
        "layers": stack.depth,
        "width": stack.width,
        "heads": stack.heads,
        "kv_heads": stack.kv_heads or stack.heads,
        "head_dim": stack.head_width or stack.width // stack.heads,
        "mlp": f"gated {units}" if stack.ffn == "gated" else units,
        "hidden_units": stack.ffn_width,
        "tied": stack.embeddings == "tied",
        "init_std": stack.init_std,
        "rotary": stack.rotary > 0,
        "qk_norm": NORMS[stack.query_key_norm],
        "experts": stack.experts or None,
        "experts_per_token": stack.experts_per_token if stack.experts else None,
        "mask": stack.mask,
    }


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_what_is_read_of_a_public_configuration(row):
    """Every field as the table has it, or a refusal whose reason is the table's."""
    try:
        stack, notes = stack_from_config(FOLDER / row["file"])
    except ValueError as error:
        message = str(error).rpartition("which is not read: ")[2]
        assert row["answer"] != "read", message
        known = [said for words, said in SAID.items() if words in row["reason"]]
        assert any(re.search(said, message) for said in known), (message, row["reason"])
    else:
        assert row["answer"] != "refuse"
        in_file = (FOLDER / row["file"]).read_text(encoding="utf-8")
        assert not any(note.what == "default" and f'"{note.field}":' in in_file for note in notes)
        expected = {name: row.get(name, "causal" if name == "mask" else None) for name in found(stack)}
        assert found(stack) == expected
