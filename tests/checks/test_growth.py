"""The growth of a module's activations and gradients over its layers: alarms, and a given network."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import gradbounds as gb
from tests.helpers.single_modules import made


def test_a_stack_must_fit():
    module, words, loss = made("decoder", width=32, depth=4)
    stack = gb.Stack(placement="pre", width=32, depth=4, tokens=16, vocab=128)
    for given, message in (
        (replace(stack, depth=5), "stack must have the depth of a list of layers, .4., got depth 5"),
        (lambda width, depth: stack, "stack must be a Stack for one module"),
    ):
        with pytest.raises(ValueError, match=message):
            gb.probe(module, words, loss=loss, stack=given)


@pytest.mark.parametrize(("factor", "said"), [
    (2.2, []), (2.4, ["grows 79.6 times from the first to the last layer (limit: 60 times)"]),
    (1 / 2.4, ["falls 79.6 times from the first to the last layer (limit: 60 times)"]),
])  # fmt: skip
def test_a_stream_that_grows_beyond_what_its_layers_may_add_is_an_alarm(factor, said):
    """Six layers multiply the energy 52 and 80 times; 60 is ten times the number of layers."""
    linears = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, bias=False)) for _ in range(6)))
    for (linear,) in linears:
        nn.init.orthogonal_(linear.weight, gain=factor**0.5)
    report = gb.probe(linears, torch.randn(64, 64), loss=lambda y: y.square().sum())
    whole = [f"mean squared activation of the residual stream {what}" for what in said]
    assert [alarm.what for alarm in report.alarms if alarm.kind == "growth"] == whole


@pytest.mark.parametrize(("factor", "named"), [(2.4, False), (2.8, True)])
def test_a_gradient_that_grows_beyond_that_is_an_alarm(factor, named):
    """Behind norms; its norm grows 9 and 13 times, where 5 sqrt(6) is 12.2."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64, bias=False)
            nn.init.orthogonal_(self.linear.weight)

        def forward(self, x):
            y = self.linear(x)
            return y.detach() + factor**0.5 * (y - y.detach())

    layers = nn.Sequential(*(Scaled() for _ in range(6)))
    alarms = gb.probe(layers, torch.randn(64, 64), loss=lambda y: y.square().sum()).alarms
    assert [alarm.kind for alarm in alarms] == ["growth"] * named
