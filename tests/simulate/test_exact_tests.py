"""Exact tests of a module, each against a slow twin; and that a module is left as it was."""

import copy
import math
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from checks.models.judge import judged_module
from simulate.modules.copies import copies, repeated_rows
from simulate.modules.exact_tests import _biases, exact_tests
from simulate.modules.factories import Made
from simulate.modules.kept_state import kept_state
from simulate.modules.layers import layer_lists, tensor_of
from simulate.modules.mixing import ROUNDING, dependences
from simulate.modules.norms import norm_response, norms_of
from simulate.modules.one_module import one_module
from simulate.modules.operations import _visible
from simulate.modules.predictions import prediction_facts
from tests.helpers.single_modules import HEALTHY, Decoder


def measured_tests(module, inputs, loss):
    return exact_tests(Made("mine", module, inputs, loss), layer_lists(module, (), 0))


def table(tests):
    return {row[:4]: row[4] for row in tests.rows}


def mixes(kind):
    weights = {"causal": torch.ones(6, 6).tril(), "all": torch.ones(6, 6), "none": torch.eye(6), "reversed": None}
    mix = torch.ones(6, 6).triu(1) if kind == "reversed" else weights.get(kind, torch.eye(6))
    others = {"samples": lambda x: x.flip(0), "scan": lambda x: x.cumsum(0)}.get(kind, torch.zeros_like)
    return lambda x: torch.einsum("ij,bjd->bid", mix, x).tanh() + others(x)


@pytest.mark.parametrize("kind", ["causal", "all", "none", "reversed", "samples", "scan"])
@pytest.mark.parametrize("axis", [0, -2])
def test_dependences_are_those_of_the_whole_jacobian(kind, axis):
    x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(1))
    jacobian = torch.autograd.functional.jacobian(mixes(kind), x).abs().sum((2, 5))  # (b, i, b', j)
    own = jacobian[0, :, 0]
    truth = {
        "sees_later": bool(own[:3, 3:].any()),
        "sees_earlier": bool(own[3:, :3].any()),
        "sees_samples": bool(jacobian[0, :, 1].any() or jacobian[1, :, 0].any()),
    }
    x = x.transpose(0, 1) if axis == 0 else x
    x = x.contiguous().requires_grad_()
    y = mixes(kind)(x.transpose(0, 1)).transpose(0, 1) if axis == 0 else mixes(kind)(x)
    assert {name: value > ROUNDING for name, value in dependences(x, y, axis).items()} == truth


def test_dependences_where_there_are_none():
    x = torch.randn(4, 3, requires_grad=True)
    assert dependences(x, x.detach() + torch.zeros(4, 3, requires_grad=True), -2) == {}
    assert dependences(x, 2 * x, -2) == {"sees_samples": 0.0}
    assert dependences(x, x.cumsum(0), -2)["sees_samples"] > 0.1


def test_dependences_where_the_last_sample_ends_in_padding():
    x = torch.randn(2, 6, 3, requires_grad=True)
    kept = torch.ones(2, 6, 1)
    kept[1, 3:] = 0
    seen = dependences(x, x.cumsum(1) * kept, -2)
    assert seen["sees_earlier"] > 0.1
    assert seen["sees_later"] == seen["sees_samples"] == 0


@pytest.mark.parametrize(("norm", "response"), [
    (nn.LayerNorm(64), 0.0), (nn.RMSNorm(64, eps=1e-6), 0.0), (nn.LayerNorm(64, eps=1e6), 1.0),
])  # fmt: skip
def test_norms_answer_to_the_scale_as_their_epsilon_says(norm, response):
    x = 3.0 * torch.randn(5, 64) + 1.0
    nn.init.normal_(norm.weight)
    answers = norm_response(norm, (x,), {})
    assert answers["norm_response"] == pytest.approx(response, abs=1e-4)
    assert answers["norm_response"] == pytest.approx(answers["norm_epsilon"], abs=1e-4)
    centred = isinstance(norm, nn.LayerNorm)
    divided = x.var(-1, correction=0) if centred else x.square().mean(-1)
    share = 1 / float((divided / (divided + norm.eps)).double().mean()) - 1
    assert answers["norm_share"] == pytest.approx(share, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("norm", "shape", "variance"), [
    (nn.BatchNorm1d(6, eps=2.0), (9, 6), lambda x: x.var(0, correction=0)),
    (nn.BatchNorm1d(6, eps=2.0), (9, 6, 5), lambda x: x.transpose(1, 2).reshape(-1, 6).var(0, correction=0)),
    (nn.BatchNorm2d(6, eps=2.0).eval(), (9, 6, 5, 4), lambda x: torch.tensor(7.0)),
    (nn.BatchNorm1d(6, eps=2.0, track_running_stats=False).eval(), (9, 6), lambda x: x.var(0, correction=0)),
    (nn.InstanceNorm1d(6, eps=2.0), (9, 6, 5), lambda x: x.var(2, correction=0)),
    (nn.InstanceNorm2d(6, eps=2.0), (9, 6, 5, 4), lambda x: x.flatten(2).var(2, correction=0)),
])  # fmt: skip
def test_epsilon_of_batch_and_instance_norms_beside_what_they_divide(norm, shape, variance):
    x = 3.0 * torch.randn(shape) + torch.randn(shape[1]).reshape(1, -1, *[1] * (len(shape) - 2))
    if norm.running_var is not None:
        norm.running_var.fill_(7.0)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    answers = norm_response(norm, (x,), {})
    v = float(variance(x).mean())
    assert answers["norm_divided"] == pytest.approx(v, rel=1e-5)
    assert answers["norm_share"] == pytest.approx(2.0 / v, rel=1e-5)
    assert answers["norm_response"] == answers["norm_epsilon"]
    assert answers["norm_epsilon"] == pytest.approx(math.log(4 * (v + 2) / (4 * v + 2)) / math.log(4), rel=1e-5)
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


def test_a_norm_s_shift_is_no_answer_and_what_multiplies_is_none():
    norm = nn.LayerNorm(8)
    nn.init.constant_(norm.bias, 5.0)
    x = torch.randn(3, 8)
    assert norm_response(norm, (x[:0],), {}) == {}  # of a batch without a sound, for one
    assert norm_response(norm, (x,), {})["norm_response"] == pytest.approx(0.0, abs=1e-4)
    plain = norm.forward
    for multiplied in (lambda x: x * (plain(x) - 5.0), lambda x: x + 100.0):
        norm.forward = multiplied
        assert norm_response(norm, (x,), {})["norm_response"] == pytest.approx(1.0, abs=1e-4)


def test_what_is_called_a_norm():
    class MyRms(nn.Module):
        pass

    class Derived(MyRms):
        pass

    parts = nn.ModuleDict({
        "a": nn.LayerNorm(2), "b": MyRms(), "e": Derived(), "norm": nn.Identity(), "c": nn.BatchNorm1d(2),
        "norm2": nn.Dropout(), "final_norm": type("Tanh", (nn.Module,), {})(), "d": nn.Sequential(nn.LayerNorm(2)),
    })  # fmt: skip
    assert [name for name, _ in norms_of(parts)] == ["a", "b", "e", "c", "final_norm", "d.0"]


def test_copies_are_equal_tensors_and_draws_alone():
    parts = nn.ModuleDict({name: nn.Linear(12, 12) for name in "abcdef"})
    with torch.no_grad():
        parts["b"].weight.copy_(parts["a"].weight)
        parts["c"].weight.copy_(parts["a"].weight)
        parts["c"].weight[11, 11] += 1e-3
        for name in "de":
            parts[name].weight.copy_(torch.eye(12))
            parts[name].bias.zero_()
        parts["f"].weight[6:] = parts["f"].weight[:6].clone()
    assert copies(parts) == [("a.weight", "b.weight")]
    assert repeated_rows(parts) == {"f.weight": 0.5}


@pytest.mark.parametrize(("reduction", "scale"), [("mean", 3), ("sum", 3), ("mean", 100)])
def test_labels_are_read_from_the_derivative(reduction, scale):
    """At 100, most positions select one class, among them those without a label."""
    words = torch.randint(40, (3, 9))
    logits = (scale * torch.randn(3, 9, 40)).requires_grad_()
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten(), reduction=reduction)
    facts = prediction_facts(loss, logits, {"input_ids": words, "labels": words})
    counts = np.unique(words[:, 1:], return_counts=True)[1] / 24
    assert facts["label_is_next"] == 1
    assert facts["label_is_own"] == 0
    assert facts["label_entropy"] == pytest.approx(-(counts * np.log(counts)).sum())
    assert facts["loss_weight"] == pytest.approx(1 if reduction == "mean" else 24)
    assert facts["cross_entropy"] == pytest.approx(loss.item() / (1 if reduction == "mean" else 24), rel=1e-5)


AHEAD = {"label_is_next": 1.0}
AT = {
    "next": (lambda b, t, n: (b, t + 1) if t + 1 < n else None, AHEAD),
    "two on": (lambda b, t, n: (b, t + 2) if t + 2 < n else None, {"label_distance": 2.0}),
    "three back": (lambda b, t, n: (b, t - 3) if t > 2 else None, {"label_distance": -3.0}),
    "rolled": (lambda b, t, n: (b, (t + 1) % n), AHEAD | {"ends_in_own_start": 1.0}),
    "in one row": (lambda b, t, n: (b + (t + 1) // n, (t + 1) % n), AHEAD | {"ends_in_next_sample": 1.0}),
    "two in one row": (
        lambda b, t, n: (b + (t + 2) // n, (t + 2) % n), {"label_distance": 2.0, "ends_in_next_sample": 1.0}
    ),
    "padded": (lambda b, t, n: (b, t + 2) if t + 2 < n - b else None, {"label_distance": 2.0}),
    "drawn": (lambda b, t, n: (5 - b, 7 * t % n), {}),
}  # fmt: skip


@pytest.mark.parametrize("cut", [0, 2])
@pytest.mark.parametrize("kind", AT)
def test_labels_are_found_where_in_the_inputs_they_are(kind, cut):
    at, expected = AT[kind]
    torch.manual_seed(5)
    words, labels = torch.randint(300, (6, 12)), torch.full((6, 12), -100)
    for b, t in np.ndindex(6, 12):
        place = at(b, t, 12)
        if place is not None and place[0] < 6:
            labels[b, t] = words[place]
    # A module may cut its logits itself: then there is no label behind a sample's end.
    logits = torch.randn(6, 12 - cut, 300, requires_grad=True)
    loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, : 12 - cut].flatten())
    facts = prediction_facts(loss, logits, {"input_ids": words, "labels": labels})
    if cut:
        expected = {name: value for name, value in expected.items() if name == "label_distance"}
    found = {name: value for name, value in facts.items() if name.startswith(("label_", "ends")) and value}
    assert {name: found[name] for name in found if name not in ("label_entropy", "label_insight")} == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.02, 1.0, 4.0])
def test_a_cross_entropy_is_one_where_its_logits_are_half_precision_numbers(dtype, scale):
    logits = (scale * torch.randn(4, 16, 300)).to(dtype).requires_grad_()
    words = torch.randint(300, (4, 17))
    loss = functional.cross_entropy(logits.float().flatten(0, 1), words[:, 1:].flatten())
    facts = prediction_facts(loss, logits, words[:, :-1])
    assert facts["classes"] == 300
    assert facts["cross_entropy"] == pytest.approx(loss.item(), rel=0.01)
    assert facts["loss_weight"] == pytest.approx(1.0, abs=0.01)


def test_a_module_under_autocast_has_a_loss_to_hold_against_a_guess():
    class Autocast(Decoder):
        def forward(self, words):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(words)

    torch.manual_seed(3)
    module, words = Autocast(32, 2, attends=True), torch.randint(128, (4, 17))
    report = judged_module(module, words[:, :-1], lambda y: functional.cross_entropy(y.float().mT, words[:, 1:]))
    assert not report.alarms
    line = report.lines()[1]
    assert "a uniform guess among 128 classes has 4.852" in line
    assert "adds up" not in line


@pytest.mark.parametrize("left_out", [True, False])
def test_labels_of_padding_are_counted(left_out):
    torch.manual_seed(0)
    logits, words, mask = torch.randn(4, 8, 50, requires_grad=True), torch.randint(50, (4, 8)), torch.ones(4, 8)
    mask[1, 5:] = 0
    labels = words.masked_fill(mask == 0, -100) if left_out else words
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    facts = prediction_facts(loss, logits, {"input_ids": words, "attention_mask": mask})
    assert facts["labels_on_padding"] == (0 if left_out else 3)
    assert abs(facts["label_insight"]) < 4  # of random logits


def test_labels_that_are_seen_are_told_from_chance():
    torch.manual_seed(0)
    logits, labels = torch.randn(64, 5), torch.randint(5, (64,))
    for seen, told in ((0.0, False), (3.0, True)):
        given = (logits + seen * functional.one_hot(labels, 5)).requires_grad_()
        facts = prediction_facts(functional.cross_entropy(given, labels), given, {})
        assert (facts["label_insight"] > 5) == told


def test_a_mask_of_a_hundred_hides_keys_and_large_logits_hide_none():
    """A mask may add -100 only; logits that spread as far without a gap are all visible."""
    torch.manual_seed(0)
    logits, causal = torch.randn(2, 8, 8), torch.ones(8, 8).tril().bool()
    assert torch.equal(_visible(logits - 100.0 * ~causal), causal.expand(2, 8, 8))
    assert _visible(torch.linspace(-200.0, 0.0, 64).repeat(2, 1)).all()
    assert _visible(torch.where(torch.eye(8)[3] > 0, torch.nan, logits))[..., :3].all()


class _Conv1D(nn.Linear):
    """GPT-2's, which multiplies by its weight from the right."""

    def forward(self, x):
        return x @ self.weight + self.bias


@pytest.mark.parametrize(("kind", "axis"), [
    (nn.Linear, 0), (_Conv1D, 1), (lambda n, m: nn.Conv1d(n, m, 3), 0),
])  # fmt: skip
def test_gates_that_begin_at_one_number_are_found_along_the_outputs_of_a_square_weight(kind, axis):
    """Half of the outputs have a faint weight and a bias of 9; they are no draw, and the rest is."""
    part = kind(16, 16)
    with torch.no_grad():
        part.weight.movedim(axis, 0)[8:] *= 1e-3
        part.bias[8:] = 9.0
    ratios = {quantity: value for _, quantity, value in _biases(nn.Sequential(part))}
    assert ratios["bias_over_matrix"] < 1 < ratios["bias_constant"]
    nn.init.uniform_(part.bias, -7.0, -2.0)  # as Mamba's time steps
    assert [quantity for _, quantity, _ in _biases(nn.Sequential(part))] == ["bias_constant"]


def test_other_losses_are_no_cross_entropy_of_labels():
    logits = torch.randn(12, 7, requires_grad=True)
    assert prediction_facts(logits.square().mean(), logits, None) == {}
    smooth = functional.cross_entropy(logits, torch.randint(7, (12,)), label_smoothing=0.2)
    assert prediction_facts(smooth, logits, None) == {"classes": 7.0, "cross_entropy": pytest.approx(smooth.item())}


def test_a_label_that_has_all_the_probability_counts():
    logits = torch.zeros(4, 5)
    logits[0, 2] = 1e4
    logits.requires_grad_()
    loss = functional.cross_entropy(logits, torch.tensor([2, 1, 0, 3]))
    assert prediction_facts(loss, logits, None)["cross_entropy"] == pytest.approx(loss.item())


def test_samples_that_follow_one_another_are_no_positions():
    """Each is the one before it, shifted, so that labels are the next words along both axes."""

    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)

        def forward(self, words):
            return self.head(self.words(words).cumsum(1).tanh())

    words = torch.arange(3)[:, None] + torch.arange(20)
    built = Made(
        "", Before(), words[:, :-1], lambda y: functional.cross_entropy(y.flatten(0, 1), words[:, 1:].flatten())
    )
    seen = {name: value for _, _, _, name, value in exact_tests(built, []).rows}
    assert seen["label_is_next"] == seen["label_is_next_below"] == 1
    assert seen["sees_samples"] == 0
    assert seen["sees_earlier"] > 0.1


class _Attends(nn.Module):
    """The same attention, written in several ways."""

    def __init__(self, way):
        super().__init__()
        self.way, self.inner = way, nn.MultiheadAttention(16, 1, batch_first=True, bias=False)

    def forward(self, x):
        q, k, v = functional.linear(x, self.inner.in_proj_weight).chunk(3, -1)
        logits = q @ k.mT / 4
        if self.way == "sdpa":
            return functional.scaled_dot_product_attention(q, k, v)
        if self.way == "torch.nn":
            return self.inner(x, x, x, need_weights=False)[0]
        if self.way == "torch.nn with weights":
            return self.inner(x, x, x)[0]
        if self.way == "method":
            return functional.dropout(logits.softmax(-1), 0.5) @ v
        if self.way == "einsum":
            return torch.einsum("bqk,bkd->bqd", torch.softmax(logits, dim=2), v)
        return torch.einsum("bkq,bkd->bqd", functional.softmax(logits.mT, dim=1), v)


@pytest.mark.parametrize("way", ["sdpa", "torch.nn", "torch.nn with weights", "method", "einsum", "einsum, keys first"])
def test_attention_is_watched_however_it_is_written(way):
    module = nn.Sequential(_Attends(way), _Attends(way))
    x = torch.randn(2, 5, 16)
    seen = table(measured_tests(module, x, lambda y: y.square().mean()))
    q, k, _ = functional.linear(x, module[0].inner.in_proj_weight).chunk(3, -1)
    logits = (q @ k.mT / 4).detach()
    weights = logits.softmax(-1)
    entropy = -(weights * weights.log()).sum(-1).mean() / np.log(5)
    assert seen["Sequential", 1, "", "logit_std"] == pytest.approx(float(logits.std(correction=0)), rel=1e-4)
    assert seen["Sequential", 1, "", "attention_entropy"] == pytest.approx(float(entropy), rel=1e-4)
    peak = float(weights.amax(-1).mean())
    assert seen["Sequential", 1, "", "attention_peak"] == pytest.approx(peak, rel=1e-4)
    assert [seen["Sequential", 1, "", f"key_sum_{end}"] for end in ("low", "high")] == pytest.approx([1, 1], abs=1e-5)


def test_softmax_over_queries_does_not_add_up_over_keys():
    torch.manual_seed(0)
    module = Decoder(16, 2, attends=True)
    words = torch.randint(128, (2, 8))
    module.layers[1].attention.over = -2
    seen = table(measured_tests(module, words, lambda y: y.square().mean()))
    assert abs(seen["layers", 1, "", "key_sum_high"] - 1) < 1e-5
    assert seen["layers", 2, "", "key_sum_high"] > 1.5


class _Twice(nn.Module):
    """Two attentions and two activations."""

    def __init__(self):
        super().__init__()
        self.attentions = nn.ModuleList(_Attends("method") for _ in range(2))
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x):
        y = sum(attention(x) for attention in self.attentions)
        return sum(linear(y).relu() for linear in self.linears)


@pytest.mark.parametrize("broken", [0, 1])
def test_of_two_attentions_and_two_activations_in_a_layer_the_broken_one_is_seen(broken):
    """A mean of both would be half of it."""
    module, x = nn.Sequential(_Twice(), _Twice()), torch.randn(4, 8, 16)
    weight = module[0].attentions[broken].inner.in_proj_weight.data
    weight[:32] *= 10.0
    nn.init.constant_(module[0].linears[broken].bias, -1e3)
    seen = table(measured_tests(module, x, lambda y: y.square().mean()))
    q, k, _ = functional.linear(x, weight).chunk(3, -1)
    logits = q @ k.mT / 4
    assert seen["Sequential", 1, "", "logit_std"] == pytest.approx(float(logits.std(correction=0)), rel=1e-4)
    peak = float(logits.softmax(-1).amax(-1).mean())
    assert seen["Sequential", 1, "", "attention_peak"] == pytest.approx(peak, rel=1e-4)
    entropy = float(torch.special.entr(logits.softmax(-1)).sum(-1).mean()) / np.log(8)
    assert seen["Sequential", 1, "", "attention_entropy"] == pytest.approx(entropy, rel=1e-4)
    assert seen["Sequential", 1, "", "dead_units"] == 1.0


class _Careless(nn.Module):
    """Changes what it can: buffers, the training mode, its input, and draws from all generators."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout()) for _ in range(2))
        self.scale = nn.Parameter(torch.zeros(6))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("cache", None)

    def forward(self, x):
        self.calls = self.calls + 1
        with torch.no_grad():
            self.scale.add_(random.random() * 1e-3 + np.random.rand() * 1e-3)  # noqa: NPY002
        x.mul_(0.5)
        for layer in self.layers:
            x = x + layer(x)
        self.layers[0].eval()
        return x * (1 + self.scale)


class _Asking(nn.Linear):
    """Asks for its input's gradient, as wav2vec 2.0 does in training."""

    def forward(self, x):
        x = x[:, None]
        x.requires_grad = True
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_input_that_the_module_asks_for_and_a_nested_tensor_end_nothing():
    assert judged_module(_Asking(6, 6), torch.randn(4, 6), lambda y: y.square().mean()).alarms == []
    assert tensor_of(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])) is None


def test_a_module_is_left_as_it_was():
    module, x = _Careless(), torch.randn(7, 6)
    module.layers[1].eval()
    module.layers[0][0].bias.requires_grad_(False)
    module.scale.grad = torch.full((6,), 3.0)
    gradient = module.scale.grad
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    state, before = copy.deepcopy(module.state_dict()), x.clone()
    modes, buffer = [part.training for part in module.modules()], module.calls
    flags = [one.requires_grad for one in module.parameters()]
    measured = one_module(module, x, lambda y: y.square().mean())
    drawn = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002
    assert measured.tests.batch_norm
    assert {
        name: bool(torch.equal(value, state[name])) for name, value in module.state_dict().items()
    } == dict.fromkeys(state, True)
    assert module.calls is buffer
    assert module.scale.grad is gradient
    assert torch.equal(gradient, torch.full((6,), 3.0))
    assert all(one.grad is None for name, one in module.named_parameters() if name != "scale")
    assert [part.training for part in module.modules()] == modes
    assert [one.requires_grad for one in module.parameters()] == flags
    assert torch.equal(x, before)
    assert not x.requires_grad
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    assert drawn == (random.random(), np.random.rand(), float(torch.rand(())))  # noqa: NPY002
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_half_precision_is_held_against_single():
    torch.manual_seed(0)
    module, words, loss = HEALTHY["decoder"](32, 2)
    assert one_module(module, words, loss).dtype_change == 0.0
    low = one_module(module.bfloat16(), words, lambda y: loss(y.float()))
    assert low.dtype == "bfloat16"
    assert 1e-3 < low.dtype_change < 0.1


def test_compiled_code_runs_uncompiled(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", torch)
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: pytest.raises(RuntimeError, match=stance))
    with kept_state(nn.Linear(1, 1), 0):
        raise RuntimeError("force_eager")
