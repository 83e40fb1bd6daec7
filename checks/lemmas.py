"""Lemmas 1, 2 and 3 held against samples."""

from collections.abc import Sequence

import numpy as np

from checks.comparison import prediction_of
from checks.statistics import Estimate, agreement, chance_limit, estimate, pooled, power_law
from checks.verdict import Verdict, interval_of, setting
from simulate import Samples, jacobian_norms

# Lemma 3 is an inequality about a function, not about a network: these tokens are sampled on the spot.
_OFFSETS = (1.0, 10.0, 100.0)
_JACOBIAN_WIDTH = 64
_JACOBIAN_DRAWS = 64


def lemma1(cells: Sequence[Samples]) -> list[Verdict]:
    """Half of the pre-activations' energy passes a ReLU; here their variance is 1, after LayerNorm."""
    return _one_number(cells, "L1", "all layers", "ffn_hidden_energy", 0.5, "E||ReLU(x W1)||^2 / d with s = 1")


def lemma2_post(cells: Sequence[Samples]) -> list[Verdict]:
    """Post-LN: 3d/2 before the last LayerNorm of every layer."""
    post = [s for s in cells if s.stack.placement == "post"]
    return _one_number(post, "L2a", "Post-LN, all layers", "hidden_energy", 1.5, "E||x5_l||^2 / d")


def _one_number(
    cells: Sequence[Samples], claim: str, part: str, quantity: str, value: float, note: str
) -> list[Verdict]:
    """A claim that a quantity is one number in every layer: pooled over cells, and no single layer may differ."""
    if not cells:
        return []
    layers = [agreement(estimate(s[quantity]), value) for s in cells]
    different = sum(int((a == "differs").sum()) for a in layers)
    mean = pooled([estimate(s[quantity].astype(float).mean(1)) for s in cells])
    predicted = float(np.mean([np.mean(prediction_of(s)[quantity]) for s in cells]))
    overall = str(agreement(mean, value))
    return [
        Verdict(
            claim=claim,
            part=part,
            verdict="fails" if different or overall == "differs" else "holds" if overall == "agrees" else "undecided",
            claimed=f"{value:g}",
            predicted=predicted,
            measured=float(mean.mean),
            interval=interval_of(mean),
            agreement=str(agreement(mean, predicted)),  # type: ignore[arg-type]
            setting=setting(cells),
            note=f"{note}, pooled over {len(cells)} cells; {different} of {sum(a.size for a in layers)} layers differ",
        )
    ]


def lemma2_pre(cells: Sequence[Samples]) -> list[Verdict]:
    """Pre-LN: the band, with both readings of its index: l layers passed, or l − 1 (x_l the input of layer l)."""
    pre = [s for s in cells if s.stack.placement == "pre"]
    if not pre:
        return []
    outside = broken = predicted_broken = 0
    for s in pre:
        passed = np.arange(1, s.stack.depth + 1)
        energy = estimate(s["hidden_energy"])
        reach = chance_limit(energy.sem, energy.draws)
        outside += int(((energy.mean + reach < 1 + passed / 2) | (energy.mean - reach > 1 + 3 * passed / 2)).sum())
        # As printed x_l enters layer l, so x_1 is the embedding, whose energy is d by assumption.
        entering = np.append(1.0, energy.mean + reach)[:-1]
        broken = max(broken, int((entering < 1 + passed / 2).sum()))
        predicted = np.append(1.0, prediction_of(s)["hidden_energy"])[:-1]
        predicted_broken = max(predicted_broken, int((predicted < 1 + passed / 2).sum()))
    deepest = max(pre, key=lambda s: (s.stack.depth, s.stack.width))
    depth, last = deepest.stack.depth, estimate(deepest["hidden_energy"][:, -1])
    predicted_last = float(prediction_of(deepest)["hidden_energy"][-1])
    return [
        Verdict(
            claim="L2b",
            part="Pre-LN, all layers",
            verdict="fails" if outside else "holds with a correction" if broken else "holds",
            claimed=f"{1 + depth / 2:g} to {1 + 3 * depth / 2:g} at l = {depth}",
            predicted=predicted_last,
            measured=float(last.mean),
            interval=interval_of(last),
            agreement=str(agreement(last, predicted_last)),  # type: ignore[arg-type]
            setting=setting(pre),
            note=f"E||x||^2 / d after {depth} layers. With l counting layers passed, {outside} layers are outside the "
            f"band; with x_l the input of layer l, as printed, the lower bound fails up to l = {broken} "
            f"(predicted: {predicted_broken})",
        )
    ]


def lemma2_attention(cells: Sequence[Samples]) -> list[Verdict]:
    """Post-LN: uniform attention adds between nothing and d."""
    post = [(s, estimate(s["attention_energy"])) for s in cells if s.stack.placement == "post"]
    if not post:
        return []
    reaches = [chance_limit(e.sem, e.draws) for _, e in post]
    outside = sum(int(((e.mean + r < 1) | (e.mean - r > 2)).sum()) for (_, e), r in zip(post, reaches, strict=True))
    # The layer with the largest prediction: picking the largest measurement would pick its error too.
    cell, energy = max(post, key=lambda pair: float(prediction_of(pair[0])["attention_energy"].max()))
    predictions = prediction_of(cell)["attention_energy"]
    layer = int(predictions.argmax())
    top = Estimate(energy.mean[layer], energy.sem[layer], energy.draws)
    predicted = float(predictions[layer])
    return [
        Verdict(
            claim="L2c",
            part="Post-LN, all layers",
            verdict="fails" if outside else "holds",
            claimed="1 to 2",
            predicted=predicted,
            measured=float(top.mean),
            interval=interval_of(top),
            agreement=str(agreement(top, predicted)),  # type: ignore[arg-type]
            setting=setting([s for s, _ in post]),
            note=f"E||x2_l||^2 / d at l = {layer + 1} of L = {cell.stack.depth}, predicted the largest; over all cells "
            f"{outside} layers are outside the band",
        )
    ]


def lemma3() -> list[Verdict]:
    """Lemma 3 in both forms, on tokens a·1 + N(0, I): the printed one is off by ‖x‖/‖y‖, which has no bound."""
    norms = [jacobian_norms(width=_JACOBIAN_WIDTH, offset=a, draws=_JACOBIAN_DRAWS, seed=0) for a in _OFFSETS]
    ratios = [estimate(n.exact / n.uncentred) for n in norms]
    growth = power_law(_OFFSETS[1:], [r.mean for r in ratios[1:]], [r.sem for r in ratios[1:]])
    worst = max(float(np.abs(n.exact / n.centred - 1).max()) for n in norms)
    # E‖x‖/‖y‖ to O(1/d): ‖x‖² = ‖y‖² + d (a + mean z)².
    predicted = float(np.sqrt(_OFFSETS[-1] ** 2 + 1) * (1 + 0.75 / _JACOBIAN_WIDTH))
    tokens = f"x = a 1 + N(0, I_d), d = {_JACOBIAN_WIDTH}, a = 1, 10, 100, {_JACOBIAN_DRAWS} draws each"
    return [
        Verdict(
            claim="L3",
            part="as printed, with ||x||",
            verdict="fails" if growth.interval()[0] > 0.5 else "undecided",
            claimed="bounded in a",
            predicted=predicted,
            measured=float(ratios[-1].mean),
            interval=interval_of(ratios[-1]),
            agreement=str(agreement(ratios[-1], predicted)),  # type: ignore[arg-type]
            setting=tokens,
            note=f"||J_LN(x)||_2 over sqrt(d)/||x|| at a = 100; it grows like a^{growth.exponent:.3f}, without bound",
        ),
        Verdict(
            claim="L3",
            part="corrected, with y = x - mean(x)",
            verdict="holds with a correction" if worst < 1e-9 else "fails",
            claimed="1",
            predicted=1.0,
            measured=1.0,
            interval=(1.0 - worst, 1.0 + worst),
            agreement="agrees" if worst < 1e-9 else "differs",
            setting=tokens,
            note=f"||J_LN(x)||_2 over sqrt(d)/||y||, an equality; largest deviation of any draw {worst:.1e} (interval)",
        ),
    ]
