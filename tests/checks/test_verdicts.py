"""Verdicts: each word is given where it is due, on samples made to follow or to break a claim."""

import dataclasses
import functools
import zlib

import numpy as np
import pytest
from scipy import stats

from checks.stacks.judge import verdicts
from checks.stacks.lemmas import _band
from checks.stacks.profiles import profile_cells
from checks.stacks.relaxations import layer_growth
from checks.stacks.theorem1 import _bound_word
from checks.statistics import Estimate
from checks.verdict import Verdict
from simulate import Cell, Samples, TextWindows
from theory import CLAIMS, Stack, predict

DRAWS = 400


predicted = functools.cache(predict)


def made(stack: Stack, **changes) -> Samples:
    """Draws that scatter by 10% around the prediction, or around what `changes` make of it.

    Without the chain of the proof, whose steps are inequalities between numbers of one draw:
    tests/theory/paper/test_proof_chain.py.
    """
    described = ", ".join(f"{name}={value!r}" for name, value in dataclasses.asdict(stack).items())
    rng = np.random.default_rng(zlib.crc32(f"Stack({described})".encode()))
    arrays = {}
    for name, mean in predicted(stack).items():
        if name.startswith("chain"):
            continue
        mean = changes[name](mean) if name in changes else mean
        arrays[name] = mean * rng.normal(1, 0.1, (DRAWS, *np.shape(mean)))
    # The largest of n d independent normals, by inverting its distribution function.
    largest = stats.norm.ppf(rng.random((DRAWS, stack.depth)) ** (1 / (stack.tokens * stack.width)))
    arrays["ffn_hidden_max_sq"] = np.maximum(largest, 0) ** 2
    arrays["head_norm"] = np.full(DRAWS, stack.output_scale * (1 + np.sqrt(stack.vocab / stack.width)))
    return Samples(Cell(stack), np.zeros(len(arrays["loss"]), dtype=int), arrays)


def only(cells, claim, part="") -> Verdict:
    (row,) = [v for v in verdicts(cells) if v.claim == claim and part in v.part]
    return row


def stacks(placement, widths=(512,), depths=(12,)):
    return [Stack(placement=placement, width=w, vocab=w, depth=d) for w in widths for d in depths]


def gated(width=3200, depth=16, tokens=2):
    return Stack(width=width, depth=depth, tokens=tokens, vocab=64, ffn="gated")


def test_every_claim_has_a_verdict_on_a_full_grid():
    cells = [
        made(stack)
        for placement in ("post", "pre")
        for stack in {*stacks(placement, (64, 128, 512)), *stacks(placement, (512,), (2, 6, 12))}
    ]
    cells.append(made(gated()))
    rows = verdicts(cells)
    # H3 is about second derivatives, of which cells have none.
    of_cells = {name for name, c in CLAIMS.items() if c.kind != "observation"} - {"H3"}
    assert {v.claim for v in rows} == of_cells | {"H2"}
    word = {(v.claim, v.part): v.verdict for v in rows}
    assert len(word) == len(rows)
    assert word["L1", "all layers"] == "holds"
    assert word["L2a", "Post-LN, all layers"] == "holds"
    assert word["L2b", "Pre-LN, all layers"] == "holds with a correction"
    assert word["L2c", "Post-LN, all layers"] == "holds"
    assert word["L3", "as printed, with ||x||"] == "fails"
    assert word["L3", "corrected, with y = x - mean(x)"] == "holds with a correction"
    assert {v.verdict for v in rows if v.claim == "G1"} == {"holds"}
    assert {v.verdict for v in rows if v.claim == "T1" and "exponent in L" not in v.part} == {"holds, loose"}
    assert {v.verdict for v in rows if "exponent in L" in v.part} == {"holds"}
    assert word["F1", "Post-LN, ln of the growth of ||dL/dW2|| per layer"] == "fails"
    assert word["F2", "Pre-LN, exponent of ||dL/dW2|| in l"] == "fails"
    assert {v.agreement for v in rows} <= {"agrees", "undecided", "beyond"}


@pytest.mark.parametrize(
    ("claim", "placement", "quantity", "change"),
    [
        ("L1", "post", "ffn_hidden_energy", lambda m: 1.1 * m),
        ("L1", "pre", "ffn_hidden_energy", lambda m: m * (1 + 0.3 * (np.arange(12) == 4))),
        ("L2a", "post", "hidden_energy", lambda m: m + 0.1),
        ("L2b", "pre", "hidden_energy", lambda m: 0.5 * m),
        ("L2b", "pre", "hidden_energy", lambda m: 2.0 * m),
        ("L2c", "post", "attention_energy", lambda m: 1.3 * m),
    ],
)
def test_lemmas_that_samples_break_fail(claim, placement, quantity, change):
    row = only([made(stack, **{quantity: change}) for stack in stacks(placement, (1024,))], claim)
    assert row.verdict == "fails"
    assert row.agreement == "differs" or claim in ("L1", "L2c")


def test_too_narrow_a_network_does_not_differ_from_theory():
    cells = [made(s, hidden_energy=lambda m: 1.06 * m) for s in stacks("pre", (64,))]
    assert (only(cells, "L2b").agreement, only(cells, "L2b").verdict) == ("beyond", "holds with a correction")


def test_lemma2_pre_counts_how_far_its_index_is_wrong():
    row = only([made(s, hidden_energy=lambda m: m + 0.5) for s in stacks("pre")], "L2b")
    # With half a unit more everywhere only x_1, the embedding itself, is below the printed bound.
    assert row.verdict == "holds with a correction"
    assert "fails for l = 1 to 1 " in str(row.note)


def test_a_bound_that_draws_exceed_fails():
    row = only([made(s, grad_sq_W2=lambda m: 1e9 * m) for s in stacks("post", (512,), (6,))], "T1", "bound")
    assert row.verdict == "fails"
    assert row.agreement == "differs"
    assert row.loose is None


def test_an_exponent_steeper_than_the_papers_is_undecided_and_differs_from_theory():
    """A slope over a finite grid refutes no order of growth."""
    cells = [made(s, grad_sq_W2=lambda m, s=s: m * s.width**2) for s in stacks("post", (64, 128, 512))]
    row = only(cells, "T1", "exponent in d")
    assert (row.verdict, row.agreement, row.loose) == ("undecided", "differs", None)


@pytest.mark.parametrize(("exceeded", "draws", "allowed", "loose", "word"), [
    (0, 224, 0.023, 10.0, "holds, loose"),
    (0, 224, 0.023, 1.5, "holds"),
    (0, 100, 0.023, 10.0, "undecided"),
    (12, 400, 0.023, 1.1, "undecided"),
    (12, 400, 0.3, 1.1, "holds"),
    (40, 400, 0.023, 1.1, "fails"),
    (390, 400, 1.0, 0.5, "holds"),
])  # fmt: skip
def test_bound_words(exceeded, draws, allowed, loose, word):
    """Judged by the share that the theorem lets exceed its bound; one that allows all says nothing, and is kept."""
    assert _bound_word(np.arange(draws) < exceeded, allowed, loose) == word


def test_few_draws_decide_nothing():
    few = Samples(Cell(Stack()), np.zeros(31, dtype=int), {name: value[:31] for name, value in made(Stack()).items()})
    assert verdicts([few]) == []


def test_bands_are_undecided_when_nothing_is_measured_well():
    noisy = [Estimate(np.array([1.5, 1.9]), np.array([0.1, 0.2]), 50)]
    assert _band(noisy, [(1.0, 2.0)], "holds") == (0, "undecided")
    near = [Estimate(np.array([1.5, 2.1]), np.array([0.01, 0.03]), 50)]
    assert _band(near, [(1.0, 2.0)], "holds") == (0, "undecided"), "within chance, but not within the margin"
    assert _band([Estimate(np.array([1.5, 2.02]), np.array([0.01, 0.01]), 50)], [(1.0, 2.0)], "holds") == (0, "holds")
    assert _band([Estimate(np.array([1.5, 2.2]), np.array([0.01, 0.01]), 50)], [(1.0, 2.0)], "holds") == (1, "fails")


def test_a_premise_that_fails_is_called_so():
    """At σ_e = √d the loss gradient, which the theorem takes as O(1), grows like √d."""
    rows = [only([made(Stack(width=w, vocab=64, output_scale=w**p)) for w in (256, 1024, 4096)], "T1", "exponent in d")
            for p in (0.5, 0.0)]  # fmt: skip
    assert [(row.verdict, row.loose is None) for row in rows] == [("premise fails", True), ("holds, loose", False)]


def test_a_width_that_is_a_square_stays_in_its_series():
    """At d = 64 σ_e = 8 is √d as well: the series at fixed σ_e must not lose it."""
    cells = [made(Stack(width=w, vocab=64, output_scale=8.0)) for w in (64, 128, 256)]
    assert "sigma_e = 8" in only(cells, "T1", "exponent in d").part


def test_an_exponent_in_depth_that_theory_does_not_have_is_not_called_holding():
    cells = [made(s, grad_sq_W2=lambda m, s=s: m * s.depth) for s in stacks("pre", (512,), (2, 4, 8))]
    row = only(cells, "T1", "exponent in L")
    assert (row.verdict, row.agreement) == ("undecided", "differs")


def test_a_first_layer_that_falls_with_depth_is_not_called_failing():
    depths = [Stack(placement="pre", width=1024, vocab=1024, depth=depth) for depth in (2, 4, 8)]
    row = only([made(s) for s in depths], "S1")
    assert (row.verdict, row.agreement) == ("fails", "agrees")
    row = only([made(s, grad_sq_W2=lambda m, s=s: np.full_like(m, 1 / s.depth)) for s in depths], "S1")
    assert (row.verdict, row.agreement) == ("undecided", "differs"), "samples have the paper's law, theory has not"


def test_profiles_that_follow_the_paper_are_not_called_failing():
    layer = np.arange(1, 13)
    decaying = [made(s, grad_sq_W2=lambda m: m[-1] * (2 / 3.0) ** (12 - layer)) for s in stacks("post")]
    flat = [made(s, grad_sq_W2=lambda m: np.full(12, m[-1])) for s in stacks("pre")]
    for row in (only(decaying, "F1"), only(flat, "F2")):
        assert row.verdict == "undecided", "samples have the paper's law and theory has not"
        assert row.agreement == "differs"


def test_growth_over_the_layers(monkeypatch):
    """It holds on draws of the recursion, fails on others, and has no row where there is no closed form."""
    (row,) = layer_growth([made(gated(), grad_sq_W2=lambda m: np.full_like(m, m[-1]))])
    assert (row.verdict, row.agreement, str(row.claimed)) == ("fails", "differs", "-0.1438")
    (row,) = layer_growth([made(gated(), grad_sq_W2=lambda m: m ** np.where(np.arange(16) < 8, 2.0, 1.0))])
    assert row.verdict == "holds", "the lower half is not judged"
    (row,) = layer_growth([made(gated(depth=12, tokens=8))])
    assert (row.verdict, row.agreement) == ("undecided", "agrees"), "the recursion is not at its limit there"
    other = (dataclasses.replace(gated(), norm_epsilon=0.1), dataclasses.replace(gated(), placement="pre"))
    assert layer_growth([made(stack) for stack in (gated(depth=11), gated(width=3199), *other)]) == []
    monkeypatch.setattr("checks.stacks.relaxations.layer_factor", lambda _: 0.9)
    (row,) = layer_growth([made(gated())])
    assert (row.verdict, row.agreement) == ("fails", "agrees"), "a closed form that is not the recursion's limit"


def test_cells_of_text_give_no_verdicts():
    cells = [made(s) for s in stacks("post")]
    text = [dataclasses.replace(c, cell=dataclasses.replace(c.cell, text=one_word(c.stack.tokens))) for c in cells]
    assert verdicts(text) == []


def one_word(tokens):
    return TextWindows(ids=np.ones((1, tokens + 1), int), digest="", source="")


def test_profile_cells_prefer_wide_gaussian_ones():
    cells = [
        made(s) for s in (*stacks("post", (64,), (6,)), *stacks("post", (512,), (2, 6)), *stacks("pre", (64,), (6,)))
    ]
    assert [(s.stack.placement, s.stack.width, s.stack.depth) for s in profile_cells(cells)] == [
        ("post", 512, 6),
        ("pre", 64, 6),
    ]
