"""What is said of the comparison of a family's own code with theory."""

import pytest

from tests.helpers.rendered_pages import comparisons_file
from theory import Stack
from theory.configurations.comparisons import FILE, compared, compared_step
from theory.configurations.configuration_file import FAMILIES

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
    assert [name for name in FAMILIES if not compared(name, UNTIED)] == ["nanogpt"]
