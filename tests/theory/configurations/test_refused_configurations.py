"""Configurations that are no networks here: one line says what was given and what is allowed."""

import json

import pytest

from tests.helpers.configurations import BERT, GEMMA3, GPT2, LLAMA, T5
from theory.configurations import published, stack_from_config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "resnet"}, "got 'resnet', which is not read: its class in transformers .* not been comp"),
        ({"model_type": "lama"}, "got 'lama', which is not read: transformers .* has no class of it"),
        ({"model_type": "grounding-dino", "text_config": BERT}, "belong to a language model, got 'gro"),
        (LLAMA | {"model_type": "nemotron_h", "limit": [0.0, float("inf")]}, "'nemotron_h', .* by a recurrence"),
        ({"model_type": "vit"}, "got 'vit', which is not read: its inputs are parts of images"),
        ({"model_type": "bloom"}, "got 'bloom', which is not read: its positions are biases of attention logits"),
        ({"model_type": "new", "text_config": {"hidden_size": 64}}, "text_config must have a model_type, because"),
        ({"model_type": "llava", "text_config": 3}, "text_config must be an object, got 3"),
        ({"model_type": "llava", "text_config": {"model_type": "t4"}}, "model_type must be one of .*, got 't4'"),
        ({"auto_map": {}, "hiden_size": 3, "model_type": "llama"}, "got hiden_size = 3, .* Did you mean hidden_s"),
        (LLAMA | {"auto_map": {}, "n_embd": 32}, "got n_embd = 32, with an unknown effect .*; --ignore n_embd"),
        (GPT2 | {"hidden_size": 32}, "hidden_size and n_embd must be one number, got 32 and 64"),
        (LLAMA | {"auto_map": {}, "type_vocab_size": 16}, r"got type_vocab_size = 16, .* leaves it out\.$"),
        (LLAMA | {"is_causal": False}, "is_causal must be true, got False: tokens would then attend to later tokens"),
        (LLAMA | {"hidden_size": None}, "config must have hidden_size, got null"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, got 'no'"),
        (BERT | {"tie_word_embeddings": None}, "tie_word_embeddings must be true or false, got null"),
        (BERT | {"auto_map": {}, "head_dim": 32}, "head_dim must be width / heads, 16, got 32: .* --ignore head_d"),
        (GEMMA3 | {"layer_types": ["full_attention"] * 2}, "layer_types must be as many words as layers, 3, got 2"),
        (LLAMA | {"model_type": "qwen2"}, "must divide num_attention_heads = 4, got 32, the class's default"),
        (LLAMA | {"model_type": "starcoder2", "auto_map": {}, "mlp_type": "gated"}, "mlp_type must be 'default', as"),
        (GEMMA3 | {"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": "silu"}, "must be one activation"),
        (T5 | {"is_gated_act": True}, "is_gated_act must be False with feed_forward_proj = 'relu', got True"),
        (T5 | {"model_type": "mt5", "feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"}, "dense_act_fn must be"),
        (T5 | {"model_type": "umt5", "architectures": ["UMT5EncoderModel"]}, "UMT5EncoderModel.: one without the"),
        ({"model_type": "pegasus", "architectures": ["PegasusForCausalLM"]}, "must be a class of encoder and decoder"),
        ({}, "model_type must be one of the families in docs/configurations.md, got none"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "got none; Qwen3ForCausalLM is the class for model_type qwen3"),
        ({"model_type": "new", "kv_lora_rank": 8}, "got 'new', which is not read: queries, keys and values come from"),
        ({"model_type": "encoder-decoder", "decoder": {}, "encoder": {"model_type": "bert"}}, "of several models"),
        ({"model_type": "siglip", "text_config": {"dim": 64}}, "'siglip', which is not read: its loss compares"),
        (LLAMA | {"model_type": "falcon", "alibi": True}, "alibi must be false, got True: biases of"),
        (LLAMA | {"model_type": "electra"}, "embedding_size must be the width 64, got 128"),
        (LLAMA | {"model_type": "granite", "hidden_size": 4096}, "0.02 is too large: .* must be at most 4"),
        (LLAMA | {"hidden_size": "64"}, "hidden_size must be a number, got '64'"),
        (LLAMA | {"hidden_act": "mish"}, "hidden_act must be one of relu, .*, got 'mish'"),
        (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads = 4, got 3"),
        (LLAMA | {"num_attention_heads": 5}, "heads must divide width = 64, got 5"),
        (LLAMA | {"initializer_range": -0.02}, "initializer_range must be above 0, got -0.02"),
        (T5 | {"is_encoder_decoder": False}, "is_encoder_decoder must be true: T5's encoder without"),
        (T5 | {"initializer_factor": 0.5}, "initializer_factor must be 1, .*, got 0.5"),
        (T5 | {"feed_forward_proj": "gated-mish"}, "feed_forward_proj must be one of relu, .*, got 'mish'"),
        (T5 | {"feed_forward_proj": 3}, "feed_forward_proj must be one of relu, .*, got 3"),
    ],
)  # fmt: skip
def test_what_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        stack_from_config(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"fused_kernel": "fast", "n_group": 0, "use_new_trick": False}, ["fused_kernel = 'fast'"]),
        (LLAMA | {"hiden_size": 3}, ["hiden_size = 3"]),
        ({"model_type": "llama", "num_layers": 12}, ["num_layers = 12 (num_hidden_layers = 32 holds)"]),
        ({"model_type": "llama", "hiden_size": 512}, ["hiden_size = 512 (hidden_size = 4096 holds)"]),
        ({"model_type": "gpt2", "n_embed": 64}, ["n_embed = 64 (n_embd = 768 holds)"]),
        (
            GPT2 | {"num_attention_head": 8, "n_layers": 9, "max_position_embedding": 9},
            [
                "num_attention_head = 8 (n_head = 4 holds)",
                "n_layers = 9 (n_layer = 3 holds)",
                "max_position_embedding = 9 (the default of n_positions holds)",
            ],
        ),
        ({"model_type": "llama", "a\n'" + "b" * 70: 1}, ["a\\n'" + "b" * 55 + "... = 1"]),
        (LLAMA | {"n_embd": 32, "d_model": 64}, ["n_embd = 32 (hidden_size = 64 holds)"]),
        (GEMMA3 | {"n_kv_heads": 2}, ["n_kv_heads = 2 (num_key_value_heads = 4 holds)"]),
        (LLAMA | {"mup_base_width": 256, "kv_lora_rank": 8}, ["mup_base_width = 256", "kv_lora_rank = 8"]),
        (LLAMA | {"num_experts": 8, "pre_norm": False}, ["num_experts = 8", "pre_norm = False"]),
        (LLAMA | {"sliding_window": 2, "n_group": 4}, ["sliding_window = 2", "n_group = 4"]),
        (BERT | {"head_dim": 32}, ["head_dim = 32"]),
        (
            LLAMA | {"model_type": "qwen3", "num_key_value_heads": 4, "use_qk_norm": False},
            ["use_qk_norm = False (use_qk_norm = True holds)"],
        ),
        (GPT2 | {"model_type": "openai-gpt", "intermediate_size": 128}, ["intermediate_size = 128"]),
    ],
)
def test_keys_that_a_class_does_not_read(config, said):
    """They are named with what holds instead, and refused in files with their own code, which may read them."""
    stack, notes = stack_from_config(config)
    assert [str(note) for note in notes if note.what == "unread"] == said
    read = {name: value for name, value in config.items() if not any(each.startswith(f"{name} ") for each in said)}
    assert stack == stack_from_config(read)[0]
    with pytest.raises(ValueError, match="must"):
        stack_from_config(config | {"auto_map": {}})


def test_nearest_network_that_is_read():
    """The refusal has the keys to leave out, and with them the file is read, experts and narrow matrices left out."""
    with pytest.raises(ValueError, match=r"\(MLA\), which have no rule\.$"):  # nor is it read as another
        stack_from_config(LLAMA | {"model_type": "deepseek_v3", "attention_bias": "yes"})
    config = LLAMA | {"model_type": "deepseek_v3", "kv_lora_rank": 16, "n_routed_experts": 8, "n_group": 1}
    with pytest.raises(ValueError, match=r"reads it as 'llama', the nearest .*; gradbounds probe .*\.$") as error:
        stack_from_config(config)
    ignore = str(error.value).partition("--ignore ")[2].partition(" reads")[0].split()
    assert ignore == ["model_type", "kv_lora_rank", "n_group", "n_routed_experts"]
    stack, notes = stack_from_config(config, ignore=ignore)
    assert stack == stack_from_config(LLAMA)[0]
    assert {note.field for note in notes if note.what == "left out"} == set(ignore)


def test_files(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert stack_from_config(path) == stack_from_config(LLAMA)
    for content, said in (
        ("[1]", "must be a JSON object, got a list"),
        ("x = 1", "config must be JSON, but"),
        ('{"model_type": "llama", "hidden_size": Infinity}', "hidden_size must be a number, got inf"),
        ('{"n_embd": 32, "n_embd": 64}', "config must be JSON, .* it has 'n_embd' twice, with different values"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=said):
            stack_from_config(path)
    with pytest.raises(ValueError, match="must be a readable JSON file"):
        stack_from_config(tmp_path / "none.json")
    with pytest.raises(ValueError, match="Did you mean llama-3-8b"):
        published("llama3-8b")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"model_type": ["llama"]}, "model_type must be a string, got ['llama']."),
        ({"model_type": {"llava": 1}, "text_config": LLAMA}, "model_type must be a string, got {'llava': 1}."),
        ({"model_type": "llava", "text_config": {"model_type": [1]}}, "model_type must be a string, got [1]."),
        (
            GEMMA3 | {"model_type": "gemma2", "query_pre_attn_scalar": -1},
            "query_pre_attn_scalar must be above 0, got -1.",
        ),
        (
            LLAMA
            | {
                "model_type": "minimax_m2",
                "rotary_dim": 640,
                "num_key_value_heads": 4,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            },
            "rotary_dim must be at most the width of a head",
        ),
        (LLAMA | {"rms_norm_eps": None}, "config must have rms_norm_eps, got null, which rms_norm_eps must not be."),
        (
            GPT2 | {"initializer_range": None},
            "config must have initializer_range, got null, which initializer_range mu",
        ),
        (LLAMA | {"model_type": "cohere2", "logit_scale": 0}, "logit_scale must be above 0, got 0."),
        (LLAMA | {"model_type": "gemma", "hidden_size": None}, "config must have hidden_size, got null"),
        (LLAMA | {"model_type": "gemma", "hidden_size": "64"}, "hidden_size must be a number, got '64'."),
        (LLAMA | {"hidden_size": 0}, "hidden_size must be an integer of at least 1, got 0."),
        (LLAMA | {"num_attention_heads": 0}, "num_attention_heads must be an integer of at least 1, got 0."),
        (LLAMA | {"num_hidden_layers": 2.5}, "num_hidden_layers must be an integer of at least 1, got 2.5."),
        (GEMMA3 | {"rope_parameters": {"sliding_attention": 3}}, "rope_parameters of sliding_attention must be an obj"),
        (LLAMA | {"rope_parameters": {"full_attention": {}}}, "rope_parameters must be one object for all layers, as"),
        (LLAMA | {"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta must be a number, got '1e4'."),
        (LLAMA | {"rope_scaling": [2.0]}, "rope_scaling must be an object, got [2.0]."),
        (LLAMA | {"layer_types": 3}, "layer_types must be a list of words, got 3."),
        (LLAMA | {"layer_types": [["full_attention"]]}, "layer_types must be a list of words"),
        (LLAMA | {"layer_types": ["mamba"] * 3}, "layer_types must be of full_attention and sliding_attention, got 'm"),
        (LLAMA | {"attention_bias": "yes"}, "attention_bias must be true or false, got 'yes'."),
        (LLAMA | {"model_type": "mistral", "o_bias": [1]}, "o_bias must be true or false, got [1]."),
        (GPT2 | {"reorder_and_upcast_attn": 0.5}, "reorder_and_upcast_attn must be true or false, got 0.5."),
        (LLAMA | {"architectures": 5}, "architectures must be a list of words, got 5."),
        (
            GPT2 | {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx must be false, got True: l",
        ),
        (BERT | {"add_cross_attention": True}, "add_cross_attention must be false, got True: attention to an encoder"),
        (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder must be false, got True"),
        ({"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 9, "n_kv_head": 2}, "model_type must be one of "),
        (
            {"n_layer": 2, "n_head": 2, "n_embd": 8, "layer_norm_epsilon": 1e-5},
            "config must have only fields of its family, got layer_norm_epsilon = 1e-05, with an unknown effect at "
            "initialization; --ignore layer_norm_epsilon leaves it out. A file for a Hugging Face class requires",
        ),
        (LLAMA | {"model_type": "bloom"}, "model_type must be one of "),
    ],
)
def test_values_that_no_file_should_have_are_one_line(config, said):
    with pytest.raises(ValueError) as error:
        stack_from_config(config)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_long_values_are_cut_in_what_is_said():
    factors = {"type": "longrope", "long_factor": [1.0] * 500}
    notes = stack_from_config(LLAMA | {"rope_scaling": factors})[1]
    assert max(len(str(note)) for note in notes) < 400
    with pytest.raises(ValueError) as error:
        stack_from_config(LLAMA | {"auto_map": {}, "n_group": [1] * 500})
    assert len(str(error.value)) < 400
