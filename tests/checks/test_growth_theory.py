"""The predicted growth over the layers of one module, compared with the module's own growth."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import gradbounds as gb
from checks.models import growth_theory as rules, judge
from checks.models.whole_model import ends_of
from gradbounds.cli import main
from simulate.modules.one_module import one_module
from tests.helpers.single_modules import HEALTHY, made

SEEDS = 6
# Of a test of two means by Student's t; theory is exact at infinite width, and may be off by this part here.
RATE, WIDE = 1e-4, 0.03


def growths(single):
    """By seed: energy and gradient of theory, and the module's own."""
    rows = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        measured = one_module(*single())
        (theory,), ((grown, _),) = judge._growth(measured, None), ends_of(measured.frame).values()
        rows.append((theory.energy, grown, theory.gradient, theory.measured))
    return np.log(np.array(rows)), theory


def same(predicted, measured):
    """Whether logarithms have the same mean, up to 3%, but for chance of `RATE`."""
    differences = measured - predicted
    half = stats.t.isf(RATE / 2, len(differences) - 1) * differences.std(ddof=1) / len(differences) ** 0.5
    return abs(differences.mean()) < half + WIDE


@pytest.mark.parametrize("name", ["torch.nn, Pre-LN", "torch.nn, Post-LN"])
def test_layers_of_torch_grow_as_theory_has_it(name):
    """The network is read from the layers, with the energy of their inputs. False alarms: 2 in 10,000 a test."""
    logs, theory = growths(lambda: HEALTHY[name](128, 3))
    assert theory.of == "this network (read from its layers)"
    assert theory.matrix == "linear2.weight"
    assert same(*logs.T[:2])
    assert same(*logs.T[2:])
    # Of matrices sqrt(2L) smaller theory is another one.
    assert not same(logs[:, 0] + 0.3, logs[:, 1])


def test_theory_has_the_inputs_of_the_layers():
    """Of inputs three times as large branches are a ninth of the stream."""
    module, x, loss = made("torch.nn, Pre-LN", width=128, depth=8)
    growth = {}
    for scale in (1.0, 3.0):
        report = gb.probe(module, scale * x, loss=loss)
        growth[scale] = report.growth[0].energy - 1
        energies = report.layers["energy"].to_numpy()
        assert growth[scale] == pytest.approx(energies[-1] / energies[0] - 1, rel=0.3)
    assert growth[3.0] < 0.2 * growth[1.0]


def test_copies_of_a_layer_grow_beyond_theory():
    """`torch.nn.TransformerEncoder` copies its layer, which theory takes for draws of their own."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
    module = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    report = gb.probe(module, torch.randn(4, 16, 64), loss=lambda y: (y * y.detach().roll(1, 0)).mean())
    energies = report.layers["energy"].to_numpy()
    assert energies[-1] / energies[0] > 2 * report.growth[0].energy


def test_a_stack_may_be_given_and_must_fit():
    module, words, loss = made("decoder", width=32, depth=4)
    stack = gb.Stack(placement="pre", width=32, depth=4, tokens=16, vocab=128)
    (theory,) = gb.probe(module, words, loss=loss, stack=stack).growth
    assert theory.of == "this network (the given Stack)"
    predicted = gb.predict(stack)
    assert theory.energy == pytest.approx(predicted["hidden_energy"][-1] / predicted["hidden_energy"][0])
    squares = predicted["grad_sq_W2"]
    assert theory.gradient == pytest.approx((squares[0] / squares[-1]) ** 0.5)
    assert theory.matrix == "down.weight"
    assert [layer.down.weight.grad for layer in module.layers] == [None] * 4
    loss(module(words)).backward()
    first, last = (float(module.layers[k].down.weight.grad.norm()) for k in (0, -1))
    assert theory.measured == pytest.approx(first / last, rel=1e-4)
    for given, message in (
        (replace(stack, depth=5), "stack must have the depth of a list of layers, .4., got depth 5"),
        (lambda width, depth: stack, "stack must be a Stack for one module"),
    ):
        with pytest.raises(ValueError, match=message):
            gb.probe(module, words, loss=loss, stack=given)


@dataclass
class Config:
    """The arguments of nanoGPT's `GPTConfig`."""

    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 64
    vocab_size: int = 128
    block_size: int = 16
    dropout: float = 0.0
    bias: bool = True


@pytest.mark.parametrize("kind", ["object", "dict", "another depth", "unread"])
def test_a_configuration_of_the_module_is_read(kind):
    module, words, loss = made("nanoGPT-like", width=64, depth=4)
    module.config = {
        "object": Config(), "dict": vars(Config()), "another depth": Config(n_layer=3), "unread": {"n_layer": 4},
    }[kind]  # fmt: skip
    theories = gb.probe(module, words, loss=loss).growth
    assert len(theories) == (kind in ("object", "dict"))
    for theory in theories:
        assert theory.of.startswith("this network (read from its configuration)")
        stack, _ = gb.stack_from_config(vars(Config()), tokens=16)
        assert theory.energy == pytest.approx(1.0, abs=0.5)
        assert theory.matrix == "down.weight"
        assert stack.depth == 4


def test_a_configuration_of_two_lists_is_of_neither():
    """As of an encoder and a decoder of one depth, of which it describes one."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (made("nanoGPT-like", width=64, depth=4)[0] for _ in range(2))
            self.config = vars(Config())

        def forward(self, words):
            return self.first(words) + self.second(words)

    _, words, loss = made("nanoGPT-like", width=64, depth=4)
    assert not gb.probe(Two(), words, loss=loss).growth


def test_what_theory_does_not_predict():
    module, words, _ = made("nanoGPT-like", width=64, depth=4)
    module.config = vars(Config())
    last = partial(torch.nn.functional.cross_entropy, target=torch.arange(len(words)))
    (theory,) = gb.probe(module, words, loss=lambda z: last(z[:, -1])).growth
    assert np.isnan(theory.gradient)
    assert "gradient" not in theory.line()
    assert not gb.probe(module, words, loss=lambda z: last(z[:, -1]), trained=True).growth
    plain = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))
    assert not gb.probe(plain, torch.randn(64, 16), loss=lambda y: y.square().sum()).growth


def test_many_tokens_are_predicted_at_as_many_as_are_cheap(monkeypatch):
    asked = []

    def priced(stack, **named):
        asked.append(stack.tokens)
        if stack.tokens > 4:
            raise ValueError("too long")
        return plain(stack, **named)

    plain = rules.predict
    monkeypatch.setattr(rules, "predict", priced)
    module, inputs, loss = made("torch.nn, Pre-LN")
    (theory,) = gb.probe(module, inputs, loss=loss).growth
    assert theory.energy > 1
    assert theory.of == "this network at 4 tokens (read from its layers)"
    assert asked == [16, 8, 4]
    monkeypatch.setattr(rules, "_SECONDS", 0.0)
    monkeypatch.setattr(rules, "predict", plain)
    assert not gb.probe(module, inputs, loss=loss).growth


def test_a_factory_of_one_module_has_its_stack_beside_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "with_stack.py").write_text("""
import gradbounds as gb
from tests.helpers.single_modules import made


def make():
    return made("decoder", width=16, depth=3)


make.stack = gb.Stack(placement="pre", width=16, depth=3, tokens=16, vocab=128)
""")
    monkeypatch.chdir(tmp_path)
    assert main(["probe", "with_stack.py:make"]) == 0
    assert "Theory for this network (the given Stack): mean squared activation grows " in capsys.readouterr().out


@pytest.mark.parametrize(("factor", "said"), [
    (2.2, []), (2.4, ["grows 79.6 times from the first to the last layer (limit: 60 times)"]),
    (1 / 2.4, ["falls 79.6 times from the first to the last layer (limit: 60 times)"]),
])  # fmt: skip
def test_a_stream_that_grows_beyond_what_its_layers_may_add_is_an_alarm(factor, said):
    """Of 6 layers that multiply the energy, 52 and 80 times, where 60 are ten times as many as layers."""
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
