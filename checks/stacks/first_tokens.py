"""What a causal mask gathers at the first tokens, over the number of tokens, held against its closed form."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from checks.fits import LEAST_POINTS, slope_weights
from checks.large_width import why_not_judged
from checks.statistics import Estimate, estimate, scalar_agreement
from checks.theory_and_samples import prediction_of
from checks.verdict import Subject, Verdict, Word, by_key, interval_of, names, sentence, setting
from simulate import Samples
from theory import Stack, predict
from theory.paper.first_tokens import first_token_growth

MARGIN = 0.03
"""Of the slope."""
LEAST_LABELS = 100
"""Words for every token: fewer coincide, and what is coherent over positions grows like n and not like ln n."""

# Where the recursion's slope is taken for its limit: the most tokens that a Stack has, and labels that hardly coincide.
_FAR, _VOCAB = (10**4, 10**5, 10**6), 10**9


def first_token_law(cells: Sequence[Samples]) -> list[Verdict]:
    """G2: the slope of n² E‖∂L/∂W^V‖²/d of the first layer over ln n, whose limit is `first_token_growth`.

    As exponents in L, it holds where the recursion has that limit and samples agree with the recursion over their own
    lengths. It fails where samples differ, or the recursion is off the limit and comes no closer in a decade of n.
    """
    rows = []
    for _, series in by_key([s for s in cells if _limit(s.stack) is not None], lambda s: replace(s.stack, tokens=1)):
        longest = max(series, key=lambda s: s.stack.tokens)
        if len({s.stack.tokens for s in series}) >= LEAST_POINTS and _has_words(longest.stack):
            rows.append(_row(sorted(series, key=lambda s: s.stack.tokens)))
    return rows


def _limit(stack: Stack) -> float | None:
    try:
        return first_token_growth(stack)
    except ValueError:  # another network
        return None


def _has_words(stack: Stack) -> bool:
    return stack.vocab >= LEAST_LABELS * stack.tokens


def _grown(stack: Stack, squared: float) -> float:
    """n² E‖∂L/∂W^V‖²/d."""
    return stack.tokens**2 * squared / stack.width


@lru_cache(maxsize=64)
def _far_slopes(depth: int) -> tuple[float, float]:
    """The recursion's slopes over the last two decades of tokens."""
    base = Stack(placement="pre", depth=depth, mask="causal", vocab=_VOCAB)
    stacks = [replace(base, tokens=tokens) for tokens in _FAR]
    values = [_grown(stack, float(predict(stack, grouped=True)["grad_sq_WV"][0])) for stack in stacks]
    before, last = np.diff(values) / np.diff(np.log(_FAR))
    return float(before), float(last)


def _row(series: Sequence[Samples]) -> Verdict:
    stacks = [s.stack for s in series]
    limit = first_token_growth(stacks[0])
    weights = slope_weights(np.log([stack.tokens for stack in stacks]))
    estimates = [estimate(s["grad_sq_WV"][:, 0].astype(float)) for s in series]
    scales = weights * np.array([_grown(stack, 1.0) for stack in stacks])
    measured = float(scales @ [float(each.mean) for each in estimates])
    sem = float(np.sqrt(scales**2 @ [float(each.sem) ** 2 for each in estimates]))
    predicted = float(scales @ [float(prediction_of(s)["grad_sq_WV"][0]) for s in series])
    before, far = _far_slopes(stacks[0].depth)
    agreement = scalar_agreement(measured, predicted, sem, MARGIN * predicted)
    if any(why_not_judged(stack, "grad_sq_WV") for stack in stacks):
        agreement = "beyond"
    right = abs(far - limit) <= MARGIN * limit
    word: Word = "holds" if right and agreement == "agrees" else "undecided"
    if agreement == "differs" or (not right and abs(far - limit) >= abs(before - limit)):
        word = "fails"
    return Verdict(
        claim="G2",
        subject=Subject(
            placement="pre", quantity="growth of n^2 ||dL/dWV||^2/d of layer 1 per factor of e in n", kind="growth",
            against="tokens", held=(("L", str(stacks[0].depth)),),
        ),
        verdict=word,
        claimed=sentence("{:.4g} as n grows", limit),
        predicted=predicted,
        measured=measured,
        interval=interval_of(Estimate(np.asarray(measured), np.asarray(sem), min(each.draws for each in estimates))),
        agreement=agreement,
        setting=setting(series),
        cells=names(series),
        relaxed="causal mask",
        note=sentence(
            "least-squares slope over ln n; the claim is our own closed form, a limit; the recursion's slope is {:.4g} "
            "from 10^4 to 10^5 tokens and {:.4g} from there to 10^6",
            before,
            far,
        ),
    )  # fmt: skip
