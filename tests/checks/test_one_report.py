"""The report on one module: faults are named where they are, healthy modules pass, bad input is one line."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

import gradbounds as gb
from checks.models.judge import judged_module
from gradbounds.actions.logged_layers import compare_with_module
from gradbounds.cli import main
from simulate.modules.factories import moved
from tests.helpers.single_modules import GLOBAL, HEALTHY, LOCAL, OF_TRANSFORMERS, made, next_word, planted

# What torch says of itself, once, where a backward pass is the first to ask for cuBLAS.
NO_CONTEXT = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
WITHIN = [name for name in HEALTHY if name not in OF_TRANSFORMERS]


@pytest.mark.parametrize("name", WITHIN)
def test_healthy_modules_pass_and_say_so(name):
    module, inputs, loss = made(name)
    report = gb.probe(module, inputs, loss=loss)
    report.assert_healthy()
    assert "is initialized well" in report.lines()[0]
    assert "a uniform guess" in report.lines()[1]


@pytest.mark.parametrize("fault", [*LOCAL, *GLOBAL])
def test_faults_are_named_where_they_are(fault):
    """In one family each, in the second layer; the evidence has all."""
    kind, families, _ = (LOCAL | GLOBAL)[fault]
    torch.manual_seed(12)
    report = judged_module(*planted(families[0], fault, 2, 32, 4))
    assert any(kind in str(alarm) and (fault in GLOBAL or alarm.layer == 2) for alarm in report.alarms)
    assert "not" in report.judgement()
    assert "?." not in report.judgement()
    with pytest.raises(AssertionError, match="is not healthy"):
        report.assert_healthy()
    # Whoever accepts one alarm still learns of others.
    first, *others = map(str, report.alarms)
    with pytest.raises(AssertionError) if others else nullcontext():
        report.assert_healthy(first)
    report.assert_healthy(first[:-4], *others)


def test_smaller_ends_of_the_report_are_those_of_the_module():
    """Other numbers have a slow twin in `tests/simulate/test_probe.py`."""
    module, words, loss = made("decoder")
    report = gb.probe(module, words, loss=loss)
    # sqrt(2L) smaller matrices, by hand.
    with torch.no_grad():
        for layer in module.layers:
            for one in (layer.attention.o, layer.down):
                one.weight.div_(8**0.5)
        y = module.words(words)
        smaller = [float((y := layer(y)).square().mean()) for layer in module.layers]
    assert (
        f"initialized sqrt(2L) times smaller; mean squared activation then grows {smaller[-1] / smaller[0]:.3g} times"
        in str(report)
    )
    # The module has this factor now, and its stream still grows from a small embedding.
    module.words.weight.data.mul_(0.2)
    report = gb.probe(module, words, loss=loss)
    energies = report.layers["energy"].to_numpy()
    assert energies[-1] > 3 * energies[0]
    assert "times smaller" not in str(report)


def test_a_module_of_another_loss_and_of_its_own():
    module, words, _ = made("decoder")
    report = gb.probe(module, words, loss=lambda y: y.square().mean())
    assert report.lines()[1].endswith("the loss is not a cross-entropy of the output.")

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, input_ids, labels):
            logits = self.inner(input_ids)
            return {"loss": next_word(labels)(logits), "logits": logits}

    report = gb.probe(Own(), {"input_ids": words, "labels": words})
    assert report.alarms == []
    assert "128 classes" in report.lines()[1]


def test_sparse_gradients_are_those_of_dense_ones():
    norms = []
    for sparse in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(20, 8, sparse=sparse), nn.Linear(8, 5))
        words = torch.randint(20, (6, 4))  # some twice
        report = gb.probe(module, words, loss=lambda y, words=words: functional.cross_entropy(y.mT, words % 5))
        frame = report.to_frame()
        norms.append(frame[frame["quantity"] == "gradient"].set_index("parameter")["value"].to_dict())
    assert norms[1] == pytest.approx(norms[0])
    assert norms[0]["0.weight"] > 0


def test_alarms_of_the_grid_have_the_same_tests():
    def factory(width, depth):
        module, words, loss = planted("decoder", "softmax over queries", 2, width, depth)
        return module, lambda seed: (words, loss)

    report = gb.probe(factory, widths=[16], depths=[3], seeds=1)
    assert ("attention", 2, ((16, 3),)) in [(alarm.kind, alarm.layer, alarm.where) for alarm in report.alarms]


FILE = """
import torch
from torch import nn

def make():
    module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))
    return module, torch.ones(2, 8), lambda y: y.square().mean()

def nothing(): return 3
def without(): return nn.Tanh(), torch.ones(2)
def fails(): return nn.Linear(2, 2), torch.ones(2, 3), lambda y: y.sum()
def inside(): return nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(2, 2))), torch.ones(2, 3), lambda y: y.sum()
def vector(): return nn.Linear(2, 2), torch.ones(2, 2), lambda y: y
def words(): return nn.Linear(2, 2), "a text", lambda y: y.sum()
def lossless(): return nn.Linear(2, 2), torch.ones(2, 2)
"""


@pytest.mark.parametrize(("arguments", "message"), [
    (["nothing"], r"must return \(module, batch\) or \(module, batch, loss\), or take a width and a depth, got int"),
    (["without"], "module 'Tanh' must have parameters, and has none"),
    (["fails"], "module 'Linear' must not fail, but raised RuntimeError"),
    (["inside"], r"module 'Sequential' must not fail, but raised RuntimeError: .* \(in 1.0\)"),
    (["vector"], r"loss of 'Linear' must be a scalar tensor, got \(2, 2\)"),
    (["words"], "batch must be a tensor, a tuple of arguments or a dict of them, with a tensor in it, got str"),
    (["lossless"], r"has no loss of its own: return \(module, batch, loss\) from the factory"),
    (["make", "--width", "8"], "--width requires a factory of a width and a depth"),
    (["make", "--parametrization", "sp"], "--parametrization requires steps and a factory of a width"),
    (["make", "--layers", "blocks.*"], "layers must name modules of 'Sequential'"),
    (["make", "--device", "moon"], "device must"),
])  # fmt: skip
def test_bad_input_of_the_command(tmp_path, monkeypatch, capsys, arguments, message):
    (tmp_path / "one_of_mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    assert main(["probe", f"one_of_mine:{arguments[0]}", *arguments[1:]]) == 2
    said = capsys.readouterr()
    assert re.search(message, said.err)
    assert said.err.count("\n") == 1
    assert not said.out


def test_a_module_that_was_never_drawn_is_refused():
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="must have weights, got 2 on the meta device, the first weight: to_empty"):
        gb.probe(module, torch.ones(2, 2), loss=torch.sum)


def test_the_command_judges_one_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "another_of_mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    assert main(["probe", "another_of_mine.py:make", "--trained", "--out", "kept"]) == 0
    assert "another_of_mine.py:make passes all exact tests that were run" in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "kept").iterdir()} == {"probe.parquet", "layers.csv"}


LAYERED = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def make():
    torch.manual_seed(0)
    return Whole(), torch.randn(6, 8), lambda y: y.square().mean()

def grid(width, depth): return make()
"""


def layered_norms(file):
    """Norms of all gradients of the module, whose code is left in a file."""
    file.write_text(LAYERED)
    space = {}
    exec(LAYERED, space)
    module, x, loss = space["make"]()
    loss(module(x)).backward()
    return {name: float(weight.grad.norm()) for name, weight in module.named_parameters()}


def test_logged_norms_stand_beside_the_module_s_own(tmp_path, monkeypatch, capsys):
    """A log of twice the loss doubles all norms; the logged norm of one matrix is a third of its own."""
    monkeypatch.chdir(tmp_path)
    norms = {
        f"gradients/model.{name}": 2 * norm * (1 / 3 if name == "blocks.2.down.weight" else 1)
        for name, norm in layered_norms(tmp_path / "layered.py").items()
    }
    Path("log.jsonl").write_text(json.dumps({"step": 0, **norms}))
    assert main(["probe", "layered.py:make", "--logged", "log.jsonl", "--out", "kept"]) == 0
    table = pd.read_csv("kept/logged.csv").set_index(["role", "layer"])["ratio"]
    assert len(table) == 8
    assert table["blocks: down.weight", 3] == pytest.approx(2 / 3)
    assert table.drop(("blocks: down.weight", 3)).to_numpy() == pytest.approx(2.0)
    text = capsys.readouterr().out
    assert "Norms by layer and matrix, logged / the module: median 2." in text
    assert "Furthest from the median: the gradient of down.weight of layer 3" in text
    assert "0.333 times the median" in text
    assert "Parameters not compared: gradients/model.blocks.*.norm.weight (4)" in text
    Path("none.jsonl").write_text('{"step": 0, "loss": 3.0}')
    for factory, log, message in (
        ("make", "none.jsonl", "logged must have norms of single gradients"),
        ("grid", "log.jsonl", "--logged requires one module, got a factory of a width and a depth"),
    ):
        assert main(["probe", f"layered.py:{factory}", "--logged", log]) == 2
        assert message in capsys.readouterr().err


def test_logged_squares_and_clipped_norms_stand_beside_the_module_s_own(tmp_path, monkeypatch, capsys):
    """With the numbers of a plain log, if the flag or a name says what they are; a sum has no meaning there."""
    monkeypatch.chdir(tmp_path)
    norms = layered_norms(tmp_path / "layered_twice.py")
    whole = sum(norm**2 for norm in norms.values()) ** 0.5

    def result_of(of, *words):
        Path("log.jsonl").write_text(json.dumps({"step": 0} | of))
        code = main(["probe", "layered_twice.py:make", "--logged", "log.jsonl", "--out", "kept", *words])
        text = capsys.readouterr()
        return code, text.err if code == 2 else text.out, pd.read_csv("kept/logged.csv")["ratio"].tolist()

    squares = {name: norm**2 for name, norm in norms.items()}
    clipped = {name: norm / 4 for name, norm in norms.items()}
    for of, words, line in (
        (squares, ("--logged-as", "square"), "Read as squares."),
        (
            clipped | {"grad_norm": whole},
            ("--logged-as", f"clipped:{whole / 4:.17g}"),
            "Read as the total norm before clipping to",
        ),
    ):
        code, text, ratios = result_of(of, *words)
        assert code == 0
        assert ratios == pytest.approx([1.0] * 8, rel=1e-5)
        assert line in text
    _, text, ratios = result_of(clipped, "--logged-as", f"clipped:{whole / 4:.17g}")
    assert ratios == pytest.approx([0.25] * 8, rel=1e-5)
    assert "matrices are only compared with one another." in text
    for words, message in (
        (("sum",), "--logged-as cannot be mean or sum in a probe"),
        (("clipped:1e-9",), "--logged-as must give the clipping threshold of the log, got clipped:1e-09"),
    ):
        code, text, _ = result_of(norms, "--logged-as", *words)
        assert code == 2
        assert message in text
        assert text.count("\n") == 1


def test_a_name_is_that_of_the_longest_parameter_in_it():
    rows = [
        (part, 1, name, quantity, value)
        for part in ("layers", "decoder.layers") for name in ("up.weight", "up.weight2")
        for quantity, value in (("gradient", 2.0), ("shortest", 4.0))
    ]  # fmt: skip
    rows += [("odd", 2, "up.weight", "gradient", 2.0), ("odd", 2, "up.weight", "shortest", 4.0)]
    frame = pd.DataFrame(rows, columns=["part", "layer", "parameter", "quantity", "value"])
    names = {
        "decoder.layers.0.up.weight": 1.0, "encoder.layers.0.up.weight_grad_norm": 1.0, "xlayers.0.up.weight": 1.0,
        "layers.0.up.weight2": 0.0, "layers.10.up.weight": 1.0, "odd.1.up.weight": 1.0, "odd.3.up.weight": 1.0,
    }  # fmt: skip
    measured = SimpleNamespace(
        frame=frame, names={("layers", 1): "layers.0", ("decoder.layers", 1): "decoder.layers.0", ("odd", 2): "odd.3"}
    )
    table, unmatched = compare_with_module(names, measured)
    assert table["role"].tolist() == ["decoder.layers: up.weight", "layers: up.weight", "odd: up.weight"]
    assert unmatched == [
        "layers.0.up.weight2, which is 0", "xlayers.0.up.weight", "layers.10.up.weight", "odd.1.up.weight",
    ]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), [
    ({"batch": torch.ones(1), "widths": [3]}, "requires a factory"),
    ({"batch": torch.ones(1), "parametrization": "sp"}, "parametrization requires steps"),
    ({"batch": None}, "batch must be a tensor"),
    ({"batch": torch.ones(2, 2), "loss": 3}, "loss must be a function"),
    ({"batch": torch.ones(2, 2), "seed": -1}, "seed must be"),
])  # fmt: skip
def test_bad_input_from_python(arguments, message):
    with pytest.raises(ValueError, match=message):
        gb.probe(nn.Linear(2, 2), **arguments)
    with pytest.raises(ValueError, match="requires one module"):
        gb.probe("encoder-pre", widths=[4], depths=[2], trained=True)


class Broken(nn.Module):
    """Gives no numbers."""

    def forward(self, x):
        return x / 0


def broken(where):
    module, words, loss = made("decoder", width=16, depth=3)
    with torch.no_grad():
        if where == "table":
            module.words.weight[3, 2] = float("nan")
        if where == "weight":
            module.layers[1].up.weight[0, 0] = float("inf")
    if where == "norm":
        module.layers[1].norm2 = Broken()
    if where == "head":
        module.head = nn.Sequential(module.head, Broken())
    if where == "input":
        module.words.register_forward_hook(lambda _, args, y: y * float("nan"))
    return module, words, loss


@pytest.mark.parametrize(("where", "said"), [
    ("table", "the whole model: words.weight has entries that are not finite"),
    ("weight", "layer 2 of layers: up.weight has entries that are not finite"),
    ("norm", "layer 2 of layers: its output is not finite: the output of norm2 is the first"),
    ("head", "the whole model: the output of head.1 is the first output that is not finite; the loss is nan"),
    ("input", "the whole model: the output of words is the first output that is not finite; the loss is nan"),
])  # fmt: skip
def test_what_is_not_finite_first_is_the_one_alarm(where, said):
    (alarm,) = judged_module(*broken(where)).alarms
    assert str(alarm).startswith(f"non-finite: {said}")


def test_a_batch_that_is_not_finite_is_no_layer_s_fault():
    module, x, loss = made("torch.nn, Pre-LN", width=16, depth=2)
    x[0, 0, 0] = float("nan")
    (alarm,) = judged_module(module, x, loss).alarms
    assert "the input of norm1 of layer 1 of body.layers is not finite" in str(alarm)


@NO_CONTEXT
@pytest.mark.gpu
@pytest.mark.parametrize("name", WITHIN)
def test_a_report_of_a_gpu_is_that_of_a_cpu(name):
    module, inputs, loss = made(name)
    here = judged_module(module, inputs, loss)
    there = judged_module(module.to("cuda"), moved(inputs, "cuda"), loss)
    assert not there.alarms
    assert len(there.layers) == len(here.layers)
    numbers = ["energy", "gradient", "logits", "entropy"]
    np.testing.assert_allclose(there.layers[numbers].astype(float), here.layers[numbers].astype(float), rtol=1e-3)
