"""The verdicts on Lemmas 1, 2 and 3 from samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks.fits import power_law
from checks.statistics import (
    MARGIN,
    Agreement,
    Estimate,
    agreement,
    agreement_word,
    chance_limit,
    estimate,
    pooled,
)
from checks.theory_and_samples import prediction_of
from checks.trust import Trust
from checks.verdict import Setting, Subject, Verdict, Word, interval_of, names, sentence, setting
from simulate import Samples, jacobian_norms
from theory.paper.claims import CLAIMS
from theory.paper.layer_norm import uncentred_ratio_mean

# Lemma 3 is an inequality about a function, not about a network: these tokens are sampled on the spot.
_OFFSETS = (1.0, 10.0, 100.0)
_JACOBIAN_WIDTH = 64
_JACOBIAN_DRAWS = 64


def lemma1(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge Lemma 1: ReLU keeps half of the mean square of its inputs, whose variance is 1 after LayerNorm."""
    return _one_number(cells, "L1", "", "ffn_hidden_energy", "E||ReLU(x W1)||^2 / d with s = 1")


def lemma2_post(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge Lemma 2 for Post-LN: a token's expected squared norm before the last LayerNorm of every layer is 3d/2."""
    post = [s for s in cells if s.stack.placement == "post"]
    return _one_number(post, "L2a", "post", "hidden_energy", "E||x5_l||^2 / d")


def _one_number(cells: Sequence[Samples], claim: str, placement: str, quantity: str, note: str) -> list[Verdict]:
    """Judge a claim that a quantity has one value in every layer, from means pooled over networks and by layer."""
    if not cells:
        return []
    value = float(CLAIMS[claim].numbers["energy"])
    layers = [agreement(estimate(s[quantity]), value) for s in cells]
    different = sum(int((a == "differs").sum()) for a in layers)
    # A draw's variance falls like 1/d, so this is close to the best weight and does not look at the draws.
    mean = pooled(
        [estimate(s[quantity].astype(float).mean(1)) for s in cells], [s.draws * s.stack.width for s in cells]
    )
    predicted = float(np.mean([np.mean(prediction_of(s)[quantity]) for s in cells]))
    overall = agreement_word(mean, value)
    return [
        Verdict(
            claim=claim,
            subject=Subject(placement=placement, quantity="all layers"),
            verdict="fails" if different or overall == "differs" else "holds" if overall == "agrees" else "undecided",
            claimed=sentence("{:g}", value),
            predicted=predicted,
            measured=float(mean.mean),
            interval=interval_of(mean),
            # exact at every width: the stream that enters W1 has norm sqrt(d) in both placements
            agreement=agreement_word(mean, predicted),
            setting=setting(cells),
            cells=names(cells),
            note=sentence(
                note + ", pooled over {} cells; {} of {} layers differ",
                *(len(cells), different, sum(a.size for a in layers)),
            ),
        )
    ]


def lemma2_pre(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge Lemma 2 for Pre-LN: the lower and upper limit of a token's expected squared norm after l layers.

    As printed, x_l is the input of layer l, so that the limits would hold after l − 1 layers.
    """
    pre = [s for s in cells if s.stack.placement == "pre"]
    if not pre:
        return []
    energies = [estimate(s["hidden_energy"]) for s in pre]
    least, most = (float(CLAIMS["L2b"].numbers[end]) for end in ("least", "most"))
    bands = [(1 + least * layer, 1 + most * layer) for layer in (np.arange(1, s.stack.depth + 1) for s in pre)]
    outside, word = _band(energies, bands, "holds with a correction")
    # As printed x_l enters layer l, so x_1 is the embedding, whose energy is d by assumption.
    broken = max(
        _leading(np.append(1.0, e.mean + chance_limit(e.sem, e.draws))[:-1] < band[0])
        for e, band in zip(energies, bands, strict=True)
    )
    predictions = [prediction_of(s)["hidden_energy"] for s in pre]
    predicted_broken = max(
        _leading(np.append(1.0, p)[:-1] < band[0]) for p, band in zip(predictions, bands, strict=True)
    )
    deepest = max(
        range(len(pre)), key=lambda i: (not Trust.of(pre[i].stack).why, pre[i].stack.depth, pre[i].stack.width)
    )
    depth, energy = pre[deepest].stack.depth, energies[deepest]
    last = Estimate(energy.mean[-1], energy.sem[-1], energy.draws)
    predicted_last = float(predictions[deepest][-1])
    return [
        Verdict(
            claim="L2b",
            subject=Subject(placement="pre", quantity="all layers"),
            verdict=word,
            claimed=sentence("{:g} to {:g} at l = {}", 1 + least * depth, 1 + most * depth, depth),
            predicted=predicted_last,
            measured=float(last.mean),
            interval=interval_of(last),
            agreement=_judged(pre[deepest], last, predicted_last),
            setting=setting(pre),
            cells=names(pre),
            note=sentence(
                "E||x||^2 / d after {} layers at d = {}. With l counting layers passed, {} layers are outside the "
                "band; with x_l the input of layer l, as printed, the lower bound fails for l = 1 to {} (predicted: to "
                "{})",
                *(depth, pre[deepest].stack.width, outside, broken, predicted_broken),
            ),
        )
    ]


def lemma2_attention(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge Lemma 2's bounds for Post-LN: uniform attention adds between 0 and d to a token's squared norm."""
    post = [s for s in cells if s.stack.placement == "post"]
    if not post:
        return []
    energies = [estimate(s["attention_energy"]) for s in post]
    least, most = (float(CLAIMS["L2c"].numbers[end]) for end in ("least", "most"))
    outside, word = _band(energies, [(least, most)] * len(post), "holds")
    # The layer with the largest prediction: picking the largest measurement would pick its error too.
    predictions = [prediction_of(s)["attention_energy"] for s in post]
    top = max(range(len(post)), key=lambda i: (not Trust.of(post[i].stack).why, float(predictions[i].max())))
    layer = int(predictions[top].argmax())
    energy = Estimate(energies[top].mean[layer], energies[top].sem[layer], energies[top].draws)
    predicted = float(predictions[top][layer])
    return [
        Verdict(
            claim="L2c",
            subject=Subject(placement="post", quantity="all layers"),
            verdict=word,
            claimed=sentence("{:g} to {:g}", least, most),
            predicted=predicted,
            measured=float(energy.mean),
            interval=interval_of(energy),
            agreement=_judged(post[top], energy, predicted),
            setting=setting(post),
            cells=names(post),
            note=sentence(
                "E||x2_l||^2 / d where it is predicted largest, at d = {}, l = {}; over all cells {} layers are "
                "outside the band",
                *(post[top].stack.width, layer + 1, outside),
            ),
        )
    ]


def _judged(samples: Samples, measured: Estimate, predicted: float) -> Agreement:
    return "beyond" if Trust.of(samples.stack).why else agreement_word(measured, predicted)


def _band(energies: Sequence[Estimate], bands: Sequence[tuple[Any, Any]], kept: Word) -> tuple[int, Word]:
    """Count the layers whose energy is outside a band, and return the count with the verdict.

    "fails": some layer is outside by more than chance. `kept`: every layer that is measured precisely (95% interval
    within 3%) lies inside the band, widened by 3%. "undecided": one of these layers does not, or none is measured
    precisely.

    Args:
        energies: the energies by layer, for each network.
        bands: the lower and upper ends of the band by layer, for each network.
        kept: the verdict if all layers are inside.
    """
    outside, unclear, measured = 0, 0, 0
    for e, (low, high) in zip(energies, bands, strict=True):
        reach = chance_limit(e.sem, e.draws)
        outside += int(((e.mean + reach < low) | (e.mean - reach > high)).sum())
        precise = e.interval()[1] - e.mean <= MARGIN * e.mean
        inside = (e.mean >= low * (1 - MARGIN)) & (e.mean <= high * (1 + MARGIN))
        measured += int(precise.sum())
        unclear += int((precise & ~inside).sum())
    return outside, "fails" if outside else "undecided" if unclear or not measured else kept


def _leading(values: NDArray[np.bool_]) -> int:
    """Count the true entries before the first false one."""
    return int(np.cumprod(values).sum())


def lemma3() -> list[Verdict]:
    """Judge Lemma 3, as printed and corrected, on tokens a·1 + N(0, I).

    The printed form is wrong by the factor ‖x‖/‖y‖, which is unbounded.
    """
    norms = [jacobian_norms(width=_JACOBIAN_WIDTH, offset=a, draws=_JACOBIAN_DRAWS, seed=0) for a in _OFFSETS]
    ratios = [estimate(n.exact / n.uncentred) for n in norms]
    growth = power_law(_OFFSETS[1:], [r.mean for r in ratios[1:]], [r.sem for r in ratios[1:]])
    worst = max(float(np.abs(n.exact / n.centred - 1).max()) for n in norms)
    centred = estimate(np.concatenate([n.exact / n.centred for n in norms]))
    predicted = uncentred_ratio_mean(_JACOBIAN_WIDTH, _OFFSETS[-1])
    tokens = Setting(
        networks="x = a 1 + N(0, I_d)",
        ranges=(("d", _JACOBIAN_WIDTH, _JACOBIAN_WIDTH),),
        more=f"a = 1, 10, 100, {_JACOBIAN_DRAWS} draws each",
    )
    return [
        Verdict(
            claim="L3",
            subject=Subject(quantity="as printed, with ||x||", kind="ratio"),
            verdict="fails" if growth.interval()[0] > 0.5 else "undecided",
            claimed=sentence("bounded"),
            predicted=predicted,
            measured=float(ratios[-1].mean),
            interval=interval_of(ratios[-1]),
            agreement=agreement_word(ratios[-1], predicted),
            setting=tokens,
            note=sentence(
                "||J_LN(x)||_2 over sqrt(d)/||x|| at a = 100; it grows like a^{:.3f}, without bound", growth.exponent
            ),
        ),
        Verdict(
            claim="L3",
            subject=Subject(quantity="corrected, with y = x - mean(x)", kind="ratio"),
            verdict="holds with a correction" if worst < 1e-9 else "fails",
            claimed=sentence("{}", 1),
            predicted=1.0,
            measured=float(centred.mean),
            interval=(1.0 - worst, 1.0 + worst),
            agreement="agrees" if worst < 1e-9 else "differs",
            setting=tokens,
            note=sentence(
                "||J_LN(x)||_2 over sqrt(d)/||y||, an equality; largest deviation of any draw {:.1e} (interval)", worst
            ),
        ),
    ]
