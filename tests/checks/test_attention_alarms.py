"""What exact alarms say of attention: its factor, its sums over keys, logits too large, and where there is none."""

import re
from functools import partial

import pytest
import torch
from torch import nn

import gradbounds as gb
from checks.models.judge import judged_module
from tests.helpers.exact_lines import exactly
from tests.helpers.single_modules import Decoder, made, next_word, planted


def test_what_logits_are_multiplied_by():
    """Exactly: with nothing where 1/sqrt(d_k) belongs it is an alarm; a smaller power than asked is a note."""
    module, words, loss = made("decoder", width=64, depth=2)

    def scaled(scale):
        for layer in module.layers:
            layer.attention.scale = scale
        report = judged_module(module, words, loss)
        return [str(alarm) for alarm in report.alarms], [note for note in report.notes if "q.k" in note]

    (alarm,), _ = scaled(1.0)
    assert alarm.startswith(
        "attention: layers: attention logits are q.k times 1, usual is 1/sqrt(d_k) = 0.25 for d_k = 16"
    )
    assert scaled(1 / 16) == scaled(1 / 4) == ([], [])
    alarms, (note,) = scaled(1 / 8)
    assert not alarms
    assert "logits are q.k times 0.12, usual is 1/sqrt(d_k) = 0.25" in note
    # Queries may be drawn that much smaller instead, as T5's are.
    for layer in module.layers:
        layer.attention.q.weight.data.div_(4)
    alarms, (note,) = scaled(1.0)
    assert not alarms
    assert "logits are q.k times 1, usual is 1/sqrt(d_k) = 0.25" in note


class Mixed(nn.Module):
    """Vectors of positions, mixed in every layer by a module of one's own, or not mixed."""

    def __init__(self, *parts):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), part) for part in parts)

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = x + (y[0] if isinstance(y, tuple) else y)
        return x


def test_without_attention_what_is_there_is_said():
    def said(module):
        lines = gb.probe(module, torch.randn(2, 6, 8), loss=lambda y: y.square().mean()).lines()
        return [line for line in lines if line.startswith("Attention")]

    assert said(Mixed(nn.GRU(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True))) == [
        "Attention: none by softmax or scaled_dot_product_attention; positions see one another by other "
        "operations. Layers contain LayerNorm, GRU."
    ]
    assert said(Mixed(nn.Linear(8, 8), nn.Linear(8, 8))) == [
        "Attention: none; no position sees another in any layer. Layers contain LayerNorm, Linear."
    ]
    assert said(nn.Linear(8, 8)) == ["Attention: not tested, because no layer was measured."]
    module, words, loss = made("decoder")
    assert not any("no attention" in line for line in gb.probe(module, words, loss=loss).lines())


@pytest.mark.parametrize("scales", [(1.0, 0.25), (0.25, 1.0), (0.25, 0.25)])
def test_every_attention_of_a_layer_has_a_factor(scales):
    """As one within a decoder and one to an encoder: what is right of the last one is not of all."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(16)

        def forward(self, x):
            for scale in scales:
                y = self.norm(x)
                x = x + (y @ y.mT * scale).softmax(-1) @ y
            return x

    torch.manual_seed(2)
    module = nn.Sequential(Twice(), Twice(), Twice())
    alarms, notes, _ = exactly(module, torch.randn(3, 5, 16), lambda y: (y * torch.randn_like(y)).sum())
    factors = ["logits are q.k times 1, usual is 1/sqrt(d_k) = 0.25" in line for line in (*alarms, *notes)]
    assert sum(factors) == (1.0 in scales)


def test_what_logits_are_multiplied_by_under_a_bias():
    """One that all samples share, as ALiBi's, is not in their differences; what is seen of no other is a note."""

    class Biased(nn.Module):
        def __init__(self, samples):
            super().__init__()
            self.norm, self.samples = nn.LayerNorm(8), samples

        def forward(self, x):
            y = self.norm(x)
            i = torch.arange(float(x.shape[1]))
            bias = (i[:, None] - i).abs() * (torch.ones(len(x), 1, 1) if not self.samples else torch.rand(len(x), 1, 1))
            return x + (y @ y.mT * 0.25 - bias).softmax(-1) @ y

    def notes(samples):
        layers = nn.ModuleList(Biased(samples) for _ in range(2))
        module = nn.Sequential(nn.Linear(8, 8), *layers)
        notes = exactly(module, torch.randn(3, 5, 8), lambda y: y.square().mean(), ["[12]"])[1]
        return [note for note in notes if "q.k" in note]

    torch.manual_seed(7)
    (note,) = notes(False)
    assert "q.k times 0.25, usual is 1/sqrt(d_k) = 0.354 for d_k = 8 [all layers]" in note
    (note,) = notes(True)
    assert "the factor of q.k was not measured" in note


@pytest.mark.parametrize(("slope", "named"), [(0.1, False), (3.0, True)])
def test_logits_that_fall_with_the_distance_are_no_key_s_alone(slope, named):
    """Their deviation is large either way, over 200 tokens; a weight is large where the slope is."""
    module = Decoder(32, 3, attends=True)
    for layer in module.layers:
        layer.attention.forward = partial(slopes, layer.attention, slope)
    words = torch.randint(128, (1, 200))
    raised = exactly(module, words, next_word(words))[0]
    assert [alarm.startswith("attention: layers: attention logits have standard deviation") for alarm in raised] == [
        True
    ] * named


def slopes(attention, slope, x):
    q, k, v = (one(x) for one in (attention.q, attention.k, attention.v))
    at = torch.arange(x.shape[1])
    logits = q @ k.mT * x.shape[-1] ** -0.5 - slope * (at[:, None] - at).abs()
    later = torch.ones(logits.shape[-2:]).triu(1).bool()
    return attention.o(logits.masked_fill(later, -torch.inf).softmax(-1) @ v)


def test_smaller_logits_of_the_first_layer_are_a_note_and_of_another_an_alarm():
    for number, scale in ((0, 1.0), (2, 1.0), (2, 0.02)):
        module, words, loss = made("decoder", depth=5)
        for k, layer in enumerate(module.layers):
            layer.attention.q.weight.data.mul_(scale * (0.05 if k == number else 1.0))
        alarms, notes, _ = exactly(module, words, loss)
        said = [line for line in [*alarms, *notes] if "of the other layers'" in line]
        assert [line in alarms for line in said] == [bool(number)] * (scale == 1), "logits near 0 change no weight"


def test_a_sum_near_1_has_its_digits():
    module, words, loss = planted("decoder", "softmax over queries", 2, 16, 3)
    for layer in module.layers:
        layer.attention.causal = False
        layer.attention.q.weight.data.mul_(0.1)
    (what,) = [alarm for alarm in exactly(module, words, loss)[0] if alarm.startswith("attention")]
    (total,) = re.findall(r"add up to ([0-9.]+) over its keys instead of 1", what)
    assert abs(float(total) - 1) > 0.02
