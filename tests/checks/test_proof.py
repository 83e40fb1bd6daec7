"""Verdicts on the steps of the proof, and the planted errors that they see."""

import re

import numpy as np
import pytest
from scipy import stats

from checks.results import Results
from checks.stacks import proof
from checks.statistics import exceeds, share
from simulate import Samples, sample
from theory import CLAIMS, Stack
from tools.paper_page import page


@pytest.fixture(scope="module")
def cells():
    return [sample(Stack(width=width, depth=3, tokens=4, vocab=8), draws=256, seed=0) for width in (64, 256)]


def test_lemma4(monkeypatch):
    (row,) = proof.lemma4()
    assert (row.verdict, row.agreement) == ("holds", "agrees")
    right = np.linalg.eigvalsh
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda a: right(a) + 1e-9)
    assert proof.lemma4()[0].verdict == "fails"


def test_lemma5():
    stated, used, corrected = proof.lemma5()
    assert (stated.verdict, stated.agreement) == ("holds", "agrees")
    assert stated.measured == pytest.approx(1.0, abs=1e-12), "two points attain it"
    assert proof._lemma5_as_stated(largest=1.5).verdict == "fails", "laws that go beyond B break it"
    assert (used.verdict, corrected.verdict) == ("fails", "holds with a correction")
    assert {used.agreement, corrected.agreement} == {"agrees"}
    assert str(used.claimed) == "at most 0.1"
    assert used.measured == pytest.approx(0.875, abs=0.01)


def test_proposition1(monkeypatch):
    (row,) = proof.proposition1()
    assert (row.verdict, row.agreement) == ("holds, loose", "agrees")
    monkeypatch.setattr(proof, "gaussian_excess_probability", lambda d, e: 1.3 * float(stats.chi2.sf((1 + e) * d, d)))
    assert proof.proposition1()[0].agreement == "differs"


def test_jacobians(monkeypatch):
    """Of appendix F's single factors; one without its norm's mean, and a branch twice as strong, are seen."""
    (norm,), (branch,) = proof.norm_jacobians(), proof.branch_jacobians()
    assert (norm.verdict, norm.agreement, branch.verdict, branch.agreement) == ("holds", "agrees", "holds", "agrees")
    monkeypatch.setattr(proof, "post_jacobian_size", lambda _: 1.0)
    monkeypatch.setattr(proof, "pre_eigenvalue_radius", lambda layer: 2 * (1 + 1.5 * layer) ** -0.5)
    (norm,), (branch,) = proof.norm_jacobians.__wrapped__(), proof.branch_jacobians.__wrapped__()
    assert (norm.agreement, branch.agreement) == ("differs", "differs")


def test_definition1(monkeypatch):
    (row,) = proof.definition1()
    assert (row.verdict, row.agreement) == ("holds, loose", "agrees")
    right = proof.gaussian_tail_bound
    monkeypatch.setattr(proof, "gaussian_tail_bound", lambda d, e: right(d, 2 * np.asarray(e)))
    assert proof.definition1()[0].verdict == "fails"
    exact = proof.gaussian_excess_probability
    monkeypatch.setattr(proof, "gaussian_excess_probability", lambda d, e: exact(d, 1.1 * e))
    assert proof.definition1()[0].agreement == "differs"


def test_largest_entries(cells):
    (row,) = proof.largest_entries(cells)
    assert (row.claim, row.verdict, row.agreement) == ("E1", "holds", "agrees")
    assert proof.largest_entries([]) == []
    larger = [Samples(s.cell, s.seeds, dict(s) | {"ffn_hidden_max_sq": 2 * s["ffn_hidden_max_sq"]}) for s in cells]
    (row,) = proof.largest_entries(larger)
    assert (row.verdict, row.agreement) == ("fails", "differs")
    few = [Samples(s.cell, s.seeds[:8], {k: v[:8] for k, v in s.items()}) for s in cells]
    assert proof.largest_entries(few)[0].verdict == "undecided"


def test_shares():
    events = np.array([True] * 3 + [False] * 97)
    proportion, (low, high) = share(events)
    assert proportion == 0.03
    assert (low, high) == pytest.approx((0.00623, 0.08518), abs=1e-4), "Clopper and Pearson (1934), n = 100"
    assert not exceeds(events, 0.01)
    assert exceeds(np.array([True] * 12 + [False] * 88), 0.01)


def test_what_has_no_verdict_is_said_to_be_untested():
    text = page([Results("gradbounds verify", proof.lemma4(), [])])
    text = re.sub(r"\[(docs/\w+\.md)\]\(\1\)", r"\1", text)  # without links
    assert text.count("**not tested here**") == len(CLAIMS) - 1
    for claim in CLAIMS.values():
        assert f"{claim.source} | {claim.in_words or claim.statement}".replace("||", "‖") in text
