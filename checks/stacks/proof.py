"""The verdicts on the steps of the proof, and on Appendix F's statements about the Jacobians of norms and attention.

The steps are Lemmas 4 and 5, Definition 1's example, Proposition 1, and claim E1.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import stats

from checks.fits import power_law
from checks.statistics import FALSE_ALARM, MARGIN, agreement_word, estimate, exceeds, scalar_agreement, share
from checks.verdict import LOOSE, Setting, Subject, Verdict, Word, interval_of, names, sentence, setting
from simulate import Samples
from theory.mean_field.concentration import gaussian_excess_probability, gaussian_tail_bound
from theory.paper.claims import CLAIMS
from theory.paper.layer_norm import post_jacobian_size, pre_eigenvalue_radius
from theory.paper.low_tail import counterexample
from theory.paper.theorem1 import entry_failure_value

_SIZE = 64
_DRAWS = 20_000
_LAWS = 256
_EPSILON = (0.1, 0.3, 0.5)


def lemma4() -> list[Verdict]:
    """Judge Lemma 4: for a random unit row vector a, one eigenvalue of I − aᵀa is 0 and all others are 1."""
    rows = np.random.default_rng(0).normal(size=(64, _SIZE))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(np.eye(_SIZE) - rows[:, :, None] * rows[:, None, :])
    worst = float(np.abs(eigenvalues - np.array([0.0] + [1.0] * (_SIZE - 1))).max())
    return [
        Verdict(
            claim="L4",
            subject=Subject(quantity="eigenvalues 0 once and 1"),
            verdict="holds" if worst < 1e-12 else "fails",
            claimed=sentence("{}", 0),
            predicted=0.0,
            measured=worst,
            interval=(0.0, worst),
            agreement="agrees" if worst < 1e-12 else "differs",
            setting=Setting(ranges=(("d", _SIZE, _SIZE),), more="64 random rows a"),
            note=sentence(
                "largest distance of an eigenvalue of any row from the claimed one; its range is the interval"
            ),
        )
    ]


def lemma5() -> list[Verdict]:
    """Judge Lemma 5 as stated, as Theorem 1 uses it, and corrected, for a random variable with the paper's ε and δ."""
    law = counterexample(0.1, 0.125)
    low = law.sample(_DRAWS, seed=0) <= 0.1
    proportion, interval = share(low)
    predicted = float(law.actual)
    where = Setting(more=f"Y = EY/20 with probability 7/8 and {float(law.values[1]):.4g} EY otherwise, {_DRAWS} draws")
    rows = [_lemma5_as_stated()]
    cases: tuple[tuple[str, float, Word], ...] = (
        ("in Theorem 1, Y <= B with probability 1 - delta", float(law.stated), "holds"),
        ("corrected, with E[(Y - B)+] in the numerator", float(law.corrected), "holds with a correction"),
    )
    for part, limit, kept in cases:
        word: Word = "fails" if exceeds(low, limit) else kept
        rows.append(
            Verdict(
                claim="L5",
                subject=Subject(quantity=part, kind="share"),
                verdict=word,
                claimed=sentence("at most {:.4g}", limit),
                predicted=predicted,
                measured=proportion,
                interval=interval,
                agreement=scalar_agreement(proportion, predicted, float(stats.sem(low)), MARGIN * predicted),
                setting=where,
                note=sentence("P[Y <= EY/10] of a law that is (0.1, 0.125)-bounded, the pair of section 3.4"),
            )
        )
    return rows


def _lemma5_as_stated(largest: float = 1.0) -> Verdict:
    """Judge Lemma 5 under its own assumption, Y <= B surely, on random discrete laws.

    Probabilities are exact. A law on two points, a and B, attains the bound.

    Args:
        largest: the upper end of the values, as a multiple of B.
    """
    rng = np.random.default_rng(0)
    top, points = 2.0, 5
    values = np.concatenate([rng.uniform(0, largest * top, (_LAWS, points)), np.full((_LAWS, 1), top)], axis=1)
    weights = rng.dirichlet(np.full(points + 1, 0.5), _LAWS)
    limits = rng.uniform(0.1, 0.9, (_LAWS, 1)) * top
    values[0], limits[0] = [*[1.0] * points, top], 1.0
    below = (weights * (values <= limits)).sum(1)
    bound = (weights * (top - values)).sum(1) / (top - limits[:, 0])
    worst = float((below / bound).max())
    kept = worst <= 1 + 1e-12
    return Verdict(
        claim="L5",
        subject=Subject(quantity="as stated, Y <= B surely", kind="ratio"),
        verdict="holds" if kept else "fails",
        claimed=sentence("at most {}", 1),
        predicted=1.0,
        measured=worst,
        interval=(float((below / bound).min()), worst),
        agreement="agrees" if abs(worst - 1) < 1e-12 else "differs",
        setting=Setting(more=f"{_LAWS} random laws on {points} points and B, one of them on a and B alone"),
        note=sentence("largest P[Y <= a] over E[B - Y]/(B - a), of exact laws; its range is the interval"),
    )


def definition1() -> list[Verdict]:
    """Judge Definition 1's example of a chi-square variable: its exact and its sampled tail against exp(−d ε²/8)."""
    rng, rows = np.random.default_rng(0), []
    for d in (64, 512):
        energy = rng.chisquare(d, _DRAWS) / d
        rows += [(d, epsilon, energy > 1 + epsilon) for epsilon in _EPSILON]
    limits = [float(gaussian_tail_bound(d, e)) for d, e, _ in rows]
    exact = [float(gaussian_excess_probability(d, e)) for d, e, _ in rows]
    above = sum(exceeds(events, limit) for (*_, events), limit in zip(rows, limits, strict=True))
    apart = [
        stats.binomtest(int(events.sum()), events.size, p).pvalue < FALSE_ALARM
        for (*_, events), p in zip(rows, exact, strict=True)
    ]
    proportion, interval = share(rows[0][2])
    return [
        Verdict(
            claim="D1",
            subject=Subject(quantity="the chi-square example", kind="share"),
            verdict="fails" if above else "holds, loose",
            claimed=sentence("at most {:.4g} at d = {}, eps = {}", limits[0], *rows[0][:2]),
            predicted=exact[0],
            measured=proportion,
            interval=interval,
            agreement="differs" if any(apart) else "agrees",
            setting=Setting(more=f"d = 64, 512; eps = 0.1, 0.3, 0.5; {_DRAWS} draws each"),
            loose=None if above else limits[0] / exact[0],
            note=sentence(
                "P[||X||^2 > (1 + eps) d]; of {} pairs {} exceed the bound, and at d = {}, eps = {} the exact "
                "chi-square tail is below it by x{:.3g}",
                *(len(rows), above, *rows[3][:2], limits[3] / exact[3]),
            ),
        )
    ]


def proposition1() -> list[Verdict]:
    """Judge Proposition 1's bound on the tail of a chi-square variable with d degrees of freedom."""
    rng, above, tightest, apart = np.random.default_rng(0), 0, [], False
    for d in (1, 8, 64):
        excess = rng.chisquare(d, _DRAWS) - d
        for share_of_d in (0.3, 1.0, 3.0):  # up to nu^2/b = d and beyond
            t = share_of_d * d
            limit = float(np.exp(-(t**2) / (8 * d) if t <= d else -t / 8))
            exact = float(gaussian_excess_probability(d, share_of_d))
            events = excess >= t
            above += exceeds(events, limit)
            apart |= bool(stats.binomtest(int(events.sum()), events.size, exact).pvalue < FALSE_ALARM)
            tightest.append((limit / exact, limit, exact, *share(events), d, share_of_d))
    loose, limit, exact, proportion, interval, d, share_of_d = min(tightest)
    return [
        Verdict(
            claim="D2",
            subject=Subject(quantity="chi-squares of d, both sides of t = nu^2/b", kind="share"),
            verdict="fails" if above else "holds, loose" if loose > LOOSE else "holds",
            claimed=sentence("at most {:.4g} at d = {}, t = {:g} d", limit, d, share_of_d),
            predicted=exact,
            measured=proportion,
            interval=interval,
            agreement="differs" if apart else "agrees",
            setting=Setting(more=f"d = 1, 8, 64; t = 0.3 d, d, 3 d; {_DRAWS} draws each"),
            loose=loose if loose > LOOSE and not above else None,
            note=sentence("P[X >= d + t] where the bound is tightest; of {} pairs {} exceed it", len(tightest), above),
        )
    ]


def largest_entries(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claim E1 in the first layer: how often the largest hidden unit exceeds √(2 ln(100 d)).

    The prediction assumes n independent positions. Only in the first layer are tokens nearly independent.
    """
    cells = [s for s in cells if "ffn_hidden_max_sq" in s]
    if not cells:
        return []
    over = [s["ffn_hidden_max_sq"][:, 0].astype(float) > 2 * np.log(100 * s.stack.width) for s in cells]
    events, draws = np.concatenate(over), np.array([o.size for o in over])
    proportion, interval = share(events)
    failures = [entry_failure_value(s.stack.width, s.stack.tokens * s.stack.width) for s in cells]
    predicted = float(np.average(failures, weights=draws))
    allowed = float(np.average([0.01 * s.stack.tokens for s in cells], weights=draws))
    apart = stats.binomtest(int(events.sum()), events.size, predicted).pvalue < FALSE_ALARM
    return [
        Verdict(
            claim="E1",
            subject=Subject(quantity="first layer, n positions at once", kind="share"),
            verdict="fails" if exceeds(events, allowed) else "holds" if interval[1] <= allowed else "undecided",
            claimed=sentence("at most {:.4g}, 0.01 a position", allowed),
            predicted=predicted,
            measured=proportion,
            interval=interval,
            agreement="differs" if apart else "agrees",
            setting=setting(cells),
            cells=names(cells),
            note=sentence(
                "share of draws with a hidden unit above its threshold in the first layer; the proof has 0.01 for one "
                "position, and averages the gradients of n"
            ),
        )
    ]


_WIDTH = 64
_MATRICES = 400
_LAYERS = (6, 96, 1536)
_BRANCHES = 16


@cache  # about functions, whatever the cells
def norm_jacobians() -> tuple[Verdict, ...]:
    """Judge claim F3 on Post-LN: the root mean square norm of the Jacobian of a layer's second LayerNorm.

    The Jacobian is taken at x5 = x3 + ReLU(x3 W1) W2, with ||x3||^2 = d.
    """
    rng, d = np.random.default_rng(0), _WIDTH
    x = rng.normal(size=(_MATRICES, 1, d))
    x -= x.mean(-1, keepdims=True)
    x *= d**0.5 / np.linalg.norm(x, axis=-1, keepdims=True)
    first, second = rng.normal(0, d**-0.5, (2, _MATRICES, d, d))
    total = x + np.maximum(x @ first, 0) @ second
    size = estimate(d / ((total - total.mean(-1, keepdims=True)) ** 2).sum((1, 2))).root()
    claimed = math.sqrt(CLAIMS["F3"].numbers["square"])
    word = agreement_word(size, claimed)
    return (
        Verdict(
            claim="F3",
            subject=Subject(placement="post", quantity="root mean square of ||J_LN(x5)||_2"),
            verdict={"agrees": "holds", "differs": "fails"}.get(word, "undecided"),  # type: ignore[arg-type]
            claimed=sentence("about {:.4f}", claimed),
            predicted=post_jacobian_size(d),
            measured=float(size.mean),
            interval=interval_of(size),
            agreement=agreement_word(size, post_jacobian_size(d)),
            setting=Setting(networks="one token", ranges=(("d", d, d),), more=f"{_MATRICES} draws"),
            note=sentence("sqrt(d)/||x5 - mean(x5)||, the spectral norm of one token's Jacobian; theory has 1/d too"),
        ),
    )


@cache
def branch_jacobians() -> tuple[Verdict, ...]:
    """Judge claim F4 on Pre-LN: the eigenvalues of I + J_LN(x) W^V for one token, with x as large as in deep layers."""
    rng, d = np.random.default_rng(0), _WIDTH
    radii = []
    for layer in _LAYERS:
        y = rng.normal(size=(_BRANCHES, d, 1)) * (1 + 1.5 * layer) ** 0.5
        y -= y.mean(1, keepdims=True)
        unit = y / np.linalg.norm(y, axis=1, keepdims=True)
        jacobian = (np.eye(d) - 1 / d - unit * unit.transpose(0, 2, 1)) * d**0.5 / np.linalg.norm(y, axis=1)[..., None]
        # Half of the eigenvalues of the circular law are farther from 1 than 1/sqrt(2) of its radius.
        eigenvalues = np.linalg.eigvals(jacobian @ rng.normal(0, d**-0.5, (_BRANCHES, d, d)))
        radii.append(estimate(2**0.5 * np.median(np.abs(eigenvalues), axis=1)))
    law = power_law(_LAYERS, [float(r.mean) for r in radii], [float(r.sem) for r in radii])
    last, predicted = radii[-1], pre_eigenvalue_radius(_LAYERS[-1])
    low, high = law.interval()
    return (
        Verdict(
            claim="F4",
            subject=Subject(placement="pre", quantity="distance from 1 of the eigenvalues of a branch's Jacobian"),
            verdict="holds" if high < 0 else "fails" if low >= 0 else "undecided",
            claimed=sentence("0 as l grows; here l = {}", _LAYERS[-1]),
            predicted=predicted,
            measured=float(last.mean),
            interval=interval_of(last),
            agreement=agreement_word(last, predicted, margin=0.1),
            setting=Setting(
                networks="attention with one token",
                ranges=(("d", d, d),),
                more=f"l = 6, 96, 1536, {_BRANCHES} draws each",
            ),
            note=sentence(
                "radius of the disc around 1, sqrt(2) times the median distance; it falls like l^{:.3f}, so that "
                "products over layers do not stay near 1: rows F2 and S1",
                law.exponent,
            ),
        ),
    )
