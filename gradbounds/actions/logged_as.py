"""The meaning of a training log's numbers: mean or sum, norm or squared norm, before or after clipping."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from gradbounds.actions.log_line import LogLine
from gradbounds.actions.log_names import is_clipped, is_squared
from gradbounds.actions.logged_layers import names_line

# The relative error of a norm that was clipped to a threshold, from half precision or a log's rounding.
_NEAR = 0.01
# A loss for each token that no language model reaches on text that it has not memorized.
_LEAST_LOSS = 0.01
_WORDS: dict[str, tuple[str, bool | float]] = {
    "mean": ("is_sum", False), "sum": ("is_sum", True), "norm": ("is_square", False), "square": ("is_square", True),
    "unclipped": ("threshold", math.inf),
}  # fmt: skip
_CLIPPED = "clipped:"
AS = "|".join((*_WORDS, f"{_CLIPPED}C"))
"""The allowed words, as the help prints them."""


@dataclass(frozen=True, slots=True)
class LoggedAs:
    """The user's statements on how the numbers of a training log were computed; None where the user states nothing.

    Attributes:
        is_sum: whether the loss, and so its gradient, is a sum over the tokens of the batch.
        is_square: whether the logged gradient norms are squared.
        threshold: clipping threshold of the total gradient if norms were logged after clipping; infinite if they were
            logged before.
    """

    is_sum: bool | None = None
    is_square: bool | None = None
    threshold: float | None = None

    @classmethod
    def of(cls, words: Sequence[str]) -> "LoggedAs":
        """Parse the values of the flag `--logged-as`, such as "sum" or "clipped:1".

        Raises:
            ValueError: there is no such word, or two contradict each other.
        """
        fields: dict[str, bool | float] = {}
        by: dict[str, str] = {}
        for word in words:
            name, value = _WORDS.get(word) or ("threshold", _threshold(word))
            if fields.setdefault(name, value) != value:
                raise ValueError(f"logged_as {by[name]!r} cannot be combined with {word!r}.")
            by[name] = word
        return cls(**fields)  # type: ignore[arg-type]

    def check(self, loss: float | None, positions: int) -> None:
        """Refuse a loss that is too small for a sum over the positions.

        Raises:
            ValueError: the user calls such a loss a sum.
        """
        if self.is_sum and loss is not None and loss < _LEAST_LOSS * positions:
            raise ValueError(
                f"logged_as 'sum' requires a sum over {positions} tokens of at least {_LEAST_LOSS:g} each, got a loss "
                f"of {loss:.4g}. Omit it for a mean."
            )


def _threshold(word: str) -> float:
    """Return the clipping threshold that a word states.

    Raises:
        ValueError: the word has none.
    """
    try:
        limit = float(word.removeprefix(_CLIPPED)) if word.startswith(_CLIPPED) else math.nan
    except ValueError:
        limit = math.nan
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"logged_as must be some of {AS.replace('|', ', ')}, with a positive number C, got {word!r}.")
    return limit


@dataclass(frozen=True, slots=True)
class Reading:
    """The first step of a training log, converted to the mean loss and to gradient norms before clipping.

    Attributes:
        line: converted numbers; without the norm if clipping hides it.
        lines: text on how the numbers were read, if that is unusual.
        settled: known properties among "sum", "square" and "clipped", which therefore explain no difference.
        is_to_scale: whether the scale of single parameters' norms is known; else they share an unknown factor.
        most: upper bound on the total norm of all parameters, if they were clipped as stated.
        of: the user's statement.
    """

    line: LogLine
    lines: list[str] = field(default_factory=list)
    settled: frozenset[str] = frozenset()
    is_to_scale: bool = True
    most: float = math.inf
    of: LoggedAs = field(default_factory=LoggedAs)

    def check(self, layers: pd.DataFrame) -> None:
        """Raise an error if logged norms contradict the clipping threshold that the user stated.

        Args:
            layers: table of logged norms with columns layer, role and logged.

        Raises:
            ValueError: the norms together exceed the threshold.
        """
        times = float((layers.drop_duplicates(["layer", "role"])["logged"] ** 2).sum()) ** 0.5 / self.most
        if times > 1.0 + _NEAR:
            raise ValueError(
                _not_clipped(self.of, f"the norms of the matrices together are {times:.4g} times the threshold")
            )


def reading(line: LogLine, of: LoggedAs, positions: int = 1) -> Reading:
    """Convert the first step of a training log to numbers that can be compared with theory.

    Args:
        line: the step as it was logged.
        of: the user's statement, which overrides the names of the numbers.
        positions: number of tokens in the batch.

    Raises:
        ValueError: the norm is named as clipped and exceeds the stated threshold, or the loss is too small for a sum.
    """
    of.check(line.loss, positions)
    names = (line.norm_name, *line.parameters)
    squared = [name for name in names if is_squared(name)] if of.is_square is None else []
    after = {name: is_clipped(name) for name in names} if of.threshold is None else {}
    share = 1.0 / positions if of.is_sum else 1.0

    def norm(name: str, value: float) -> float:
        return share * (math.copysign(abs(value) ** 0.5, value) if (of.is_square or name in squared) else value)

    whole = None if line.norm is None else norm(line.norm_name, line.norm)
    parameters = {name: norm(name, value) for name, value in line.parameters.items()}
    words = [] if of.is_sum is None else [f"sums over {positions} tokens" if of.is_sum else "means over tokens"]
    words += [] if of.is_square is None else ["squares" if of.is_square else "norms"]
    words += _by_names("squares", squared)
    for is_after, what in ((True, "after clipping"), (False, "before clipping")):
        words += _by_names(what, [name for name in names if after.get(name) is is_after])
    is_to_scale, most, times = not any(after.get(name) for name in parameters), math.inf, 1.0
    if after.get(line.norm_name):
        whole = None
    if of.threshold == math.inf:
        words.append("before clipping")
    elif of.threshold is not None:
        limit = share * of.threshold
        over = 1.0 if whole is None else whole / limit
        if over > 1.0 + _NEAR and is_clipped(line.norm_name):
            raise ValueError(_not_clipped(of, f"{line.norm_name} is {over:.4g} times the threshold"))
        if abs(over - 1.0) <= _NEAR:
            whole, is_to_scale, most = None, False, limit
            words.append(f"after clipping to {of.threshold:g}")
        elif over < 1.0:
            words.append(f"not clipped, because the norm is below {of.threshold:g}")
        else:  # torch's clip_grad_norm_ returns the norm from before, while parameters have what is clipped
            times, most = over, limit * over
            words.append(f"the total norm before clipping to {of.threshold:g}, and all other norms after it")
    read = replace(
        line, loss=None if line.loss is None else share * line.loss, norm=whole,
        fall=None if line.fall is None else share * line.fall,
        parameters={name: value * times for name, value in parameters.items()},
    )  # fmt: skip
    settled = {
        "sum": of.is_sum is not None,
        "square": of.is_square is not None or line.norm_name in squared,
        "clipped": of.threshold is not None or after.get(line.norm_name) is not None,
    }
    lines = [f"Read as {', '.join(words)}{_numbers(line, read)}."] if words else []
    return Reading(
        read, [*lines, *_lost(line, read, is_to_scale)], frozenset(name for name, known in settled.items() if known),
        is_to_scale, most, of,
    )  # fmt: skip


def _not_clipped(of: LoggedAs, why: str) -> str:
    return f"logged_as must give the clipping threshold of the log, got {_CLIPPED}{of.threshold:g}; but {why}."


def has_line(numbers: Mapping[str, float | None]) -> str:
    """Return named numbers as one line of text, such as "loss 6.25, no gradient norm".

    >>> has_line({"loss": 6.25, "gradient norm": None})
    'loss 6.25, no gradient norm'
    """
    return ", ".join(f"no {name}" if value is None else f"{name} {value:.4g}" for name, value in numbers.items())


def _by_names(what: str, names: Iterable[str]) -> list[str]:
    names = [name for name in names if name]
    return [f"{what} by name ({names_line(names)})"] if names else []


def _numbers(line: LogLine, read: LogLine) -> str:
    # Return the loss and the norm that differ from the logged ones after conversion, as text.
    pairs = {"loss": (line.loss, read.loss), "gradient norm": (line.norm, read.norm)}
    changed = {name: after for name, (before, after) in pairs.items() if after is not None and after != before}
    return f": {has_line(changed)}" if changed else ""


def _lost(line: LogLine, read: LogLine, is_to_scale: bool) -> list[str]:
    # State the comparisons that are impossible because clipping multiplied the norms by an unknown factor.
    lost = ["the gradient norm is not judged"] if read.norm is None and line.norm is not None else []
    lost += ["matrices are only compared with one another"] if line.parameters and not is_to_scale else []
    what = "Clipping may have changed the norms by a factor that the log does not state"
    return [f"{what}: {', and '.join(lost)}."] if lost else []
