"""Modules built as other people build them: healthy ones raise no alarm, and a fault in one of them is named."""

import importlib
import sys
from collections import OrderedDict
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

from checks.models.alarm import Alarm
from checks.models.health import layer_kinds
from checks.models.judge import drawn_alike, judged_module, probe
from simulate.modules.layers import layer_lists
from simulate.modules.mixing import blocks, dependences
from tests.helpers.public_faults import KINDS
from tests.helpers.single_modules import OF_TRANSFORMERS
from theory import Stack

WORDS, WIDTH = 32, 24
IDS = torch.randint(WORDS, (2, 13), generator=torch.Generator().manual_seed(1))


class Norm(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.weight, self.scale, self.eps = nn.Parameter(torch.ones(WIDTH)), scale, 1e-6

    def forward(self, x):
        x = self.scale * x
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class Layer(nn.Module):
    """Causal attention with sinks and units; the units of the first layer have other names than experts."""

    def __init__(self, number, norm=Norm):
        super().__init__()
        self.norm, self.q, self.o = norm(), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.sinks = nn.Parameter(torch.randn(4))
        self.mlp = nn.ModuleDict({"down" if not number else "experts": nn.Linear(WIDTH, WIDTH, bias=False)})

    def forward(self, x, mask=None):
        q, k, v = self.q(self.norm(x)).chunk(3, -1)
        y = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.o(y) * self.sinks.sigmoid().mean()
        return x + next(iter(self.mlp.values()))(functional.gelu(self.norm(x)))


class Model(nn.Module):
    def __init__(self, config=None, depth=5, layer=Layer):
        super().__init__()
        self.config, self.words, self.last = config, nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(layer(k) for k in range(depth))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, position_ids=None, mask=None):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x) if mask is None else layer(x, mask)
        return self.head(self.last(x))


def judged(module, batch=None, **options):
    loss = lambda y: functional.cross_entropy(y.flatten(0, 1), IDS[:, 1:].flatten())  # noqa: E731
    return judged_module(module, IDS[:, :-1] if batch is None else batch, loss, **options)


def made(**options):
    torch.manual_seed(0)
    return Model(**options)


def test_layers_of_two_kinds_are_compared_within_their_own():
    module = made()
    with torch.no_grad():
        module.layers[2].sinks.copy_(0.15 * module.layers[2].sinks)
    report = judged(module)
    assert report.alarms == []
    (note,) = (note for note in report.notes if "kinds" in note)
    assert (
        "of 2 kinds; each layer is compared with layers of its kind: 1 (with mlp.down.weight); 2, 3, 4, 5 (with "
        "mlp.experts" in note
    )
    for number, name in ((0, "down"), (3, "experts")):
        broken = made()
        with torch.no_grad():
            broken.layers[number].mlp[name].weight.mul_(30)
        assert {alarm.layer for alarm in judged(broken).alarms} == {number + 1}
    lacking = made()
    lacking.layers[3].norm.weight = None
    lacking.layers[3].norm.forward = lambda x: functional.rms_norm(x, (WIDTH,))
    (alarm,) = judged(lacking).alarms
    assert (alarm.kind, alarm.layer) == ("structure", 4)


class Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        scale = x.square().mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight, scale = ctx.saved_tensors
        return gradient * scale * weight, (gradient * x * scale).sum((0, 1))


def test_a_norm_s_backward_pass_and_a_norm_below_its_epsilon():
    module = made()
    for layer in module.layers:
        layer.norm.forward = lambda x, weight=layer.norm.weight: Forgetful.apply(x, weight)
    (alarm,) = judged(module).alarms
    assert alarm.kind == "norm"
    assert "backward pass of norm does not match its forward pass: g.x must be 0" in alarm.what
    torch.manual_seed(0)
    (alarm,) = judged(Small()).alarms
    assert "norm divides by its epsilon: its output grows as" in alarm.what


def test_documents_in_one_row_are_found_and_a_small_layer_scale_hides_nothing():
    document = torch.bucketize(torch.arange(12), torch.tensor([4, 9]), right=True)
    mask = (document[:, None] == document) & torch.ones(12, 12, dtype=torch.bool).tril()
    batch = {"ids": IDS[:, :-1], "position_ids": torch.cat([torch.arange(k) for k in (4, 5, 3)]).repeat(2, 1)}
    lines = judged(made(), batch | {"mask": mask}).lines()
    assert "Blocks of positions: 3 that do not see one another; these blocks begin at 0, 4, 9, counted from 0." in lines
    mixed = judged(made(), batch)
    assert not any("Blocks" in line for line in mixed.lines())
    assert any("document starts at 4, 9, but later positions see earlier documents" in note for note in mixed.notes)
    x = torch.randn(1, 12, 4, requires_grad=True)
    halves = (torch.arange(12)[:, None] < 6) == (torch.arange(12) < 6)
    for visible, sees in ((halves, (True, True)), (halves.tril(), (False, True)), (halves * 0.0, (False, False))):
        seen = dependences(x, x + 1e-7 * (visible.float() @ x), -2)
        assert (seen["sees_later"] > 0, seen["sees_earlier"] > 0) == sees
    transposed, token = torch.ones(12, 12).triu(), torch.eye(12)
    token[0] = 1.0
    assert dependences(x, transposed @ x, -2)["sees_later"] > 0
    assert "sees_later" not in dependences(x, token @ x, -2), "a class token, and no mask"
    assert blocks(x, (torch.ones(12, 12).tril() - torch.ones(12, 12).tril(-4)) @ x) == ([], 3)


def test_stages_of_a_pyramid_are_no_layers():
    def stage(width):
        block = lambda: nn.Sequential(nn.Linear(width, width), nn.GELU())  # noqa: E731
        return nn.ModuleDict({"down": nn.Linear(width, width), "blocks": nn.ModuleList(block() for _ in range(3))})

    stages = nn.ModuleDict({"stages": nn.ModuleList(stage(width) for width in (8, 16, 32))})
    assert [part.name for part in layer_lists(stages, (), 0)] == [f"stages.{k}.blocks" for k in range(3)]
    # As torchvision names them: with the stage's number in the layers' names.
    named = [OrderedDict((f"block{w}-{k}", stage(w)) for k in range(3)) for w in (8, 16)]
    assert len(layer_lists(nn.Sequential(*map(nn.Sequential, named)), (), 0)) == 2


def test_garbage_and_weights_that_stay_copies():
    module = made()
    with torch.no_grad():
        module.words.weight[3, :4] = torch.tensor([1e19, -1e12, 1e-30, 1e15])
    assert any("the largest entry of words.weight is" in str(alarm) for alarm in judged(module).alarms)

    class Mixed(Layer):
        def __init__(self, number):
            super().__init__(number)
            self.mix = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return super().forward(x) * (1 + self.mix.sum())

    (alarm,) = judged(made(layer=Mixed)).alarms
    assert (alarm.kind, alarm.layer) == ("copies", 0)
    assert "entries of mix along an axis are equal and get equal gradients" in alarm.what


class Small(Model):
    """A model whose norms divide by their epsilon."""

    def __init__(self, config=None):
        super().__init__(config, layer=lambda k: Layer(k, lambda: Norm(scale=3e-4)))


def test_what_an_installed_class_draws_is_a_note(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    code = "from tests.checks.test_wild_modules import Small\n\n\nclass Installed(Small):\n    pass\n"
    (folder / "installed_models.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    installed = importlib.import_module("installed_models").Installed
    torch.manual_seed(0)
    report = judged(installed(SimpleNamespace()))
    (note,) = (note for note in report.notes if note.endswith("(a new Installed has this too)"))
    assert report.alarms == []
    assert "norm divides by its epsilon" in note
    assert judged(Small(SimpleNamespace())).alarms, "a class that is not installed"


class Loose(Model):
    def __init__(self):
        super().__init__(layer=lambda _: nn.ModuleDict({"norm": Norm(), "up": nn.Linear(WIDTH, WIDTH)}))
        self.between = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        x = self.words(ids)
        for number, layer in enumerate(self.layers):
            x = x + layer["up"](layer["norm"](x))
            x = self.between(x) if number == 1 else x
        return self.head(self.last(x))


class Looped(Loose):
    """The layers run three times in turn, as with tied layers."""

    def forward(self, ids):
        x = self.words(ids)
        for layer in 3 * list(self.layers):
            x = x + layer["up"](layer["norm"](x))
        return self.head(self.last(x))


def taking_turns(number, window=4):
    """Return a layer; every second one has a window, and logits four times as large."""
    layer = Layer(number + 1)
    layer.window = window * (number % 2)
    layer.q.weight.data[:WIDTH] *= 1 + 3 * (number % 2)
    return layer


def test_attention_of_two_kinds_is_compared_within_its_own():
    alike = judged(made(layer=partial(taking_turns, window=0)))
    assert any("times the other layers'" in alarm.what for alarm in alike.alarms)


class Skips(Model):
    """A skip connection doubles the stream between two layers, whose branches are small."""

    def forward(self, ids):
        x = kept = 100.0 * self.words(ids)
        for number, layer in enumerate(self.layers):
            x = layer(x + kept if number == 3 else x)
        return self.head(self.last(x))


class Turned(Layer):
    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Hidden(Model):
    def forward(self, ids):
        return {"hidden": nn.Sequential(*self.layers)(self.words(ids).transpose(0, 1))}


class Padded(Model):
    def forward(self, ids):
        x = self.words(ids)
        x = functional.pad(x + x.mean(1, keepdim=True), (0, 0, 0, ids.shape[1]))
        return self.head(self.last(nn.Sequential(*self.layers)(x)))[:, : ids.shape[1]]


class Gated(Layer):
    def __init__(self, number, size=0.0):
        super().__init__(number)
        self.gate = nn.Linear(WIDTH, WIDTH)
        chosen = slice(None if size else WIDTH // 2)
        nn.init.normal_(self.gate.weight[chosen], std=size)
        nn.init.constant_(self.gate.bias[chosen], 0.0 if size else 10.0)

    def forward(self, x):
        return x + self.gate(x).sigmoid() * (super().forward(x) - x)


class Unwatched(Layer):
    def forward(self, x):
        assert not self._forward_hooks, "this layer takes no hooks"
        return super().forward(x)


def with_tables():
    module, angles = made(), torch.arange(12.0)[:, None] * 0.1 ** torch.arange(WIDTH // 2)
    for number, name in enumerate(("first", "second", "third", "fourth")):
        shares = torch.linspace(0, 1, WIDTH).repeat(3, 1)
        table = shares if number > 1 else torch.cat([angles.sin(), angles.cos()], 1)
        module.register_parameter(name, nn.Parameter(table))
    return module


@pytest.mark.parametrize(("make", "loss"), [
    (Loose, None), (partial(Hidden, layer=Turned), lambda y: y["hidden"].square().mean()),
    (Padded, lambda y: functional.cross_entropy(y.flatten(0, 1), IDS.flatten()[:24])),
    (partial(made, layer=Gated), None), (Looped, None), (partial(made, layer=taking_turns), None),
    (with_tables, None), (partial(made, layer=Unwatched), None), (Skips, None),
])  # fmt: skip
def test_healthy_streams_gates_and_tables_raise_no_alarm(make, loss):
    torch.manual_seed(0)
    report = judged(make()) if loss is None else judged_module(make(), IDS[:, :-1], loss)
    assert report.alarms == []
    assert ("the output of layer 2 of layers was not measured: between runs after it" in report.notes) == (
        make is Loose
    )


def test_a_gate_that_its_input_saturates_is_an_alarm():
    (alarm,) = judged(made(layer=partial(Gated, size=20.0))).alarms
    assert "of its hidden units are saturated" in alarm.what


def test_each_optimizer_says_what_it_steps():
    def optimizers(module):
        two = [weight for weight in module.parameters() if weight.ndim == 2]
        return torch.optim.Muon(two), torch.optim.AdamW([p for p in module.parameters() if p.ndim != 2])

    report = judged(made(), optimizer=optimizers)
    assert any(
        line.startswith("Muon updates 17 parameters: words.weight, layers.*.q.weight") for line in report.lines()
    )
    assert "Muon updates embeddings, even of tokens outside the batch: words.weight" in report.notes


def test_a_batch_of_another_number_of_sequences_than_the_stack_s_is_refused():
    def factory(width, depth):
        loss = lambda y: functional.cross_entropy(y.flatten(0, 1), IDS[:, 1:].flatten())  # noqa: E731
        return Model(depth=depth), lambda _: (IDS[:, :-1], loss)

    factory.stack = lambda width, depth: Stack(placement="pre", width=width, depth=depth, tokens=12, vocab=WORDS)
    with pytest.raises(ValueError, match="the batch has 2 sequences of 12 tokens, got sequences=1 and tokens=12"):
        probe(factory, widths=[WIDTH], depths=[3], seeds=2)


ELSEWHERE = {
    "q.k without 1/sqrt(d_k), all layers", "softmax over queries, all layers", "no mask, next word",
    "heads for positions, labels at random", "the other triangle, labels at random", "epsilon of 1, one layer",
    "norms times their input", "every matrix from one seed", "rows that repeat, all layers", "q.k times sqrt(d_k)",
    "q.k over sqrt(d)", "no mask, labels at random", "output matrix of N(0, 1)",
    "biases of attention that nobody wrote", "norms that are not called",
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ELSEWHERE])
def test_public_kinds_are_answered(kind):
    """By what is said to be right; and healthy counterparts are silent."""
    one, torch_alone = KINDS[kind], [name for name in KINDS[kind].families if name not in OF_TRANSFORMERS]
    torch.manual_seed(13)
    answer = one.answers(judged_module(*one.plant(torch_alone[1], 2, 32, 3)), 2)
    assert any(answer[by] for by in one.asked) if one.asked else not answer["other"]


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
