"""Verdicts on probed modules: planted faults are named by layer, healthy modules raise no alarm; exponents."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

from checks.models import health
from checks.models.alarm import Alarm, alarms_by_cause
from checks.models.health import alarms
from checks.models.judge import judged_module
from checks.models.layer_tables import against_theory, probe_exponents
from gradbounds import probe as judged
from simulate import probe
from simulate.modules.catalogue import BUILTINS
from tests.helpers.probed_modules import FAULTS, planted

KINDS = {
    "ten times the initialization": "weight", "not a number": "non-finite", "no norm": "structure",
    "detached branch": "no gradient", "no residual": "residual",
}  # fmt: skip


@pytest.mark.parametrize(("name", "layer"), [("encoder-post", 4), ("encoder-pre", 1)])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_named_by_layer(name, layer, fault):
    """Single modules of four layers, a fault in the first or the last; test_one_report has one between."""
    found = alarms(probe(planted(name, fault, layer), widths=[32], depths=[4], seeds=1, seed=layer).frame)
    assert (layer, KINDS[fault]) in [(alarm.layer, alarm.kind) for alarm in found]


@pytest.mark.parametrize("name", ["encoder-post", "transformer-pre"])
def test_healthy_modules_raise_no_alarm(name):
    """Each of two seeds by itself."""
    for _, one in probe(BUILTINS[name].factory, widths=[32], depths=[6], seeds=2).frame.groupby("seed"):
        assert alarms(one) == []


@pytest.mark.parametrize("factor", [0.0, 10.0])
def test_a_layer_that_differs_is_the_one_alarm_where_none_holds_its_input(factor):
    """Behind it, layers without residual connections are as they were: that they undo it is no fault of theirs."""
    torch.manual_seed(4)
    layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.SiLU()) for _ in range(5))
    layers[2][1].weight.data.mul_(factor)
    (alarm,) = judged_module(nn.Sequential(*layers), torch.randn(64, 32), lambda y: y.square().sum()).alarms
    assert alarm.layer == 3
    assert "the mean squared activation of its output is " in str(alarm)


class _Passes(nn.Module):
    """Linear, and its output in an object that no one has heard of, or frozen."""

    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(8, 8), kind
        if kind == "frozen":
            self.requires_grad_(False)

    def forward(self, x):
        x = x.y if isinstance(x, SimpleNamespace) else x
        y = torch.zeros_like(x) if self.kind == "zeros" else self.linear(x)
        return SimpleNamespace(y=y) if self.kind == "no tensor" else y


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["no tensor", "frozen", "zeros"])
def test_layers_with_nothing_to_judge_raise_no_alarm_of_numbers(kind):
    """No output tensor, no parameter that learns, an energy of zero: logarithms and largest values of nothing."""

    def factory(width, depth):
        layers = nn.ModuleList(_Passes(kind) for _ in range(depth))

        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers, self.first, self.last = layers, nn.Linear(8, 8), nn.Linear(8, 8)

            def forward(self, x):
                x = self.first(x)
                for layer in self.layers:
                    x = layer(x)
                return self.last(x.y if isinstance(x, SimpleNamespace) else x)

        return Whole(), lambda seed: (torch.randn(2, 3, 8), lambda y: y.square().mean())

    found = {alarm.kind for alarm in alarms(probe(factory, widths=[8], depths=[4], seeds=2).frame)}
    assert found <= {"no gradient"}


@pytest.mark.parametrize("purpose", [True, False])
def test_a_layer_that_is_frozen_is_noted_and_one_that_learns_nothing_is_an_alarm(purpose):
    """A layer that is frozen on purpose, and the same one whose gradient is cut off; alarms stand before notes."""

    def factory(width, depth):
        module, batch = BUILTINS["encoder-pre"].factory(width, depth)
        layer = module.body.layers[2]
        if purpose:
            layer.requires_grad_(False)
        else:
            layer.linear1.forward = lambda x: nn.functional.linear(
                x, layer.linear1.weight.detach(), layer.linear1.bias.detach()
            )
        return module, batch

    report = judged(factory, widths=[16], depths=[6], seeds=2)
    lines = report.lines()
    frozen = [line for line in lines if line.startswith("note: frozen:")]
    if purpose:
        assert report.alarms == []
        assert any("linear1.weight of layer 3 of body.layers" in note for note in report.notes)
        assert "raises no alarm: every layer agrees with its nearest layers." in lines[0]
        (folded,) = (k for k, line in enumerate(lines) if line.startswith("... and "))
        assert lines[folded] == f"... and {len(report.notes) - 4} more notes (see `notes`)", "notes are folded"
        assert lines[folded - 4 : folded] == [f"note: {note}" for note in report.notes[:4]]
        assert frozen
    else:
        assert {(alarm.kind, alarm.layer) for alarm in report.alarms} == {("no gradient", 3)}
        assert [k for k, line in enumerate(lines) if line.startswith("ALARM")] == [1]
        assert any(line.startswith("note: unused: linear1") for line in lines)


def test_what_is_said_of_one_layer_is_one_alarm():
    """A layer without its residual connection changes the energy too; what is compared stays by itself."""
    size = ((32, 6),)
    energy, residual = Alarm("h", 3, "energy", "falls", size), Alarm("h", 3, "residual", "holds none", size)
    theory = [Alarm("h", 0, "theory", what, size) for what in ("W1 is large", "W2 is small")]
    other = Alarm("h", 3, "reference", "differs", size)
    whole = Alarm("", 0, "leak", "sees its label", size)
    assert alarms_by_cause([energy, residual, other, whole]) == [
        whole, replace(residual, what="holds none; also energy: falls"), other,
    ]  # fmt: skip
    assert alarms_by_cause([energy, *theory]) == [
        replace(theory[0], what="W1 is large; also energy of layer 3: falls"), theory[1],
    ]  # fmt: skip


def frame_of(values):
    rows = [
        (32, 6, 0, "h", layer, "up" if what in ("weight", "gradient") else "", what, float(value))
        for what, of in values.items() for layer, value in enumerate(of, 1) if value is not None
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["width", "depth", "seed", "part", "layer", "parameter", "quantity", "value"])


@pytest.mark.parametrize(("energies", "coefficients", "apart"), [
    ([3.2, 4.3, 5.4, 1.9, 2.9], [1] * 5, [4]), ([3.2, 4.3, 5.4, 1.9, 2.9], [1, 1, 1, None, 1], []),
    (np.exp([0.0, -1.06, -1.40, -0.78, 0.16, 1.65]), [1] * 6, []),
    (np.exp([0.0, -1.06, -0.12, 0.50, 1.20, 2.00]), [1] * 6, [2]),
])  # fmt: skip
def test_a_layer_with_another_shape_or_in_a_trend_is_not_apart(energies, coefficients, apart):
    """A stream that settles has steps in order, the first 1/6 of the median; in another order the first is apart."""
    same = {
        name: [size] * len(energies) for name, size in (("weight", 1), ("gradient", 1), ("coefficient_error", 0.01))
    }
    found = alarms(frame_of(same | {"hidden_energy": energies, "stream_coefficient": coefficients}))
    assert [alarm.layer for alarm in found] == apart


@pytest.mark.parametrize(("energies", "apart"), [([0.7, 2.6, 1.2, 2.9], []), ([0.7, 2.6, 200.0, 210.0], [3])])
def test_two_layers_of_a_kind_with_equal_energies_are_not_apart(energies, apart):
    """Layers take turns, and the first of a kind has no step before it."""
    values = {"weight": [1] * 4, "gradient": [1] * 4, "coefficient_error": [0.01] * 4, "stream_coefficient": [1] * 4}
    frame = frame_of(values | {"hidden_energy": energies})
    frame.loc[(frame["quantity"] == "weight") & frame["layer"].isin([1, 3]), "parameter"] = "gate"
    assert [alarm.layer for alarm in alarms(frame) if alarm.kind == "energy"][:1] == apart


@pytest.mark.parametrize(("branches", "factors", "apart"), [
    ([0.06, 1, 1, 1, 1, 1], [0.5] * 6, []), ([0.06, 1, 1, 10, 1, 1], [0.5] * 6, [4]),
    ([1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 1, 1], [4]), ([1, 1, 1, 1, 1, 1], [0.5, 0.5, 0.5, 2, 0.5, 0.5], [4]),
    ([1, 1, 1, 1, 1.5, 1.5], [0.25, 0.25, 0.25, 1.6, 0.25, 0.25], [4]),
])  # fmt: skip
def test_factors_on_the_stream_leave_the_branches_comparable(branches, factors, apart):
    """With factors of 1/2, equal branches multiply a small stream more; a larger branch or factor is apart."""
    energies, kept = [0.01], [0.0]
    for branch, factor in zip(branches, factors, strict=True):
        kept.append(factor**2 * energies[-1])
        energies.append(kept[-1] + branch)
    responses = np.array(kept[1:]) / energies[1:]
    values = {"hidden_energy": energies[1:], "scale_response": responses, "stream_coefficient": factors}
    found = alarms(frame_of({"weight": [1] * 6, "gradient": [1] * 6, "coefficient_error": [0.01] * 6, **values}))
    assert [alarm.layer for alarm in found if alarm.kind == "energy"][:1] == apart


@pytest.mark.parametrize("learns", [False, True])
def test_a_last_layer_that_learns_is_used_by_another_output(learns):
    of = {"hidden_energy": [1.0] * 4, "weight": [1] * 4, "gradient": [1, 1, 1, learns], "gradient_sq": [1, 1, 1, 0]}
    assert any(alarm.kind == "detached" for alarm in alarms(frame_of(of))) != learns


@pytest.mark.parametrize(("heavy", "adds"), [(False, 0.3), (True, 0.3), (False, 0.06)])
def test_what_follows_from_a_missing_residual_connection_is_no_other_alarm(heavy, adds):
    """Layers before it are not held against the stream behind it; one behind with a weight of its own is named still.

    Layer 4 rises 16 times, and the median of 1/55, 1.1, 1.22 and 1.15 is 1.13. Where it adds as much as the others, its
    factor is large because the stream is small, which is no fault.
    """
    of = {
        "hidden_energy": [1.0, 1.1, 0.02, adds + 0.02, adds + 0.09, adds + 0.15],
        "stream_coefficient": [1, 1, 0, 1, 1, 1],
        "coefficient_error": [0.01] * 6, "weight": [1, 1, 1, 9 if heavy else 1, 1, 1], "gradient": [1.0] * 6,
    }  # fmt: skip
    raised = alarms_by_cause(alarms(frame_of(of)))
    assert [(alarm.kind, alarm.layer) for alarm in raised] == [("weight", 4)] * heavy + [("residual", 3)]
    after = "layer 4 after it multiplies the mean squared activation by" in raised[-1].what
    assert after == (adds > 0.1 and not heavy)


def synthetic(exponent, *, rising, spread=0.05, depths=(4, 8, 16), seeds=6, seed=0, first=1):
    """Layers from the first, or the last alone, whose gradient norms go like a power of the depth."""
    generator, rows = np.random.default_rng(seed), []
    drawn = np.random.default_rng(seed + 1)
    for depth in depths:
        for number in range(seeds):
            for layer in range(first or depth, depth + 1):
                noise = np.exp(spread * generator.standard_normal())
                rows.append((64, depth, number, "layers", layer, "w", "gradient", depth**exponent * noise))
                rows.append(
                    (
                        64,
                        depth,
                        number,
                        "layers",
                        layer,
                        "",
                        "hidden_energy",
                        (1.0 + rising * layer) * np.exp(0.01 * (rising > 0) * drawn.standard_normal()),
                    )
                )
    return pd.DataFrame(rows, columns=["width", "depth", "seed", "part", "layer", "parameter", "quantity", "value"])


def test_exploding_and_vanishing_layers_are_named():
    """Every layer is like its neighbours, and all together are not healthy."""
    frame = synthetic(0.0, rising=0.0, depths=(12,))
    for quantity, factor, kind, layers in (
        ("hidden_energy", 10.0, "exploding", range(8, 13)), ("gradient", 4.0, "vanishing", range(1, 8)),
    ):  # fmt: skip
        chosen = frame["quantity"] == quantity
        found = alarms(frame.assign(value=np.where(chosen, factor ** frame["layer"], frame["value"])))
        assert {alarm.kind for alarm in found} == {kind}
        assert [alarm.layer for alarm in found] == list(layers)
    assert alarms(frame) == []


@pytest.mark.parametrize("name", ["encoder-post", "encoder-pre"])
def test_encoders_of_torch_are_predicted(name):
    """Random queries and keys, W^O, biases, epsilon and all: within 3% or 4.5 standard errors in every layer."""
    table = against_theory(
        probe(BUILTINS[name].factory, widths=[256], depths=[2], seeds=24).frame, BUILTINS[name].stack
    )
    assert len(table) == 2 * 5
    off = (table["ratio"] - 1).abs() / np.maximum(0.03, 4.5 * table["noise"])
    assert (off <= 1).all(), table[off > 1]


def test_two_seeds_widen_an_interval_by_student_s_t():
    """Three depths of two seeds have 3 degrees of freedom: an interval 1.6 times as wide as with many."""
    frame = synthetic(-0.3, rising=0.0, spread=0.0, seeds=2)
    frame["value"] *= np.where(frame["seed"] == 0, 0.9, 1.1)
    row = probe_exponents(frame).query("against == 'depth' and parameter == 'w'").iloc[0]
    # Squares of 0.81 and 1.21: the relative variance of each norm's square, over 4 for the norm's and 2 for the mean.
    variance = np.var([0.81, 1.21], ddof=1) / np.mean([0.81, 1.21]) ** 2 / 4 / 2
    logs = np.log([4, 8, 16])
    sem = (variance / np.sum((logs - logs.mean()) ** 2)) ** 0.5
    assert row.exponent == pytest.approx(-0.3)
    assert (row.high - row.low) / 2 == pytest.approx(stats.t.ppf(0.975, 3) * sem)


def test_the_layer_that_breaks_a_gradient_is_the_last_that_has_none():
    """Backward it reaches the layers below; forward an output that is not finite is the first layer's."""
    frame = synthetic(0.0, rising=0.0, depths=(6,))
    for quantity, layers, named, what in (
        ("gradient", (1, 2, 3), 3, "its gradient is not finite, although the gradients of all later layers are"),
        ("hidden_energy", (4, 5, 6), 4, "its output is the first layer output that is not finite"),
    ):
        broken = (frame["quantity"] == quantity) & frame["layer"].isin(layers)
        (alarm,) = alarms(frame.assign(value=frame["value"].where(~broken, np.nan)))
        assert (alarm.layer, alarm.kind, alarm.what) == (named, "non-finite", what)


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_lone_matrix_with_equal_rows_is_not_a_draw(is_drawn):
    """Decay rates of a state-space layer are as large by design."""
    names = [(layer, name) for layer in range(1, 5) for name in ("w1", "w2")] + [(2, "decay")]
    sizes = {"weight": 1.0, "shortest": 8.0, "entries": 64.0}
    rows = [(layer, name, what, value) for layer, name in names for what, value in sizes.items()]
    rows = [(*row[:3], 50.0) if row[1:3] == ("decay", "weight") else row for row in rows]
    rows += [] if is_drawn else [(2, "decay", "one_row", 1.0)]
    found = health._lone_matrices(pd.DataFrame(rows, columns=["layer", "parameter", "quantity", "value"]))
    assert [finding.layer for finding in found] == [2] * is_drawn
