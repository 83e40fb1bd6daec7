"""Configurations: what each family's fields mean, and that none is passed over in silence."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy.stats import truncnorm

from tests.helpers.configurations import BERT, GEMMA3, GPT2, LLAMA, T5
from theory import Stack, predict
from theory.configurations import published, stack_from_config
from theory.configurations.classes import CLASSES, MEASURED, OLDER
from theory.configurations.reading import SAID_ELSEWHERE
from theory.stack.weights import gain, transform_gain, weight_shapes


def test_t5_has_a_source():
    """As its classes draw it; of T5 1.1 gates, heads of another width and an output that is not scaled."""
    expected = Stack(
        placement="pre", width=64, depth=3, tokens=5, vocab=96, source_tokens=5, heads=4, query_key_scale=1.0,
        query_gain=0.25, logit_factor=4.0, output_projection="random", ffn_ratio=4.0,
        initialization="fan_in", normalization="rms", norm_epsilon=1e-6,
        mask="causal",
    )  # fmt: skip
    stack, notes = stack_from_config(T5, tokens=5)
    assert stack == expected
    assert {note.what for note in notes if note.field.startswith("relative")} == {"neutral"}
    more = {"feed_forward_proj": "gated-gelu", "num_heads": 3, "tie_word_embeddings": False, "num_decoder_layers": 2}
    newer, notes = stack_from_config(T5 | more, tokens=5)
    assert (newer.ffn, newer.activation, newer.head_width, newer.output_scale) == ("gated", "gelu_tanh", 16, 8.0)
    assert (newer.depth, newer.encoder_depth, newer.encoder.depth) == (2, 3, 3)
    found = predict(stack, patterns=2)
    assert np.isfinite(found["grad_sq_XQ"]).all()
    assert np.isfinite(found["encoder_grad_sq_W2"]).all()


MODERN = {
    "model_type": "modernbert", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "vocab_size": 96,
    "intermediate_size": 96, "layer_norm_eps": 1e-5, "norm_eps": 1e-5, "local_attention": 20,
    "global_attn_every_n_layers": 3, "global_rope_theta": 2e5, "local_rope_theta": 3e4, "mlp_dropout": 0.0,
}  # fmt: skip


def test_modernbert_cuts_its_normals_and_its_head_is_smaller():
    """As its classes draw it, of the depth 8, 2 L = 16; an output matrix of its own is as small as the head's."""
    cut = truncnorm.std(-2, 2)
    expected = Stack(
        placement="pre", width=64, depth=8, tokens=5, vocab=96, heads=4, ffn_ratio=1.5, ffn="gated", activation="gelu",
        init_std=0.02, truncation=2.0, transform_gain=0.25, depth_scaling="depth", output_projection="random",
        query_key_scale=0.16, rotary=1.0, rotary_base=3e4, embedding_norm="added", embedding_scale=0.02 * cut,
        output_scale=0.16 * cut, output_transform="added", norm_epsilon=1e-5, embeddings="tied",
    )  # fmt: skip

    def close(found, other):
        pairs = zip(found, other, strict=True)
        return all(one == pytest.approx(two, rel=1e-12) if isinstance(one, float) else one == two for one, two in pairs)

    stack, notes = stack_from_config(MODERN, tokens=5)
    assert close(astuple(stack), astuple(expected))
    said = {note.field: str(note) for note in notes if note.what == "left out"}
    assert said.keys() == {"masked words", "rope_theta of full_attention"}
    untied = stack_from_config(MODERN | {"tie_word_embeddings": False}, tokens=5)[0]
    assert untied.output_scale == pytest.approx(expected.output_scale / 4, rel=1e-12)
    assert untied.embedding_scale == stack.embedding_scale
    assert stack_from_config(MODERN | {"initializer_cutoff_factor": None})[0].truncation == 3.0
    far, notes = stack_from_config(MODERN, tokens=11)
    assert far.window == 0
    assert "local_attention = 20 is left out: here, no layer has the window" in map(str, notes)
    causal = stack_from_config(MODERN | {"model_type": "modernbert-decoder"}, tokens=5)[0]
    assert close(astuple(causal), astuple(replace(expected, mask="causal")))


def test_windows_and_caps():
    gemma = stack_from_config(published("gemma-2-2b"), embeddings="untied")[0]
    assert (gemma.window, gemma.logit_softcap) == (0, 50.0)
    config = published("mistral-7b") | {"sliding_window": 8}
    assert stack_from_config(config)[0].window == 8
    # A switch that Mistral's class does not know, and Qwen 2's does.
    off = config | {"use_sliding_window": False}
    assert [stack_from_config(off | {"model_type": one})[0].window for one in ("mistral", "qwen2")] == [8, 0]
    both = ["full_attention", "sliding_attention"] * 16
    assert "here, all layers have the window" in str(stack_from_config(config | {"layer_types": both})[1])


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
    for name in ("rope_scaling", "rope_parameters"):  # two versions' names of one object, whose number counts
        scaled = LLAMA | {"rope_theta": 7e3, name: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5}}
        stack, notes = stack_from_config(scaled)
        assert stack.rotary_base == 1e5
        said = {note.field: note.what for note in notes}
        assert (said["rope_theta"], said[name]) == ("neutral", "left out")
    assert noted(LLAMA | {"rope_scaling": {"factor": 8.0}})[1]["rope_scaling"] == "neutral"
    with pytest.raises(ValueError, match="rope_scaling and rope_parameters must be equal"):
        stack_from_config(LLAMA | {"rope_scaling": {"factor": 2.0}, "rope_parameters": {"rope_theta": 5e5}})
    half = stack_from_config(LLAMA | {"partial_rotary_factor": 0.5})[0]
    assert (half.rotary, half.rotary_width) == (0.5, 8)


def test_hunyuans_alpha_makes_its_base_larger():
    """By its power d/(d - 2), d the coordinates of a head, whatever the number of tokens; of no other family."""
    scaling = {"type": "dynamic", "alpha": 20.0, "factor": 1.0}
    config = LLAMA | {"head_dim": 16, "rope_theta": 5e3, "rope_scaling": scaling}
    stretched = stack_from_config(config | {"model_type": "hunyuan_v1_dense", "use_qk_norm": True})[0]
    assert stretched.rotary_base == pytest.approx(5e3 * 20 ** (16 / 14))
    assert stack_from_config(config)[0].rotary_base == 5e3


def test_rotations_of_the_class_itself_are_named():
    """Ministral 3's are scaled where the file says nothing, and a number beside them does not count."""
    sizes = {name: value for name, value in LLAMA.items() if name != "model_type"} | {"num_key_value_heads": 4}
    stack, notes = stack_from_config({"model_type": "ministral3", "head_dim": 16, "rope_theta": 7e3, **sizes})
    assert stack.rotary_base == CLASSES["ministral3"].rope["rope_theta"] == 1e6
    assert "not scaled as in 'yarn'" in {note.field: str(note) for note in notes}["rope_parameters of the class"]


def test_layers_that_rotate_otherwise_than_those_with_a_window_are_named():
    """OLMo 3's one number is that of its layers without a window, as its class has it; so is what scales them."""
    olmo = LLAMA | {"model_type": "olmo3"}
    stack, notes = stack_from_config(olmo | {"rope_theta": 7e3})
    assert stack.rotary_base == 5e5
    assert {note.field: note.value for note in notes}["rope_theta of full_attention"] == 7e3
    base = {"rope_type": "default", "rope_theta": 5e5}
    scaled = {"sliding_attention": base, "full_attention": base | {"rope_type": "yarn", "factor": 8.0}}
    said = noted(olmo | {"rope_parameters": scaled})[1]
    assert said["rope_parameters of full_attention"] == "left out"
    assert "rope_parameters of full_attention" not in noted(olmo | {"rope_parameters": dict.fromkeys(scaled, base)})[1]


def test_sizes_may_be_written_as_floats():
    assert (
        stack_from_config(GPT2 | {"n_embd": 64.0, "n_layer": 3.0, "vocab_size": 96.0})[0] == stack_from_config(GPT2)[0]
    )


def test_a_class_without_a_field_of_units_has_four_times_the_width():
    """GPT-1's, whatever another family calls it; its activation may be "swish"."""
    stack = stack_from_config(GPT2 | {"model_type": "openai-gpt", "intermediate_size": 128, "afn": "swish"})[0]
    assert stack.ffn_ratio == 4.0
    assert stack.activation == "silu"


def test_fields_of_older_code_that_say_what_the_class_does():
    """StarCoder 2's, GPT-J's, DistilBERT's and Cohere 2's files have them."""
    for family, others in {
        "gptj": {"rotary": True, "rotary_dim": 16, "scale_attn_weights": True},
        "starcoder2": {"norm_type": "layer_norm", "mlp_type": None},
        "distilbert": {"tie_weights_": True},
        "cohere2": {"rotary_pct": 1.0, "use_parallel_block": True, "layer_switch": 4},
        "gemma": {"head_dim": 16, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"},
    }.items():
        sizes = {"distilbert": {"dim": 64, "n_heads": 4, "n_layers": 3}, "gptj": GPT2}.get(family, LLAMA)
        kinds = noted({**sizes, "model_type": family, "vocab_size": 96, "num_key_value_heads": None, **others})[1]
        assert {kinds.get(name, "neutral") for name in others} <= {"neutral"}, family


def test_no_field_has_two_reasons():
    names = [name for group in SAID_ELSEWHERE.values() for name in group]
    assert len(names) == len(set(names))


def noted(config):
    stack, notes = stack_from_config(config)
    return stack, {note.field: note.what for note in notes}


def test_what_is_not_as_the_file_has_it_is_not_called_neutral():
    """Scalings of fast rotations, logits without 1/√d_k, relative positions; and a causal BERT is causal."""
    for scaling, what in (({"type": "linear", "factor": 4.0}, "left out"), ({"rope_type": "llama3"}, "neutral")):
        assert noted(LLAMA | {"rope_scaling": scaling})[1]["rope_scaling"] == what
    assert noted(LLAMA | {"rope_parameters": {"rope_type": "yarn"}})[1]["rope_parameters"] == "left out"
    assert noted(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})[0].rotary_base == 5e5
    for divided, times in ((True, 1.0), (False, 4.0)):  # heads of 16: logits 4 times as large
        stack = noted(GPT2 | {"scale_attn_weights": divided})[0]
        assert (stack.query_key_scale, stack.logit_factor) == pytest.approx((0.02 * 64**0.5, times))
    assert noted(BERT | {"position_embedding_type": "relative_key"})[1]["position_embedding_type"] == "left out"
    assert noted(BERT | {"is_decoder": True})[0].mask == "causal"
    assert noted(BERT | {"is_decoder": False})[0].mask == "none"
    only = GEMMA3 | {"rope_parameters": {"sliding_attention": {"rope_theta": 7e3}}}
    assert noted(only)[0].rotary_base == 7e3


def deviation(stack, role):
    """Of a matrix's entries, by our name of it."""
    one = stack.encoder if role.startswith("encoder_") else stack
    plain, one = role.removeprefix("encoder_"), one.of_layer(one.depth)
    energy = transform_gain(one) / one.width if plain == "WH" else gain(one, plain) / weight_shapes(one)[plain][0]
    return energy**0.5


@pytest.mark.parametrize("family", CLASSES)
def test_deviations_are_those_of_the_classes(family):
    """All within 1%, of networks that the classes of transformers built; one draw errs by at most a third of that."""
    stack, notes = stack_from_config({"model_type": family, **CLASSES[family].small})
    for role, measured in CLASSES[family].deviations.items():
        factors = [note.value for note in notes if f"W^{role[-1]}" in note.field]
        assert deviation(stack, role) * (factors or [1.0])[0] == pytest.approx(measured, rel=0.01), role


def test_what_a_file_leaves_out_is_the_default_of_its_own_class():
    """Of sisters with other defaults, each with a note."""
    sizes = {"hidden_size": 256, "num_attention_heads": 16, "num_hidden_layers": 2, "vocab_size": 96}
    for family, expected in {
        "mistral": {"kv_heads": 8, "ffn_ratio": 14336 / 256, "head_width": 0},
        "llama": {"kv_heads": 0, "ffn_ratio": 43.0},
        "qwen3": {"head_width": 128},
        "gemma": {"head_width": 256},
        "phi": {"rotary": 0.5},
        "gpt_neox": {"rotary": 0.25},
        "helium": {"rotary_base": 1e5, "norm_epsilon": 1e-8},
        "nemotron": {"init_std": 0.0134, "norm_gain": 2.0},
        "smollm3": {"embeddings": "tied"},
    }.items():
        config = {
            "model_type": family,
            **sizes,
            **({"num_key_value_heads": 16} if family in ("qwen3", "helium") else {}),
            **({"head_dim": 16} if family == "helium" else {}),
        }
        stack, notes = stack_from_config(config)
        assert {name: getattr(stack, name) or 0 for name in expected} == expected, family
        assert {note.field for note in notes if note.what == "default"} >= {"initializer_range"}
    assert "num_key_value_heads = 8 is the class's default: the file has none" in map(
        str, stack_from_config({"model_type": "mistral", **sizes})[1]
    )
    # Null is what the class makes of the other fields, and no default.
    assert stack_from_config({"model_type": "mistral", "num_key_value_heads": None, **sizes})[0].kv_heads == 0


def test_sisters_have_rules_of_their_own():
    """Outputs of T5 are scaled unless its file is untied; those of mT5 never; both are tied whatever it says."""
    for family, tied, scale in (("t5", True, 1.0), ("t5", False, 8.0), ("umt5", False, 8.0), ("mt5", True, 8.0)):
        stack, notes = stack_from_config(T5 | {"model_type": family, "tie_word_embeddings": tied})
        assert stack.output_scale == scale, family
        said = {note.field: str(note) for note in notes}
        assert ("the class ties both ends" in said.get("tie_word_embeddings", "")) == (not tied)
        assert ("makes its loss larger" in said["input embeddings and output matrix are one matrix"]) == (scale != 1.0)


def test_harmless_fields_are_no_reason_to_refuse():
    """Null, false, words' numbers, other people's names; and what the class has by default."""
    harmless = {
        "use_new_trick": False, "factor_of_nothing": None, "image_token_id": 7, "is_llama_config": True,
        "pooler_fc_size": 768, "temperature": 0.7, "is_causal": True, "layers_to_skip": [], "mlp_bias": True,
    }  # fmt: skip
    stack, notes = stack_from_config(LLAMA | harmless)
    assert stack == stack_from_config(LLAMA)[0]
    kinds = {note.field: note.what for note in notes}
    assert {kinds[name] for name in harmless if harmless[name] is not None} == {"neutral"}
    default = {
        "model_type": "granite",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 9,
        "pretraining_tp": 1,
    }
    assert stack_from_config(default | {"max_position_embeddings": 2048})[0].heads == 4


def test_a_field_can_be_ignored():
    stack, notes = stack_from_config(
        LLAMA | {"new_trick": 3, "layers_per_step": 2}, ignore=["new_trick", "layers_per_step"]
    )
    assert stack == stack_from_config(LLAMA)[0]
    assert [note.field for note in notes if note.what == "left out"] == ["new_trick", "layers_per_step"]
    with pytest.raises(ValueError, match="ignore must name fields of the file, got 'nothing'"):
        stack_from_config(LLAMA, ignore=["nothing"])


def test_of_a_file_of_several_parts_that_of_the_words_is_read():
    """By its own model_type or the whole's class; with the whole's word on tying."""
    words = {name: value for name, value in LLAMA.items() if name != "model_type"}
    whole = {"model_type": "idefics3", "text_config": words, "vision_config": {"hidden_size": 8}}
    stack, notes = stack_from_config(whole)
    assert stack == stack_from_config(LLAMA)[0]
    assert "text_config, is read, without vision_config" in str(notes[0])
    tied = stack_from_config(whole | {"text_config": LLAMA | {"model_type": "phi3"}, "tie_word_embeddings": True})[0]
    assert tied.embeddings == "tied"


def test_other_heads_are_named():
    """None, a classifier, and a class of another family are notes; a language model's is neutral."""
    for name, said in {
        "LlamaForTokenClassification": "its loss is about labels of single tokens",
        "LlamaModel": "it has no head and no loss",
        "Qwen2ForCausalLM": "the prediction is for the class LlamaForCausalLM",
        "LlamaForNothing": "its loss is not known",
        "GPT2DoubleHeadsModel": "its loss has a second part, about multiple choices",
        "BertForPreTraining": "its loss has a second part, about whether a sentence follows another",
        "ElectraForPreTraining": "its loss is about which tokens were replaced",
    }.items():
        notes = stack_from_config(LLAMA | {"architectures": [name]})[1]
        assert [note.what for note in notes if note.field == "architectures"] == ["left out"]
        assert said in " ".join(map(str, notes))
    assert noted(LLAMA | {"architectures": ["LlamaForCausalLM"]})[1]["architectures"] == "neutral"


def test_factors_of_a_family_are_in_the_stack_or_in_a_note():
    """Granite's and Cohere's, and logits that a family does not divide by the root of a head's width."""
    granite = {
        "model_type": "granite", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96,
        "intermediate_size": 64, "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "logits_scaling": 8.0,
        "attention_multiplier": 0.5,
    }  # fmt: skip
    stack, notes = stack_from_config(granite)
    assert (stack.embedding_scale, stack.branch_scale) == pytest.approx((0.24, 0.25))
    assert (stack.query_key_scale, stack.logit_factor) == pytest.approx((0.16, 2.0))
    assert stack.output_scale == pytest.approx(0.16 / 8)
    factors = {note.field: note.value for note in notes if note.field.startswith("W")}
    assert factors == pytest.approx({"W_emb": 8.0})
    linear = stack_from_config(granite | {"attention_multiplier": 1 / 16})[0]
    assert (linear.attention_scale, linear.query_key_scale) == ("linear", pytest.approx(0.16))
    rooted = {"model_type": "biogpt", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 96}
    assert stack_from_config(rooted)[0].positions == "none"
    assert stack_from_config(rooted | {"scale_embedding": False})[0].positions == "learned"
    for name in ("granite", "gemma", "modernbert-decoder"):
        file = (granite if name == "granite" else rooted) | {"model_type": name, "num_key_value_heads": 4}
        tied, untied = (stack_from_config(file | {"tie_word_embeddings": is_tied}) for is_tied in (True, False))
        assert stack_from_config(file | {"tie_word_embeddings": True}, embeddings="untied") == untied
        assert stack_from_config(file | {"tie_word_embeddings": False}, embeddings="tied") == tied


def test_layers_without_rotations_are_named():
    """SmolLM 3's by a list or an interval, those of Cohere 2 and EXAONE 4 without a window."""
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 5,
        "vocab_size": 96,
    }
    for family, fields, layers in (
        ("smollm3", {}, [4]),
        ("smollm3", {"no_rope_layer_interval": 2}, [2, 4]),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1, 0]}, [5]),
        ("cohere2", {"layer_types": ["full_attention"] + ["sliding_attention"] * 4}, [1]),
        ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 5}, None),
        ("exaone4", {"sliding_window_pattern": "LLG"}, [3]),
        ("cohere2", {"sliding_window": None}, [1, 2, 3, 4, 5]),
        ("exaone4", {}, [4]),
    ):
        notes = stack_from_config({"model_type": family, **sizes, **fields})[1]
        said = {note.field: note.value for note in notes if note.what == "left out"}
        assert said.get("layers without rotations") == layers, (family, fields)


def test_versions_in_which_a_class_draws_otherwise_are_named():
    """GPT-2's classes scale no residual matrix up to 5.14; the oldest and the newest were measured."""
    assert (OLDER[0], MEASURED) == ("5.0.0", "5.24.0")
    assert [family for family, one in CLASSES.items() if one.older] == ["gpt2"]
    gpt2 = CLASSES["gpt2"]
    for times in gpt2.older.values():
        assert times == pytest.approx({"WO": (2 * gpt2.small["n_layer"]) ** 0.5, "W2": 8**0.5}, rel=0.01)
    notes = {note.field: str(note) for note in stack_from_config(like="gpt2")[1]}
    assert notes["transformers"] == "transformers 5.0.0 to 5.14.1 draws WO and W2 sqrt(2 L) = 4.9 times as large"
    assert "transformers" not in {note.field for note in stack_from_config(like="gpt2", drawn_by="nanogpt")[1]}
