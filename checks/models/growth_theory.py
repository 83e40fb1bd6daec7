"""How stream and gradient of one module grow over its layers by large-width theory, beside what was measured."""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from checks.models.exact_alarms import whole
from checks.models.streams import NORMED_RESPONSE
from simulate.modules.probe import Probed
from theory import Stack, predict
from theory.configurations import stack_from_config
from theory.mean_field.prediction import Prediction

_SECONDS, _PATTERNS = 0.5, 16
"""What a prediction may take; networks of many tokens are predicted at fewer."""
_SAME = 0.02


@dataclass(frozen=True, slots=True)
class GrowthTheory:
    """Ratios of the last layer and the first.

    Attributes:
        part: the list of layers.
        of: whose theory it is, in words.
        energy: mean square of the last layer's output over the first one's.
        matrix: name of the matrix whose gradients are compared; "" where the stream's are.
        gradient: norm in the first layer over that in the last; NaN where the loss is not on all positions.
        measured: the module's own such ratio of gradients.
    """

    part: str
    of: str
    energy: float
    matrix: str
    gradient: float
    measured: float

    def line(self) -> str:
        """In words."""
        line = f"Theory of {self.of}: the energy {times(self.energy)}"
        if not np.isfinite(self.gradient):
            return f"{line}."
        whose = f"gradient of {self.matrix}" if self.matrix else "gradient"
        here = f" ({self.measured:.3g} here)" if self.matrix else ""
        return f"{line}, and the {whose} {times(self.gradient)}{here} towards the input."


def growth_theory(
    measured: Probed, part: str, energies: np.ndarray, gradients: np.ndarray, given: Stack | None = None
) -> GrowthTheory | None:
    """Theory's growth over a list of layers.

    Where the network is known, it is that of a Stack of the same shape and initialization, at the same tokens or as
    many as take half a second: energies of the stream, and gradients of the matrix that ends the feed-forward branch.
    Where it is not, that of a placement: behind norms stream and gradient stay as they are (Post-LN); where every layer
    adds a branch behind a norm, of the energy that the second layer adds, that of the stream rises by as much in each,
    and the squared gradient towards the input in the same proportion (Pre-LN; of branches like ReLU's, whose derivative
    has their own energy).

    Args:
        measured: the module.
        part: the list.
        energies: of its layers' outputs, (L,).
        gradients: norms at these, (L,).
        given: the network that it is to be; read from its configuration or its layers, if None.

    Returns:
        None where neither is known: without residual connections, or if the second layer adds nothing.
    """
    stack, words = _network(measured, len(energies), given)
    known = None if stack is None else _of_stack(measured, part, stack, words)
    theory = known or _of_placement(measured, part, energies, gradients)
    return theory if theory is None or _on_all_positions(measured, part) else replace(theory, gradient=float("nan"))


def _network(measured: Probed, depth: int, given: Stack | None) -> tuple[Stack | None, str]:
    """The network of theory, and where it is from, in words; of another depth it is not this list's.

    A configuration of several lists, as of an encoder and a decoder, does not say which is meant.
    """
    if given is not None:
        return (given if given.depth == depth else None), "the Stack given"
    lists = measured.frame.loc[measured.frame["layer"] > 0, "part"].nunique()
    described = described_stack(measured) if measured.words and lists == 1 else None
    if described is not None:
        return (described if described.depth == depth else None), "read from its configuration"
    return measured.stack, "read from its layers"


def described_stack(measured: Probed) -> Stack | None:
    """The network that a module's own configuration describes; None where it has none that is read."""
    with suppress(ValueError):
        return stack_from_config(measured.config, tokens=max(measured.words, 2))[0] if measured.config else None
    return None


def _of_placement(measured: Probed, part: str, energies: np.ndarray, gradients: np.ndarray) -> GrowthTheory | None:
    frame = measured.frame[measured.frame["part"] == part]
    responses = frame.loc[frame["quantity"] == "scale_response", "value"]
    if responses.empty or len(energies) < 3:
        return None
    ratio = float(gradients[0] / gradients[-1])
    if abs(responses.median()) < NORMED_RESPONSE:
        normed = float(energies.max()) < 1.05 * float(energies.min())
        return GrowthTheory(part, "Post-LN", 1.0, "", 1.0, ratio) if normed else None
    step = float(energies[1] / energies[0]) - 1
    if not step > 0:
        return None
    energy = 1 + (len(energies) - 1) * step
    return GrowthTheory(part, "Pre-LN whose layers all add what the second does", energy, "", energy**0.5, ratio)


def _on_all_positions(measured: Probed, part: str) -> bool:
    """Whether labels stand at half of the tokens at least, where the loss has labels."""
    frame = measured.frame
    tokens = frame.loc[(frame["part"] == part) & (frame["quantity"] == "input_tokens"), "value"]
    labels = whole(measured.tests, "labels")
    return tokens.empty or not np.isfinite(labels) or labels >= 0.5 * float(tokens.iloc[0])


def times(growth: float) -> str:
    """What something does that grows so many times."""
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
    """At its tokens, or at half of them so often as it takes too long, and how many; None where there is no rule."""
    tokens = stack.tokens
    while tokens:
        try:
            return predict(replace(stack, tokens=tokens), patterns=_PATTERNS, max_time=_SECONDS), tokens
        except ValueError:
            tokens //= 2
    return None, 0
