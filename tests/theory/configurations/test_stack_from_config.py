"""Configurations of published models: what each family's fields mean, and that none is passed over in silence."""

import json

import numpy as np
import pytest

from theory import Stack, predict
from theory.configurations import PUBLISHED, published, stack_from_config
from theory.configurations.families import FAMILIES
from theory.configurations.reading import SAID_ELSEWHERE
from theory.mean_field.inputs import position_kernel

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96,
    "intermediate_size": 160,
}  # fmt: skip
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
        head_width=256, rotary=1.0, rotary_base=1e6, mask="causal", embedding_scale=0.02 * 1152**0.5,
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
    assert {one["model_type"] for one in PUBLISHED.values()} == set(FAMILIES) - {"nanogpt"}
    for name in PUBLISHED:
        stack, notes = stack_from_config(published(name), tokens=4, embeddings="untied")
        small = Stack.of(**stack.non_default() | {"depth": 2, "vocab": 64})
        found = predict(small, patterns=2)
        assert all(np.isfinite(value).all() for value in found.values()), name
        assert len({note.field for note in notes}) == len(notes), f"{name}: a field is named twice"


def test_bert_has_one_vector_of_the_token_type_in_every_input():
    stack, _ = stack_from_config(published("bert-base"), tokens=3)
    assert (stack.embedding_norm, stack.positions) == ("added", "learned_segment")
    np.testing.assert_allclose(position_kernel(stack), (1.0 + np.eye(3)) * 0.02**2, rtol=1e-12)


def test_bert_has_its_heads_own_layer_and_one_matrix_for_words():
    stack, _ = stack_from_config(published("bert-base"), tokens=3)
    assert (stack.output_transform, stack.embeddings) == ("added", "tied")


T5 = {
    "model_type": "t5", "is_encoder_decoder": True, "d_model": 64, "d_ff": 256, "d_kv": 16, "num_heads": 4,
    "num_layers": 3, "vocab_size": 96, "dropout_rate": 0.1, "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
}  # fmt: skip


def test_t5_has_a_source():
    """As its classes draw it; of T5 1.1 gates, heads of another width and an output that is not scaled."""
    expected = Stack(
        placement="pre", width=64, depth=3, tokens=5, vocab=96, source_tokens=5, heads=4, query_key_scale=1.0,
        output_projection="random", ffn_ratio=4.0, initialization="fan_in", normalization="rms", norm_epsilon=1e-6,
        mask="causal",
    )  # fmt: skip
    stack, notes = stack_from_config(T5, tokens=5)
    assert stack == expected
    assert "its gradient's norm is sqrt(16) times what stands here" in " ".join(map(str, notes))
    assert {note.what for note in notes if note.field.startswith("relative")} == {"neutral"}
    more = {"feed_forward_proj": "gated-gelu", "num_heads": 3, "tie_word_embeddings": False, "num_decoder_layers": 2}
    newer, notes = stack_from_config(T5 | more, tokens=5)
    assert (newer.ffn, newer.activation, newer.head_width, newer.output_scale) == ("gated", "gelu_tanh", 16, 8.0)
    assert "num_decoder_layers = 2 is left out" in " ".join(map(str, notes))
    found = predict(stack, patterns=2)
    assert np.isfinite(found["grad_sq_XQ"]).all()
    assert np.isfinite(found["encoder_grad_sq_W2"]).all()


def test_windows_and_caps():
    gemma = stack_from_config(published("gemma-2-2b"), embeddings="untied")[0]
    assert (gemma.window, gemma.logit_softcap) == (0, 50.0)
    config = published("mistral-7b") | {"sliding_window": 8}
    assert stack_from_config(config)[0].window == 8
    assert stack_from_config(config | {"use_sliding_window": False})[0].window == 0
    both = ["full_attention", "sliding_attention"] * 16
    assert "all layers have the window here" in str(stack_from_config(config | {"layer_types": both})[1])


def test_every_field_is_used_or_named():
    """Each field of a file moves the Stack, or has a note."""
    config = published("llama-3.2-1b") | {"attention_dropout": 0.1, "mlp_bias": False, "torch_dtype": "bfloat16"}
    whole, notes = stack_from_config(config)
    noted = {note.field: note.what for note in notes}
    assert noted["attention_dropout"] == "left out"
    assert noted["mlp_bias"] == noted["torch_dtype"] == "neutral"
    for name, value in config.items():
        other = {"llama": "mistral", True: False}.get(value, value * 2 if isinstance(value, int | float) else value)
        moved = stack_from_config({**config, name: other})[0] != whole
        assert moved or name in noted, name


def test_rotary_positions_in_all_spellings():
    old = stack_from_config(LLAMA | {"rope_theta": 1e5})[0]
    assert old == stack_from_config(LLAMA | {"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}})[0]
    assert (old.rotary, old.rotary_base) == (1.0, 1e5)
    half = stack_from_config(LLAMA | {"partial_rotary_factor": 0.5})[0]
    assert (half.rotary, half.rotary_width) == (0.5, 8)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "vit"}, r"model_type must be one of bert, gemma, .*, got 'vit'\.$"),
        ({"model_type": "mixtral"}, "model_type must be one of .*, got 'mixtral', which is not read: a router picks"),
        ({"model_type": "llava", "text_config": LLAMA}, "config must be that of the language model"),
        (LLAMA | {"hiden_size": 3}, "got hiden_size = 3, .* is not known. Did you mean hidden_size"),
        (LLAMA | {"n_embd": 32}, "hidden_size and n_embd must be one number, got 64 and 32"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "config must have vocab_size, got none"),
        (LLAMA | {"hidden_size": "64"}, "hidden_size must be a number, got '64'"),
        (LLAMA | {"hidden_act": "mish"}, "hidden_act must be one of relu, .*, got 'mish'"),
        (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads = 4, got 3"),
        (LLAMA | {"num_attention_heads": 5}, "heads must divide width = 64, got 5"),
        (LLAMA | {"initializer_range": -0.02}, "initializer_range must be above 0, got -0.02"),
        (T5 | {"is_encoder_decoder": False}, "is_encoder_decoder must be true: T5's encoder alone is not read"),
        (T5 | {"initializer_factor": 0.5}, "initializer_factor must be 1, .*, got 0.5"),
        (T5 | {"feed_forward_proj": "gated-mish"}, "feed_forward_proj must be one of relu, .*, got 'mish'"),
        (T5 | {"feed_forward_proj": 3}, "feed_forward_proj must be one of relu, .*, got 3"),
    ],
)  # fmt: skip
def test_what_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        stack_from_config(config)


def test_files(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert stack_from_config(path) == stack_from_config(LLAMA)
    for content, said in (("[1]", "must be a JSON object, got a list"), ("x = 1", "config must be JSON, but")):
        path.write_text(content)
        with pytest.raises(ValueError, match=said):
            stack_from_config(path)
    with pytest.raises(ValueError, match="must be a readable JSON file"):
        stack_from_config(tmp_path / "none.json")
    with pytest.raises(ValueError, match="Did you mean llama-3-8b"):
        published("llama3-8b")


def test_no_field_has_two_reasons():
    names = [name for group in SAID_ELSEWHERE.values() for name in group]
    assert len(names) == len(set(names))


BERT = LLAMA | {"model_type": "bert"}
GPT2 = LLAMA | {"model_type": "gpt2"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"model_type": ["llama"]}, "model_type must be a word, got ['llama']."),
        (LLAMA | {"model_type": "gemma", "hidden_size": None}, "config must have hidden_size or n_embd or d_model"),
        (LLAMA | {"model_type": "gemma", "hidden_size": "64"}, "hidden_size must be a number, got '64'."),
        (LLAMA | {"hidden_size": 0}, "hidden_size must be an integer of at least 1, got 0."),
        (LLAMA | {"num_attention_heads": 0}, "num_attention_heads must be an integer of at least 1, got 0."),
        (LLAMA | {"num_hidden_layers": 2.5}, "num_hidden_layers must be an integer of at least 1, got 2.5."),
        (LLAMA | {"rope_parameters": {"sliding_attention": 3}}, "rope_parameters of sliding_attention must be an obj"),
        (LLAMA | {"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta must be a number, got '1e4'."),
        (LLAMA | {"rope_scaling": [2.0]}, "rope_scaling must be an object, got [2.0]."),
        (LLAMA | {"layer_types": 3}, "layer_types must be a list of words, got 3."),
        (LLAMA | {"layer_types": [["full_attention"]]}, "layer_types must be a list of words"),
        (BERT | {"add_cross_attention": True}, "add_cross_attention must be false, got True: attention to an encoder"),
        (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder must be false, got True"),
        ({"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 9, "n_kv_head": 2}, "model_type must be one of "),
        (LLAMA | {"model_type": "opt"}, "model_type must be one of "),
    ],
)
def test_values_that_no_file_should_have_are_one_line(config, said):
    with pytest.raises(ValueError) as error:
        stack_from_config(config)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def noted(config):
    stack, notes = stack_from_config(config)
    return stack, {note.field: note.what for note in notes}


def test_what_is_not_as_the_file_has_it_is_not_called_neutral():
    """Scalings of fast rotations, logits without 1/√d_k, relative positions; and a causal BERT is causal."""
    for scaling, what in (({"type": "linear", "factor": 4.0}, "left out"), ({"rope_type": "llama3"}, "neutral")):
        assert noted(LLAMA | {"rope_scaling": scaling})[1]["rope_scaling"] == what
    assert noted(LLAMA | {"rope_parameters": {"rope_type": "yarn"}})[1]["rope_parameters"] == "left out"
    assert noted(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})[0].rotary_base == 5e5
    assert noted(GPT2 | {"scale_attn_weights": False})[1]["scale_attn_weights"] == "left out"
    assert "scale_attn_weights" not in noted(GPT2 | {"scale_attn_weights": True})[1]
    assert noted(BERT | {"position_embedding_type": "relative_key"})[1]["position_embedding_type"] == "left out"
    assert noted(BERT | {"is_decoder": True})[0].mask == "causal"
    assert noted(BERT | {"is_decoder": False})[0].mask == "none"
    only = LLAMA | {"rope_parameters": {"sliding_attention": {"rope_theta": 7e3}}}
    assert noted(only)[0].rotary_base == 7e3
