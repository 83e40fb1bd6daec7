"""Curvature of the last layer in the simplified setting: the trace of its Gauss-Newton block.

The block of W2 of the last layer is the average over positions of (B_iᵀ H_i B_i) ⊗ h_i h_iᵀ, with H = diag(p) − p pᵀ of
the softmax, B = W_emb J and J the Jacobian of the last LayerNorm, √d/‖y‖ times a projection orthogonal to y. The logits
are W_emb's components along y, so what B sees of W_emb is independent of H, and with rows N(0, σ_e²/d)

    E tr = E[‖h‖² d/‖y‖²] σ_e² (1 − 2/d) (1 − E Σ_k p_k²).

The factor d/‖y‖² is that of Theorem 1, squared: 2/3 for Post-LN, ~2/(3 L) for Pre-LN. Labels do not enter.
"""

import numpy as np

from theory.gaussian import SoftmaxOverlap
from theory.prediction import predict
from theory.stack import Stack


def last_block_trace(stack: Stack) -> float:
    """E of the trace of the Gauss-Newton block of the last layer's W2, at large width.

    Assumes a norm before the output, and d → ∞ but for the factor 1 − 2/d, which is exact; the loss an average over
    all positions.

    Raises:
        ValueError: there is no norm before the output, or one on branches, or a field that the derivation leaves out.

    >>> round(last_block_trace(Stack(width=512, vocab=16)), 1)  # d/3, times what the softmax leaves
    147.5
    """
    composition = stack.composition
    known = composition.normalized_output and not composition.second_stream and not composition.output_norm
    if not known or {"normalization", "loss_on", "embeddings", "dropout", "attention_dropout"} & set(stack.relaxed):
        raise ValueError(
            "stack must have one stream, LayerNorm before the output and not on branches, untied embeddings, a loss on "
            f"all positions and no dropout for the trace of its last block, got {stack.non_default()}."
        )
    prediction = predict(stack)
    energy = float(prediction["hidden_energy"][-1]) + stack.norm_epsilon
    hidden = stack.ffn_width * float(prediction["ffn_hidden_energy"][-1])
    overlap = float(np.asarray(SoftmaxOverlap(stack.output_scale, stack.vocab)(1.0, 1.0, 1.0)))
    return hidden / energy * stack.output_scale**2 * (1 - 2 / stack.width) * (1 - overlap)
