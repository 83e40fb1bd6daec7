"""The first step from any module: beside explicit matrices and steps of torch's optimizers."""

import numpy as np
import pytest
import torch
from torch import nn

from simulate.curvature.module_step import ParameterLine, module_direction, one_step
from simulate.modules.catalogue import BUILTINS
from simulate.modules.factories import Made, build, seeded
from tests.helpers.grid_of_steps import doubled, losses_of_steps
from tests.helpers.model_families import nano_gpt


class Small(nn.Module):
    """Two tied layers in a list and a head; a dict goes in and comes out."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))
        self.layers[1][0].bias = self.layers[0][0].bias
        self.head = nn.Linear(3, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, scale):
        for layer in self.layers:
            x = x + layer(x)
        return {"logits": self.head(self.dropout(x)) * scale, "name": "small"}


def small(loss=None):
    """One such module in double precision, of a loss that draws something."""
    labels = torch.tensor([0, 3, 1, 1, 2])
    with seeded(3):
        module = Small().double()
        inputs = {"x": torch.randn(5, 3, dtype=torch.float64), "scale": 1.5}
    weighted = lambda y: (nn.functional.cross_entropy(y["logits"], labels, reduction="none") * torch.rand(5)).sum()  # noqa: E731
    return Made("small", module, inputs, loss or weighted)


def test_orders_are_those_of_explicit_matrices():
    """g·u, u'Gu and u'Hu by group from Jacobian and Hessians as torch.autograd makes them."""
    one = small()
    rows = {row["group"]: row for row in one_step(one, ["sgd"], 7, depth=2)}
    assert list(rows) == ["all", "layers.0", "layers.1", "head"]
    path = ParameterLine(one, 7)
    names = list(path.gradient)
    assert len(names) == 5, "the tied bias counts once"
    sizes = [path.gradient[name].numel() for name in names]
    flat = torch.cat([path.held[name].flatten() for name in names])
    g = torch.cat([path.gradient[name].flatten() for name in names])

    def output(theta):
        parts = zip(names, theta.split(sizes), strict=True)
        return path.output({name: part.view(path.held[name].shape) for name, part in parts})

    jacobian = torch.autograd.functional.jacobian(lambda theta: output(theta)["logits"].flatten(), flat)
    z = output(flat)["logits"].detach()
    bent = torch.autograd.functional.hessian(lambda y: path.loss_of({"logits": y.view(z.shape)}), z.flatten())
    gauss_newton = jacobian.T @ bent @ jacobian
    hessian = torch.autograd.functional.hessian(lambda theta: path.loss_of(output(theta)), flat)
    assert rows["all"]["hessian"] == pytest.approx(float(g @ hessian @ g))
    assert rows["all"]["loss"] == pytest.approx(path.at({}, 1.0))
    total = float(g @ gauss_newton @ g)
    assert rows["all"]["curvature"] == pytest.approx(total)
    for group in rows:
        inside = [float(group == "all" or name.startswith(f"{group}.")) for name in names]
        own = g * torch.cat([torch.full((n,), one, dtype=g.dtype) for n, one in zip(sizes, inside, strict=True)])
        assert rows[group]["gain"] == pytest.approx(float(own @ g))
        assert rows[group]["curvature"] == pytest.approx(float(own @ gauss_newton @ own))
        assert rows[group]["share"] == pytest.approx(float(own @ gauss_newton @ g) / total)
    assert all(p.grad is None for p in one.module.parameters())


def test_a_loss_that_is_linear_in_the_output_has_no_critical_rate():
    (whole, *_) = one_step(small(lambda y: y["logits"].sum()), ["sgd"], 7, depth=2)
    assert np.isnan(whole["curvature"]) and whole["gain"] > 0 and np.isfinite(whole["hessian"])


@pytest.mark.parametrize(("name", "optimizer"), [("encoder-post", "sgd"), ("encoder-pre", "muon"), ("GPT", "adam")])
def test_the_break_even_rate_is_where_a_fine_grid_of_steps_crosses(name, optimizer):
    """Within 5%, the steps taken by torch's own classes on the module."""
    factory = doubled(nano_gpt if name == "GPT" else BUILTINS[name].factory)
    with seeded(1):
        one = build(factory, 16, 2, 1, "cpu")
    one.module.eval()
    row = one_step(one, [optimizer], 1, depth=2)[0]
    grid = row["break_even_rate"] * np.geomspace(0.7, 1.1, 20)
    above = np.array(losses_of_steps(one, optimizer, grid)) >= row["loss"]
    assert above.any() and row["break_even_rate"] == pytest.approx(grid[above.argmax()], rel=0.05)
    assert row["passes"] <= 20


def test_the_polar_step_of_a_module_is_an_svd_of_each_matrix():
    """Torch's layers hold (d_out, d_in); embeddings and vectors stay."""
    one = ParameterLine(small(), 7)
    step = module_direction(one.one.module, one.gradient, "polar")
    assert step and set(step) == set(module_direction(one.one.module, one.gradient, "muon"))
    for name, found in step.items():
        left, _, right = torch.linalg.svd(one.gradient[name].double(), full_matrices=False)
        rows, columns = found.shape
        torch.testing.assert_close(found.double(), max(1, rows / columns) ** 0.5 * left @ right, rtol=1e-3, atol=1e-4)
