"""Every placement of LayerNorm: the network against a slow twin, theory against samples, and the comparison."""

import json
from dataclasses import replace
from typing import get_args

import matplotlib.image
import numpy as np
import pytest
import torch
from scipy import stats

from checks.stacks.placements import depth_exponents, layer_norms
from checks.theory_and_samples import comparison
from checks.trust import Trust
from gradbounds.cli import main
from simulate import Cell, sample
from simulate.network.dense import DenseEngine
from simulate.network.random_streams import RandomStreams
from simulate.network.transformer import run
from simulate.runs.inputs import network_inputs
from tests.helpers.agreement import off
from tests.helpers.twins.relaxed import deviation
from theory import QUANTITIES, Stack, predict
from theory.stack import Placement, placements
from theory.stack.placements import COMPOSITIONS

COMPARE = ["sweep", "--preset", "compare"]


def test_a_placement_is_one_entry():
    assert get_args(Placement) == tuple(COMPOSITIONS)
    assert len({c.title for c in COMPOSITIONS.values()}) == len(COMPOSITIONS)
    for composition in COMPOSITIONS.values():
        twice = composition.stream_norm and composition.final_norm
        assert not twice or composition.second_stream, "a normalized stream has its norm already"


@pytest.mark.parametrize("placement", COMPOSITIONS)
def test_the_network_is_the_slow_one(placement):
    stack = Stack(placement=placement, width=12, depth=3, tokens=4, vocab=5)
    assert deviation(stack) < 1e-9
    engine = DenseEngine(RandomStreams([0], 2), torch.float64, keep=True)
    run(stack, engine, *network_inputs(Cell(stack, "dense", dtype="float64"), engine)[:2])
    gain = {"deepnorm": (8 * stack.depth) ** -0.25}.get(placement, 1.0)
    assert engine.weights["W1"][0].std() == pytest.approx(gain * 12**-0.5, rel=0.2)


@pytest.mark.parametrize("placement", [p for p in COMPOSITIONS if p not in ("post", "pre")])
def test_theory_is_what_samples_do(placement):
    """Every quantity of every layer at d = 512."""
    stack = Stack(placement=placement, width=512, depth=4, tokens=4, vocab=16)
    worst, names = off(sample(stack, draws=192, seed=1), predict(stack))
    assert worst <= 1, names


LEARNED = [
    {"mask": "causal", "ffn": "gated", "activation": "silu", "dropout": 0.5},
    {"embeddings": "tied", "vocab": 128, "output_projection": "random"},
    {"layout": "parallel", "sequences": 2, "final_norm": "added"},
]


@pytest.mark.parametrize("fields", LEARNED, ids=str)
def test_scalars_alone_move(fields):
    """ReZero: the mean over layers of (∂L/∂α)², each a normal number squared, within 4 of its standard errors of 4%.

    So one in 16000 fails by chance, and without one of the two branches it would.
    """
    stack = Stack(**{"placement": "rezero", "width": 256, "depth": 8, "tokens": 4, "vocab": 16} | fields)
    prediction, samples = predict(stack), sample(stack, draws=200, seed=0)
    ratios = (samples["grad_sq_scalar"] / prediction["grad_sq_scalar"]).mean(1)
    assert abs(ratios.mean() - 1) < 4 * stats.sem(ratios) < 0.2
    for name in ("W1", "W2", "WV"):
        assert not prediction[f"grad_sq_{name}"].any()
        assert not samples[f"grad_sq_{name}"].any()


def test_reductions():
    """No norm at L = 1 has τ = 1; DeepNorm with α = β = 1 is Post-LN; the scaled placement with κ = 1, Pre-LN."""
    for placement, same, changes in (
        ("deepnorm", "post", {"residual": lambda _: 1.0, "gain": lambda _: 1.0}),
        ("scaled", "pre", {"input_scale": lambda _: 1.0}),
    ):
        wanted = predict(Stack(placement=same, depth=5))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(placements.COMPOSITIONS, placement, replace(COMPOSITIONS[placement], **changes))
            found = predict(Stack(placement=placement, depth=5))
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12)
    energy = predict(Stack(placement="unnormed", depth=1, tokens=1))["hidden_energy"]
    assert energy == pytest.approx(2 * 1.5), "x + x W^V doubles it, ReLU adds half of that"


def test_no_norm_at_great_depth():
    """With τ = 1/√L every layer multiplies the energy by (1 + 1/L)(1 + 1/(2L)) at n = 1: e^(3/2) in the limit."""
    energy = predict(Stack(placement="unnormed", depth=4000, tokens=1))["hidden_energy"][-1]
    assert energy == pytest.approx(np.exp(1.5), rel=1e-3)


def test_compare(png_alone, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    line = [
        "sweep",
        "--preset",
        "compare",
        "--out",
        str(out),
        "--placement",
        "post",
        "deepnorm",
        "--width",
        "32",
        "--depth",
        "2:8:x2",
    ]
    assert main([*line, "--draws", "64", "--tokens", "2", "--vocab", "4"]) == 0
    said = capsys.readouterr().out
    assert "\n  Post-LN   " in said
    assert "\n  DeepNorm  " in said
    assert matplotlib.image.imread(out / "placements.png").std() > 0.05
    one = [
        "sweep",
        "--preset",
        "compare",
        "--out",
        str(tmp_path / "one"),
        "--placement",
        "post",
        "--width",
        "16",
        "--depth",
        "4",
    ]
    assert main([*one, "--draws", "4", "--tokens", "2", "--vocab", "4"]) == 0
    said = capsys.readouterr().out
    assert "No exponents in L: they require at least 3 depths, got L = 4." in said and "flat: below 1.1" in said
    monkeypatch.chdir(tmp_path)
    assert main([*COMPARE, *one[len(COMPARE) + 2 :], "--draws", "4", "--tokens", "2", "--vocab", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["norms"]
    assert {path.name for path in tmp_path.iterdir()} == {"run", "one"}, "without a folder nothing is kept"


def test_depth_exponents():
    cells = [sample(Stack(width=64, depth=depth, tokens=2, vocab=4), draws=64, seed=0) for depth in (1, 2, 4)]
    table = depth_exponents(layer_norms(cells))
    assert list(table["layer"]) == ["last", "first"]
    assert (table["low"] < table["exponent"]).all()
    with pytest.raises(ValueError, match="^depth must have at least 3 values"):
        depth_exponents(layer_norms(cells[:2]))


def differing(stack, *, draws):
    """Names and layers of what is farther from its prediction than 3% and than 4 standard errors."""
    table = comparison([sample(stack, draws=draws, seed=0)])
    predicted = table[table["predicted"].notna()]
    names = {name for name, q in QUANTITIES.items() if q.predicted and q.in_paper}
    assert set(predicted["quantity"]) == names, "a predicted quantity was not compared"
    assert not predicted["agreement"].isin(["", "beyond"]).any()
    odd = predicted[predicted["agreement"] == "differs"]
    return list(zip(odd["quantity"], odd["layer"], strict=True))


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_every_quantity_of_every_layer(placement):
    """48 numbers per placement; false alarm of each 6e-5, and less where 3% exceeds 4 standard errors (most).

    At 512 draws the standard errors are at most 1.2%, so an error of 9% in any number is missed with less than 1e-3.
    """
    stack = Stack(placement=placement, width=512, depth=6, tokens=8, vocab=512)
    assert not Trust.of(stack).why
    assert differing(stack, draws=512) == []


@pytest.mark.parametrize("scale", [0.1, 4.0])
def test_output_scales(scale):
    """False alarm of each number 6e-5."""
    assert differing(Stack(width=512, depth=2, tokens=4, vocab=8, output_scale=scale), draws=256) == []
