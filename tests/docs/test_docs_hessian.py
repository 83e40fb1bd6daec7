"""The page about curvature: its numbers are the committed evidence."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hessian.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


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
    assert f"is {verdict['measured']:.2f} times Pre-LN's, with an interval of [{low:.2f}, {high:.2f}]" in WORDS
    part = found["Gauss-Newton over Hessian"]
    assert f"is {part['post']['eigenvalue']:.1f} (Post-LN) and {part['pre']['eigenvalue']:.1f} (Pre-LN) times" in WORDS
    assert f"eigenvalue of −{-min(found['post, hessian']['smallest']):.0f}." in WORDS
    assert set(found["dimension"].values()) == {256256, 256384}


def test_a_wider_model():
    (verdict,) = json.loads((ROOT / "checks" / "data" / "hessian-wide.json").read_text(encoding="utf-8"))["verdicts"]
    low, high = verdict["interval"]
    assert f"**H1 {verdict['verdict']}**: {verdict['measured']:.2f} times, [{low:.2f}, {high:.2f}]" in WORDS


def test_h1_at_nine_sizes():
    found = evidence("hessian-sizes")
    verdicts = json.loads((ROOT / "checks" / "data" / "hessian-sizes.json").read_text(encoding="utf-8"))["verdicts"]
    own = {v["part"].partition("encoder-decoder, ")[2]: v for v in verdicts}
    words = {name: value[0] for name, value in found["H1, hessian"].items()}
    assert {name: v["verdict"] for name, v in own.items()} == words
    wide = [value for name, value in found["H1, hessian"].items() if "d = 8," not in name]
    assert {value[0] for value in wide} == {"holds"}
    assert {value[0] for name, value in found["H1, hessian"].items() if "d = 8," in name} == {"undecided"}
    low, high = (f"{end(value[1] for value in wide):.1f}" for end in (min, max))
    assert f"from $d = 16$ on, by a factor of {low} to {high} of" in WORDS


def test_stacks_beside_theory():
    found = evidence("hessian-stacks")
    judged, blocks = (found[name]["agreement"] for name in ("sizes", "blocks"))
    assert "differs" not in judged | blocks
    widest = f"{100 * found['sizes']['widest']:.1f}%"
    assert f"Of the {sum(judged.values())} numbers wide enough to be judged none is off by more than {widest}" in WORDS
    assert f"any of {sum(blocks.values())} of the blocks" in WORDS
    ratios = found["sizes"]["largest eigenvalue, Gauss-Newton over Hessian"]
    off = {d: max(abs(v - 1) for name, v in ratios.items() if f"d = {d}," in name) for d in (32, 128)}
    assert f"within {100 * off[128]:.1f}% at $d = 128$ and within {100 * off[32] + 0.5:.0f}% at $d = 32$" in WORDS
    verdicts = json.loads((ROOT / "checks" / "data" / "hessian-stacks.json").read_text(encoding="utf-8"))["verdicts"]
    for v in verdicts:
        assert v["verdict"] == "holds"
        assert v["agreement"] != "differs"
        if "of the Hessian" in v["part"]:
            assert of([v["measured"], *v["interval"]]) in WORDS


def test_the_last_block():
    found = evidence("last-block")
    off = {name: abs(v[1] / v[0] - 1) for name, v in found.items() if name != "networks"}
    narrow = [value for name, value in off.items() if "d = 32," in name]
    wide = [value for name, value in off.items() if "d = 32," not in name]
    assert f"within {100 * max(wide):.1f}% of theory" in WORDS
    assert f"within {100 * max(narrow):.1f}% at $d = 32$" in WORDS
    first, last = (found[f"pre, d = 128, L = {depth}"][0] for depth in (1, 16))
    post = found["post, d = 128, L = 1"][0]
    assert f"theory has {post} for Post-LN at every depth, and {first} to {last} for Pre-LN" in WORDS


def test_cost():
    found = json.loads((ROOT / "bench" / "results" / "curvature-xeon-2cores.json").read_text(encoding="utf-8"))
    assert f"takes {found['product, seconds']:.2f} s on one core, {found['product over by hand']:.2f} times" in WORDS
    ours, by_hand = found["peak MiB, by hand and ours"][::-1]
    assert ours / by_hand == pytest.approx(1.0, abs=0.1)


def test_the_mean_of_the_hessian():
    found = evidence("mean-hessian")
    settings, outside = found["settings"], found["outside"]
    assert len(settings) == 12
    worst = max(abs(one["hessian"] / one["hessian_sem"]) for one in settings.values())
    sem = max(one["hessian_sem"] for one in settings.values())
    assert f"is within {worst:.1f} standard errors of 0, with standard errors of at most {100 * sem:.1f}% of" in WORDS
    for name, words in {
        "tied embeddings": "with tied embeddings", "W_emb mostly 0": "where seven eighths of",
        "no norm": "without norms", "norms with an epsilon of 0.1": "with $\\epsilon=0.1$", "ResiDual": "in ResiDual",
    }.items():  # fmt: skip
        assert f"{outside[name]['hessian']:.2f} {words}".replace("-", "−") in WORDS
    verdicts = json.loads((ROOT / "checks" / "data" / "mean-hessian.json").read_text(encoding="utf-8"))["verdicts"]
    assert {v["verdict"] for v in verdicts} == {"holds"}
