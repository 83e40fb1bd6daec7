"""What a probe says of the stream and of the whole: residual connections, gradients, depth, a reference, a Stack."""

import functools
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

from checks.models.initialization import against_initialization
from checks.models.judge import probe
from checks.models.layer_tables import ROLES
from checks.models.reference import Reference, against_reference
from checks.models.streams import behind_norms, normed_residuals
from simulate import probe as measured
from simulate.modules.catalogue import BUILTINS

SIZES = {"widths": [32], "depths": [4], "seeds": 2}


class Layer(nn.Module):
    """x + b(norm(x)), of a size; or what a fault makes of it."""

    def __init__(self, width, size, fault=""):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.size, self.fault = size, fault

    def forward(self, x):
        x = x.detach() if self.fault == "input detached" else x
        x = self.norm(x) if self.fault == "residual of the normed" else x
        branch = self.size * self.down(torch.relu(self.up(self.norm(x))))
        if self.fault == "no residual":
            return branch
        y = x + branch
        return y.detach() if self.fault == "output detached" else y


def model(*, faults=(), input_scale=1.0, size=1.0, layers=None, gain=1.0):
    """A factory of Pre-LN layers, some with faults (by number)."""

    def factory(width, depth):
        faulty = dict(faults)
        body = nn.Sequential(*(Layer(width, size, faulty.get(k + 1, "")) for k in range(layers or depth)))
        with torch.no_grad():
            for layer in body:
                layer.down.weight.mul_(gain)
        first = nn.Linear(width, width)
        whole = nn.ModuleDict({"first": first, "body": body})
        whole.forward = lambda x: body(input_scale * first(x))
        return whole, lambda _: (torch.randn(2, 8, width), lambda y: (y * torch.randn_like(y)).mean())

    return factory


def test_a_branch_larger_than_the_stream_hides_no_residual_connection():
    """Inputs far smaller than the first branch: the token's cosine is low, and its projection is 1."""
    report = probe(model(input_scale=0.03), **SIZES)
    frame = report.to_frame()
    assert frame[(frame["quantity"] == "stream_cosine") & (frame["layer"] == 1)]["value"].max() < 0.3
    assert report.alarms == []


@pytest.mark.parametrize("input_scale", [0.03, 1.0])
def test_a_missing_residual_connection_is_named(input_scale):
    alarms = probe(model(faults=[(3, "no residual")], input_scale=input_scale), **SIZES).alarms
    assert [alarm.layer for alarm in alarms if alarm.kind == "residual"] == [3]


def test_layers_without_any_residual_connection_are_no_alarm():
    report = probe(model(faults=[(k, "no residual") for k in range(1, 5)]), **SIZES)
    assert not [alarm for alarm in report.alarms if alarm.kind == "residual"]
    assert any("no residual connection was found in any layer of body" in line for line in report.lines())


@pytest.mark.parametrize("layer", ["relu", "normed gelu"])
def test_units_of_one_sign_are_no_residual_connection(layer):
    """Their coordinates have a mean, so that each layer's output lies along its input but for that."""

    def factory(width, depth):
        parts = {"relu": [nn.ReLU()], "normed gelu": [nn.LayerNorm(width), nn.GELU()]}[layer]
        body = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), *parts) for _ in range(depth)))
        for linear in (module[0] for module in body):
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        whole = nn.Sequential(nn.Linear(width, width), body)
        return whole, lambda _: (torch.randn(16, width), lambda y: (y * torch.randn_like(y)).mean())

    report = probe(factory, widths=[64], depths=[4, 6], seeds=4)
    assert not [alarm for alarm in report.alarms if alarm.kind == "residual"]


@pytest.mark.parametrize(("fault", "depth"), [("input detached", 6), ("output detached", 4)])
def test_a_detached_layer_is_named_once(fault, depth):
    report = probe(model(faults=[(3, fault)]), widths=[16], depths=[depth], seeds=1)
    assert [(alarm.kind, alarm.layer) for alarm in report.alarms] == [("detached", 3)]
    assert not any("nan" in line for line in report.lines())


def test_frozen_layers_are_not_detached():
    def factory(width, depth):
        module, batch = model()(width, depth)
        module["first"].requires_grad_(False)
        module["body"][0].requires_grad_(False)
        return module, batch

    assert probe(factory, **SIZES).alarms == []


def test_layers_that_do_not_follow_the_depth_are_said():
    sizes = {"widths": [16], "depths": [2, 3, 4], "seeds": 2}
    report = probe(model(layers=4), **sizes)
    (alarm,) = report.alarms
    assert str(alarm).startswith("depth: body: has 4 layers at every depth")
    assert "note: body has 4 layers at depth 2" in report.lines()
    assert not (report.exponents["against"] == "depth").any()
    assert probe(model(), **sizes).alarms == []


def test_one_seed_has_no_error_and_a_word():
    lines = probe("encoder-pre", widths=[512], depths=[2], seeds=1).lines()
    assert any(line.endswith("(one seed)  undecided") for line in lines)
    assert any(line.endswith("(one seed)  not judged") for line in lines)
    assert any(line.startswith("  Not compared") and "linear1.bias" in line for line in lines)
    assert not any("nan" in line for line in lines)


def test_against_a_reference(tmp_path):
    """A healthy module of other seeds, from a file; and projections three times as large in all layers."""
    probe(model(), **SIZES | {"seeds": 4}).reference().save(tmp_path / "probe.json")
    assert probe(model(), **SIZES, seed=7, against=tmp_path).alarms == []
    (first, *_) = probe(model(gain=3.0), **SIZES, seed=7, against=str(tmp_path / "probe.json")).alarms
    assert "reference: body: norm of down.weight in its layers is" in str(first)
    # By itself it is healthy: all layers are alike.
    assert probe(model(gain=3.0), **SIZES).alarms == []
    with pytest.raises(ValueError, match=r"^reference must have a width and depth of \[\(16, 4\)\], got \[\(32, 4\)\]"):
        probe(model(), widths=[16], depths=[4], against=Reference.read(tmp_path / "probe.json"))
    (tmp_path / "probe.json").write_text("{}")
    with pytest.raises(ValueError, match="^reference must be a probe.json"):
        probe(model(), **SIZES, against=tmp_path)


def decoders(*, mask=True, std=0.02):
    """A factory of decoders of torch.nn with one layer; with a mask, and words drawn with a deviation."""

    def factory(width, depth):
        layers = nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True, norm_first=True)
        whole = nn.ModuleDict({"words": nn.Embedding(64, width), "layers": nn.ModuleList([layers])})
        nn.init.normal_(whole["words"].weight, std=std)
        later = torch.full((6, 6), float("-inf")).triu(1) if mask else None
        whole.forward = lambda words: functional.linear(
            functional.layer_norm(layers(whole["words"](words), later), [width]), whole["words"].weight
        )
        words, labels = torch.randint(64, (2, 6)), torch.randint(64, (12,))
        return whole, lambda _: (words, lambda y: functional.cross_entropy(y.flatten(0, 1), labels))

    return factory


def test_a_missing_mask_and_a_loss_that_is_too_large(tmp_path):
    """By itself a layer that sees later positions is a fact, as encoders are; the loss is held against ln V."""
    sizes = {"widths": [16], "depths": [1], "seeds": 2}
    healthy = probe(decoders(), **sizes)
    healthy.reference().save(tmp_path / "probe.json")
    assert healthy.alarms == []
    assert "Positions seen in layers: earlier only." in healthy.lines()
    report = probe(decoders(mask=False), **sizes, seed=5, against=tmp_path)
    assert "Positions seen in layers: earlier and later." in report.lines()
    first = "reference: layers: sees later positions, unlike the reference [at (width, depth) = (16, 1)]"
    assert str(report.alarms[0]) == first
    (alarm,) = probe(decoders(std=3.0), **sizes).alarms
    assert alarm.kind == "loss"
    assert "a uniform guess among 64 classes has 4.16" in alarm.what


def test_against_the_theory_of_its_initialization():
    """Inputs six times as large: every layer's energy is off, and theory's Stack says so."""

    def louder(width, depth):
        module, batch = BUILTINS["encoder-pre"].factory(width, depth)

        def loud(seed):
            inputs, loss = batch(seed)
            return 6 * inputs, loss

        return module, loud

    sizes = {"widths": [32], "depths": [2], "seeds": 3}
    (alarm, *_) = probe(louder, **sizes, stack=BUILTINS["encoder-pre"].stack).alarms
    assert (alarm.kind, alarm.layer) == ("theory", 0)
    assert "mean squared activation is" in alarm.what
    assert probe("encoder-pre", **sizes).alarms == []


@pytest.mark.parametrize("others", [0.04, 0.003])
def test_a_scatter_that_is_small_by_chance_makes_no_alarm(others):
    """A gradient is 1/1.7 of the reference's, beyond what its own scatter allows; other layers scatter more, or not."""
    names = ["width", "depth", "part", "layer", "parameter", "quantity", "mean", "variance", "seeds"]

    def modules(seeds, first):
        rows = [
            (width, depth, "blocks", layer, "norm1.weight", "gradient", 0.0, others, seeds)
            for width, depth in ((32, 3), (64, 6)) for layer in range(1, depth + 1)
        ]  # fmt: skip
        table = pd.DataFrame(rows, columns=names)
        table.loc[(table["width"] == 64) & (table["layer"] == 1), ["mean", "variance"]] = first
        return Reference("", table)

    alarms = against_reference(modules(2, (-np.log(1.7), 0.003)), modules(8, (0.0, 0.003)))
    said = "reference: layer 1 of blocks: gradient of norm1.weight is 1/1.7 of the reference's"
    assert [str(alarm).partition(" [")[0] for alarm in alarms] == [said] * (others < 0.01)


class Gated(nn.Module):
    """x + g b(x) + k c(x), with factors that may begin at 0, and parameters that nothing uses."""

    def __init__(self, width, zeros):
        super().__init__()
        self.up, self.down, self.other = (nn.Linear(width, width) for _ in range(3))
        self.gate, self.spare = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(width))
        self.register_buffer("factor", torch.ones(1))
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        with torch.no_grad():
            for name, one in [*self.named_parameters(), *self.named_buffers()]:
                if any(name.startswith(zero) for zero in zeros):
                    one.zero_()
        self.zeros = zeros

    def forward(self, x):
        spare = 1.0 if "unused" in self.zeros else self.spare
        second = self.parts[1](x) if "one part" not in self.zeros else 0.0
        branch = self.gate * self.down(self.up(x).relu()) + self.other(x) + self.parts[0](x) + second
        return x + spare * self.factor * branch


BRANCH = ("gate", "down")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("zeros", "said"), [
    ((), None),
    (("down", "other", "parts"), None),
    (("gate",), None),
    (("one part",), None),
    (("factor",), "no parameter of its layers gets a gradient, now or in later steps: are they all multiplied by 0?"),
    (BRANCH, "no layer has a gradient, now or in later steps, for down.bias, down.weight, gate, up.bias, up.weight"),
    (("unused",), "no layer uses spare"),
    (("head",), None),
    (("cut",), "no parameter of its layers gets a gradient, now or in later steps: is its output unused or detached?"),
])  # fmt: skip
def test_what_never_learns_is_one_alarm_and_what_learns_later_none(zeros, said):
    """Two factors of 0 in a row never move; one does, and what stands before it then."""

    def factory(width, depth):
        layers = nn.ModuleList(Gated(width, zeros) for _ in range(depth))
        head = nn.Linear(width, 5)
        whole = nn.ModuleDict({"layers": layers, "head": head})
        if "head" in zeros:
            nn.init.zeros_(head.weight)

        def forward(x):
            for layer in layers:
                x = layer(x)
            return head(x.detach() if "cut" in zeros else x)

        whole.forward = forward
        return whole, lambda _: (torch.randn(2, 3, width), lambda y: y.square().mean())

    report = probe(factory, widths=[8], depths=[3], seeds=1)
    found = [(alarm.kind, alarm.layer, alarm.what) for alarm in report.alarms]
    assert found == ([("no gradient", 0, said)] if said else [])
    later = (
        "note: all layers of layers get gradient 0 at the first step, because head.weight is 0 and must change first"
    )
    assert (later in report.lines()) == ("head" in zeros)
    assert report.lines()[0].endswith("see the note.") == ("head" in zeros)


@pytest.mark.parametrize("count", [1, 2])
def test_zeros_before_the_layers_are_named_unless_one_step_moves_them(count):
    """A matrix of zeros gets a gradient from its inputs, and two in a row get none."""
    parts = nn.ModuleDict({"bridge": nn.Sequential(*(nn.Linear(8, 8) for _ in range(count)))})
    for zero in parts.parameters():
        nn.init.zeros_(zero)
    parts.update({"layers": nn.Sequential(*(Gated(8, ()) for _ in range(3))), "head": nn.Linear(8, 5)})
    parts.forward = lambda x: parts["head"](parts["layers"](parts["bridge"](x)))
    said = [alarm.what for alarm in probe(parts, torch.randn(2, 3, 8), loss=lambda y: y.square().mean()).alarms]
    named = "the input of its layers is 0 everywhere: bridge.0.weight, bridge.1.weight are 0"
    assert (named in str(said)) == (count == 2)


class Routed(nn.Module):
    """A layer with a gate that picks one of two maps, and weighs it by its probability, or by that over itself."""

    def __init__(self, width, kind):
        super().__init__()
        self.gate, self.norm = nn.Linear(width, 2, bias=False), nn.LayerNorm(width)
        self.key, self.query = nn.Linear(width, width), nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.small = nn.Parameter(torch.full((width,), 1e-8 if kind == "a small factor" else 1.0))
        self.divided = kind == "divided by itself"

    def forward(self, x):
        y = self.norm(x)
        weight, place = self.gate(y).softmax(-1).max(-1, keepdim=True)
        weight = weight / weight.sum(-1, keepdim=True) if self.divided else weight
        mixed = (self.query(y) @ self.key(y).mT).softmax(-1) @ y  # the bias of keys has a gradient that is rounding
        return x + self.small * weight * (torch.where(place == 0, self.first(y), self.second(y)) + mixed)


@pytest.mark.parametrize("kind", ["", "a small factor", "divided by itself"])
def test_a_gate_that_is_divided_by_itself_is_named(kind):
    def factory(width, depth):
        layers = nn.Sequential(*(Routed(width, kind) for _ in range(depth)))
        return layers, lambda _: (torch.randn(4, 65, width), lambda y: y.square().mean())

    report = probe(factory, widths=[8], depths=[4], seeds=1)
    found = [(alarm.kind, alarm.layer, re.sub(r"[\d.]+e-\d+", "#", alarm.what)) for alarm in report.alarms]
    what = (
        "in every layer the gradient of gate.weight is only a rounding error (# of the layer's largest "
        "gradient): is its output divided"
    )
    assert found == [("no gradient", 0, f"{what} by itself?")] * (kind == "divided by itself")


def test_what_all_layers_lack_beside_a_reference_is_said_once():
    """Gradients of all layers, and one parameter of a single layer."""

    def silent(width, depth):
        module, batch = model()(width, depth)
        with torch.no_grad():
            for layer in module["body"]:
                layer.down.weight.zero_()
            module["body"][1].up.bias.zero_()
        return module, batch

    found = [str(alarm) for alarm in probe(silent, **SIZES, against=model()).alarms if " lacks " in str(alarm)]
    at = "[at (width, depth) = (32, 4)]"
    blocked = "norm.bias, norm.weight, up.bias, up.weight"
    assert found == [
        f"reference: body: lacks a nonzero gradient of {blocked} in its layers, unlike the reference {at}",
        f"reference: body: lacks a nonzero norm of down.weight in its layers, unlike the reference {at}",
        f"reference: layer 2 of body: lacks a nonzero norm of up.bias, unlike the reference {at}",
    ]


def beside(frame, stack, roles=ROLES):
    """What is said of matrices and streams, without theory's numbers."""
    columns = ["width", "depth", "part", "quantity", "layer", "ratio", "noise"]
    return against_initialization(frame, pd.DataFrame(columns=columns, dtype=float), lambda *_: stack, roles)


@pytest.mark.parametrize(("width", "depth"), [(16, 2), (24, 5)])
def test_a_residual_connection_of_the_normed_stream_is_named(width, depth):
    """By a note, beside a Stack by an alarm, and no layer is blamed; from one seed."""
    faults = [(k, "residual of the normed") for k in range(1, depth + 1)]
    report = probe(model(faults=faults), widths=[width], depths=[depth], seeds=1)
    assert report.alarms == []
    assert (
        "note: residual connections of body carry the normalized residual stream, not the residual "
        "stream itself" in report.lines()
    )
    pre, post = (BUILTINS[f"encoder-{placement}"].stack(width, depth) for placement in ("pre", "post"))
    (alarm,) = beside(report.to_frame(), pre, {})
    assert alarm.layer == 0
    assert (
        alarm.what == "residual connections carry the normalized residual stream; those of the Stack carry "
        "the residual stream itself"
    )
    assert beside(report.to_frame(), post, {}) == []
    # Only where outputs are normed is another energy that of a missing norm.
    assert not behind_norms(report.to_frame())
    for name in ("encoder-pre", "encoder-post"):
        healthy = measured(BUILTINS[name].factory, widths=[width], depths=[depth], seeds=1).frame
        assert normed_residuals(healthy) == []
        assert behind_norms(healthy) == (name == "encoder-post")


@functools.cache
def healthy_frame(seeds=2):
    return frame_with({}, seeds=seeds)


def frame_with(factors, *, width=32, depth=3, seeds=2):
    """Of encoders whose matrices, by the ends of their names, are so many times as large: in all layers, or in one."""

    def factory(width, depth):
        module, batch = BUILTINS["encoder-pre"].factory(width, depth)
        with torch.no_grad():
            for name, one in module.body.named_parameters():
                for end, factor in factors.items():
                    if name.endswith(end):
                        one.mul_(factor)
        return module, batch

    return measured(factory, widths=[width], depths=[depth], seeds=seeds).frame


WO, W1, W2, ALL = "self_attn.out_proj.weight", "linear1.weight", "linear2.weight", ".weight"
FACTOR, BETA = 6**0.5, 24**-0.25


@pytest.mark.parametrize(("factors", "changes", "said"), [
    ({}, {"depth_scaling": "depth"}, f"branch is missing in {W2}, {WO} ("),
    ({}, {"depth_scaling": "layer"}, f"branch is missing in {W2}, {WO} ("),
    ({}, {"depth_scaling": "layer_up"}, f"branch is missing in {W1}, {W2}, {WO} ("),
    ({WO: 1 / FACTOR}, {}, f"the factor 1/sqrt(2 L) for matrices that end a branch is applied to {WO} ("),
    ({W1: 1 / FACTOR, WO: 1 / FACTOR}, {"depth_scaling": "depth"}, f"is applied to {W1} and is missing in {W2} ("),
    ({"in_proj_weight": ((2 + BETA**2) / 3) ** 0.5, WO: BETA, W2: BETA}, {"placement": "deepnorm"},
     f"the weight factor of DeepNorm is missing in {W1} ("),
    ({WO: BETA, W1: BETA, W2: BETA}, {"placement": "deepnorm"},
     "the weight factor of DeepNorm is missing in self_attn.in_proj_weight ("),
    ({WO: 0.0}, {}, f"{WO} has 0 times the Stack's standard deviation"),
    ({WO: 0.8796, W1: 0.8796}, {}, f"a normal distribution cut at two standard deviations initializes {W1}, {WO} ("),
    ({W1: 2**0.5, W2: 2**0.5, WO: 2**0.5}, {}, f"{W1}, {W2}, {WO} have 1.4"),
    ({f"layers.1.{W1}": 1.25}, {}, f"{W1} has 1.2"),
    ({}, {"ffn_ratio": 2.0}, f"{W1} has 4096 entries; the Stack's matrix has 2048"),
    ({}, {}, None),
])  # fmt: skip
def test_matrices_are_compared_with_a_stack_and_the_cause_is_named(factors, changes, said):
    """One alarm a cause; healthy ones raise none in 8 seeds, each by itself, but once in 1250."""
    stack = replace(BUILTINS["encoder-pre"].stack(32, 3), **changes)
    if said is None:
        for _, one in healthy_frame(seeds=8).groupby("seed"):
            assert beside(one, stack) == []
        (zero,) = beside(healthy_frame(), replace(stack, query_gain=0.0), {WO: ("WQ",)})
        assert zero.what == f"{WO} is not 0; the Stack's matrix is 0"
        return
    (alarm, *more) = beside(frame_with(factors) if factors else healthy_frame(), stack)
    assert said in alarm.what
    assert len(more) == ("entries" in said)
    assert alarm.layer == (2 if "layers.1" in str(factors) else 0)


def test_matrices_are_judged_before_what_they_make():
    """A stream and gradients that are far off by their matrices are no alarm of their own."""
    built = BUILTINS["encoder-pre"]
    table = pd.DataFrame([(32, 3, "body.layers", "hidden_energy", layer, 50.0, 0.1) for layer in (1, 2, 3)],
                         columns=["width", "depth", "part", "quantity", "layer", "ratio", "noise"])  # fmt: skip
    frames = (healthy_frame(), frame_with({W2: 4.0}))
    found = [against_initialization(frame, table, built.stack, ROLES) for frame in frames]
    assert [len(alarms) for alarms in found] == [1, 1]
    assert "mean squared activation is 50 times theory's" in found[0][0].what and W2 in found[1][0].what


@pytest.mark.parametrize(("ratios", "number"), [
    ((1.0, 1.1, 5.0), "5 times theory's in layer 3"), ((0.3, 0.4, 0.45), "1/3.33 of theory's in layer 1"),
    ((1.0, 1.1, 2.5), None), ((2.5, 1.0, 0.4), None),
])  # fmt: skip
def test_the_layer_that_is_furthest_from_theory_counts(ratios, number):
    """By a factor of four in one, or of two in all to one side."""
    columns = ["width", "depth", "part", "quantity", "layer", "ratio", "noise"]
    table = pd.DataFrame([(32, 3, "body.layers", W1, k, r, 0.02) for k, r in enumerate(ratios, 1)], columns=columns)
    found = against_initialization(healthy_frame(seeds=1), table, BUILTINS["encoder-pre"].stack, ROLES)
    assert [alarm.what for alarm in found] == ([f"|gradient|^2 of {W1} is {number}"] if number else [])
