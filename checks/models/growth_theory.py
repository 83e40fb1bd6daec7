"""The predicted growth of a module's activations and gradients over its layers, at large width."""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from checks.models.exact_alarms import whole
from simulate.modules.probe import Probed
from theory import Stack, predict
from theory.configurations import stack_from_config
from theory.mean_field.prediction import Prediction

# The time limit in seconds of a prediction, and its number of attention samples.
#
# Networks with many tokens are predicted with fewer tokens.
_SECONDS, _PATTERNS = 0.5, 16
_SAME = 0.02


@dataclass(frozen=True, slots=True)
class GrowthTheory:
    """The predicted growth of activations and gradients between the first and last layer of a module's list of layers.

    Attributes:
        part: the name of the list of layers.
        of: the network that the theory describes, in words.
        energy: mean square of the last layer's output / first layer's output.
        matrix: the matrix whose gradients are compared.
        gradient: gradient norm in the first layer / last layer; NaN if the loss does not cover all positions.
        measured: the same ratio of gradient norms, measured in the module.
    """

    part: str
    of: str
    energy: float
    matrix: str
    gradient: float
    measured: float

    def line(self) -> str:
        """Return the predicted growth of activations and gradients as one line of a report."""
        line = f"Theory for {self.of}: mean squared activation {times(self.energy)}"
        if not np.isfinite(self.gradient):
            return f"{line}."
        return (
            f"{line}; gradient norm of {self.matrix} {times(self.gradient)} towards the input (measured: "
            f"{self.measured:.3g} times)."
        )


def growth_theory(measured: Probed, part: str, depth: int, given: Stack | None = None) -> GrowthTheory | None:
    """Predict how activations and gradients grow over a list of layers of a module.

    The prediction is for a Stack of the same shape and initialization, with the same number of tokens or as many as
    half a second allows. It covers the mean squared activation of the residual stream and the gradient of the matrix
    that ends the feed-forward branch.

    Args:
        measured: the probed module.
        part: the name of the list of layers.
        depth: the number of its layers whose output was measured.
        given: the network to compare with; None reads it from the module's configuration or layers.

    Returns:
        The prediction, or None if the network is not known or has experts, or theory has no rule for it.
    """
    stack, words = _network(measured, depth, given)
    theory = None if stack is None else _of_stack(measured, part, stack, words)
    return theory if theory is None or _on_all_positions(measured, part) else replace(theory, gradient=float("nan"))


def _network(measured: Probed, depth: int, given: Stack | None) -> tuple[Stack | None, str]:
    """Return the Stack that describes a probed module, or None if its depth is another, and its source in words.

    If a model has several lists of layers, such as an encoder and a decoder, its configuration is not used.
    """
    if given is not None:
        return (given if given.depth == depth else None), "the given Stack"
    lists = measured.frame.loc[measured.frame["layer"] > 0, "part"].nunique()
    described = described_stack(measured) if measured.words and lists == 1 else None
    if described is not None:
        return (described if described.depth == depth else None), "read from its configuration"
    return measured.stack, "read from its layers"


def described_stack(measured: Probed) -> Stack | None:
    """Return the network that a module's own configuration describes; None if no configuration can be read."""
    with suppress(ValueError):
        return stack_from_config(measured.config, tokens=max(measured.words, 2))[0] if measured.config else None
    return None


def _on_all_positions(measured: Probed, part: str) -> bool:
    """Return whether at least half of the tokens have labels; true if the loss has no labels."""
    frame = measured.frame
    tokens = frame.loc[(frame["part"] == part) & (frame["quantity"] == "input_tokens"), "value"]
    labels = whole(measured.tests, "labels")
    return tokens.empty or not np.isfinite(labels) or labels >= 0.5 * float(tokens.iloc[0])


def times(growth: float) -> str:
    """Describe a growth factor in words, such as "grows 3.2 times"."""
    if abs(growth - 1) < _SAME:
        return "stays the same"
    return f"grows {growth:.3g} times" if growth >= 1 else f"falls {1 / growth:.3g} times"


def _of_stack(measured: Probed, part: str, stack: Stack, words: str) -> GrowthTheory | None:
    prediction, tokens = _predicted(stack)
    frame = measured.frame[(measured.frame["part"] == part) & (measured.frame["quantity"] == "gradient")]
    # Of matrices that end a branch, that of the feed-forward one has the most entries.
    sizes = measured.frame[(measured.frame["part"] == part) & (measured.frame["quantity"] == "entries")]
    ends = sizes[sizes["parameter"].isin(measured.ends)]
    if prediction is None or ends.empty or stack.experts:
        return None
    matrix = str(ends.loc[ends["value"].idxmax(), "parameter"])
    norms = frame[frame["parameter"] == matrix].sort_values("layer")["value"].to_numpy(float)
    squares = np.asarray(prediction["grad_sq_W2"], float)
    if len(norms) != len(squares) or not (norms > 0).all():
        return None
    energies = np.asarray(prediction["hidden_energy"], float)
    if stack.composition.stream_norm:
        energies = energies / (energies + stack.norm_epsilon)
    at = "" if tokens == stack.tokens else f" at {tokens} tokens"
    return GrowthTheory(
        part, f"this network{at} ({words})", float(energies[-1] / energies[0]), matrix,
        float(squares[0] / squares[-1]) ** 0.5, float(norms[0] / norms[-1]),
    )  # fmt: skip


def _predicted(stack: Stack) -> tuple[Prediction | None, int]:
    """Predict a Stack, halving its tokens until the time limit is met, and return the prediction and the tokens."""
    tokens = stack.tokens
    while tokens:
        try:
            return predict(replace(stack, tokens=tokens), patterns=_PATTERNS, max_time=_SECONDS), tokens
        except ValueError:
            tokens //= 2
    return None, 0
