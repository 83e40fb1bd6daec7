"""The numbers of docs/layer_growth.md: closed forms computed again, and what the committed files hold."""

import json
import re
from pathlib import Path

import numpy as np

from checks.results import load_results
from tests.helpers.printed_numbers import says
from theory import Stack, predict
from theory.paper.layer_growth import depth_exponent, layer_factor, query_factor, token_correlation

ROOT = Path(__file__).parents[2]
NAME = "layer_growth.md"
PAGE = " ".join((ROOT / "docs" / "layer_growth.md").read_text(encoding="utf-8").split())
ACTIVATIONS = {"SiLU": "silu", "GELU": "gelu", "ReLU": "relu", "tanh": "tanh", "linear": "identity"}
GAINS = [("fan_in", 1.0), ("xavier_normal", 2.5), ("xavier_normal", 4.0), ("he", 1.0), ("pytorch", 1.0)]


def test_the_factors():
    for ffn in ("gated", "plain"):
        for name, activation in ACTIVATIONS.items():
            stacks = [Stack(ffn=ffn, activation=activation, initialization=i, ffn_ratio=r) for i, r in GAINS]
            row = [f"{layer_factor(stack):.3f}".replace("1.000", "1") for stack in stacks]
            written = "plain ReLU, linear" if ffn == "plain" and name in ("ReLU", "linear") else f"{ffn} {name}"
            assert f"| {written} | {' | '.join(row)} |" in PAGE
    gated = {"ffn": "gated", "activation": "silu"}
    assert [f"{layer_factor(Stack(dropout=p, **one)):.3f}" for p, one in ((0.1, {}), (0.3, gated))] == [
        "1.026",
        "0.906",
    ]
    relu, silu = (f"{query_factor(Stack(query_key_scale=1.0, **one)):.3f}" for one in ({}, gated))
    assert says(NAME, relu, "ReLU", silu, "gated SiLU", "`query_factor`")
    assert says(NAME, f"$c = {token_correlation(Stack(dropout=0.1)):.2f}$", "ReLU, $p = 0.1$, $n = 8$")
    exponents = [f"{depth_exponent(Stack(placement=p, **gated)):.3f}" for p in ("pre", "peri", "output")]
    assert says(NAME, "$L$", *exponents)


def test_the_ratios():
    """ReLU's at three depths; gated SiLU's, whose quadrature takes longer, where it is cheap."""
    titles = {"post": "Post-LN", "residual": "ResiDual", "pre": "Pre-LN", "peri": "Peri-LN", "deepnorm": "DeepNorm"}
    for placement, title in titles.items():
        ((gated, *plain),) = re.findall(rf"\| {title} " + r"\| (\S+) \((\S+)\) " * 3 + r"\|", PAGE)
        assert [f"{ratio(placement, depth):.3g}" for depth in (12, 48, 192)] == [f"{float(p):.3g}" for p in plain[::2]]
        if placement != "residual":
            assert f"{ratio(placement, 12, ffn='gated', activation='silu'):.2f}" == gated


def test_the_ratios_over_tokens():
    for placement, title in (("pre", "Pre-LN"), ("peri", "Peri-LN")):
        gated = {"ffn": "gated", "activation": "silu"}
        three = ", ".join(f"{ratio(placement, 12, tokens=n, **gated):.2f}" for n in (1, 4, 64))
        assert says(NAME, title, three)


def ratio(placement, depth, **fields):
    norms = np.sqrt(predict(Stack(placement=placement, depth=depth, vocab=64, **fields))["grad_sq_W2"])
    return float(norms[0] / norms[-1])


def test_what_was_measured():
    found = json.loads((ROOT / "tests" / "evidence" / "layer-growth.json").read_text(encoding="utf-8"))
    for label, one in found.items():
        engine, width, depth = re.match(r"(\w+), d = (\d+), L = (\d+):", label).groups()
        error = one["first over last"] * one["its relative error"]
        row = (
            f"| {engine} | {width} | {depth} | {one['first over last']:.2f} ± {error:.2f} | "
            f"{one['first over last, theory']:.2f} | {one['factor per layer, upper half']:.3f} ± "
            f"{one['error of the factor']:.3f} | {one['factor, closed form']:.3f} |"
        )
        assert row in PAGE
        assert one["beyond"] == []
    numbers = {e: sum(one["numbers"] for name, one in found.items() if name.startswith(e)) for e in ("dense", "cond")}
    assert says(NAME, str(numbers["dense"]), "four networks", str(numbers["cond"]), "three")
    files = [load_results(ROOT / "checks" / "data" / f"{name}.json") for name in ("growth", "growth-gains")]
    rows = [v for one in files for v in one.verdicts if v.claim == "G1"]
    assert len(rows) == 22
    assert sum(v.verdict == "holds" for v in rows) == 21
    (other,) = [v for v in rows if v.verdict == "undecided"]
    half = (other.interval[1] - other.interval[0]) / 2
    assert says(NAME, f"${other.measured:.4f} \\pm {half:.4f}$", f"${other.claimed.values[0]:.4f}$")
