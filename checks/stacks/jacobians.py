"""The verdicts on the statements of Appendix F about a LayerNorm's and an attention branch's Jacobian."""

import math
from functools import cache

import numpy as np

from checks.fits import power_law
from checks.statistics import agreement_word, estimate
from checks.verdict import Setting, Subject, Verdict, interval_of, sentence
from theory.paper.claims import CLAIMS
from theory.paper.layer_norm import post_jacobian_size, pre_eigenvalue_radius

_WIDTH = 64
_DRAWS = 400
_LAYERS = (6, 96, 1536)
_BRANCHES = 16


@cache  # about functions, whatever the cells
def norm_jacobians() -> tuple[Verdict, ...]:
    """Judge claim F3 on Post-LN: the root mean square norm of the Jacobian of a layer's second LayerNorm.

    The Jacobian is taken at x5 = x3 + ReLU(x3 W1) W2, with ||x3||^2 = d.
    """
    rng, d = np.random.default_rng(0), _WIDTH
    x = rng.normal(size=(_DRAWS, 1, d))
    x -= x.mean(-1, keepdims=True)
    x *= d**0.5 / np.linalg.norm(x, axis=-1, keepdims=True)
    first, second = rng.normal(0, d**-0.5, (2, _DRAWS, d, d))
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
            setting=Setting(networks="one token", ranges=(("d", d, d),), more=f"{_DRAWS} draws"),
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
