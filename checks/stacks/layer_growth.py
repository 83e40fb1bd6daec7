"""The verdicts on claim G1: how Post-LN's gradients grow over the layers, compared with a closed formula."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from checks.fits import log_contrast, slope_weights
from checks.stacks.relaxations import relaxation_name
from checks.statistics import scalar_agreement
from checks.theory_and_samples import PATTERNS, prediction_of
from checks.verdict import Subject, Verdict, Word, interval_of, names, sentence, setting
from simulate import Samples
from theory import predict
from theory.paper.layer_growth import layer_factor

LEAST_DEPTH = 12
"""The smallest depth that is judged: with fewer layers, tokens are not yet aligned, and the slope has few points."""
LARGEST_DEPTH_OVER_WIDTH = 1 / 200
MARGIN = 0.03
"""The allowed relative error of the ratio of gradients at the ends of the upper half of the layers."""


def layer_growth(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge claim G1: the factor per layer by which ‖∂L/∂W^{2,l}‖ grows in the upper half of the layers.

    The closed form is a limit. The claim fails if the recursion has another limit, or if samples have another slope
    than a recursion that has reached the limit. It holds if recursion and samples both have the limit's slope in these
    layers.

    Args:
        cells: sampled networks.

    Returns:
        One verdict for each Post-LN network that is deep and wide enough and has a closed form.
    """
    return [verdict for s in cells if (verdict := _verdict(s)) is not None]


def _verdict(s: Samples) -> Verdict | None:
    depth, width = s.stack.depth, s.stack.width
    if s.stack.placement != "post" or depth < LEAST_DEPTH or depth > width * LARGEST_DEPTH_OVER_WIDTH:
        return None
    try:
        limit = float(np.log(layer_factor(s.stack)))
    except ValueError:  # a field without a closed form
        return None
    layers = np.arange(1, depth + 1)
    upper = layers > depth // 2
    weights = np.zeros(depth)
    weights[upper] = slope_weights(layers[upper]) / 2  # of the squared norm, for the norm
    slope = log_contrast(s["grad_sq_W2"], weights)
    predicted = float(weights @ np.log(prediction_of(s)["grad_sq_W2"]))
    margin = MARGIN / (upper.sum() - 1)
    agreement = scalar_agreement(float(slope.mean), predicted, float(slope.sem), margin)
    there = abs(predicted - limit) <= margin
    word: Word = "holds" if there and agreement == "agrees" else "undecided"
    # The slope per layer in theory, in the middle of a network ten times as deep.
    deep, middle = replace(s.stack, depth=10 * depth), 5 * depth
    below, above = predict(deep, patterns=PATTERNS)["grad_sq_W2"][middle - 1 : middle + 1]
    if abs(0.5 * float(np.log(above / below)) - limit) > margin or (there and agreement == "differs"):
        word = "fails"
    return Verdict(
        claim="G1",
        subject=Subject(
            placement="post",
            quantity="ln of the growth of ||dL/dW2|| per layer, upper half",
            kind="growth",
            against="layer",
        ),
        verdict=word,
        claimed=sentence("{:.4g}", limit),
        predicted=predicted,
        measured=float(slope.mean),
        interval=interval_of(slope),
        agreement=agreement,
        setting=setting([s]),
        cells=names([s]),
        relaxed=relaxation_name(s.stack),
        note=sentence(
            "least-squares slope of ln(root mean square) over l = {}; the claim is our own closed form, a limit; "
            "below 0 gradients grow towards the input",
            f"{layers[upper][0]}..{depth}",
        ),
    )
