"""The first step of an optimizer from one module: what it should move and does not, and that nothing stays of it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import gradbounds as gb
from gradbounds.cli import main
from tests.helpers.single_modules import made

CODE = """
import torch
from tests.helpers.single_modules import made


def make():
    return made("decoder")


def partly(module):
    return torch.optim.SGD([weight for name, weight in module.named_parameters() if "norm" not in name], lr=0.1)
"""


def decoder(depth=2):
    return made("decoder", width=16, depth=depth)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "muon"])
def test_a_step_by_name_raises_no_alarm_and_lowers_the_loss(name):
    module, words, loss = decoder()
    report = gb.probe(module, words, loss=loss, optimizer=name, learning_rate=1e-3)
    assert not report.alarms
    assert report.step.steps == 1
    assert report.step.loss_after < report.step.loss_before == pytest.approx(loss(module(words)).item())
    assert set(report.step.moves["parameter"]) == {name for name, _ in module.named_parameters()}
    assert any(line.startswith(f"First step of {name}: loss of the batch from ") for line in report.lines())


def test_numbers_of_a_step_are_those_of_the_step():
    module, words, loss = decoder()
    twin = copy.deepcopy(module)
    report = gb.probe(module, words, loss=loss, optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.3))
    loss(twin(words)).backward()
    sizes = {name: weight.detach().square().mean().sqrt() for name, weight in twin.named_parameters()}
    changes = {name: 0.3 * weight.grad.square().mean().sqrt() for name, weight in twin.named_parameters()}
    torch.optim.SGD(twin.parameters(), lr=0.3).step()
    for row in report.step.moves.itertuples():
        assert row.moved == pytest.approx(float(changes[row.parameter]), rel=1e-4)
        relative = float(changes[row.parameter] / sizes[row.parameter])
        assert (
            np.isnan(row.relative) if sizes[row.parameter] == 0 else row.relative == pytest.approx(relative, rel=1e-4)
        )
        assert row.matrix == (twin.get_parameter(row.parameter).ndim > 1)
    assert report.step.loss_after == pytest.approx(loss(twin(words)).item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["adam", "momentum", "two"])
def test_module_optimizer_and_schedule_stay_as_they_were(kind):
    """An optimizer that has stepped before, with a state."""
    module, words, loss = decoder()
    weights = list(module.parameters())
    optimizers = {
        "adam": lambda: [torch.optim.AdamW(weights, lr=1e-2)],
        "momentum": lambda: [torch.optim.SGD(weights, lr=1e-2, momentum=0.9)],
        "two": lambda: [torch.optim.Adam(weights[:3], lr=1e-2), torch.optim.SGD(weights[3:], lr=1e-2)],
    }[kind]()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizers[0], max_lr=0.1, total_steps=10)
    loss(module(words)).backward()
    for one in optimizers:
        one.step()
    schedule.step()
    state = copy.deepcopy([one.state_dict() for one in optimizers]), copy.deepcopy(schedule.state_dict())
    before, gradients = copy.deepcopy(module.state_dict()), [weight.grad for weight in weights]
    groups = [group for one in optimizers for group in one.param_groups]
    given = (optimizers[0], schedule) if kind != "two" else (optimizers, schedule)
    report = gb.probe(module, words, loss=loss, optimizer=given)
    assert report.step.loss_after != report.step.loss_before
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert all(weight.grad is gradient for weight, gradient in zip(weights, gradients, strict=True))
    now = [one.state_dict() for one in optimizers], schedule.state_dict()
    torch.testing.assert_close(now[0], state[0], rtol=0, atol=0)
    assert now[1] == state[1]
    assert all(a is b for a, b in zip(groups, (g for one in optimizers for g in one.param_groups), strict=True))


def all_but(module, word, **more):
    return torch.optim.SGD([weight for name, weight in module.named_parameters() if word not in name], lr=0.1, **more)


@pytest.mark.parametrize(("optimizer", "alarm"), [
    (lambda module: all_but(module, "norm"), "norm.*it has a gradient, but the optimizer does not hold it"),
    (lambda module: all_but(module, "nothing", maximize=True), "which raises the loss: maximize is set"),
    (lambda module: torch.optim.SGD(decoder()[0].parameters(), lr=0.1), "not parameters of the module"),
    (lambda module: torch.optim.SGD(module.parameters(), lr=1e38), "after step 1 the loss is (nan|inf)"),
])  # fmt: skip
def test_what_a_step_does_wrong_is_an_alarm(optimizer, alarm):
    module, words, loss = decoder()
    report = gb.probe(module, words, loss=loss, optimizer=optimizer)
    raised = [str(one) for one in report.alarms]
    assert raised
    assert all(one.startswith("optimizer: ") for one in raised)
    with pytest.raises(AssertionError, match=alarm):
        report.assert_healthy()
    assert "is not right" in report.judgement()


def test_weights_too_coarse_for_their_step_stay_where_they_are():
    module, words, loss = decoder()
    report = gb.probe(module.bfloat16(), words, loss=loss, optimizer="adam", learning_rate=1e-6)
    assert any("does not change in step 1 (bfloat16)" in str(alarm) for alarm in report.alarms)


def scheduled(rates, **named):
    def optimizer(module):
        plain = torch.optim.SGD(module.parameters(), lr=1.0, **named)
        return plain, torch.optim.lr_scheduler.LambdaLR(plain, lambda step: rates[min(step, len(rates) - 1)])

    return optimizer


def test_a_first_rate_of_zero_is_a_note_and_the_next_step_is_judged():
    module, words, loss = decoder()
    report = gb.probe(module, words, loss=loss, optimizer=scheduled([0.0, 0.1]))
    assert report.step.steps == 2
    assert "the learning rate of step 1 is 0, as in a schedule with warmup" in report.notes
    assert report.step.loss_after < report.step.loss_before
    assert any(line.startswith("Step 2 of ") for line in report.lines())
    uphill = gb.probe(module, words, loss=loss, optimizer=scheduled([0.0, 0.1], maximize=True))
    assert ["maximize is set" in str(alarm) for alarm in uphill.alarms] == [True]
    none = gb.probe(module, words, loss=loss, optimizer=scheduled([0.0]))
    assert any(line.endswith("the learning rate of the first 3 steps is 0.") for line in none.lines())
    assert not none.alarms
    groups = [{"params": module.words.parameters(), "lr": 0.0}, {"params": module.layers.parameters()}]
    partly = gb.probe(module, words, loss=loss, optimizer=torch.optim.SGD(groups, lr=0.1))
    assert "the learning rate of step 1 is 0 for some weights: words.weight" in partly.notes


def test_decay_of_gains_and_a_loss_that_rises_are_notes():
    module, words, loss = decoder()
    report = gb.probe(module, words, loss=loss, optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=10.0))
    assert any(note.startswith("weight decay applies to gains and biases: ") for note in report.notes)
    assert any(note.startswith("the step raises the loss of its own batch from ") for note in report.notes)


def test_frozen_weights_are_no_fault_of_the_optimizer():
    module, words, loss = decoder()
    module.layers[0].up.weight.requires_grad_(False)
    assert not gb.probe(module, words, loss=loss, optimizer="adam").alarms


def test_trained_modules_have_optimizers_too():
    module, words, loss = decoder()
    report = gb.probe(module, words, loss=loss, trained=True, optimizer=lambda module: all_but(module, "norm"))
    assert [alarm.kind for alarm in report.alarms] == ["optimizer"]


def test_a_loss_that_is_no_number_is_the_one_alarm():
    module, words, loss = decoder()
    nn.init.constant_(module.layers[0].up.weight, float("nan"))
    report = gb.probe(module, words, loss=loss, optimizer="adam")
    assert [alarm.kind for alarm in report.alarms] == ["non-finite"]
    assert not any("step" in line for line in report.lines())


@pytest.mark.parametrize(("given", "message"), [
    ({"learning_rate": 0.1}, "learning_rate requires an optimizer"),
    ({"optimizer": 3}, "optimizer must be a name or a function of a module, or an optimizer, got 3"),
    ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, adamw, muon"),
    ({"optimizer": lambda module, width: None}, "width"),
    ({"optimizer": lambda module: 3}, "must return a torch.optim.Optimizer"),
    ({"optimizer": lambda module: torch.optim.LBFGS(module.parameters())}, "optimizer must not fail"),
])  # fmt: skip
def test_bad_input_is_one_line(given, message):
    module, words, loss = decoder()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match=message):
        gb.probe(module, words, loss=loss, **given)
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "steps_of_one.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    line = ["probe", "steps_of_one.py:make"]
    assert main([*line, "--optimizer", "sgd", "--learning-rate", "0.1", "--strict"]) == 0
    assert "First step of sgd: loss of the batch from 5." in capsys.readouterr().out
    assert main([*line, "--optimizer", "steps_of_one.py:partly", "--strict"]) == 1
    assert "ALARM optimizer: " in capsys.readouterr().out
    assert main([*line, "--learning-rate", "0.1"]) == 2
    assert "--learning-rate requires an optimizer" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_a_step_on_a_gpu_is_that_of_a_cpu(name):
    module, words, loss = decoder(depth=3)
    here = gb.probe(module, words, loss=loss, optimizer=name, learning_rate=1e-2)
    there = gb.probe(module.to("cuda"), words, loss=loss, optimizer=name, learning_rate=1e-2)
    assert there.step.loss_after == pytest.approx(here.step.loss_after, rel=1e-3)
    np.testing.assert_allclose(there.step.moves["moved"], here.step.moves["moved"], rtol=0.01, atol=1e-6)
    assert there.theory[0].energy == pytest.approx(here.theory[0].energy, rel=1e-3)
    assert not there.alarms
