"""What reports on one module say of its norms: an epsilon that is felt, and batch norms in eval mode."""

import re

import pytest
import torch
from torch import nn

from checks.models.judge import judged_module
from simulate.modules.one_module import one_module


@pytest.mark.parametrize(("epsilon", "kind"), [(1e-5, ""), (0.3, "note"), (1.2, "alarm"), (4.0, "alarm")])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_an_epsilon_is_held_against_what_it_divides(norm, epsilon, kind):
    """Orthogonal matrices leave it at 1, the inputs' variance."""
    torch.manual_seed(3)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), norm(32)) for _ in range(3)))
    for layer in layers:
        for linear in layer[:2]:
            nn.init.orthogonal_(linear.weight)
            nn.init.zeros_(linear.bias)
    layers[1][2].eps = epsilon
    report = judged_module(nn.Sequential(layers, nn.Linear(32, 4)), torch.randn(64, 32), lambda y: y.square().mean())
    said = [f"alarm {alarm.layer} {alarm}" for alarm in report.alarms if alarm.kind == "norm"]
    said += [f"note {note}" for note in report.notes if "epsilon" in note]
    if kind:
        (line,) = said
        assert "layer 2" in line
        numbers = [*map(float, re.search(r"of 2 divides .* by ([\d.]+), .* square ([\d.]+)", line).groups())]
        assert (line.partition(" ")[0], numbers) == (kind, pytest.approx([1 + epsilon, 1.0], rel=0.1))
    else:
        assert not said


def test_an_epsilon_felt_by_most_rows_is_said_by_what_it_does_to_the_output():
    """Three rows of four are 0 after the norm; the inputs' own mean square, 1/4, is far above the epsilon."""
    inputs = torch.randn(64, 32) * (torch.arange(64) % 4 == 0)[:, None] + 1e-7 * torch.randn(64, 32)
    (alarm,) = judged_module(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 4)), inputs, torch.mean).alarms
    assert "divides its output's mean square by 4, as if all inputs had the mean square 3.3e-06" in alarm.what


def test_batch_norms_in_eval_mode_are_a_note():
    """And what is not registered is left without a gradient, too."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    module.free = torch.ones(2, requires_grad=True)
    notes = one_module(module, torch.randn(3, 2), lambda y: (module.free * y).square().mean()).notes
    assert "eval mode" in "\n".join(notes)
    assert module.free.grad is None


class _TanhNorm(nn.Module):
    """A function of single entries that replaces a norm, such as DynamicTanh."""

    def forward(self, x):
        return torch.tanh(x)


class _ResponseNorm(nn.Module):
    """A branch that is off at the start, as ConvNeXt v2's global response norm."""

    def __init__(self, start):
        super().__init__()
        self.weight = nn.Parameter(torch.full((16,), start))

    def forward(self, x):
        return x + self.weight * x * x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize(("norm", "alarms"), [(_TanhNorm(), 0), (_ResponseNorm(0.0), 0), (_ResponseNorm(1.0), 1)])
def test_functions_of_entries_and_branches_that_are_off_are_not_judged_as_norms(norm, alarms):
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(16, 16), norm, nn.Linear(16, 4))
    report = judged_module(module, torch.randn(64, 16), lambda y: y.square().mean())
    assert sum(alarm.kind == "norm" for alarm in report.alarms) == alarms
