"""Published models: which Stack the configuration of each is."""

import numpy as np
import pytest

from tests.helpers.rendered_pages import comparisons_file
from theory import Stack, predict
from theory.configurations import PUBLISHED, configuration_file, published, stack_from_config
from theory.configurations.classes import CLASSES
from theory.configurations.comparisons import FILE, compared, compared_step
from theory.configurations.families import FAMILIES
from theory.configurations.family import DEPTH, WIDTH
from theory.configurations.training_codes import HUGGING_FACE
from theory.mean_field.inputs import position_kernel

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


def test_bert_has_one_vector_of_the_token_type_in_every_input():
    stack, _ = stack_from_config(published("bert-base"), tokens=3)
    assert (stack.embedding_norm, stack.positions) == ("added", "learned_segment")
    np.testing.assert_allclose(position_kernel(stack), (1.0 + np.eye(3)) * 0.02**2, rtol=1e-12)


def test_bert_has_its_heads_own_layer_and_one_matrix_for_words():
    stack, _ = stack_from_config(published("bert-base"), tokens=3)
    assert (stack.output_transform, stack.embeddings) == ("added", "tied")


def test_a_published_model_by_its_name():
    assert stack_from_config(like="gpt2", tokens=4) == stack_from_config(published("gpt2"), tokens=4)
    with pytest.raises(ValueError, match="like must be one of gpt2, .*, got 'gpt-2'. Did you mean gpt2"):
        stack_from_config(like="gpt-2")
    with pytest.raises(ValueError, match="config cannot be combined with like"):
        stack_from_config({"model_type": "gpt2"}, like="gpt2")
    with pytest.raises(ValueError, match="config or like must be given"):
        stack_from_config()


# Keys of a file that count coordinates; d_kv and head_dim do so where a head's width follows the stream's.
COORDINATES = (
    *WIDTH, "intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "ffn_hidden_size", "moe_intermediate_size",
    "shared_expert_intermediate_size", "shared_intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "rotary_dim",
)  # fmt: skip
CODES = (HUGGING_FACE, "neox", "megatron", "nanogpt", "olmo", "olmo2", "torchtitan", "nanochat", "mup:256",
         "completep:256:2")  # fmt: skip
NANOGPT = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50304, "block_size": 1024, "bias": False}
OTHERS = {
    "nanogpt": NANOGPT,
    "gemma": published("gemma-2b"),
    "xglm": {"model_type": "xglm", "d_model": 1024, "num_layers": 24, "attention_heads": 16, "ffn_dim": 4096},
    "t5": {"model_type": "mt5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 8, "d_ff": 1024},
    "bart": {
        "model_type": "bart",
        "d_model": 512,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
        "scale_embedding": True,
    },
    "modernbert": {"model_type": "modernbert", "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 6},
}


def twice_as_wide(config, stack):
    """The file at twice the width, half the depth where it names one, and the same ratios."""
    wide = {name: 2 * value if name in COORDINATES and value else value for name, value in config.items()}
    for name in ("head_dim", "d_kv"):
        if config.get(name, 0) * stack.heads == stack.width:
            wide[name] = 2 * config[name]
    return {name: value // 2 if name in DEPTH else value for name, value in wide.items()}


def resized_pair(config, drawn_by):
    """The network of a file by flags, and that of the file at these sizes; None of what the rule does not draw."""
    try:
        stack, _ = stack_from_config(config, drawn_by=drawn_by)
    except ValueError:
        return None
    other = twice_as_wide(config, stack)
    sizes = {"width": 2 * stack.width} | ({"depth": stack.depth // 2} if set(DEPTH) & set(config) else {})
    return stack_from_config(config, drawn_by=drawn_by, **sizes)[0], stack_from_config(other, drawn_by=drawn_by)[0]


@pytest.mark.parametrize("drawn_by", CODES)
def test_a_rule_is_applied_to_the_sizes_that_are_asked_for(drawn_by):
    compared = 0
    for name, config in {**{name: published(name) for name in PUBLISHED}, **OTHERS}.items():
        config = {key: value for key, value in config.items() if key not in ("layer_types", "no_rope_layers")}
        if (pair := resized_pair(config, drawn_by)) is None:
            continue
        # A head's width of its own may be the usual one at another width.
        one, other = (vars(stack) | {"head_width": stack.key_width} for stack in pair)
        assert one.keys() == other.keys()
        for field, value in one.items():
            same = pytest.approx(other[field], rel=1e-12) if isinstance(value, float) else other[field]
            assert value == same, (name, field)
        compared += 1
    assert compared >= (30 if drawn_by == HUGGING_FACE else 15)


def test_a_rule_s_deviations_are_not_given_beside_it():
    with pytest.raises(
        ValueError, match="^init_std cannot be combined with drawn_by, which sets all standard deviations"
    ):
        stack_from_config(NANOGPT, drawn_by="mup:256", init_std=0.01)
    plain, moved = (stack_from_config(NANOGPT, **given)[0] for given in ({}, {"init_std": 0.01}))
    assert moved.query_key_scale == pytest.approx(plain.query_key_scale / 2)


@pytest.mark.parametrize(("fields", "message"), [
    ({"widht": 8}, r"^fields must be those of a Stack, got 'widht'. Did you mean width\?"),
    ({"width": 0}, "^width must be an integer of at least 1, got 0"),
    ({"depth": "4"}, "^depth must be an integer of at least 1, got '4'"),
])  # fmt: skip
def test_fields_that_there_are_not(fields, message):
    with pytest.raises(ValueError, match=message):
        stack_from_config(NANOGPT, **fields)


def test_arguments_that_lack_a_key_are_recognized():
    without = {name: value for name, value in NANOGPT.items() if name != "vocab_size"}
    stack, notes = stack_from_config(without)
    assert stack == stack_from_config(NANOGPT)[0]
    assert [note.value for note in notes if note.what == "default"] == [50304]
    meta = {"dim": 4096, "n_layers": 32, "n_heads": 32, "norm_eps": 1e-5, "vocab_size": -1, "multiple_of": 256}
    with pytest.raises(ValueError, match="these are the parameters of Meta's Llama; .* dim as hidden_size"):
        stack_from_config(meta)


def test_nanogpt_s_arguments_are_the_network_that_its_code_draws():
    """A twin of model.py: learned positions, no rotation; N(0, 0.02²), c_proj over sqrt(2 L); tied; exact GELU.

    Source: karpathy/nanoGPT, model.py, class GPT and its _init_weights.
    """
    stack, _ = stack_from_config(NANOGPT)
    width, std = 768, 0.02
    assert stack == Stack(
        placement="pre", width=width, depth=12, tokens=16, vocab=50304, heads=12, ffn_ratio=4.0, activation="gelu",
        mask="causal", positions="learned", output_projection="random", embeddings="tied", norm_epsilon=1e-5,
        init_std=std, depth_scaling="depth", query_key_scale=std * width**0.5, embedding_scale=std,
        output_scale=std * width**0.5,
    )  # fmt: skip


UNTIED, TIED = Stack(tokens=16), Stack(tokens=16, embeddings="tied")


def test_the_file_is_made_from_the_committed_evidence():
    assert FILE.read_text(encoding="utf-8") == comparisons_file(), "python -m tests.helpers.rendered_pages"


@pytest.mark.quick
def test_a_family_is_compared_by_its_own_class():
    assert compared("llama", UNTIED) == (
        "Compared with transformers' own LlamaForCausalLM at width 512 and 16 tokens: 0 of 31 numbers off by more than "
        "5% and 4 standard errors."
    )
    at_8 = "at width 512 and 16 tokens (not at the 8 of this network): 0 of 31 numbers"
    assert at_8 in compared("llama", Stack())
    assert "GPT2LMHeadModel at width 512 and 16 tokens: 0 of 28" in compared("gpt2", TIED)
    assert "GPT2LMHeadModel at width 512 and 16 tokens: 0 of 27" in compared("gpt2", UNTIED)
    assert "tokens, with untied embeddings: 0 of 31" in compared("llama", TIED)
    assert compared("blenderbot", UNTIED).endswith(
        "2 of 16 numbers off by more than 5% and 4 standard errors, as they are in networks of that width sampled here."
    )


def test_a_first_step_is_compared_by_its_own_class():
    """At the largest width; with the network's embeddings, or what there is."""
    for embeddings, said_so in (("tied", "tied"), ("untied", "apart")):
        said = compared_step("gpt2", "adam", embeddings)
        assert said.startswith(
            f"Compared with transformers' own GPT2LMHeadModel at width 1024 and 8 tokens, adam, embeddings {said_so}:"
        )
    assert "own Olmo2ForCausalLM at width 1024 and 8 tokens, sgd, embeddings apart" in compared_step(
        "olmo2", "sgd", "tied"
    )
    assert "own BertForMaskedLM at width 1024 and 8 tokens, polar, embeddings tied" in compared_step(
        "bert", "polar", "untied"
    )
    assert compared_step("gpt2", "polar", "untied") == compared_step(None, "sgd", "untied") == ""
    assert compared_step("t5", "sgd", "untied") == ""


def test_what_was_not_compared_has_no_sentence():
    assert compared(None, UNTIED) == compared("nanogpt", UNTIED) == ""
    assert compared("llama", UNTIED, frozenset({"width", "depth"}))
    assert compared("llama", UNTIED, frozenset({"width", "placement"})) == ""


def test_every_family_of_a_class_was_compared():
    assert [name for name in configuration_file.FAMILIES if not compared(name, UNTIED)] == ["nanogpt"]
