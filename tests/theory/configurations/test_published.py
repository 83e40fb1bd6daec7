"""Published models: which Stack the configuration of each is."""

import numpy as np
import pytest

from theory import Stack, predict
from theory.configurations import PUBLISHED, published, stack_from_config
from theory.configurations.classes import CLASSES
from theory.configurations.families import FAMILIES

EXPECTED = {
    "llama-3-8b": Stack(
        placement="pre", width=4096, depth=32, tokens=16, vocab=128256, output_scale=1.28, ffn_ratio=3.5, ffn="gated",
        activation="silu", init_std=0.02, normalization="rms", norm_epsilon=1e-5, output_projection="random",
        query_key_scale=1.28, heads=32, kv_heads=8, rotary=1.0, rotary_base=5e5, mask="causal", embedding_scale=0.02,
    ),
    "gpt2": Stack(
        placement="pre", width=768, depth=12, tokens=16, vocab=50257, output_scale=0.02 * 768**0.5, ffn_ratio=4.0,
        activation="gelu_tanh", init_std=0.02, depth_scaling="depth", norm_epsilon=1e-5, output_projection="random",
        query_key_scale=0.02 * 768**0.5, heads=12, mask="causal", embedding_scale=0.02, positions="learned",
    ),
    "gemma-3-1b": Stack(
        placement="peri", width=1152, depth=26, tokens=16, vocab=262144, output_scale=0.02 * 1152**0.5, ffn_ratio=6.0,
        ffn="gated", activation="gelu_tanh", init_std=0.02, normalization="rms", norm_epsilon=1e-6,
        output_projection="random", query_key_scale=0.02 * 1152**0.5, query_key_norm="head", heads=4, kv_heads=1,
        head_width=256, rotary=1.0, rotary_base=1e4, mask="causal", embedding_scale=0.02 * 1152**0.5,
    ),
    "bert-base": Stack(
        placement="post", width=768, depth=12, tokens=16, vocab=30522, output_scale=0.02 * 768**0.5, ffn_ratio=4.0,
        activation="gelu", init_std=0.02, norm_epsilon=1e-12, output_projection="random",
        query_key_scale=0.02 * 768**0.5, heads=12, embedding_scale=0.02, positions="learned_segment",
        embedding_norm="added", output_transform="added",
    ),
    "pythia-1.4b": Stack(
        placement="pre", width=2048, depth=24, tokens=16, vocab=50304, output_scale=0.02 * 2048**0.5, ffn_ratio=4.0,
        activation="gelu", init_std=0.02, layout="parallel", norm_epsilon=1e-5, output_projection="random",
        query_key_scale=0.02 * 2048**0.5, heads=16, rotary=0.25, mask="causal", embedding_scale=0.02,
    ),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_published_model_is(name):
    assert stack_from_config(published(name), embeddings="untied")[0] == EXPECTED[name]


def test_every_published_model_is_read_and_has_a_prediction():
    assert {one["model_type"] for one in PUBLISHED.values()} < set(FAMILIES) & set(CLASSES)
    for name in PUBLISHED:
        stack, notes = stack_from_config(published(name), tokens=4, embeddings="untied")
        small = Stack.of(**stack.non_default() | {"depth": 2, "vocab": 64})
        found = predict(small, patterns=2)
        assert all(np.isfinite(value).all() for value in found.values()), name
        assert len({note.field for note in notes}) == len(notes), f"{name}: a field is named twice"


def test_a_published_model_by_its_name():
    assert stack_from_config(like="gpt2", tokens=4) == stack_from_config(published("gpt2"), tokens=4)
    with pytest.raises(ValueError, match="like must be one of gpt2, .*, got 'gpt-2'. Did you mean gpt2"):
        stack_from_config(like="gpt-2")
    with pytest.raises(ValueError, match="config cannot be combined with like"):
        stack_from_config({"model_type": "gpt2"}, like="gpt2")
    with pytest.raises(ValueError, match="config or like must be given"):
        stack_from_config()
