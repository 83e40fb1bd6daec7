"""The loss of a network with tied embeddings, and how often it predicts a position's own token, by the forward pass."""

import math
from dataclasses import replace

import numpy as np

from theory.coverage import require
from theory.mean_field.cost import representatives
from theory.mean_field.inputs import text_inputs
from theory.mean_field.recursion import forward_pass
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.text_law import TextLaw
from theory.mean_field.tied.hermite import gaussian_nodes
from theory.mean_field.tied.text_output import loss_of_labels, own_logits
from theory.mean_field.tied.walk import held_words, norm_root
from theory.stack import Stack


def own_token(stack: Stack, law: TextLaw | None = None) -> tuple[float, float]:
    """Return the expected loss of a network with tied embeddings and the mean probability of a position's own token.

    The logit of a position's own token has the mean σ_e √d h, with h the part of its own embedding that the normalized
    residual stream keeps. The other logits are Gaussian with mean 0.

    Args:
        stack: the network.
        law: law of the text; without it, all tokens differ.

    Raises:
        NoRuleError: there is no rule for the network.
    """
    # A gradient needs more tokens than a loss.
    require(replace(stack, tokens=max(stack.tokens, math.ceil(2.0 * stack.width**0.5))), "grouped")
    law = law or TextLaw.distinct(stack.vocab)
    tokens = TextLayout.of(representatives(stack, coarse=True), law, coarse=True)
    inputs = text_inputs(stack, tokens, law).repeated(max(2, tokens.entries_together))
    forward = forward_pass(stack, tokens, inputs, np.random.default_rng(0))
    held = held_words(stack, forward, np.ones(forward.output.shape[:-1]))[-1] / norm_root(forward.output_scales)
    mean_logit, sure, normalizer = own_logits(stack, np.linalg.diagonal(forward.output), held)
    chance = (sure @ gaussian_nodes()[1] @ tokens.sizes).mean() / tokens.count
    return float(loss_of_labels(stack, tokens, mean_logit, normalizer).mean()), float(chance)
