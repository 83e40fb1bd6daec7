"""Alarms that an installed class raises by itself: the same list, kind and names, in layers of new modules, too."""

import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from torch import nn

from checks.models.alarm import Alarm
from checks.models.health import layer_kinds
from checks.models.judge import drawn_alike

LAYERS = 4


class Installed(nn.Linear):
    def __init__(self, config):
        super().__init__(2, 2)
        self.config = config


class Config(SimpleNamespace):
    def __init__(self, init_range=0.02):
        super().__init__(init_range=init_range)


def excused(what, again, monkeypatch, *, layer=1, config=None):
    monkeypatch.setattr(sys.modules[__name__], "__file__", "/site-packages/installed.py")
    rounds, alarm = iter(again), Alarm("h", layer, "norm", what)
    module = Installed(config or Config())
    return drawn_alike(module, [alarm], {"h": LAYERS}, lambda *_: [Alarm("h", *next(rounds))], 0) == [alarm]


EPSILON = "the epsilon of attn.norm divides its output's mean square by 2.4, as if all inputs had the mean square 7e-6"


@pytest.mark.parametrize(
    ("layer", "marked", "again", "is_excused"),
    [
        (1, " [layers 1, 2]", [(1, " [layers 1, 3]"), (2, ""), (2, ""), (2, "")], True),
        (0, " [all layers]", [(1, " [layers 1, 2, 3]"), (1, ""), (1, ""), (1, "")], False),
        (2, "", [(1, "")] * 4, False),
    ],
)
def test_layers_of_several_draws_count_together(layer, marked, again, is_excused, monkeypatch):
    raised = [(number, "norm", EPSILON.replace("7e-6", "8.1e-06 to 9e-06") + more) for number, more in again]
    assert excused(EPSILON + marked, raised, monkeypatch, layer=layer) == is_excused


def test_other_names_and_draws_of_the_user_are_not_excused(monkeypatch):
    same = [(1, "norm", EPSILON)] * 4
    assert excused(EPSILON, same, monkeypatch)
    assert not excused(EPSILON.replace("attn", "mlp"), same, monkeypatch)
    assert not excused(EPSILON, same, monkeypatch, config=Config(1.0))


@pytest.mark.parametrize("own", [False, True])
def test_an_installed_norm_that_is_told_to_scale_alone_is_code(own, monkeypatch):
    what = "bn2 does not normalize: its output grows as input^1, and a norm's output as input^0"
    module, alarm = Installed(None), Alarm("h", 1, "norm", what)
    monkeypatch.setattr(sys.modules[__name__], "__file__", "/site-packages/installed.py")
    if own:
        module.inner = nn.Linear(2, 2)
        module.inner.forward = module.inner.forward
    assert drawn_alike(module, [alarm], {"h": LAYERS}, None, 0) == [alarm] * (not own)


@pytest.mark.parametrize(("gated", "kinds"), [((1, 3), 2), ((1, 2, 3), 1)])
def test_parameters_of_at_most_half_of_the_layers_are_a_kind(gated, kinds):
    rows = [(k, name, "weight") for k in (1, 2, 3, 4) for name in ("up", "gate") if name == "up" or k in gated]
    frame = pd.DataFrame(rows, columns=["layer", "parameter", "quantity"])
    assert len(set(layer_kinds(frame, [1, 2, 3, 4], {}))) == kinds
