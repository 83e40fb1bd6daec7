"""What the page of the first step says."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.printed_numbers import says
from theory import Stack
from theory.first_step.noise_scale import noise_scale
from theory.first_step.prediction import first_step

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first_step.md").read_text(encoding="utf-8")


def evidence(name):
    return json.loads((ROOT / "tests" / "evidence" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("title", "placement"), [("Post-LN", "post"), ("Pre-LN", "pre")])
def test_rates(title, placement):
    """The table's number at four layers, with the error of what is sampled."""
    table = PAGE[PAGE.index("begin: theory-of-critical-rates") : PAGE.index("end: theory-of-critical-rates")]
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {title} | "))
    stated = float(line.split("|")[4])
    width = 2**18
    step = first_step(Stack(placement=placement, width=width, depth=4, tokens=8, vocab=16), seed=1)
    assert width * step.critical_rate == pytest.approx(stated, rel=0.02)


def test_rates_of_the_placements():
    rates = evidence("first-step-theory")["d times the critical rate of SGD"]
    ratios = [f"{rates['pre'][k] / rates['post'][k]:.1f}" for k in (-2, -1)]
    assert says("first_step.md", "16 layers", ratios[0], "32 layers", ratios[1])
    constant = float(f"{32 * rates['post'][-1]:.1g}")
    assert says("first_step.md", f"${constant:.0f}/(dL)$", "Post-LN")


def test_signs_and_polar_factors_share_exponents_in_the_depth():
    """Pre-LN's go towards -1/2, with -0.57 for polar factors at 128 to 256 (not computed here); Post-LN's are -1."""
    recorded = evidence("first-step-theory")
    deep = {title: line["L, 16 to 32"] for title, line in recorded["exponents"].items()}
    assert says("first_step.md", f"${deep['polar, Pre-LN']:.2f}$", "$-0.57$")
    assert max(error for line in recorded["standard errors"].values() for error in line.values()) < 0.01
    for name in ("sign", "polar"):
        assert deep[f"{name}, Post-LN"] == pytest.approx(-1.0, abs=0.03)
        assert deep[f"{name}, Pre-LN"] == pytest.approx(-0.73, abs=0.015)
        assert deep[f"{name}, Pre-LN"] - deep[f"{name}, Post-LN"] < deep["SGD, Pre-LN"] - deep["SGD, Post-LN"]


def test_many_classes():
    """At V/d = 1/2 and 4, with and without what V/d adds."""
    for vocab, whole, limit in ((128, 218, 162), (1024, 74, 19)):
        assert says("first_step.md", str(whole), str(limit))
        step = first_step(Stack(width=256, depth=2, tokens=8, vocab=vocab))
        assert step.curvature == pytest.approx(whole, rel=0.02)
        assert step.curvature * (1 - step.spread) == pytest.approx(limit, rel=0.04)


@pytest.mark.parametrize(("title", "placement"), [("Post-LN", "post"), ("Pre-LN", "pre"), ("Peri-LN", "peri")])
def test_noise_scales(title, placement):
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {title} | ") and line.count("|") == 6)
    sizes = ((8, 16), (8, 64), (8, 512), (32, 512))
    found = [noise_scale(Stack(placement=placement, depth=6, tokens=n, vocab=v)).whole for n, v in sizes]
    assert [float(number) for number in line.split("|")[2:6]] == pytest.approx(found, rel=0.02)


def test_batches():
    networks = evidence("batches")["networks"]
    norms = [row for network in networks.values() for row in network["norms"].values()]
    assert max(abs(row["ratio"] - 1) for row in norms) < 0.035
    assert max(row["sem"] for row in norms) < 0.008
    assert max(abs(network["norms"]["norm"]["ratio"] - 1) for network in networks.values()) < 0.0145
    assert max(network["shared by two sequences"] for network in networks.values()) == pytest.approx(0.22, abs=0.005)
    tied = [network for network in networks.values() if "norms with words that repeat" in network]
    assert len(tied) == 2
    for network in tied:
        again, ratio = (network[name]["norm"]["ratio"] for name in ("norms with words that repeat", "norms"))
        assert again == pytest.approx(ratio, abs=0.004)


def test_noise_scales_in_the_depth():
    assert says("first_step.md", "194", "7.4", "48", "DeepNorm", "11,000")
    found = [noise_scale(Stack(depth=depth, tokens=8, vocab=16)).whole for depth in (1, 48)]
    assert found == pytest.approx([194, 7.4], rel=0.01)
    assert noise_scale(Stack(placement="deepnorm", depth=6, tokens=8, vocab=16)).whole == pytest.approx(11000, rel=0.03)


def test_no_first_step_is_off_by_more_than_its_error():
    found = evidence("first-step")["over theory"]
    rows = [one for settings in found.values() for one in settings.values()]
    assert says("first_step.md", "within 3%", "beyond both 3% and 4 standard errors")
    assert all(abs(one["gain"][0] - 1) < 0.03 for one in rows)
    assert all(abs(value - 1) < max(0.03, 4 * sem) for one in rows for value, sem in one.values())


def test_many_classes_are_off_by_what_is_said():
    found = evidence("first-step-vocab")["over theory"]
    rows = [(optimizer, one) for by in found.values() for optimizer, one in by.items()]
    assert says("first_step.md", "7 to 9%", "22%", "4 standard errors", "3%", "11%")
    usual = [value for optimizer, one in rows if optimizer != "muon" for value in one.values()]
    assert all(abs(value - 1) < max(0.09, 4 * sem) for value, sem in usual)
    assert all(abs(one["gain"][0] - 1) < 0.0305 for optimizer, one in rows if optimizer != "muon")
    muon = [one for optimizer, one in rows if optimizer == "muon"]
    assert f"{100 * max(abs(one['gain'][0] - 1) for one in muon):.0f}%" == "11%"
    assert max(abs(value - 1) for one in muon for value, _ in one.values()) < 0.0862 + 7 * 8 / 256


def test_little_is_left_out_of_queries_and_keys():
    models = list(evidence("first-step-norms")["models"].values())
    parts = [one[name] / one[f"implied {name}"] for one in models for name in ("gain", "curvature")]
    removed = max(one["removed"] for one in models)
    assert says(
        "first_step.md", f"{len(models)} published models", f"{100 * removed:.1f}%, and {100 * max(parts):.0f}% of"
    )
    assert all(one["removed"] <= 1 / one["heads"] for one in models)


def test_families_are_as_is_said():
    """Of eleven at 512 and 1024, and of ten untied ones at 256."""
    assert says(
        "first_step.md", "all eleven", "within 5%", "1.5%", "At 512 six", "10%", "6 to 10% above", "seven of ten"
    )
    wide = evidence("configuration-steps-wide")["models"]
    rows = {
        (width, name, optimizer, number): row
        for width, models in wide.items() for name, one in models.items()
        for optimizer, numbers in one["optimizers"].items() for number, row in numbers.items()
    }  # fmt: skip
    off = {key: round(abs(row["ratio"] - 1), 4) for key, row in rows.items()}
    assert max(row["sem"] for row in rows.values()) <= 0.015
    assert max(value for (width, *_), value in off.items() if width == "1024") <= 0.05
    stated = {key: row["stated"] if row["stated"] <= 0.1 else 0.0 for key, row in rows.items()}
    others = {key[1] for key, value in off.items() if value > max(0.05, stated[key])}
    assert len(wide["1024"]) == 11 == 6 + len(others)
    above = [100 * off["512", name, "sgd", "curvature"] for name in others]
    assert (round(min(above)), round(max(above))) == (6, 10)
    beyond = {
        key: round(100 * (off[key] - row["stated"]), 1) for key, row in rows.items()
        if off[key] > max(0.05, row["stated"], 3 * row["sem"])
    }  # fmt: skip
    assert says("first_step.md", "OLMo 2's signs at 512, 0.3% beyond")
    assert beyond == {("512", "olmo2", "adam", "curvature"): 0.3}
    large = {name for (width, name, *_), row in rows.items() if row["stated"] > 0.1 and width == "1024"}
    assert says("first_step.md", "all but Gemma 2, OLMo 2 and Falcon") and large == {"gemma2", "olmo2", "falcon"}
    narrow = [
        [row for numbers in one["optimizers"].values() for row in numbers.values()]
        for one in evidence("configuration-steps")["models"].values()
    ]
    near = [all(abs(row["ratio"] - 1) < max(0.05, min(0.1, 3 * row["sem"])) for row in one) for one in narrow]
    assert (sum(near), len(near)) == (7, 10)


def test_published_rates():
    found = evidence("first-step-translation")
    rates = found["published rates"]
    ends = {}
    for placement, networks in found["models"].items():
        ratios = [rate / one["critical rate"] for one in networks for rate in rates]
        ends[placement] = (f"{min(ratios):.1f}", f"{max(ratios):.1f}")
    assert says("first_step.md", *ends["post"], "Post-LN", *ends["pre"], "Pre-LN")
    every = [one for networks in found["models"].values() for one in networks]
    gains = [one["loss"] - loss for one in every for loss in one["losses at the published rates"]]
    assert says("first_step.md", f"{min(gains):.1f} to {max(gains):.1f}")
    larger = [one["break-even rate"] / rate for one in every for rate in rates]
    assert says("first_step.md", f"{min(larger):.0f} to {max(larger):.0f}")


def test_how_many_losses_are_said_roughly():
    runs = evidence("public-runs")["runs"].values()
    wide = [run for run in runs if np.ptp(run["loss interval"]) > 0.04 * run["loss"]]
    assert len(wide) == 7
    assert says("first_step.md", "seven losses", "2%")
