"""One module against the network that its own `config` describes: silent on its own draw, faults are named."""

import re

import pytest
import torch
from torch import nn

import gradbounds as gb
from checks.models.initialization import against_description
from simulate.modules.one_module import one_module
from tests.helpers.model_families import TOKENS, VOCAB, NanoGPT

WIDTH, DEPTH = 32, 3


class Described(NanoGPT):
    """GPT-2 with an output matrix and a configuration of its own."""

    def __init__(self, *, tied: bool = True, **others) -> None:
        super().__init__(WIDTH, DEPTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)
        if tied:
            self.head.weight = self.words.weight
        self.config = {
            "model_type": "gpt2", "n_embd": WIDTH, "n_layer": DEPTH, "n_head": 4, "n_positions": TOKENS,
            "vocab_size": VOCAB, "initializer_range": 0.02, "tie_word_embeddings": tied, **others,
        }  # fmt: skip

    def forward(self, words):
        x = self.words(words) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(words):
    return lambda logits: nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


def held(module, *, trained=False):
    words = torch.randint(VOCAB, (4, TOKENS + 1))
    return against_description(one_module(module, words[:, :-1], loss_of(words)), None, trained=trained)


@pytest.mark.parametrize("tied", [True, False])
def test_a_module_as_its_configuration_describes_it_passes(tied):
    for seed in range(3):
        torch.manual_seed(seed)
        assert held(Described(tied=tied)) == ([], [])


def _norms(module):
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.constant_(part.weight, 1.25)


def _drawn_by_torch(module):
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=5**0.5)


def _unscaled(module):
    for name, weight in module.named_parameters():
        if name.endswith(("proj.weight", "down.weight")):
            nn.init.normal_(weight, std=0.02)


FAULTS = {
    "norms": (True, _norms, "norm1, norm2, norm: have gain 1.25; its configuration's norms have gain 1"),
    "untied": (
        True, lambda m: setattr(m.head, "weight", nn.Parameter(m.head.weight.detach().clone())),
        "head.weight: is not the same matrix as words.weight",
    ),
    "tied": (False, lambda m: setattr(m.head, "weight", m.words.weight), "words.weight: is also the output matrix"),
    "embedding": (True, lambda m: nn.init.normal_(m.words.weight), "words.weight: has 49.* times"),
    "head": (False, lambda m: nn.init.normal_(m.head.weight, std=0.03), "head.weight: has 1.4"),
    "not drawn": (True, _drawn_by_torch, "down.weight, proj.weight, qkv.weight, up.weight have"),
    "unscaled": (True, _unscaled, r"the factor 1/sqrt\(2 L\) .* is missing in down.weight, proj.weight"),
    "layers": (True, lambda m: m.layers.pop(2), "layers: has 2 layers; its configuration's number of layers is 3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_differs_from_the_configuration_is_named(fault):
    tied, plant, words = FAULTS[fault]
    torch.manual_seed(1)
    module = Described(tied=tied)
    with torch.no_grad():
        plant(module)
    alarms, _ = held(module)
    assert re.search(words, " ".join(map(str, alarms)))
    assert all("its configuration" in alarm.what for alarm in alarms)


def test_trained_weights_are_held_against_sizes_and_ties_alone_and_a_family_must_be_named():
    module, words = Described(), torch.randint(VOCAB, (4, TOKENS + 1))
    nn.init.normal_(module.layers[0].up.weight, std=0.05)
    assert held(module, trained=True) == ([], [])
    with pytest.raises(AssertionError, match=r"layer 1 of layers: up.weight has 2.\d+ times its config"):
        gb.probe(module, words[:, :-1], loss=loss_of(words)).assert_healthy()
    del module.config["model_type"]
    alarms, (note,) = held(module)
    assert not alarms
    assert note.startswith(
        "the module differs from its configuration (read as a nanoGPT model): up.weight has 2.49 times"
    )
