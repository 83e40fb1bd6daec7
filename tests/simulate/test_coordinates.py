"""Steps from a module: every number against a slow twin, scalars against ways of writing attention, and optimizers."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from simulate.modules.coordinates import coordinate_steps
from simulate.modules.factories import ProbeError, module_seed, seeded
from simulate.modules.layers import tensor_of
from simulate.modules.own_changes import Start, draws_nothing, moves_of, own_changes, random_state
from simulate.modules.scalars import ScalarWatcher
from simulate.modules.step_optimizers import optimizer_factory
from simulate.modules.tensor_sizes import damping, numbers_of


class Small(nn.Module):
    """A table, a vector of its own, a matrix with a bias and a scalar behind it, dropout, norm, and output matrix."""

    def __init__(self, width):
        super().__init__()
        self.words, self.inner, self.norm = nn.Embedding(5, width), nn.Linear(width, width), nn.LayerNorm(width)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(width, 5, bias=False)
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, words):
        x = self.words(words) + self.shift
        return self.head(self.norm(x + 0.5 * self.inner(x) + self.dropout(x)) / 4)


def small(width, depth):
    def batch(seed):
        words, labels = torch.randint(5, (2, 3)), torch.randint(5, (6,))
        return words, lambda y: functional.cross_entropy(y.flatten(0, 1), labels)

    return Small(width), batch


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=0.1)


def steps(factory=small, optimizer=adam, widths=(4, 8), count=2, **options):
    return coordinate_steps(factory, optimizer, widths=widths, depths=[1], steps=count, seeds=1, **options)


def values(stepped, width=4):
    frame = stepped.to_frame()
    frame = frame[frame["width"] == width]
    return frame.set_index(["step", "place", "parameter", "quantity"])["value"]


def test_every_number_is_that_of_a_slow_twin():
    """Weights and inputs of every step are kept by hand, and products taken with them."""
    value = values(steps())
    seed = module_seed(0, 4, 1, 0)
    with seeded(seed):
        module, batch = small(4, 1)
        words, loss = batch(seed)
    optimizer = adam(module)
    kept, gradients, logits = [], [], []
    for _ in range(3):
        seen = {}
        handles = [
            part.register_forward_hook(lambda _, args, y, name=name, seen=seen: seen.update({name: (args[0], y)}))
            for name, part in module.named_children()
        ]
        with seeded(seed + 1):
            logits.append(module(words))
            total = loss(logits[-1])
        kept.append((copy.deepcopy(module), seen, float(total.detach())))
        [handle.remove() for handle in handles]
        optimizer.zero_grad()
        total.backward()
        gradients.append(module.head.weight.grad.clone())
        optimizer.step()
    first_gradient = gradients[0]
    (start, first, _), (_, _, _), (end, last, final) = kept

    def size(x):
        return float(x.detach().square().mean().sqrt())

    x, x_0 = last["inner"][0], first["inner"][0]
    w, w_0, b, b_0 = end.inner.weight, start.inner.weight, end.inner.bias, start.inner.bias
    assert value[2, "", "", "loss"] == pytest.approx(final, rel=1e-5)
    assert value[2, "inner", "weight", "own"] == pytest.approx(size(x_0 @ (w - w_0).T), rel=1e-4)
    assert value[2, "inner", "bias", "own"] == pytest.approx(size(b - b_0), rel=1e-4)
    assert value[2, "inner", "", "passed"] == pytest.approx(size((x - x_0) @ w.T), rel=1e-4)
    h, h_0 = last["head"][0], first["head"][0]
    change = end.head.weight - start.head.weight
    assert value[2, "head", "weight", "own"] == pytest.approx(size(h_0 @ change.T), rel=1e-4)
    assert value[2, "head", "", "passed"] == pytest.approx(size((h - h_0) @ end.head.weight.T), rel=1e-4)
    shifted = copy.deepcopy(start)
    with torch.no_grad(), seeded(seed + 1):
        shifted.shift.copy_(end.shift)
        alone = shifted(words)
    assert value[2, "(output)", "shift", "own"] == pytest.approx(size(alone - logits[0]), rel=1e-4)
    assert value[2, "(output)", "", "passed"] == pytest.approx(size(logits[2] - alone), rel=1e-4)
    rows = (end.words.weight - start.words.weight)[words]
    assert value[2, "words", "weight", "own"] == pytest.approx(size(rows), rel=1e-4)
    assert value[2, "words", "", "passed"] == 0
    normed = kept[1][1]["norm"][1].detach()
    assert value[1, "norm", "", "coordinates"] == pytest.approx(float(normed.abs().mean()), rel=1e-5)
    assert value[0, "inner", "", "inputs"] == pytest.approx(float(x_0.detach().abs().mean()), rel=1e-5)
    assert value[0, "inner.weight", "", "weight"] == pytest.approx(size(w_0), rel=1e-5)
    assert (value[0, "inner", "", "multiplier"], value[0, "head", "", "input_multiplier"]) == (0.5, 0.25)
    assert value[1, "head.weight", "", "rate"] == 0.1
    slope = first_gradient.abs()
    share = float((1e-8 / (slope[slope > 0] + 1e-8)).mean())
    assert value[0, "head.weight", "", "damping"] == pytest.approx(share, rel=1e-2)


def test_a_weight_that_no_called_module_holds_is_measured_where_it_is_used():
    class Attention(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.MultiheadAttention(width, 2, dropout=0.2, batch_first=True)

        def forward(self, x):
            return self.inner(x, x, x, need_weights=False)[0]

    def factory(width, depth):
        return Attention(width), lambda seed: (torch.randn(2, 3, width), lambda y: y.square().mean())

    stepped = steps(factory, lambda module: torch.optim.SGD(module.parameters(), lr=1e-4), count=1)
    value = values(stepped)
    places = {(owner.place, owner.parameter) for owner in stepped.owners[4, 1]}
    assert ("inner", "out_proj.weight") in places
    assert value[0, "inner", "", "logit_scale"] == pytest.approx(2**-0.5)
    # With other draws of dropout the change would be as large as the output.
    assert 0 < value[1, "inner", "in_proj_weight", "own"] < 0.01 * value[0, "inner", "", "coordinates"]


def test_what_a_module_changes_in_place_is_given_to_it_as_it_was():
    class Adds(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.shift = nn.Parameter(torch.randn(width))

        def forward(self, x):
            return x.add_(self.shift)

    def factory(width, depth):
        return nn.Sequential(nn.Linear(3, width), Adds(width)), lambda _: (
            torch.randn(5, 3),
            lambda y: y.square().mean(),
        )

    value = values(steps(factory, lambda module: torch.optim.SGD([module[1].shift], lr=0.1)))
    for step, share in ((1, 1.0), (2, 2.0)):
        assert value[step, "1", "", "passed"] == pytest.approx(0, abs=1e-6)
        assert 0.8 * share < value[step, "1", "shift", "own"] / value[1, "1", "shift", "own"] <= share


@pytest.mark.parametrize(("part", "shape"), [
    (nn.Linear(3, 4), (2, 5, 3)), (nn.LayerNorm(3), (2, 5, 3)), (nn.Conv2d(3, 4, 2), (2, 3, 5, 5)),
    (nn.MultiheadAttention(4, 2, batch_first=True), (2, 5, 4)),
])  # fmt: skip
@pytest.mark.parametrize("moved", [True, False])
def test_biases_take_no_pass_and_make_what_they_make(part, shape, moved):
    """Beside a pass for every weight, as a module whose forward is another one's gets it."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    args = (x, x, x) if isinstance(part, nn.MultiheadAttention) else (x,)
    firsts = {name: weight.detach().clone() for name, weight in part.named_parameters()}
    y = tensor_of(part(*args)).detach()
    with torch.no_grad():
        for name, weight in part.named_parameters():
            if moved or name.endswith("bias"):
                weight.add_(torch.randn_like(weight), alpha=0.1)
    part.register_forward_pre_hook(lambda *_: None)
    part.register_forward_hook(lambda *_: None)
    state, moves = random_state([x]), moves_of(dict(part.named_parameters()), firsts)
    start, now = Start(args, {}, y, state), y + 0.5
    with torch.no_grad():
        found = own_changes(part, list(firsts), firsts, moves, start, now)
    assert draws_nothing(part) == isinstance(part, nn.Linear | nn.LayerNorm)
    plain = part.forward
    part.forward = lambda *given: plain(*given)
    with torch.no_grad():
        slow = own_changes(part, list(firsts), firsts, moves, start, now)
    assert mean_square(found[0]) == pytest.approx(mean_square(slow[0]), rel=1e-5)
    assert list(found[1]) == list(slow[1]) == list(firsts)
    for name, size in slow[1].items():
        assert mean_square(found[1][name]) == pytest.approx(mean_square(size), rel=1e-4, abs=1e-12)
        assert (mean_square(found[1][name]) > 0) == (moved or name.endswith("bias"))
    del part.forward
    for hooks in (part._forward_hooks, part._forward_pre_hooks):
        hooks.clear()


def mean_square(size):
    return float(size.norm) ** 2 / size.count


def _logits(kind, q, k, scale):
    if kind == "scaled query":
        return (q * scale) @ k.transpose(-1, -2)
    if kind == "einsum":
        return torch.einsum("bqd,bkd->bqk", q, k) * scale
    if kind == "divided, masked":
        later = torch.ones(3, 3).triu(1).bool()
        return (torch.bmm(q, k.mT) / (1 / scale)).masked_fill(later, float("-inf"))
    return q @ k.mT * scale + (torch.arange(9.0).reshape(3, 3) if kind == "with positions" else 0.0)


KINDS = ("scaled after", "scaled query", "einsum", "divided, masked", "fused", "with positions")


@pytest.mark.parametrize("kind", KINDS)
def test_what_queries_and_keys_are_multiplied_by(kind):
    q, k = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    watcher = ScalarWatcher()
    watcher.place = "here"
    with watcher:
        if kind == "fused":
            functional.scaled_dot_product_attention(q, k, k, scale=0.3)
        else:
            _logits(kind, q, k, 0.3).softmax(-1)
    # Positions are added to both samples alike, and not to their difference.
    assert watcher.logits == [("here", pytest.approx(0.3, rel=1e-5), 4)]
    assert watcher.unseen == []


def test_numbers_are_the_same_again_and_random_numbers_stay():
    state = torch.get_rng_state()
    frames = [steps().to_frame() for _ in range(2)]
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(frames[0]["value"], frames[1]["value"])


def test_frozen_weights_are_a_note():
    def frozen(module):
        module.inner.weight.requires_grad_(False)
        return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)

    stepped = steps(optimizer=frozen, widths=(4,))
    assert "frozen: inner.weight" in stepped.notes
    assert not stepped.alarms
    assert not any(note.startswith("frozen") for note in steps(widths=(4,)).notes)


def test_what_is_wrong_with_an_optimizer():
    def without_head(module):
        return torch.optim.Adam([p for name, p in module.named_parameters() if "head" not in name], lr=0.1)

    assert [alarm[2:] for alarm in steps(optimizer=without_head, widths=(4,)).alarms] == [
        (("head.weight",), "it has a gradient, but the optimizer does not hold it")
    ]
    (alarm,) = {text for *_, text in steps(optimizer=lambda _: adam(Small(4)), widths=(4,)).alarms if "holds" in text}
    assert "holds 7 tensors that are not parameters of the module" in alarm

    def upwards(module):
        groups = [{"params": [module.head.weight], "maximize": True}, {"params": module.inner.parameters()}]
        return torch.optim.SGD(groups, lr=0.1)

    rising = [alarm[2:] for alarm in steps(optimizer=upwards, widths=(4,)).alarms if "along" in alarm[-1]]
    assert rising == [(("head.weight",), "SGD moves it along its gradient, which raises the loss: maximize is set")]

    def sparse(width, depth):
        words = torch.arange(8).reshape(2, 4)
        module = torch.nn.Sequential(torch.nn.Embedding(9, width, sparse=True), torch.nn.Linear(width, 9))
        return module, lambda seed: (words, lambda y: functional.cross_entropy(y.flatten(0, 1), words.flatten()))

    assert (
        steps(sparse, optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.1), widths=(4,)).alarms == ()
    )

    def warm(module):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step))

    stepped = steps(optimizer=warm, widths=(4,))
    assert stepped.alarms == ()
    assert any(
        "weight decay applies to gains and biases: shift, inner.bias, norm.weight" in note for note in stepped.notes
    )
    assert any("the learning rate of step 1 is 0" in note for note in stepped.notes)
    assert values(stepped)[1, "inner", "weight", "own"] == 0 < values(stepped)[2, "inner", "weight", "own"]

    def coarse(width, depth):
        module, batch = small(width, depth)
        return module.bfloat16(), batch

    def tiny(module):
        return torch.optim.SGD(module.parameters(), lr=1e-9)

    alarms = [alarm[2:] for alarm in steps(coarse, tiny, widths=(4,), count=1).alarms]
    (names,) = [names for names, text in alarms if "does not change in step 1 (bfloat16)" in text]
    assert {"inner.weight", "norm.weight"} <= {*names}


def test_what_is_not_finite_is_said_and_ends_the_steps():
    stepped = steps(optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=1e38), widths=(4,))
    ((size, kind, _, text),) = stepped.alarms
    assert (size, kind) == ((4, 1), "non-finite")
    assert text.startswith("after step ")
    assert np.isfinite(stepped.to_frame()["value"]).all()


def test_names_of_optimizers():
    module = Small(4)
    kinds = {"sgd": ["SGD"], "adam": ["Adam"], "adamw": ["AdamW"], "muon": ["Muon", "AdamW"]}
    for name, classes in kinds.items():
        made = optimizer_factory(name, 0.5)[1](module)
        made = made if isinstance(made, list) else [made]
        assert [type(part).__name__ for part in made] == classes
        assert {group["lr"] for part in made for group in part.param_groups} == {0.5}
    held = [p for part in made for group in part.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in module.parameters()}
    assert not any(p is module.words.weight for p in made[0].param_groups[0]["params"])


@pytest.mark.parametrize(("optimizer", "message"), [
    (lambda module: None, "must return a torch.optim.Optimizer, several of them, or .*, got NoneType"),
    (lambda module: (adam(module), 3), "schedule of 'mine' must have a method step, got int"),
    (lambda module: 1 / 0, "optimizer 'mine' must not fail, but raised ZeroDivisionError"),
])  # fmt: skip
def test_optimizers_that_are_none(optimizer, message):
    with pytest.raises(ProbeError, match=message):
        steps(optimizer=optimizer, name="mine")


def test_a_bias_that_is_more_precise_than_the_output_is_taken_away_as_it_is():
    torch.manual_seed(0)
    part, x = nn.Linear(64, 64), torch.randn(32, 64)
    firsts = {name: weight.detach().clone() for name, weight in part.named_parameters()}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = part(x)
        part.weight.add_(torch.randn_like(part.weight), alpha=1e-3)
        part.bias.add_(1.0)
        part.register_forward_pre_hook(lambda *_: None)
        part.register_forward_hook(lambda *_: None)
        moves = moves_of(dict(part.named_parameters()), firsts)
        start = Start((x,), {}, y, random_state([x]))
        _, sizes = own_changes(part, list(firsts), firsts, moves, start, y)
        # Rounding of an output with the bias, and of one without, is all that is between them.
        alone = part.forward(x).float() - 1.0
    assert mean_square(sizes["weight"]) == pytest.approx(float((alone - y.float()).square().mean()), rel=1e-5)


def test_a_weight_that_two_optimizers_hold_is_that_of_the_first():
    def twice(module):
        return [torch.optim.Adam(module.parameters(), lr=1e-3, eps=eps) for eps in (1.0, 1e-8)]

    once = steps(optimizer=lambda module: twice(module)[0], count=2)
    both = steps(optimizer=twice, count=2)
    shares = [{key: value for key, value in values(of).items() if "damping" in key} for of in (once, both)]
    assert any(
        note.startswith("several optimizers hold and update the same parameters: shift, words.weight")
        for note in both.notes
    )
    assert not any("several optimizers" in note for note in once.notes)
    assert {step for step, *_ in shares[0]} == {0}
    assert min(shares[0].values()) > 0.1
    assert shares[1] == pytest.approx(shares[0])


def test_what_epsilon_takes_is_a_mean_over_entries_that_move():
    rows = torch.tensor([[0.0, 0.0], [4.0, 1.0]])
    shares = damping([rows, rows.half(), torch.zeros(3)], [1.0, 1.0, 1.0])
    assert shares[:2] == pytest.approx([(1 / 3 + 1 / 2) / 2] * 2, rel=1e-6)
    assert shares[2] is None
    assert numbers_of([torch.tensor(2.5), torch.tensor(0.5, dtype=torch.float64)]) == [2.5, 0.5]
    assert numbers_of([]) == []
