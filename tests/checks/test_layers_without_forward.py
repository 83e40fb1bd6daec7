"""Layers that are dicts or lists of modules, which the model's own forward runs: measured, or said not to be."""

import re
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

import gradbounds as gb
from gradbounds.cli import main

WIDTH, DEPTH, WORDS = 32, 4, 64


class Called(nn.ModuleDict):
    """The same modules with a forward of their own."""

    def forward(self, x):
        return gpt_layer(self, x)


class Attention(nn.Module):
    """Its norm is inside, as lucidrains' vit-pytorch has it."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def feed_forward():
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def gpt_parts():
    return {"ln_1": nn.LayerNorm(WIDTH), "qkv": nn.Linear(WIDTH, 3 * WIDTH), "proj": nn.Linear(WIDTH, WIDTH),
            "ln_2": nn.LayerNorm(WIDTH), "fc": nn.Linear(WIDTH, 4 * WIDTH),
            "down": nn.Linear(4 * WIDTH, WIDTH)}  # fmt: skip


def gpt_layer(layer, x, *, adds=True, scale=None, kept=True):
    q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in layer["qkv"](layer["ln_1"](x)).chunk(3, -1))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    x = x + layer["proj"](mixed.transpose(1, 2).flatten(2))
    y = layer["down"](torch.relu(layer["fc"](layer["ln_2"](x))))
    return x + y if adds else y


def vit_layer(layer, x, *, adds=True):
    attention, ff = layer
    x = attention(x) + x
    return ff(x) + x if adds else ff(x)


def x_layer(layer, x, *, adds=True):
    """x-transformers: a norm, a block and a residual module."""
    norm, block, residual = layer
    return residual([x, block(norm(x))]) if adds else block(norm(x))


def post_layer(layer, x, *, adds=True):
    attention, norm1, up, down, norm2 = layer
    x = norm1(x + attention(x, x, x)[0])
    y = down(torch.relu(up(x)))
    return norm2(x + y if adds else y)


def modulated_layer(layer, x, *, adds=True):
    """As DiT has it: the first module is given a condition, and not the stream."""
    shift, scale = layer["modulation"](torch.ones(1, 1, WIDTH)).chunk(2, -1)
    y = layer["ff"](layer["norm"](x) * (1 + scale) + shift)
    return x + y if adds else y


def gated_layer(layer, x, *, adds=True):
    h = layer["norm"](x)
    mixed = layer["conv"](h.mT)[..., : h.shape[1]].mT
    y = layer["out"](torch.sigmoid(layer["gate"](h)) * mixed)
    return x + y if adds else y


class Sum(nn.Module):
    def forward(self, pair):
        return pair[0] + pair[1]


def post_parts():
    return [nn.MultiheadAttention(WIDTH, 4, batch_first=True), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)]  # fmt: skip


STYLES = {
    "nanoGPT": (lambda _: nn.ModuleDict(gpt_parts()), gpt_layer),
    "vit-pytorch": (lambda _: nn.ModuleList([Attention(), feed_forward()]), vit_layer),
    "x-transformers": (
        lambda k: nn.ModuleList([nn.LayerNorm(WIDTH), feed_forward() if k % 2 else Attention(), Sum()]), x_layer,
    ),
    "Post-LN": (lambda _: nn.ModuleList(post_parts()), post_layer),
    "DiT": (
        lambda _: nn.ModuleDict({"modulation": nn.Linear(WIDTH, 2 * WIDTH), "norm": nn.LayerNorm(WIDTH),
                                 "ff": feed_forward()}),
        modulated_layer,
    ),
    "conv and gate": (
        lambda _: nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "conv": nn.Conv1d(WIDTH, WIDTH, 3, padding=2),
                                 "gate": nn.Linear(WIDTH, WIDTH), "out": nn.Linear(WIDTH, WIDTH)}),
        gated_layer,
    ),
}  # fmt: skip


class Model(nn.Module):
    """Words, layers, a norm and a head; `lost` is the layer whose residual connection is missing."""

    def __init__(self, make, step, *, lost=0, end=None, **options):
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList(make(k) for k in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.step, self.lost, self.end, self.options = step, lost, end or self.norm, options

    def forward(self, words):
        x = self.words(words)
        for number, layer in enumerate(self.blocks, 1):
            options = self.options | ({"adds": False} if number == self.lost else {})
            x = self.step(layer, x, **options)
        return self.head(self.end(x))


def single(style, **options):
    torch.manual_seed(5)
    words = torch.randint(WORDS, (4, 12))
    labels = torch.randint(WORDS, (48,))
    return Model(*style, **options), words, lambda y: functional.cross_entropy(y.flatten(0, 1), labels)


def report_on(style, layers=(), **options):
    module, words, loss = single(style, **options)
    return gb.probe(module, words, loss=loss, layers=layers)


@pytest.mark.parametrize("name", STYLES)
def test_layers_without_a_forward_are_judged_and_a_lost_residual_connection_is_found(name):
    report = report_on(STYLES[name])
    report.assert_healthy()
    assert (
        "Judged: loss, layers of blocks compared with one another, residual connections of blocks" in report.judgement()
    )
    assert len(report.layers) == DEPTH
    # The last norm of Post-LN is before the head as every layer's is: the norm after it takes another tensor.
    for lost in (2, DEPTH) if name == "nanoGPT" else (2,):
        found = report_on(STYLES[name], lost=lost).alarms
        assert ("residual", lost) in [(alarm.kind, alarm.layer) for alarm in found]


def test_numbers_are_those_of_the_same_layers_with_a_forward():
    """Of every layer the energy, the coefficient, the gradient and what attention does; and who sees whom."""
    without = report_on(STYLES["nanoGPT"])
    called = report_on((lambda _: Called(gpt_parts()), lambda layer, x: layer(x)))
    for name in called.layers.columns[2:]:
        assert without.layers[name].tolist() == pytest.approx(called.layers[name].tolist(), rel=1e-5, nan_ok=True)
    kinds = [{row for row in report.probed.tests.rows if row[3].startswith("sees")} for report in (without, called)]
    assert {row[:4] for row in kinds[0]} == {row[:4] for row in kinds[1]}
    assert without.probed.tests.inside == called.probed.tests.inside


def functional_norm(layer, x, **_):
    return x + layer["b"](torch.relu(layer["a"](functional.rms_norm(x, (WIDTH,)))))


def parallel(layer, x, **_):
    return layer["a"](x)


def two(_):
    return nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)})


class Towers(Model):
    """Layers that do not follow one another."""

    def forward(self, words):
        x = self.words(words)
        return self.head(self.norm(sum(layer["b"](layer["a"](x)) for layer in self.blocks)))


def test_what_cannot_be_measured_is_not_called_well():
    nothing = (
        r"^\S+ is not judged: no layer was measured, because blocks\.0, blocks\.1, blocks\.2, \.\.\. have no forward"
    )
    assert re.match(nothing, report_on((two, functional_norm)).judgement())
    torch.manual_seed(5)
    words = torch.randint(WORDS, (4, 12))
    towers = gb.probe(Towers(two, None), words, loss=lambda y: y.square().mean())
    assert re.match(nothing, towers.judgement())
    plain = gb.probe(nn.Linear(2, 2), torch.ones(3, 2), loss=lambda y: y.square().mean())
    assert "is not judged: no layer was measured, because Linear has no list of layers" in plain.judgement()
    assert plain.judgement().endswith("learning rates (requires --optimizer).")


def test_globs_of_modules_that_are_never_called_say_so():
    class Unused(Model):
        def forward(self, words):
            return self.head(self.norm(self.words(words)))

    torch.manual_seed(5)
    module = Unused(lambda _: feed_forward(), None)
    report = gb.probe(module, torch.randint(WORDS, (4, 12)), loss=lambda y: y.square().mean(), layers=["blocks.*"])
    assert "No layer was measured, because blocks.0, blocks.1, blocks.2, ... are never called" in report.judgement()


@pytest.mark.parametrize("end", [lambda x: functional.layer_norm(x, (WIDTH,)), None])
def test_an_output_that_is_not_seen_is_named(end):
    """A norm that is a function is between the last layer and the next module."""
    module, words, loss = single(STYLES["nanoGPT"], end=end)
    report = gb.probe(module, words, loss=(lambda y: y.square().mean()) if end else loss)
    assert not [alarm for alarm in report.alarms if alarm.kind in ("residual", "energy", "growth")]
    assert ("1 of the 4 layers of blocks (their output was not seen)" in report.judgement()) == (end is not None)


FILE = """
import torch
from tests.checks.test_layers_without_forward import STYLES, single

def healthy(): return drawn()
def unscaled(): return drawn(scale=1.0)
def wide():
    module, *rest = drawn()
    for layer in module.blocks: torch.nn.init.normal_(layer["fc"].weight, std=3.0)
    return module, *rest
def drawn(**options):
    seed = torch.initial_seed()
    made = single(STYLES["nanoGPT"], **options)
    torch.manual_seed(seed)
    for weight in made[0].parameters():
        if weight.ndim > 1: torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return made
"""


@pytest.fixture
def probed(tmp_path, monkeypatch, capsys):
    (tmp_path / "dicts_of_mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "dicts_of_mine", raising=False)

    def run(*arguments):
        code = main(["probe", *arguments])
        said = capsys.readouterr()
        return code, said.out.splitlines() if code == 0 else [said.err]

    return run


def test_one_module_is_held_against_another(probed):
    code, lines = probed("dicts_of_mine.py:unscaled", "--against", "dicts_of_mine.py:healthy", "--seeds", "3")
    assert code == 0
    assert lines[2] == (
        "ALARM reference: blocks: q.k is multiplied by 1 (reference: 0.354): attention logits are 2.83 times as large"
    )
    assert "logits are q.k times 1, usual is 1/sqrt(d_k) = 0.354" in "\n".join(lines)
    _, lines = probed("dicts_of_mine.py:healthy", "--against", "dicts_of_mine.py:healthy", "--seeds", "2")
    assert not any("ALARM" in line for line in lines)
    assert lines[-2].endswith("scales that all layers share.")
    assert lines[-1] == "Not judged: learning rates (requires --optimizer)."


def test_entries_that_are_far_too_large_in_all_layers_are_a_note(probed):
    _, lines = probed("dicts_of_mine.py:wide")
    (note,) = (line for line in lines if "is that intended" in line)
    assert note.startswith("note: entries of fc.weight of blocks have standard deviation 17/sqrt(shorter")
    assert "well" not in lines[0]


@pytest.mark.parametrize(("arguments", "message"), [
    (("nope_of_mine.py:make",), r"^gradbounds: factory must be importable, but there is no file nope_of_mine\.py in /"),
    (("dicts_of_mine.py:helthy",), r"dicts_of_mine\.py has no 'helthy'\. Did you mean healthy\?"),
    (("dicts_of_mine.py:healthy", "--against", "encoder-pre"), "--against requires two functions without arguments"),
    (("dicts_of_mine.py:healthy", "--seeds", "3"), "seeds requires --against, or a factory of a width and a depth"),
])  # fmt: skip
def test_mistaken_names_are_one_line(probed, arguments, message):
    code, (said,) = probed(*arguments)
    assert code == 2
    assert re.search(message, said)
    assert said.count("\n") == 1
