"""The page about curvature: its numbers are the committed evidence."""

import json
from pathlib import Path

import numpy as np
import pytest

from checks.results import load_results
from tests.helpers.printed_numbers import says

ROOT = Path(__file__).parents[2]
PAGE = "hessian.md"


def evidence(name):
    return json.loads((ROOT / "tests" / "evidence" / f"{name}.json").read_text(encoding="utf-8"))


def of(value):
    """A number and its interval."""
    return f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"


def test_spectra():
    found = evidence("hessian")
    (verdict,) = json.loads((ROOT / "checks" / "data" / "hessian.json").read_text(encoding="utf-8"))["verdicts"]
    low, high = verdict["interval"]
    assert verdict["verdict"] == found["H1"]["verdict"] == "undecided"
    assert says(PAGE, f"{verdict['measured']:.2f}", "Pre-LN", f"[{low:.2f}, {high:.2f}]")
    part = found["Gauss-Newton over Hessian"]
    post, pre = (f"{part[placement]['eigenvalue']:.1f}" for placement in ("post", "pre"))
    assert says(PAGE, post, "Post-LN", pre, "Pre-LN")
    assert says(PAGE, f"eigenvalue of −{-min(found['post, hessian']['smallest']):.0f}")
    assert set(found["dimension"].values()) == {256256, 256384}


@pytest.mark.parametrize("name", ["hessian-wide", "hessian-512"])
def test_a_wider_model(name):
    (verdict,) = json.loads((ROOT / "checks" / "data" / f"{name}.json").read_text(encoding="utf-8"))["verdicts"]
    low, high = verdict["interval"]
    assert says(PAGE, f"**H1 {verdict['verdict']}", f"{verdict['measured']:.2f}", f"[{low:.2f}, {high:.2f}]")


def test_products_at_the_papers_width():
    worst = max(max(errors.values()) for errors in evidence("text-spectrum-products").values())
    assert says(PAGE, f"within {100 * worst:.2f}% of differences of float64 gradients")


def test_h1_at_nine_sizes():
    found = evidence("hessian-sizes")
    verdicts = load_results(ROOT / "checks" / "data" / "hessian-sizes.json").verdicts
    own = {v.part.partition("encoder-decoder, ")[2]: v for v in verdicts}
    words = {name: value[0] for name, value in found["H1, hessian"].items()}
    assert {name: v.verdict for name, v in own.items()} == words
    wide = [value for name, value in found["H1, hessian"].items() if "d = 8," not in name]
    assert {value[0] for value in wide} == {"holds"}
    assert {value[0] for name, value in found["H1, hessian"].items() if "d = 8," in name} == {"undecided"}
    low, high = (f"{end(value[1] for value in wide):.1f}" for end in (min, max))
    assert says(PAGE, "$d = 16$", low, high)


def test_stacks_beside_theory():
    found = evidence("hessian-stacks")
    judged, blocks = (found[name]["agreement"] for name in ("sizes", "blocks"))
    assert "differs" not in judged | blocks
    widest = f"{100 * found['sizes']['widest']:.1f}%"
    assert says(PAGE, str(sum(judged.values())), widest, str(sum(blocks.values())), "blocks")
    ratios = found["sizes"]["largest eigenvalue, Gauss-Newton over Hessian"]
    off = {d: max(abs(v - 1) for name, v in ratios.items() if f"d = {d}," in name) for d in (32, 128)}
    assert says(PAGE, f"{100 * off[128]:.1f}%", "$d = 128$", f"{100 * off[32] + 0.5:.0f}%", "$d = 32$")
    verdicts = load_results(ROOT / "checks" / "data" / "hessian-stacks.json").verdicts
    for v in verdicts:
        assert v.verdict == "holds"
        assert v.agreement != "differs"
        if "of the Hessian" in v.part:
            assert says(PAGE, of([v.measured, *v.interval]))


def test_the_last_block():
    found = evidence("last-block")
    off = {name: abs(v[1] / v[0] - 1) for name, v in found.items() if name != "networks"}
    narrow = [value for name, value in off.items() if "d = 32," in name]
    wide = [value for name, value in off.items() if "d = 32," not in name]
    assert says(PAGE, f"{100 * max(wide):.1f}%", f"{100 * max(narrow):.1f}%", "$d = 32$")
    first, last = (found[f"pre, d = 128, L = {depth}"][0] for depth in (1, 16))
    post = found["post, d = 128, L = 1"][0]
    assert says(PAGE, str(post), "Post-LN", str(first), str(last), "Pre-LN")


def test_cost():
    found = json.loads((ROOT / "bench" / "results" / "curvature-xeon-2cores.json").read_text(encoding="utf-8"))
    assert says(PAGE, f"{found['product, seconds']:.2f} s", f"{found['product over by hand']:.2f} times")
    ours, by_hand = found["peak MiB, by hand and ours"][::-1]
    assert ours / by_hand == pytest.approx(1.0, abs=0.1)


def test_the_mean_of_the_hessian():
    found = evidence("mean-hessian")
    settings, outside = found["settings"], found["outside"]
    assert len(settings) == 12
    worst = max(abs(one["hessian"] / one["hessian_sem"]) for one in settings.values())
    sem = max(one["hessian_sem"] for one in settings.values())
    assert says(PAGE, f"{worst:.1f} standard errors", f"{100 * sem:.1f}%")
    for name, term in {
        "tied embeddings": "tied embeddings", "W_emb mostly 0": "seven eighths", "no norm": "without norms",
        "norms with an epsilon of 0.1": "$\\epsilon=0.1$", "ResiDual": "ResiDual",
    }.items():  # fmt: skip
        assert says(PAGE, f"{outside[name]['hessian']:.2f}", term)
    verdicts = json.loads((ROOT / "checks" / "data" / "mean-hessian.json").read_text(encoding="utf-8"))["verdicts"]
    assert {v["verdict"] for v in verdicts} == {"holds"}


def test_the_largest_eigenvalue():
    found = evidence("hessian-eigenvalue")
    settings, coupling = found["settings"], found["coupling"]
    off = {name: line["theory"]["ratio"] / line["measured"]["ratio"][0] - 1 for name, line in settings.items()}
    assert says(PAGE, f"{sum(one < 0 for one in off.values())} of {len(off)} settings")
    worst = {d: max(abs(one) for name, one in off.items() if f"d = {d}," in name) for d in (16, 128)}
    assert says(PAGE, "$d=128$", f"{100 * worst[128]:.0f}%", "$d=16$", f"{100 * worst[16]:.0f}%")
    few = [settings[f"{p}, d = 128, n = 4, V = 4"] for p in ("post", "pre")]
    both = [
        100 * (line["theory"][key] / line["measured"][key][0] - 1)
        for line in few
        for key in ("hessian", "gauss_newton")
    ]
    assert says(PAGE, f"{min(both):.0f}% to {max(both):.0f}% too large")
    over = {
        name: [100 * (line["theory"][key] / line["measured"][key][0] - 1) for key in ("hessian", "gauss_newton")]
        for name, line in settings.items()
    }
    many = np.array([
        pair for name, pair in over.items() if "n = 4," not in name and "d = 16" not in name
    ])  # fmt: skip
    hessian, gauss_newton = np.array([over[f"{p}, d = 128, n = 4, V = 10000"] for p in ("post", "pre")]).T
    assert says(
        PAGE, f"{many[:, 1].max():.0f}% too large", f"within {abs(many[:, 0]).max():.0f}%", f"{-hessian.min():.0f}%",
        "too small", f"{gauss_newton.min():.0f}% to {gauss_newton.max():.0f}%",
    )  # fmt: skip
    sems = [line["theory"]["ratio_sem"] / line["theory"]["ratio"] for line in settings.values()]
    assert says(PAGE, "standard errors", f"up to {100 * max(sems):.0f}%")
    for low, high in ((32, 128), (16, 128)):
        slopes = []
        for placement in ("post", "pre"):
            (a, of_a), (b, of_b) = (
                settings[f"{placement}, d = {d}, n = 4, V = 10000"]["measured"]["ratio"] for d in (low, high)
            )
            slope, sem = np.log(b / a) / np.log(high / low), np.hypot(of_a / a, of_b / b) / np.log(high / low)
            slopes.append(f"$d^{{{slope:.2f}\\pm{sem:.2f}}}$")
        assert says(PAGE, *slopes)
    for name in ("Hessian over largest", "largest over the edge", "Frobenius norm over theory"):
        digits = 3 if name.startswith("Hessian") else 2
        pairs = [coupling[f"{placement}, d = 128"][name] for placement in ("post", "pre")]
        assert says(PAGE, *(f"{mean:.{digits}f} ± {sem:.{digits}f}" for mean, sem in pairs))
