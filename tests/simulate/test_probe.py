"""Probing any module: what is measured against a slow twin and against our own networks, and what is refused."""

import gc
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from checks.models.layer_tables import profile_table
from gradbounds import probe as judged
from gradbounds.cli import main
from simulate import probe
from simulate.modules.branch_ends import unscaled_ends
from simulate.modules.catalogue import load_factory
from tests.helpers.probed_modules import one_module
from theory import Stack


def test_every_number_is_that_of_a_slow_twin():
    """Forward by hand, gradients by autograd on the same module, made again from the same seed."""
    frame = probe(one_module, widths=[6], depths=[3], seeds=1, seed=5).frame
    value = frame.set_index(["layer", "parameter", "quantity"])["value"]
    made = []

    def kept(width, depth):
        made.append(one_module(width, depth))
        seeds = []

        def batch(seed):
            seeds.append(seed)
            made.append(made[0][1](seed))
            return made[-1]

        return made[0][0], batch

    again = probe(kept, widths=[6], depths=[3], seeds=1, seed=5).frame
    np.testing.assert_array_equal(again["value"], frame["value"])
    module, (x, _) = made[0][0], made[1]
    module.zero_grad()
    streams = [x]
    for layer in module:
        streams.append(layer(streams[-1]))
        streams[-1].retain_grad()
    streams[-1].square().mean().backward()
    assert value[0, "", "loss"] == pytest.approx(streams[-1].square().mean().item())
    for number, (before, after) in enumerate(zip(streams, streams[1:], strict=False), 1):
        y = after.detach().numpy()
        cosines = [
            a @ c / np.linalg.norm(a) / np.linalg.norm(c)
            for a, c in zip(before.detach().numpy().reshape(-1, 6), y.reshape(-1, 6), strict=True)
        ]
        assert value[number, "", "hidden_energy"] == pytest.approx(float((y**2).mean()), rel=1e-5)
        assert value[number, "", "stream_cosine"] == pytest.approx(np.mean(cosines), rel=1e-5)
        a, c = (
            rows - rows.mean(1, keepdims=True) for rows in (before.detach().numpy().reshape(-1, 6), y.reshape(-1, 6))
        )
        held = (a * c).sum() / (a * a).sum()
        rest = c - held * a
        turned = sum((a[i] @ a[j]) * (rest[i] @ rest[j]) for i in range(6) for j in range(6))
        assert value[number, "", "stream_coefficient"] == pytest.approx(held, rel=1e-5)
        error = (turned / 6) ** 0.5 / (a * a).sum()
        assert value[number, "", "coefficient_error"] == pytest.approx(error, rel=1e-4)
        if number > 1:
            (pulled,) = torch.autograd.grad(module[number - 1](before), before, after.detach())
            response = ((before * pulled).sum() / after.square().sum()).item()
            assert value[number, "", "scale_response"] == pytest.approx(response, rel=1e-4)
        assert value[number, "", "gradient_sq"] == pytest.approx(float(after.grad.square().sum()), rel=1e-5)
        for name, parameter in module[number - 1].named_parameters():
            gradient, weight = float(parameter.grad.norm()), float(parameter.detach().norm())
            assert value[number, name, "gradient"] == pytest.approx(gradient, rel=1e-5)
            assert value[number, name, "weight"] == pytest.approx(weight, rel=1e-5)
            assert value[number, name, "ratio"] == pytest.approx(gradient / weight, rel=1e-5)


def test_inputs_of_every_kind():
    """A tuple of arguments, a dict, and an output that is a dict give the numbers of a plain tensor."""
    plain = probe(one_module, widths=[6], depths=[2], seeds=1).frame

    class Wrapped(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, x, scale=1.0):
            return {"out": self.body(x) * scale}

    def wrapped(make):
        def factory(width, depth):
            module, batch = one_module(width, depth)
            return Wrapped(module), lambda seed: (make(batch(seed)[0]), lambda y: batch(seed)[1](y["out"]))

        return factory

    for make in (lambda x: (x, torch.ones(())), lambda x: {"x": x}):
        frame = probe(wrapped(make), widths=[6], depths=[2], seeds=1).frame
        np.testing.assert_allclose(frame["value"], plain["value"], rtol=1e-6)
        assert set(frame["part"]) == {"", "body"}


def test_what_is_frozen_unused_or_shared_is_said():
    def factory(width, depth):
        module, batch = one_module(width, depth)
        module[0].inner.bias.requires_grad_(False)
        module[1].inner.weight = module[2].inner.weight
        module[3].extra = nn.Linear(width, 1)
        return module, batch

    notes = probe(factory, widths=[6], depths=[4], seeds=2).notes
    assert any(note.startswith("frozen: inner.bias of layer 1 of ") for note in notes)
    assert any(
        note.startswith("shared: inner.weight of layer 2 of Sequential is also inner.weight of layer 3")
        for note in notes
    )
    assert any(note.startswith("unused: extra.weight of layer 4 of ") for note in notes)


def test_layers_by_name():
    def factory(width, depth):
        module, batch = one_module(width, depth)
        return nn.ModuleDict({"encoder": module}), batch

    def called(width, depth):
        module, batch = factory(width, depth)
        module.forward = lambda x: module["encoder"](x)
        return module, batch

    for layers in ((), ("encoder.*",)):
        frame = probe(called, widths=[6], depths=[3], seeds=1, layers=layers).frame
        assert sorted(set(frame["layer"])) == [0, 1, 2, 3]
    with pytest.raises(
        ValueError, match="^layers must name modules of 'ModuleDict', but 'decoder.\\*' matches none of"
    ):
        probe(called, widths=[6], depths=[3], seeds=1, layers=["decoder.*"])
    for layers in (3, [""], [0]):
        with pytest.raises(ValueError, match="^layers must be globs such as 'encoder.layers.\\*', got "):
            probe(called, widths=[6], depths=[3], seeds=1, layers=layers)
    with pytest.raises(
        ValueError, match="^layers must be given for 'Linear', which has no list of modules of one class"
    ):
        probe(lambda w, d: (nn.Linear(w, w), one_module(w, d)[1]), widths=[6], depths=[3], seeds=1)


def test_random_numbers_are_left_as_they_were():
    before = torch.random.get_rng_state()
    first = probe(one_module, widths=[4], depths=[2], seeds=2).frame
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(7)
    np.testing.assert_array_equal(probe(one_module, widths=[4], depths=[2], seeds=2).frame["value"], first["value"])


def test_the_command(png_alone, tmp_path, capsys, monkeypatch):
    (tmp_path / "misfit.py").write_text("def factory(width, depth):\n    raise RuntimeError('not of this width')\n")
    monkeypatch.chdir(tmp_path)
    line = ["probe", "encoder-pre", "--width", "16:64:x2", "--depth", "2", "--seeds", "2"]
    assert main([*line, "--out", str(tmp_path / "out"), "--strict"]) == 0
    said = capsys.readouterr().out
    assert "raises no alarm" in said and "Large-width theory: none of 30 numbers is judged" in said
    assert main([*line, "--against", str(tmp_path / "none.json")]) == 2
    assert "reference must be a probe.json that `probe --out` wrote" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "exponents.csv",
        "layers.csv",
        "probe.json",
        "probe.parquet",
        "probe.png",
        "probe.svg",
        "theory.csv",
    ]
    for name, message in (
        (
            "misfit:factory",
            "factory 'factory' must not fail, but raised RuntimeError: not of this width at width 64, depth 4.",
        ),
        ("misfit:other", "factory must be importable, but misfit has no 'other'"),
        ("nowhere:other", "factory must be importable, but 'nowhere:other' raised ModuleNotFoundError"),
        (
            "nothing",
            "factory must be MODULE:FACTORY, FILE.py:FACTORY or one of encoder-post, encoder-pre, transformer-post",
        ),
    ):
        assert main(["probe", name, "--out", str(tmp_path / "no")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"stack": 7}, "^stack must be a function of a width and a depth that returns a Stack, got 7"),
        ({"stack": lambda width, depth: None}, "^stack must give a Stack with all 2 layers .* depth 2, got None"),
        ({"stack": lambda width, depth: Stack(width=width, depth=1)}, "^stack must give a Stack with all 2 layers"),
        ({"roles": [1]}, r"^roles must be a dict such as .*, got \[1\]"),
        ({"roles": {"up": ("W77",)}}, r"^roles of 'up' must be a tuple of W1, .*, got \('W77',\)"),
        ({"roles": {"up": "W1"}}, "^roles of 'up' must be a tuple of W1, .*, got 'W1'"),
    ],
)
def test_attributes_of_a_factory_that_make_no_sense(attributes, message):
    def factory(width, depth):
        return one_module(width, depth)

    vars(factory).update(attributes)
    with pytest.raises(ValueError, match=message):
        judged(factory, widths=[4], depths=[2], seeds=1)


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_no_module():
    async def factory(width, depth):
        return one_module(width, depth)

    with pytest.raises(ValueError, match="must return .*, got coroutine at width 4, depth 2"):
        probe(factory, widths=[4], depths=[2], seeds=1)
    gc.collect()


def test_a_module_in_double_precision():
    def factory(width, depth):
        module, batch = one_module(width, depth)

        def in_double(seed):
            x, loss = batch(seed)
            return x.double(), loss

        return module.double(), in_double

    double, single = (probe(one, widths=[4], depths=[2], seeds=1).frame for one in (factory, one_module))
    np.testing.assert_allclose(double["value"], single["value"], rtol=1e-4, atol=1e-6)


def test_every_module_has_random_numbers_of_its_own():
    """Of every width, depth and number: intervals of exponents take them for independent."""
    seeds = []

    def factory(width, depth):
        seeds.append(torch.initial_seed())
        return one_module(width, depth)

    probe(factory, widths=[4, 6], depths=[1, 2], seeds=2)
    assert len(set(seeds)) == len(seeds) == 8


def test_the_errors_of_a_profile_are_of_norms():
    """Three squares with a mean of 4: their standard error over twice the root."""
    rows = [(8, 2, seed, "layers", 1, "w", "gradient", square**0.5) for seed, square in enumerate((2.0, 4.0, 6.0))]
    rows += [(8, 2, seed, "layers", 1, "", "hidden_energy", energy) for seed, energy in enumerate((1.0, 2.0, 3.0))]
    columns = ["width", "depth", "seed", "part", "layer", "parameter", "quantity", "value"]
    row = profile_table(pd.DataFrame(rows, columns=columns)).iloc[0]
    assert row["gradient"] == pytest.approx(2.0) and row["gradient_sem"] == pytest.approx(2 / 3**0.5 / 4)
    assert row["energy_sem"] == pytest.approx(1 / 3**0.5)


def test_a_layer_that_runs_twice_or_never_is_said():
    class Twice(nn.Module):
        """Three layers, of which the first runs twice and the last never."""

        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            return self.layers[1](self.layers[0](self.layers[0](x)))

    def factory(width, depth):
        return Twice(), lambda seed: (torch.ones(2, 3, 4), lambda y: y.square().mean())

    notes = probe(factory, widths=[4], depths=[3], seeds=1, layers=["layers.*"]).notes
    assert "layer 1 of layers ran 2 times; the last run is recorded" in notes
    assert "layer 3 of layers never ran" in notes
    assert not any("layer 2" in note and "ran" in note for note in notes)


def test_a_container_without_a_pass_of_its_own_is_not_said_to_never_run():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 4)}) for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = x + block["up"](x)
            return x

    def factory(width, depth):
        return Net(), lambda seed: (torch.ones(2, 3, 4), lambda y: y.square().mean())

    assert not [note for note in probe(factory, widths=[4], depths=[2], seeds=1).notes if "never ran" in note]


@pytest.mark.parametrize("depth", [1, 2, 3, 12])
@pytest.mark.parametrize("hidden", [16, 64, 172, 256])
def test_the_factor_of_branch_ends_is_seen(depth, hidden):
    """With one variance or 1/fan-in, in narrow and wide MLPs; four times wider ones follow attention in two layers."""
    factor, fan = (2 * depth) ** -0.5, (64 / hidden) ** 0.5
    shapes = {"q": (64, 64), "o_proj": (64, 64), "fc1": (hidden, 64), "fc2": (64, hidden)}
    for last, is_scaled in ((factor, True), (factor * fan, True), (1.0, False), (fan, False)):
        sizes = dict(zip(shapes, (1.0, factor if is_scaled else 1.0, 1.0, last), strict=True))
        layer = torch.nn.ParameterDict({name: torch.full(shape, sizes[name]) for name, shape in shapes.items()})
        assert unscaled_ends(SimpleNamespace(layers=[layer] * depth)) == (() if is_scaled else ("fc2", "o_proj"))


def bad(**changes):
    """A factory of which one thing is wrong."""

    def user_factory(width, depth):
        if "factory" in changes:
            raise KeyError("no such size")
        module, batch = one_module(width, depth)
        if "frozen" in changes:
            module.requires_grad_(False)

        def of(seed):
            x, loss = batch(seed)
            return x, changes.get("loss", loss)

        return changes.get("made", (module, of))

    return user_factory


def ends(width, depth):
    sys.exit(7)


def nowhere(width, depth):
    with torch.device("meta"):
        return one_module(width, depth)


def base(width, depth):
    raise BaseException("mine")  # noqa: TRY002 - what nobody should raise


@pytest.mark.parametrize(("factory", "message"), [
    (bad(factory=True), r"^factory '.*user_factory' must not fail, but raised KeyError: 'no such size' at width 6"),
    (bad(made=nn.Linear(2, 2)), r"^factory '.*factory' must return \(module, batch\), where .*, got Linear at width 6"),
    (bad(loss=lambda y: y), r"^loss of '.*user_factory' must be a scalar tensor, got \(2, 3, 6\) at width 6, depth 2"),
    (bad(loss=lambda y: 1.0), r"^loss of '.*user_factory' must be a scalar tensor, got float"),
    (bad(loss=lambda y: y.nothing), r"^loss of '.*user_factory' must not fail, but raised AttributeError"),
    (bad(frozen=True), r"^loss of '.*user_factory' must depend on parameters that require gradients"),
    (ends, r"^factory 'ends' must not fail, but called sys.exit\(7\) at width 6, depth 2"),
    (base, "^factory 'base' must not fail, but raised BaseException: mine at width 6, depth 2"),
    (nowhere, "^module and batch of 'nowhere' on 'cpu' must not fail, but raised NotImplementedError: Cannot copy out"),
])  # fmt: skip
def test_the_user_s_object_is_named(factory, message):
    with pytest.raises(ValueError, match=message) as caught:
        probe(factory, widths=[6], depths=[2], seeds=1)
    if "KeyError" in message:
        assert isinstance(caught.value.__cause__, KeyError), "the original error is kept"


def test_a_factory_by_its_file(tmp_path, monkeypatch):
    """As pytest takes a file; the module's name must be free."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_own_zoo.py").write_text("def it(width, depth):\n    return width\n")
    (tmp_path / "json.py").write_text("def it(width, depth):\n    return width\n")
    (tmp_path / "ending.py").write_text("raise SystemExit(3)\n")
    assert load_factory(f"{tmp_path}/my_own_zoo.py:it")(3, 1) == 3
    monkeypatch.delitem(sys.modules, "my_own_zoo")
    with pytest.raises(ValueError, match="but 'json' of .* (is another module|raised AttributeError)"):
        load_factory(f"{tmp_path}/json.py:loads")
    with pytest.raises(ValueError, match=r"^factory must be importable, but .* called sys.exit\(3\)"):
        load_factory(f"{tmp_path}/ending.py:it")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"widths": []}, "^widths must have at least one value"),
    ({"depths": [0]}, "^depths must be an integer of at least 1, got 0"),
    ({"seeds": 0}, "^seeds must be an integer of at least 1, got 0"),
    ({"device": "tpu"}, "^device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
    ({"device": "cuda:99"}, "^device must be "),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        probe(one_module, **({"widths": [4], "depths": [2], "seeds": 1} | arguments))
