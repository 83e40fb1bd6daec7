"""Initializations of training codes: every matrix against one drawn by the rule's words, and the other factors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers.twins.training_codes import DRAWN, Sizes
from theory import predict
from theory.configurations import PUBLISHED, drawn_by, stack_from_config
from theory.configurations.training_codes import BASES, NAMES, TRAINING_CODES, training_code
from theory.stack.initializations import Law
from theory.stack.weights import gain, weight_shapes

SIZES = Sizes(width=128, depth=3, hidden=384, heads=4, vocab=512)
PLAIN = ("neox", "nanogpt", "nanochat")


def config(name, **others):
    # Of SIZES, with gated units but where the code's own models have none.
    fields = {
        "model_type": "gpt_neox" if name in PLAIN else "llama", "hidden_size": SIZES.width,
        "num_hidden_layers": SIZES.depth, "intermediate_size": SIZES.hidden, "num_attention_heads": SIZES.heads,
        "vocab_size": SIZES.vocab, "tie_word_embeddings": False, "initializer_range": 0.02,
    }  # fmt: skip
    own = {"rotary_pct": 0.25} if name in PLAIN else {"rms_norm_eps": 1e-5}
    return fields | own | others


@pytest.mark.parametrize("name", DRAWN)
def test_deviations_are_those_of_the_rule(name):
    """16384 entries and more: a deviation has an error of 0.55% at most, and 160 of them are compared."""
    stack, notes = stack_from_config(config(name), drawn_by=name)
    assert drawn_by(notes) == name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn = DRAWN[name](SIZES)
    assert set(weight_shapes(stack)) == set(drawn) - {"words", "head"}
    assert stack.truncation == (3.0 if name in ("olmo", "olmo2") else 0.0)
    for role, (d_in, _) in weight_shapes(stack).items():
        for layer, matrix in enumerate(drawn[role], start=1):
            std = (gain(stack.of_layer(layer), role) / d_in) ** 0.5
            assert std == pytest.approx(float(matrix.std()), rel=0.025), (role, layer)
            if stack.truncation:
                largest = stack.truncation * std / Law(cut=stack.truncation).variance ** 0.5
                assert 0.9 * largest < matrix.abs().max() <= largest * (1 + 1e-5)
    assert stack.embedding_scale == pytest.approx(float(drawn["words"][0].std()), rel=0.025)
    # What muP multiplies logits by a Stack has in the matrix.
    times = 64 / SIZES.width if ":" in name else 1.0
    assert stack.output_scale == pytest.approx(float(drawn["head"][0].std()) * SIZES.width**0.5 * times, rel=0.025)
    assert [note.value for note in notes if note.field.startswith("W_emb")] == [1 / times] * (":" in name)


def test_table_of_codes():
    """What a Stack cannot say would be left out silently: a power of another size, or W^O and W2 by different ones."""
    assert {name.partition(":")[0] for name in DRAWN} == {name.partition(":")[0] for name in NAMES} - {"hf"}
    for name, code in TRAINING_CODES.items():
        assert code.source and code.date and code.title, name
        if code.refused:
            continue
        parts = {
            part: getattr(code, part)
            for part in ("matrices", "units", "up", "projection", "down", "embeddings", "head")
        }
        for part, variance in parts.items():
            assert set(variance) <= {"times", "d", "f", "L", "l", "sigma", *code.asks}, (name, part)
            assert "l" not in variance or (variance["l"] == -1 and part in ("up", "projection", "down")), (name, part)
        assert code.projection.get("l") == code.down.get("l"), name
        assert (code.projection.get("L") == -1) == (code.down.get("L") == -1), name
        assert "l" not in code.up or "l" in code.down, name
        assert set(code.asks) <= set(BASES) and set(code.logits) <= {"d", "d0"} and set(code.branches) <= {"L", "L0"}
        assert set(code.cut) <= {"layers", "embeddings", "head"}, name


def test_rules_of_a_base_model():
    """At the base's own sizes muP is nanoGPT's rule but for attention, and CompleteP the class's."""
    of = {name: stack_from_config(config("mup"), drawn_by=name)[0] for name in ("mup:128", "completep:128:3", "hf")}
    muls = stack_from_config(config("mup"), drawn_by="megatron")[0]
    assert of["mup:128"] == replace(muls, attention_scale="linear")
    assert of["completep:128:3"] == replace(of["hf"], attention_scale="linear", branch_scale=1.0)
    # Granite's factors: that of its attention stays, and its branches' is multiplied.
    granite = config("mup", model_type="granite", attention_multiplier=0.5, residual_multiplier=0.22)
    stack, _ = stack_from_config(granite, drawn_by="completep:64:1")
    assert (stack.attention_scale, stack.branch_scale) == ("sqrt", pytest.approx(0.22 / 3))


def test_matrices_of_zeros():
    """nanochat's: the stream is the inputs, and W^O and W2 alone of a layer have a gradient."""
    stack, _ = stack_from_config(config("nanochat"), tokens=8, drawn_by="nanochat")
    theory = predict(stack, patterns=64)
    for role in ("WQ", "WK", "WV", "W1"):
        assert not np.any(theory[f"grad_sq_{role}"]), role
    assert theory["hidden_energy"] == pytest.approx([0.64] * SIZES.depth)
    assert min(theory["grad_sq_WO"].min(), theory["grad_sq_W2"].min()) > 0
    # A deviation of 0.001 leaves the logits next to nothing.
    assert float(theory["loss"]) == pytest.approx(np.log(SIZES.vocab) + 128e-6 / 2, abs=1e-6)
    gated = stack_from_config(config("mup"), drawn_by="nanochat")[0]
    assert (gated.gate_gain, gated.up_gain) == pytest.approx((0.4, 0.4))
    assert (gated.projection_gain, gated.down_gain) == (0.0, 0.0)


def test_routers_of_rules():
    """Megatron's is drawn like its other matrices; a rule without routers draws no model with experts."""
    experts = config("mup", model_type="mixtral", num_key_value_heads=2, initializer_range=0.03)
    stack, _ = stack_from_config(experts, drawn_by="megatron")
    assert (gain(stack, "WR") / stack.width) ** 0.5 == pytest.approx(0.03)
    with pytest.raises(ValueError, match=r"^drawn_by must be 'hf' or 'megatron' for models with experts, got a rule"):
        stack_from_config(experts, drawn_by="torchtitan")


def test_first_loss_that_torchtitan_printed():
    """Of Llama 3 8B at 8192 tokens of C4, drawn by its own rule; drawn by transformers, it would begin at 12.58.

    Source: pull request 1884 of pytorch/torchtitan (2025-10), step 1.
    """
    of = {name: stack_from_config(like="llama-3-8b", tokens=2, drawn_by=name)[0] for name in ("torchtitan", "hf")}
    loss = {name: float(predict(stack, patterns=2)["loss"]) for name, stack in of.items()}
    assert loss["torchtitan"] == pytest.approx(12.2465, abs=0.005)
    assert loss["hf"] == pytest.approx(loss["torchtitan"] + 0.02**2 * 4096 / 2 - Law(cut=3.0).variance / 2, abs=0.01)


def test_tied_ends_and_factors_of_the_family():
    """A matrix of both ends is drawn like the output; Gemma's embeddings are times sqrt(d) however they are drawn."""
    tied = stack_from_config(config("torchtitan", tie_word_embeddings=True), drawn_by="torchtitan")[0]
    untied = stack_from_config(config("torchtitan"), drawn_by="torchtitan")[0]
    cut = Law(cut=3.0).variance ** 0.5
    assert (tied.embedding_scale, untied.embedding_scale) == pytest.approx((cut * 128**-0.5, 1.0))
    assert tied.output_scale == untied.output_scale == pytest.approx(cut)
    again = stack_from_config(
        config("torchtitan", tie_word_embeddings=True), drawn_by="torchtitan", embeddings="untied"
    )
    assert again[0] == untied
    gemma = stack_from_config(like="gemma-2b", drawn_by="neox")[0]
    assert (gemma.embedding_scale, gemma.output_scale) == pytest.approx((0.4**0.5, 0.4**0.5))
    plain = stack_from_config(config("neox"), drawn_by="torchtitan")[0]
    assert (plain.depth_scaling, plain.up_gain) == ("layer", 1.0)  # the only first matrix of the units is no w3


def test_what_the_file_says_of_deviations():
    """Megatron takes it; others do not, and a note says so."""
    twice = config("megatron", initializer_range=0.04)
    assert stack_from_config(twice, drawn_by="megatron")[0].init_std == 0.04
    stack, notes = stack_from_config(twice, drawn_by="neox")
    assert stack == stack_from_config(config("megatron"), drawn_by="neox")[0]
    (note,) = (note for note in notes if note.field == "initializer_range")
    assert str(note) == "initializer_range = 0.04 is neutral: GPT-NeoX does not ask"
    silent = {name: value for name, value in twice.items() if name != "initializer_range"}
    assert "initializer_range" not in {note.field for note in stack_from_config(silent, drawn_by="neox")[1]}
    # A version of transformers is none of another code's business.
    by_class, by_rule = (stack_from_config(like="gpt2", drawn_by=name)[1] for name in ("hf", "nanogpt"))
    assert "transformers" in {note.field for note in by_class}
    assert "transformers" not in {note.field for note in by_rule}


def test_every_decoder_is_drawn_by_every_rule():
    """Models of masked words and encoders with decoders by none, since no rule is about their other matrices."""
    assert training_code("hf") is None
    for like in PUBLISHED:
        for name in DRAWN:
            if like in ("bert-base", "roberta-base"):
                with pytest.raises(ValueError, match=r"^drawn_by must be 'hf' for encoders and decoders"):
                    stack_from_config(like=like, drawn_by=name)
            elif stack_from_config(like=like)[0].experts and name != "megatron":
                with pytest.raises(ValueError, match=r"^drawn_by must be 'hf' or 'megatron' for models with experts"):
                    stack_from_config(like=like, drawn_by=name)
            else:
                assert drawn_by(stack_from_config(like=like, drawn_by=name)[1]) == name


def test_a_code_that_is_not_known():
    with pytest.raises(ValueError, match=r"^drawn_by must be one of hf, neox, .*, got 'noex'\. Did you mean neox\?$"):
        stack_from_config(like="gpt2", drawn_by="noex")
    wrong = {
        "mup": "mup:WIDTH, with the width", "neox:3": "neox, without a number", "mup:0": "mup:WIDTH, .* from 1 to 1e9",
        "mup:6.5": "mup:WIDTH, .* as integers", "completep:64": "completep:WIDTH:DEPTH, with the width and depth",
    }  # fmt: skip
    for name, allowed in wrong.items():
        with pytest.raises(ValueError, match=f"^drawn_by must be {allowed}.*, got '{name}'"):
            stack_from_config(like="gpt2", drawn_by=name)
    with pytest.raises(ValueError, match=r"^drawn_by must be one of .*, got \['neox'\]"):
        stack_from_config(like="gpt2", drawn_by=["neox"])
