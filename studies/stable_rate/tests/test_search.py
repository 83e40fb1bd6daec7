"""The largest stable rate against one network at a time, and statistics of initialization against whole matrices."""

import numpy as np
import pandas as pd
import pytest
import torch

from simulate.curvature.first_step import first_step_problem
from studies.stable_rate.initial_statistics import gauss_newton_trace, initial_statistics
from studies.stable_rate.predictors import predictor, with_bounds
from studies.stable_rate.search import STABLE, SquaredLoss, largest_stable_rates, networks, outcome, trained_losses
from theory import Stack

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SMALL = {"width": 12, "depth": 2, "tokens": 4, "vocab": 6}
LOSSES = ("cross-entropy", "squared")


def plain_loop(stack, seed, rate, steps, loss, dtype=torch.float64):
    """Torch's own class, one network."""
    problem = first_step_problem(stack, seed=seed, dtype=dtype)
    ((inputs, labels),) = problem.data
    own = SquaredLoss(len(labels)) if loss == "squared" else problem.loss
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=rate)
    losses = []
    for step in range(steps + 1):
        optimizer.zero_grad()
        value = own(problem.model(inputs), labels)
        losses.append(float(value.detach()))
        if step < steps:
            value.backward()
            optimizer.step()
    return np.array(losses)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fields", [{"placement": "pre"}, {"loss_on": "last", "mask": "causal"}])
def test_side_by_side_as_one_by_one(fields, loss):
    """Every network's losses are what torch's SGD makes of it alone at its own rate."""
    stack, rates = Stack(**(SMALL | fields)), np.array([0.003, 0.03, 0.01])
    together = trained_losses(networks(stack, range(3), dtype=torch.float64).some([0, 1, 2]), rates, steps=5, loss=loss)
    for seed, rate in enumerate(rates):
        np.testing.assert_allclose(together[seed], plain_loop(stack, seed, rate, 5, loss), rtol=1e-10)
    assert together[0, -1] < together[0, 0]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_two_ends(loss):
    """A training at the lower end is stable, one at the upper fails in the way that is stated."""
    stack = Stack(**SMALL)
    for seed, one in enumerate(largest_stable_rates(stack, range(2), 0.5, loss=loss, steps=15)):
        assert one.stable < one.rate < one.unstable <= 1.1 * one.stable
        uninformed = np.log(6) if loss == "cross-entropy" else (1 - 1 / 6) / 2
        ends = [
            outcome(plain_loop(stack, seed, rate, 15, loss, torch.float32), uninformed)
            for rate in (one.stable, one.unstable)
        ]
        assert ends[0] in STABLE
        assert ends[1] == one.failure not in STABLE


@pytest.mark.parametrize(
    ("losses", "became"),
    [
        ([3.0, 2.0, 2.5, 1.0], "trained"),
        ([3.0, 2.9, 2.8, 2.75], "descended"),
        ([3.0, 2.5, 2.9, 2.75], "plateau"),
        ([3.0, 2.0, 1.0, 3.5], "diverged"),
        ([3.0, 2.0, np.inf, np.nan], "overflow"),
    ],
)
def test_outcomes(losses, became):
    assert outcome(np.array(losses), np.log(16)) == became


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"start": 0.0}, "start must be"),
        ({"loss": "hinge"}, "loss must be"),
        ({"stack": Stack(**SMALL, dropout=0.1)}, "dropout"),
    ],
)
def test_what_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        largest_stable_rates(**({"stack": Stack(**SMALL), "seeds": [0], "start": 1.0} | asked))


@pytest.mark.parametrize("loss", LOSSES)
def test_statistics_of_a_small_network(loss):
    """From the whole Jacobian and the whole Hessian of a network of 300 numbers; the trace within 4 errors."""
    stack = Stack(width=8, depth=1, tokens=3, vocab=5)
    problem = first_step_problem(stack, seed=3)
    ((inputs, labels),) = problem.data
    own = SquaredLoss(3) if loss == "squared" else problem.loss
    names, held = zip(*problem.model.named_parameters(), strict=True)
    flat = torch.cat([p.detach().flatten() for p in held])

    def logits(theta):
        parts = theta.split([p.numel() for p in held])
        moved = {name: part.view_as(p) for name, part, p in zip(names, parts, held, strict=True)}
        return torch.func.functional_call(problem.model, moved, (inputs,))

    def value(theta):
        return own(logits(theta), labels)

    jacobian = torch.autograd.functional.jacobian(logits, flat)
    z, g = logits(flat), torch.autograd.functional.jacobian(value, flat)
    p = z.softmax(-1)
    second = torch.eye(5).double().expand(3, 5, 5)
    second = second if loss == "squared" else torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    gauss_newton = torch.einsum("ika,ikl,ilb->ab", jacobian, second, jacobian) / 3
    hessian = torch.autograd.functional.hessian(value, flat)
    found = initial_statistics(stack, seed=3, loss=loss, probes=2, dtype=torch.float64)
    assert found.largest_eigenvalue == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-3)
    assert found.critical_rate == pytest.approx(float(2 * g @ g / (g @ gauss_newton @ g)), rel=1e-9)
    assert found.hessian_rate == pytest.approx(float(2 * g @ g / (g @ hessian @ g)), rel=1e-9)
    assert found.logit_change_sq == pytest.approx(float((jacobian @ g).square().mean()), rel=1e-9)
    problem = type(problem)(problem.model, own, problem.data)
    traces = [gauss_newton_trace(problem, probes=1, seed=k) for k in range(200)]
    assert abs(np.mean(traces) - float(gauss_newton.trace())) < 4 * np.std(traces) / 200**0.5


def made_up(exponent, beyond, seed):
    """Networks whose stable rate is a power of a statistic, with 20% of noise, and a factor beyond width 128."""
    generator = np.random.default_rng(seed)
    stacks = []
    for width in (32, 64, 128, 256, 512):
        for depth in (1, 2, 4):
            x = np.exp(generator.normal(size=16)) / width
            y = x**exponent * np.exp(0.2 * generator.normal(size=16)) * (beyond if width > 128 else 1)
            about = {"placement": "post", "width": width, "depth": depth, "loss": "squared"}
            # A rate beyond all bounds, which no fit may see.
            wild = {"eta_max": [*y, 1e9], "statistic": [*x, 1.0], "critical rate": [*y, 1.0]}
            stacks.append(about | {name: list(map(float, values)) for name, values in wild.items()})
    return with_bounds(pd.concat(map(pd.DataFrame, stacks), ignore_index=True))


def test_a_predictor():
    """The exponent is found, 90% are covered, and a planted factor of 2 beyond what was fitted leaves few."""
    found = {}
    for beyond in (1.0, 2.0):
        table = made_up(0.7, beyond, seed=0)
        wide = (table["width"] > 128).to_numpy()
        found[beyond] = predictor(table, "statistic", ~wide, wide)
    # One standard error of the slope is 0.017, of the coverage about 3%.
    assert found[1.0].exponent == pytest.approx(0.7, abs=0.06)
    assert found[1.0].coverage == pytest.approx(0.9, abs=0.12)
    assert found[1.0].coverage_low < found[1.0].coverage < found[1.0].coverage_high
    assert found[1.0].networks == 96
    assert found[2.0].coverage < 0.2
    assert found[2.0].off == pytest.approx(2.0, rel=0.2)
    with pytest.raises(ValueError, match="3 rows to fit"):
        predictor(table, "statistic", wide & ~wide, wide)
