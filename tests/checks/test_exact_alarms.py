"""Exact alarms: copies, attention's factors, norms' epsilons, who sees whom, what torch does not know of."""

import re
from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn import functional

import gradbounds as gb
from checks.models.exact_alarms import exact_alarms, whole as whole_number
from checks.models.health import alarms as layer_alarms
from checks.models.judge import judged_module
from checks.models.whole_model import loss_alarms
from simulate.modules.exact_tests import ExactTests
from simulate.modules.one_module import one_module
from tests.helpers.exact_lines import exactly
from tests.helpers.single_modules import Decoder, made, planted


def test_what_belongs_to_training_is_left_out_of_trained_modules():
    module, words, loss = planted("decoder", "logits multiplied", 2, 32, 4)
    module.head.weight.data.mul_(20)
    nn.init.normal_(module.layers[0].up.bias, std=30)
    kinds = {alarm.kind for alarm in judged_module(module, words, loss).alarms}
    assert {"attention", "loss", "bias"} <= kinds
    trained = gb.probe(module, words, loss=loss, trained=True)
    assert trained.alarms == []
    assert "Not judged: initialization" in trained.judgement()
    module.layers[2].attention.over = -2
    assert [alarm.layer for alarm in gb.probe(module, words, loss=loss, trained=True).alarms] == [3]


def test_copies_of_torch_are_a_note_and_frozen_layers_too():
    class Encoded(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(16, 5)

        def forward(self, x):
            return self.head(self.encoder(x))

    torch.manual_seed(0)
    module, labels = Encoded(), torch.randint(5, (12,))
    module.encoder.layers[1].requires_grad_(False)
    report = gb.probe(module, torch.randn(2, 6, 16), loss=lambda y: functional.cross_entropy(y.flatten(0, 1), labels))
    assert report.alarms == []
    notes = "\n".join(report.notes)
    assert "layers 1, 2, 3 have the same numbers" in notes
    assert "frozen: " in notes
    assert "... and" in report.lines()[-3], "notes are folded"


def test_labels_that_are_the_input_itself():
    module, words, _ = made("torch.nn, Pre-LN")
    module = Decoder(32, 2, attends=True)
    words = torch.randint(128, (2, 16))
    report = gb.probe(module, words, loss=lambda y: functional.cross_entropy(y.flatten(0, 1), words.flatten()))
    assert [alarm.kind for alarm in report.alarms] == ["leak"]
    assert "its own input" in report.alarms[0].what


def test_a_loss_below_what_frequencies_explain():
    """Words that stand on both sides: the sharper head copies, and the labels are the input's."""
    module, words, _ = made("decoder")
    module.layers = nn.ModuleList()
    module.head.weight = module.words.weight
    report = gb.probe(module, words, loss=lambda y: functional.cross_entropy(y.flatten(0, 1), words.flatten()))
    assert any("entropy of the batch's labels" in alarm.what for alarm in report.alarms)
    assert "list of layers" in report.judgement()


def test_a_built_in_with_an_encoder_passes_the_exact_tests():
    assert exact_alarms(gb.probe("transformer-pre", widths=[16], depths=[2], seeds=1).probed.tests)[0] == []


class Experts(nn.Module):
    """A residual layer whose tokens all go to the experts of these numbers."""

    def __init__(self, width, chosen):
        super().__init__()
        self.norm, self.chosen = nn.LayerNorm(width), chosen
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3))

    def forward(self, x):
        return x + sum(self.experts[k](self.norm(x)) for k in self.chosen)


class Whole(nn.Module):
    """Takes a batch as one dict, and gives its loss in one, as modules for trainers do."""

    def __init__(self, chosen):
        super().__init__()
        self.words, self.layers = nn.Embedding(64, 16), nn.ModuleList(Experts(16, of) for of in chosen)

    def forward(self, batch):
        x = self.words(batch["input_ids"])
        for layer in self.layers:
            x = layer(x)
        logits = x @ self.words.weight.T / 16
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()), "logits": logits}


def whole(chosen):
    torch.manual_seed(5)
    words = torch.randint(64, (3, 9))
    return Whole(chosen), {"input_ids": words[:, :-1], "labels": words[:, 1:]}


@pytest.mark.parametrize("wrapped", [dict, lambda batch: (batch,), UserDict])
def test_a_dict_that_is_the_one_argument(wrapped):
    """By keywords where `forward` takes them, and whole where it does not; in a tuple, and of another mapping."""
    module, batch = whole([(0, 1, 2)] * 3)
    report = gb.probe(module, wrapped(batch))
    report.assert_healthy()
    assert report.to_frame().query("quantity == 'loss'")["value"].item() == pytest.approx(module(batch)["loss"].item())


def test_an_expert_without_tokens_is_a_note():
    """A module that does not run while others of its list do; one that nothing calls in any layer is an alarm still."""
    report = gb.probe(*whole([(0, 1, 2), (0, 2), (0, 1, 2), (0, 1, 2)]))
    report.assert_healthy()
    (note,) = [note for note in report.notes if "idle" in note]
    assert note == "idle: experts.1 of layer 2 of layers did not run on this batch, unlike other modules of its list"
    module, batch = whole([(0, 1, 2)] * 4)
    module.layers[1].experts[1].forward = lambda x: x.detach() * 0.0  # runs, and has no gradient
    assert [(alarm.kind, alarm.layer) for alarm in gb.probe(module, batch).alarms] == [("no gradient", 2)]


class Weighed(nn.Module):
    """All experts run on all tokens, and a mask says whose output counts."""

    def __init__(self, last):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
        self.register_buffer("mask", torch.tensor([1.0, 1.0, last]))

    def forward(self, x):
        return x + sum(weight * expert(x) for weight, expert in zip(self.mask, self.experts, strict=True))


def test_an_expert_that_runs_and_counts_for_no_token_is_a_note():
    """In one layer, where most others' counts; an output that is cut off is an alarm still."""
    torch.manual_seed(0)
    module = nn.Sequential(*(Weighed(float(k != 2)) for k in range(4)))
    report = gb.probe(module, torch.randn(6, 8), loss=lambda y: y.square().mean())
    report.assert_healthy()
    (note,) = [note for note in report.notes if "is not used" in note]
    assert note.startswith("without tokens: experts.2 of layer 3 of Sequential ran on this batch, but its output")
    frame = report.to_frame()
    idle = frame[frame["quantity"] == "idle"]
    assert set(zip(idle["layer"], idle["parameter"], strict=True)) == {(3, "experts.2.weight")}
    module[1].experts[0].forward = lambda x: x.detach() * 0.0  # cut off, which no mask does
    alarms = gb.probe(module, torch.randn(6, 8), loss=lambda y: y.square().mean()).alarms
    assert [(alarm.kind, alarm.layer) for alarm in alarms] == [("no gradient", 2)]


class Hidden(nn.Module):
    """Two residual layers and a head; what is asked for is no part of the module for torch."""

    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2))
        self.head = nn.Linear(8, 5)
        self.free = torch.ones(8, requires_grad=hidden == "free")
        if hidden == "experts":
            for layer in self.layers:
                layer.experts = [nn.Linear(8, 8)]
        elif hidden in ("layers", "head"):
            part = getattr(self, hidden)
            delattr(self, hidden)
            self.__dict__[hidden] = list(part) if hidden == "layers" else part

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = x + (layer.experts[0](y) if hasattr(layer, "experts") else y)
        return self.head(x * self.free)


@pytest.mark.parametrize(("hidden", "place", "names"), [
    ("experts", "layers", r"experts\[0\].weight \(8, 8\), experts\[0\].bias \(8\), not .* them \[all layers\]"),
    ("layers", "the whole model", r"layers\[0\].0.weight \(8\), .* and 5 more, not"),
    ("head", "the whole model", r"head.weight \(5, 8\), head.bias \(5\), not"),
    ("free", "the whole model", r"free \(8\), not registered as parameters: the optimizer will not train it"),
    ("nothing", "", ""),
])  # fmt: skip
def test_what_is_not_registered_is_an_alarm(hidden, place, names):
    """And what the caller gave with a gradient, or the loss holds, is none."""
    torch.manual_seed(3)
    module, scale, labels = Hidden(hidden), nn.Parameter(torch.ones(5)), torch.randint(5, (9,))
    x = torch.randn(9, 8, requires_grad=True)
    raised = exactly(module, x, lambda y: functional.cross_entropy(y * scale, labels))[0]
    assert len(raised) == (hidden != "nothing")
    assert all(re.match(f"structure: {place}: uses {names}", alarm) for alarm in raised)


def test_a_loss_that_is_not_finite_blames_no_layer():
    module, x = Hidden("nothing"), torch.randn(9, 8)
    report = judged_module(module, x, lambda y: y.sum() * float("nan"))
    assert [str(alarm) for alarm in report.alarms] == ["non-finite: the whole model: the loss is nan"]
    assert "guess" not in "\n".join(report.lines())
    frame = report.to_frame()
    broken = frame["parameter"].eq("1.weight") & frame["layer"].eq(2) & frame["quantity"].eq("weight")
    (alarm,) = layer_alarms(frame.assign(value=frame["value"].mask(broken)))
    assert (alarm.layer, alarm.what) == (2, "1.weight has entries that are not finite; the loss is nan")


def test_half_precision_hides_nothing():
    """A module without a mask is seen in a float32 copy; where that cannot run, a note says so."""
    torch.manual_seed(4)
    module, words = Decoder(16, 1, attends=True).bfloat16(), torch.randint(128, (2, 17))
    module.layers[0].attention.causal = False

    def loss(y):
        return functional.cross_entropy(y.flatten(0, 1), words[:, 1:].flatten())

    tests = one_module(module, words[:, :-1], loss).tests
    assert [alarm.kind for alarm in exact_alarms(tests)[0]] == ["leak"]
    assert whole_number(tests, "classes") == 128
    (note,) = one_module(module, words[:, :-1], lambda y: loss(y) if y.dtype == torch.bfloat16 else y).notes
    assert note.startswith("the loss and visible positions were not fully tested in bfloat16: a float32 copy")


class Columns(nn.Module):
    """Words and attention of torch.nn that takes positions first; `turned` says that the module turns them itself."""

    def __init__(self, *, turned, mask=True):
        super().__init__()
        self.words, self.turned, self.mask = nn.Embedding(16, 8), turned, mask
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 8, 0.0) for _ in range(2))
        self.head = nn.Linear(8, 16)

    def forward(self, words):
        x = self.words(words)
        x = x.mT.movedim(-1, 0) if self.turned else x
        mask = nn.Transformer.generate_square_subsequent_mask(len(x)) if self.mask else None
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x.transpose(0, 1) if self.turned else x)


@pytest.mark.parametrize(("turned", "below", "mask", "raised"), [
    (False, False, True, "leak: the whole model: sees other samples of the batch .* batch_first=False treats"),
    (True, False, True, ""),
    (False, True, True, ""),
    (False, True, False, "leak: the whole model: every position sees its own label"),
])  # fmt: skip
def test_samples_are_where_labels_say(turned, below, mask, raised):
    """Along the caller's first axis, where the next word along the second is the label; torch's flag is no witness."""
    torch.manual_seed(5)
    module, words = Columns(turned=turned, mask=mask), torch.randint(16, (6, 7))
    inputs, labels = (words[:, :-1], words[:, 1:]) if not below else (words.T[:-1], words.T[1:])
    alarms, _, lines = exactly(module, inputs, lambda y: functional.cross_entropy(y.flatten(0, 1), labels.flatten()))
    assert len(alarms) == bool(raised)
    assert all(re.match(raised, alarm) for alarm in alarms)
    crossing = raised.count("samples") == 1
    assert f"Samples of the batch: they {'see' if crossing else 'do not see'} one another." in lines
    moved = inputs.clone()
    moved[0] = (moved[0] + 1) % 16
    with torch.no_grad():
        assert below or bool((module.eval()(inputs)[3] != module(moved)[3]).any()) == crossing


@pytest.mark.parametrize("mask", [True, False])
def test_an_own_label_of_the_second_input_is_seen(mask):
    """Of an encoder-decoder, whose source has as many words as its target, which sees all of it in healthy ones."""
    torch.manual_seed(6)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
            self.layers = nn.ModuleList(
                nn.TransformerDecoderLayer(8, 2, 8, 0.0, batch_first=True) for _ in range(2)
            )  # fmt: skip

        def forward(self, source, target):
            x, memory = self.words(target), self.words(source)
            for layer in self.layers:
                x = layer(x, memory, nn.Transformer.generate_square_subsequent_mask(6) if mask else None)
            return self.head(x)

    source, words = torch.randint(16, (3, 6)), torch.randint(16, (3, 7))
    alarms = exactly(Both(), (source, words[:, :-1]), lambda y: functional.cross_entropy(y.mT, words[:, 1:]))[0]
    assert ["sees its own label" in alarm for alarm in alarms] == [True] * (not mask)


def test_copies_within_a_layer_and_outside_of_all_have_their_places():
    module, words, loss = made("decoder", width=32)
    for layer in (module.layers[1], module.layers[3]):
        layer.up.weight.data.copy_(module.words.weight)
    (what,) = [alarm for alarm in exactly(module, words, loss)[0] if alarm.startswith("copies")]
    names = "words.weight and up.weight of layer 2 of layers and up.weight"
    assert what == f"copies: layer 4 of layers: the same numbers occur in {names}"


@pytest.mark.parametrize(("insight", "count"), [(3.0, 0), (30.0, 1)])
def test_labels_guessed_by_chance_raise_no_alarm(insight, count):
    """Of two labels, a loss below their entropy is often chance; many standard errors below random labels is not."""
    facts = {"cross_entropy": 0.4, "classes": 2.0, "label_entropy": 0.69, "label_insight": insight}
    rows = tuple(("", 0, "", name, value) for name, value in facts.items())
    assert len(loss_alarms(ExactTests(rows, (), (), False, False, (), ()))) == count


class Scaled(nn.Module):
    """Linear layers with ReLU and He's initialization times a factor of each layer."""

    def __init__(self, factors):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(128, 128, bias=False), nn.ReLU()) for _ in factors)
        for (linear, _), factor in zip(self.layers, factors, strict=True):
            nn.init.normal_(linear.weight, std=factor * (2 / 128) ** 0.5)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize(("factors", "grows"), [
    ([2.0] * 8, True), ([2 ** (k / 2) for k in range(6)], True), ([2.8] * 6 + [1.0] * 6, True), ([30.0] * 2, True),
    ([6.0] * 3, True), ([1.0] * 8, False), ([1.0] * 3, False),
])  # fmt: skip
def test_growth_is_an_alarm_whatever_its_shape(factors, grows):
    """Steps that are equal, that grow, or that stop half-way, and lists too short to show a common step."""
    torch.manual_seed(0)
    report = judged_module(Scaled(factors), torch.randn(64, 128), lambda output: output.square().mean())
    assert any(alarm.kind == "growth" for alarm in report.alarms) == grows


class SmallAttention(nn.Module):
    """A Pre-LN layer with attention alone, whose logits are small because its entries are."""

    def __init__(self, scale):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(48), scale
        self.q, self.k, self.v, self.o = (nn.Linear(48, 48, bias=False) for _ in range(4))
        for linear in (self.q, self.k, self.v, self.o):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (f(self.norm(x)).view(batch, tokens, 4, 12).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return x + self.o(attended.transpose(1, 2).reshape(batch, tokens, 48))


@pytest.mark.parametrize("scale", [12**-0.5, 1.0])
def test_a_factor_of_one_layer_s_logits_is_an_alarm_where_all_are_small(scale):
    """Logits of 0.06 change no weight here, and 1/sqrt(d_k) that is left out does at the full width."""
    torch.manual_seed(1)
    module = nn.Sequential(*(SmallAttention(scale if layer == 2 else 12**-0.5) for layer in range(5)))
    report = judged_module(module, torch.randn(4, 16, 48), lambda output: output.square().mean())
    assert any("attention logits are" in alarm.what for alarm in report.alarms) == (scale == 1.0)


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
