"""The prediction of the first optimizer step at large width, with its expected error at finite width."""

from collections.abc import Collection
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from checks.trust import HEADS, NUMBERS, Number, Trust
from theory import Stack
from theory.first_step.prediction import FirstStep as LargeWidthStep, first_step as large_width_step
from theory.stack.optimizers import Optimizer


@dataclass(frozen=True, slots=True, eq=False)
class FirstStep(LargeWidthStep):
    """The predicted first optimizer step at large width, with the expected errors at finite width.

    Attributes:
        implied_errors: largest expected relative error at this width of "gain", "curvature", "critical_rate" and
            "logit_change_sq", from coefficients measured for the family and the scatter of singular values; an order of
            magnitude if the family was not measured.
        no_coefficient: the reason why a part of the expected error is not known; "" if all of it is known.
    """

    implied_errors: dict[Number, float]
    no_coefficient: str

    @property
    def implied_error(self) -> float:
        """The largest expected relative error of the step's predicted numbers; 0.07 means 7%."""
        return max(self.implied_errors.values())


def first_step(
    stack: Stack, optimizer: Optimizer = "sgd", *, matrices: Collection[str] | None = None, seed: int = 0,
    patterns: int | None = None, windows: NDArray[np.integer] | None = None,
) -> FirstStep:  # fmt: skip
    """Predict the first optimizer step of all or some matrices, with its expected relative error at this width.

    Args:
        stack: the network, with one residual stream. With tied embeddings all token ids differ.
        optimizer: the update u for a gradient g: "sgd" u = g, "normalized" u = g/‖g‖, "adam" u = sign g (epsilon -> 0),
            "polar" the polar factor of each matrix's gradient, and "muon" the Newton-Schulz steps of torch.optim.Muon;
            the last two times sqrt(max(1, d_out/d_in)).
        matrices: roles that the optimizer updates, such as "W2" or "Wemb". "inputs", "positions" and "segments" are the
            tables of embeddings, with one row per token id or position. None means all matrices and no table.
        seed: random seed of the sampled logits, labels and attention samples.
        patterns: number of attention samples per head if attention is random, at least 2; None for 4 to 16.
        windows: token ids of shape (windows, n + 1), as in `predict`, for untied embeddings: equal ids share an input,
            and labels are the next ids. Means include the windows, and errors treat them as random samples. Without
            windows all token ids differ, and labels are independent.

    Raises:
        ValueError: the optimizer or a role is unknown, patterns is below 2, or all gradients are 0. Windows have
            another length, ids outside the vocabulary, or tied embeddings.
        NoRuleError: shared query and key matrices, dropout, an encoder input, a second stream, tanh instead of norms,
            more than 64 tokens, V/d above 200, or tied embeddings with some further fields.

    Assumes d -> infinity at fixed L, n and V/d. Source: docs/first_step.md.

    >>> step = first_step(Stack(placement="keel", ffn="gated", activation="silu", width=256, depth=2, tokens=3))
    >>> print(f"off by up to {step.implied_error:.0%}")
    off by up to 7%
    """
    step = large_width_step(stack, optimizer, matrices=matrices, seed=seed, patterns=patterns, windows=windows)
    of_theory = {field.name: getattr(step, field.name) for field in fields(step)}
    left_out = left_out_of_few_heads(step)
    trust = {name: Trust.of(stack, name, optimizer) for name in NUMBERS}
    errors = {name: trust[name].error + left_out[name] for name in NUMBERS}
    return FirstStep(**of_theory, implied_errors=errors, no_coefficient=trust["gain"].why)


def left_out_of_few_heads(step: LargeWidthStep) -> dict[Number, float]:
    """Bound an error of the predicted first step in networks with few attention heads.

    The bounded error is the contribution of W^Q and W^K when a network has fewer heads than the measured networks. The
    coefficients of the implied error were measured on networks with more heads. With h heads, one head is 1/h of a
    branch's output, so a norm removes at most 1/h of the squared gradients of W^Q and W^K, and at most 1/h of their
    kernel. The gain is linear in the kernel, and the curvature is quadratic. The bound is 0 for a network with at least
    as many heads as the measured networks.

    Args:
        step: the large-width step.

    Returns:
        The bound by number: "gain", "curvature", "critical_rate" and "logit_change_sq".
    """
    removed = max(0.0, 1 / step.stack.heads - 1 / HEADS)
    gain, curvature = (
        removed * sum(float(shares[role].sum()) for role in ("WQ", "WK") if role in shares)
        for shares in (step.gain_shares, step.curvature_shares)
    )
    return {
        "gain": gain, "curvature": 2 * curvature, "critical_rate": gain + 2 * curvature,
        "logit_change_sq": 2 * curvature,
    }  # fmt: skip
