"""What the pages on relaxations and on queries and keys say, computed again."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from checks.results import load_results
from simulate import sample
from tests.helpers.printed_numbers import says
from theory import Stack, predict
from theory.mean_field import inputs

DOCS = Path(__file__).parents[2] / "docs"


def page_text(name):
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def ratio(found, base):
    """Norms of the last layer's gradient, one over the other."""
    return float(np.sqrt(found["grad_sq_W2"][-1] / base["grad_sq_W2"][-1]))


def test_the_growth_by_dropout():
    shown = ("1.026", "$p = 0.1$, $n = 8$", "1.031", "$n\\to\\infty$", "1.050", "1.070", "$p = 0.2$", "0.3")
    assert says("relaxations.md", *shown)
    for share, tokens, growth in ((0.1, 8, 1.026), (0.1, 1000, 1.031), (0.2, 1000, 1.050), (0.3, 1000, 1.070)):
        gradients = predict(Stack(dropout=share, depth=300, tokens=tokens))["grad_sq_W2"]
        assert round(float(gradients[150] / gradients[149]) ** 0.5, 3) == growth
    assert says("relaxations.md", "$\\ln\\lVert\\partial\\mathcal{L}/\\partial W^2\\rVert$", "0.0240")
    stack = Stack(dropout=0.1, depth=24, width=2048)
    layers = np.arange(24)
    norms = (
        np.sqrt(sample(stack, draws=64, seed=0)["grad_sq_W2"].astype(float).mean(0)),
        predict(stack)["grad_sq_W2"] ** 0.5,
    )
    assert [stats.linregress(layers, np.log(norm)).slope for norm in norms] == pytest.approx([0.0240, 0.0245], abs=1e-4)


def test_the_means_of_sinusoidal_positions(monkeypatch):
    assert says("relaxations.md", "26%", "Pre-LN", "input gradient", "$d = 1024$, $L = 4$, $n = 4$")
    stack = Stack(placement="pre", positions="sinusoidal", width=1024, depth=4, tokens=4, vocab=16)
    right = predict(stack)
    monkeypatch.setattr(inputs, "position_means", lambda _: None)
    wrong = predict(stack)
    deviations = {name: float(np.abs(wrong[name] / value - 1).max()) for name, value in right.items()}
    assert max(deviations, key=deviations.get) == "input_gradient_sq"
    assert round(deviations["input_gradient_sq"], 2) == 0.26


def test_the_errors_of_dropped_weights():
    assert says("relaxations.md", "0.1%", "$p = 0.1$", "0.2%", "0.3")
    for share, quoted in ((0.1, 0.001), (0.3, 0.002)):
        prediction = predict(Stack(attention_dropout=share))
        errors = [float((error / np.abs(prediction[name])).max()) for name, error in prediction.errors.items()]
        assert quoted / 2 < max(errors) < quoted


def test_the_exponents_of_tied_embeddings():
    assert says("relaxations.md", "0.64", "Post-LN", "0.56", "Pre-LN", "$d = 128..1024$", "1/2")
    committed = load_results(DOCS.parent / "checks" / "data" / "relax.json").verdicts
    exponents = {v.part: v for v in committed if v.relaxed == "tied embeddings"}
    for placement, title, quoted in (("post", "Post-LN", 0.64), ("pre", "Pre-LN", 0.56)):
        verdict = exponents[f"{title}, exponent in d: tied embeddings"]
        assert round(verdict.measured, 2) == round(verdict.predicted, 2) == quoted
        fields = {"placement": placement, "depth": 4, "vocab": 64, "embeddings": "tied"}
        wide = [predict(Stack(width=d, **fields), patterns=1024) for d in (2**14, 2**18)]
        assert np.log(ratio(wide[1], wide[0])) / np.log(16) == pytest.approx(0.5, abs=0.005)


def test_the_way_to_random_queries():
    assert says("queries.md", "0.2%", "Post-LN", "2.5%", "Pre-LN", "$s = 2$", "1%", "14%")
    post = ("1.06", "1.13", "$s = 1$", "1.5", "$s = 1.5$", "2.4", "$s = 2$", "Post-LN")
    assert says("queries.md", *post, "1.75", "1.82", "2.2", "2.9", "Pre-LN")
    quoted = {
        "post": {0.0: (1.0, 1.06), 1.0: (0.998, 1.13), 1.5: (None, 1.5), 2.0: (0.99, 2.4)},
        "pre": {0.0: (1.0, 1.75), 1.0: (0.975, 1.82), 1.5: (None, 2.2), 2.0: (0.86, 2.9)},
    }
    for placement, values in quoted.items():
        base = predict(Stack(placement=placement, depth=4, vocab=64))
        for scale, (last, profile) in values.items():
            found = predict(Stack(placement=placement, depth=4, vocab=64, query_key_scale=scale))
            gradients = np.sqrt(found["grad_sq_W2"])
            assert gradients[0] / gradients[-1] == pytest.approx(profile, abs=0.006 if scale <= 1 else 0.06)
            assert last is None or ratio(found, base) == pytest.approx(last, abs=0.002 if scale <= 1 else 0.005)


def test_what_norms_remove():
    assert says("queries.md", "3%", "Post-LN", "11%", "Peri-LN", "$n = 4$, $s = 1$, one layer")
    for placement, quoted in (("post", 0.03), ("peri", 0.11)):
        stack = Stack(placement=placement, depth=1, tokens=4, query_key_scale=1.0)
        right = predict(stack)
        with pytest.MonkeyPatch.context() as patch:
            for module in ("theory.mean_field.sublayers", "theory.mean_field.recursion"):
                patch.setattr(f"{module}.asks_for_overlaps", lambda stack, tokens: False)
            wrong = predict(stack)
        assert wrong["grad_sq_WQ"] / right["grad_sq_WQ"] - 1 == pytest.approx(quoted, abs=0.005)
    assert says("queries.md", "6%", "$p = 0.6$, $n = 4$, $s = 1$")
    stack = Stack(depth=2, tokens=4, query_key_scale=1.0, dropout=0.6)
    right = predict(stack)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("theory.mean_field.sublayers.dropped_overlaps", lambda tokens, overlaps, kept: overlaps)
        wrong = predict(stack)
    assert (wrong["grad_sq_WQ"] / right["grad_sq_WQ"])[0] - 1 == pytest.approx(0.06, abs=0.005)


def test_the_widths_of_heads():
    """The table is the evidence's; the text is theory's, with the same patterns for all widths."""
    page = page_text("queries.md")
    found = json.loads((DOCS.parent / "tests" / "evidence" / "heads.json").read_text(encoding="utf-8"))
    assert says("queries.md", f"{found['numbers']} numbers")
    assert found["beyond"] == []
    for scale, what in product(("1", "1.5"), ("wide heads", "the prediction")):
        cases = [
            found["of each case"][f"d_k = {head_width}, s = {scale}, L = 1, post, conditioned"]["W^Q, layer 1"]
            for head_width in (1, 2, 4, 8, 16, 64)
        ]
        key = "over that of wide heads" if what == "wide heads" else "over the prediction"
        cells = " | ".join(f"{100 * case[key]:+.1f}%" for case in cases)
        assert f"| $s = {scale}$, over {what} | {cells} |" in page
    found = {head_width: numbers_of_heads(head_width) for head_width in (1, 16, 2**30)}
    quoted = {"WQ": (0.37, 25), "WK": (0.19, 14), "WV": (0.09, 6), "inputs": (0.05, 4)}
    for name, (slope, percent) in quoted.items():
        assert says("queries.md", f"$-{slope}/d_k$")
        assert says("queries.md", f"$-{percent}\\%$")
        (one, error), (sixteen, _), (wide, _) = (numbers[name] for numbers in found.values())
        assert abs(16 * (1 - sixteen / wide) - slope) < 0.005 + 4 * 16 * error / one
        assert abs(100 * (1 - one / wide) - percent) < 0.5 + 4 * 100 * error / one


def numbers_of_heads(head_width):
    """Squared gradients of one layer over the width, and of the inputs, of 64 heads, with their errors."""
    stack = Stack(width=64 * head_width, heads=64, depth=1, tokens=4, vocab=64, query_key_scale=1.0)
    prediction = predict(stack, patterns=512)
    names = {role: (f"grad_sq_{role}", stack.width) for role in ("WQ", "WK", "WV")}
    names["inputs"] = "input_gradient_sq", 1
    return {
        name: tuple(float(of[quantity].flat[0]) / scale for of in (prediction, prediction.errors))
        for name, (quantity, scale) in names.items()
    }


def test_the_cost_quoted_is_the_committed_one():
    found = json.loads((DOCS.parent / "bench" / "results" / "predictions-xeon-2cores.json").read_text(encoding="utf-8"))
    cost, networks = found["2000 patterns"], found["64 networks, d = 1024"]
    assert says("queries.md", f"{cost['seconds']:.1f} s", "660 MiB")
    assert cost["peak MiB"] == pytest.approx(660, abs=5)
    assert says("queries.md", "64 networks", f"{networks['seconds']:.1f} s")
    errors = found["relative errors of W^Q, layer 1"]
    assert errors["networks"] / errors["patterns"] == pytest.approx(50, rel=0.1)
    assert found["8000 patterns"]["peak MiB"] < 1.1 * cost["peak MiB"], "memory is bounded"


def test_the_evidence_quoted_is_the_committed_one():
    found = json.loads((DOCS.parent / "tests" / "evidence" / "relaxations.json").read_text(encoding="utf-8"))
    assert says("relaxations.md", f"{found['numbers']} quantities")
    assert found["beyond"] == []
    queries = json.loads((DOCS.parent / "tests" / "evidence" / "queries.json").read_text(encoding="utf-8"))
    cases = {row["case"] for row in queries["beyond"]}
    assert says("queries.md", f"{len(queries['beyond'])} of {queries['numbers']} numbers", f"{len(cases)} cases")
