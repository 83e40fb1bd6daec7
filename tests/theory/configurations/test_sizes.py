"""Flags of another width and depth give the network of a file of that width and depth, whoever draws its weights."""

import pytest

from theory import Stack
from theory.configurations import PUBLISHED, published, stack_from_config
from theory.configurations.family import DEPTH, WIDTH
from theory.configurations.training_codes import HUGGING_FACE

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
