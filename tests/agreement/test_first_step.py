"""The first step by torch's own optimizers: beside theory of the law, and of every network's outputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from checks.statistics import estimate
from simulate.curvature.first_step import (
    break_even_rate,
    direction,
    first_step_problem,
    gradients,
    measure_step,
)
from tests.helpers.agreement import same
from tests.helpers.given_outputs import NUMBERS, exact_muon, first_step_given, outputs_of
from theory import Stack
from theory.first_step.prediction import first_step

# Forward-mode derivatives warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
NETWORKS = 12


def steps_of(stack, chosen, change=lambda problem: problem):
    """Measured steps of networks by matrices and optimizer."""
    found = {one: [] for one in chosen}
    for seed in range(NETWORKS):
        problem = change(first_step_problem(stack, seed=seed))
        loss, gradient = gradients(problem)
        for matrices, optimizer in chosen:
            part = {name: g for name, g in gradient.items() if name.split("_")[0] in matrices}
            step = measure_step(problem, gradient, direction(part, optimizer), loss, ends=False)
            found[matrices, optimizer].append(step)
    return found


def assert_predicted(steps, theory):
    for name in NUMBERS.values():
        values = [getattr(one, name) for one in steps]
        assert same(values, getattr(theory, name), 0.1), (theory, name, estimate(values))


@pytest.mark.parametrize("fields", [{}, {"placement": "peri", "mask": "causal", "activation": "gelu"}])
def test_first_order_and_second(fields):
    """At V = 2d, where most of u'Gu is what V/d adds; without it, and with a tangent kernel 30% off, it differs."""
    stack = Stack(**({"width": 96, "depth": 1, "tokens": 3, "vocab": 192, "output_scale": 0.5} | fields))
    inner = ("WV", "W1", "W2")
    for (_, optimizer), steps in steps_of(stack, [(inner, "sgd"), (inner, "muon")]).items():
        theory = first_step(stack, optimizer, matrices=inner)
        assert_predicted(steps, theory)
        curvatures = [one.curvature for one in steps]
        assert not same(curvatures, theory.curvature * (1 - theory.spread), 0.1)
        assert not same(curvatures, theory.curvature * 1.3**2, 0.1)


def test_random_queries_and_keys():
    """Steps of W^Q, W^K and W^V alone, at V = d/2; without what follows the values, most of u'Gu is missing."""
    stack = Stack(
        width=128, depth=2, tokens=4, vocab=64, heads=8, query_key_scale=1.5, mask="causal", placement="pre",
        output_projection="random", rotary=1.0, kv_heads=4,
    )  # fmt: skip
    for ((role,), optimizer), steps in steps_of(stack, [((role,), "adam") for role in ("WQ", "WK", "WV")]).items():
        theory = first_step(stack, optimizer, matrices=[role], patterns=12)
        assert_predicted(steps, theory)
        if role != "WV":
            changes = [one.logit_change_sq for one in steps]
            assert theory.spread > 0.5
            assert not same(changes, theory.logit_change_sq * (1 - theory.spread), 0.1)
            unmasked = first_step(replace(stack, mask="none"), optimizer, matrices=[role], patterns=4)
            assert not same([one.gain for one in steps], unmasked.gain, 0.1)


def test_words_that_repeat():
    """Two windows of text that share words and labels; words and labels apart are far from it.

    Theory is given every network's logits, and has means over them.
    """
    stack = Stack(
        width=192, depth=1, tokens=6, vocab=32, output_scale=0.5, placement="pre", positions="learned", mask="causal",
        sequences=2,
    )  # fmt: skip
    ids = np.array([[3, 5, 3, 3, 7, 5, 3], [3, 3, 3, 1, 2, 3, 9]])
    labels, measured = torch.as_tensor(ids[:, 1:].ravel()), {"sgd": [], "adam": []}
    of_windows, apart = [], []
    for seed in range(8):
        problem, generator = first_step_problem(stack, seed=seed), torch.Generator().manual_seed(seed)
        words, places = (
            torch.randn(count, stack.width, dtype=torch.float64, generator=generator)
            for count in (stack.vocab, stack.tokens)
        )
        given = {"x": (words[ids[:, :-1]] + places).view(problem.data[0][0]["x"].shape)}
        problem = replace(problem, data=[(given, labels)])
        loss, gradient = gradients(problem)
        for optimizer, values in measured.items():
            step = measure_step(problem, gradient, direction(gradient, optimizer), loss, ends=False)
            values.append([step.gain, step.curvature, step.logit_change_sq])
        outputs = outputs_of(stack, problem)
        for found, windows in ((of_windows, ids), (apart, None)):
            theory = first_step_given(stack, *outputs, windows=windows)
            found.append([float(number[0]) for number in theory.values()])
    numbers = {optimizer: np.mean(values, axis=0) for optimizer, values in measured.items()}
    assert numbers["sgd"] == pytest.approx(np.mean(of_windows, axis=0), rel=0.1)
    assert (numbers["sgd"][1:] > 2 * np.mean(apart, axis=0)[1:]).all()
    for optimizer, found in numbers.items():
        step = first_step(stack, optimizer, windows=ids)
        assert found == pytest.approx([step.gain, step.curvature, step.logit_change_sq], rel=0.1), optimizer
    # A window twice is the window.
    (once, twice) = (first_step(stack, windows=np.concatenate([ids] * k)) for k in (1, 2))
    assert twice.gain == pytest.approx(once.gain)
    with pytest.raises(ValueError, match="below vocab = 32, got 40"):
        first_step(stack, windows=ids + 31)
    with pytest.raises(ValueError, match="must be None for the first step of tied embeddings"):
        first_step(replace(stack, embeddings="tied"), windows=ids)


class Shifted(torch.nn.Module):
    """A model whose inputs are rows of a table, as its own parameters."""

    def __init__(self, model, rows, width):
        super().__init__()
        self.model = model
        self.inputs = torch.nn.Parameter(torch.zeros(rows, width, dtype=torch.float64))

    def forward(self, given):
        return self.model(given | {"x": given["x"] + self.inputs})


def test_the_table_of_inputs():
    """Whose rows are small before a norm, so that their step counts; one row's sign is not the whole row's."""
    stack = Stack(width=96, depth=1, tokens=3, vocab=192, placement="pre", embedding_scale=0.1)

    def shifted(problem):
        return replace(problem, model=Shifted(problem.model, stack.rows, stack.width))

    for (_, optimizer), steps in steps_of(stack, [(("inputs",), "sgd"), (("inputs",), "adam")], shifted).items():
        theory = first_step(stack, optimizer, matrices=["inputs"])
        assert_predicted(steps, theory)
    # Signs vary least.
    assert not same([one.gain for one in steps], 1.6 * theory.gain, 0.1)


def test_signs_of_gated_units_where_classes_are_many():
    """At V = 16 d, where the curvature is all but what V/d adds: gates and lines go together, or it is 18% off."""
    stack = Stack(width=64, depth=1, tokens=1, vocab=1024, placement="pre", ffn="gated", activation="silu")
    theory = first_step(stack, "adam")
    (steps,) = steps_of(stack, [(tuple(theory.relative_updates), "adam")]).values()
    assert_predicted(steps, theory)
    assert theory.spread > 0.9


@pytest.mark.parametrize("optimizer", ["sgd", "normalized", "adam", "polar"])
def test_relative_updates(optimizer):
    """Of every matrix |u|²/|W|², means over networks; W1's signs are 0 where a unit is off for both tokens."""
    stack = Stack(width=64, depth=2, tokens=2, vocab=32, output_projection="random")
    found = {}
    for seed in range(8):
        problem = first_step_problem(stack, seed=seed)
        _, gradient = gradients(problem)
        weights = dict(problem.model.named_parameters())
        for name, u in direction(gradient, optimizer).items():
            found.setdefault(name, []).append(float((u.square().sum() / weights[name].detach().square().sum()).sqrt()))
    expected = first_step(stack, optimizer).relative_updates
    assert set(expected) == {"WV", "WO", "W1", "W2", "Wemb"}
    for name, values in found.items():
        role, _, layer = name.partition("_")
        theory = expected[role][int(layer) - 1] if layer else expected[role]
        # Of SGD the mean of squares is a tenth and more above the squared mean.
        assert same(values, float(theory), 0.15), (name, estimate(values), theory)


def test_a_step_is_torch_s():
    """Of g = (3, -4, 0): itself, its direction, its sign."""
    gradient = {"a": torch.tensor([[3.0, -4.0, 0.0]], dtype=torch.float64)}
    expected = {"sgd": [3, -4, 0], "normalized": [0.6, -0.8, 0], "adam": [1, -1, 0]}
    for optimizer, numbers in expected.items():
        assert direction(gradient, optimizer)["a"].flatten().tolist() == pytest.approx(numbers)
    # One singular value, of which five Newton-Schulz steps make some 0.7 to 1.2; three columns for a row.
    assert float(direction({"a": gradient["a"].T}, "muon")["a"].norm()) == pytest.approx(0.95, rel=0.3)
    assert direction(gradient, "polar")["a"].flatten().tolist() == pytest.approx([0.6 * 3**0.5, -0.8 * 3**0.5, 0])
    assert direction(gradient, "polar", turned=False)["a"].flatten().tolist() == pytest.approx([0.6, -0.8, 0])
    with pytest.raises(ValueError, match="^optimizer must be one of sgd, normalized, adam, polar, muon, got 'lion'"):
        direction(gradient, "lion")


def test_orders_against_the_loss():
    """g·u and u'Hu are the loss's derivatives along the step, and the break-even rate is where a fine grid crosses."""
    problem = first_step_problem(Stack(width=16, depth=1, tokens=4, vocab=8), seed=3)
    loss, gradient = gradients(problem)
    held = {name: p.detach() for name, p in problem.model.named_parameters()}
    for optimizer in ("sgd", "adam"):
        u = direction(gradient, optimizer)

        def at(rate, u=u):
            moved = {name: value - rate * u[name] for name, value in held.items()}
            ((inputs, labels),) = problem.data
            logits = torch.func.functional_call(problem.model, moved, (inputs,))
            return float(torch.nn.functional.cross_entropy(logits, labels))

        found = measure_step(problem, gradient, u, loss)
        small = found.critical_rate * 1e-4
        assert (at(small) - at(-small)) / (2 * small) == pytest.approx(-found.gain, rel=1e-4)
        assert (at(small) + at(-small) - 2 * loss) / small**2 == pytest.approx(found.hessian, rel=1e-3)
        grid = found.break_even_rate * np.geomspace(0.3, 1.2, 36)
        crossed = next(rate for rate in grid if at(rate) >= loss)
        assert found.break_even_rate == pytest.approx(crossed, rel=0.05)


@pytest.mark.parametrize("power", [1.0, 0.3, 3.0])
@pytest.mark.parametrize("true", [0.2, 1.0, 30.0])
def test_the_search_for_the_break_even_rate(power, true):
    """Of losses −x + x (x/true)^power, from a guess of 1, overflow beyond 40 included."""
    asked = []

    def at(rate):
        asked.append(rate)
        return float("inf") if rate > 40 else 5 - rate + rate * (rate / true) ** power

    rate, passes = break_even_rate(at, 5.0, 1.0, 1.0)
    assert rate == pytest.approx(true, rel=0.03)
    assert passes == len(asked) <= 12
    assert (
        break_even_rate(lambda rate: -rate, 0.0, 1.0, 1.0)[0] != break_even_rate(lambda rate: -rate, 0.0, 1.0, 1.0)[0]
    )


# Forward-mode derivatives warn of torch's own deprecations.

PLAIN = {"width": 256, "depth": 1, "tokens": 4, "vocab": 32, "placement": "pre"}
TIED = PLAIN | {"embeddings": "tied", "output_scale": 0.4}
TRANSFORM = {"output_transform": "added", "activation": "gelu"}
# Inputs of a small scale before a norm, whose moves with the output matrix count.
BOTH = TRANSFORM | {"placement": "post", "embedding_norm": "added", "embedding_scale": 0.05, "positions": "learned"}
CASES = [
    (TIED | {"positions": "sinusoidal"}, [("sgd", ("WV", "W1", "W2")), ("adam", ("W1", "W2")), ("sgd", ("Wemb",))]),
    (TIED, [("muon", ("Wemb",)), ("muon", ("WV", "W1", "W2", "Wemb"))]),
    (PLAIN | TRANSFORM, [("sgd", ("WH",)), ("adam", ("WV", "W1", "W2", "WH")), ("adam", ("Wemb",))]),
    (PLAIN | {"mask": "causal", "loss_share": 0.5}, [("sgd", ("WV", "Wemb")), ("adam", ("WV", "W1", "W2"))]),
    (TIED | BOTH, [("sgd", ("Wemb",)), ("adam", ("Wemb",)), ("polar", ("Wemb",)), ("adam", ("W1", "WH", "Wemb"))]),
]


def measured(stack, steps):
    """Gain and curvature of networks, (networks, steps, 2), with their softmax and gradients r."""
    values, p, r = [], [], []
    for seed in range(NETWORKS):
        problem = first_step_problem(stack, seed=seed)
        loss, gradient = gradients(problem)
        values.append([])
        for optimizer, matrices in steps:
            part = {name: g for name, g in gradient.items() if name.split("_")[0] in matrices}
            u = exact_muon(part) if optimizer == "muon" else direction(part, optimizer)
            step = measure_step(problem, part, u, loss, ends=False)
            values[-1].append([step.gain, step.curvature])
        outputs = outputs_of(stack, problem)
        p.append(outputs[0][0])
        r.append(outputs[1][0])
    return np.array(values), np.array(p), np.array(r)


@pytest.mark.parametrize(("fields", "steps"), CASES)
def test_steps_of_networks(fields, steps):
    """Within 4 standard errors and 3%, each network with its own logits and labels: one false alarm in 10^3 numbers."""
    stack = Stack(**fields)
    values, p, r = measured(stack, steps)
    for k, (optimizer, matrices) in enumerate(steps):
        predicted = first_step_given(stack, p, r, optimizer, matrices=matrices)
        for j, name in enumerate(("gain", "curvature")):
            deviation = (values[:, k, j] - predicted[name]) / predicted[name].mean()
            allowed = 4 * deviation.std(ddof=1) / len(deviation) ** 0.5 + 0.03
            assert abs(deviation.mean()) < allowed, (optimizer, matrices, name, deviation.mean(), allowed)


@pytest.mark.parametrize("fields", [{}, BOTH])
def test_inputs_are_columns_of_the_output_matrix(fields):
    """A tied network is the one with embeddings apart that is given these."""
    stack = Stack(**TIED | fields)
    tied, apart = (first_step_problem(replace(stack, embeddings=kind), seed=3) for kind in ("tied", "untied"))
    apart.model.load_state_dict(tied.model.state_dict())
    ((inputs, _),) = tied.data
    scale = stack.embedding_scale * stack.width**0.5 / stack.output_scale
    given = {"x": inputs["x"] + scale * tied.model.Wemb[:, : stack.rows].T}
    torch.testing.assert_close(tied.model(inputs), apart.model(given))
    size = stack.embedding_scale * (1 + ("positions" in fields)) ** 0.5
    assert float(given["x"].detach().std()) == pytest.approx(size, rel=0.1)
