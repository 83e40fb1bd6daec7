"""The meaning of a log's numbers, from flags or names: mean or sum, norm or square, clipped or not."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from gradbounds.actions.log_line import LogLine
from gradbounds.actions.log_names import is_clipped, is_squared
from gradbounds.actions.logged_layers import names_line

_NEAR = 0.01
"""Of a threshold: as far from it as half precision or a log's rounding may put a norm that was clipped to it."""
_UNCLIPPED = "unclipped"
_WORDS: dict[str, tuple[str, bool | float]] = {
    "mean": ("is_sum", False), "sum": ("is_sum", True), "norm": ("is_square", False), "square": ("is_square", True),
    _UNCLIPPED: ("threshold", math.inf),
}  # fmt: skip
_CLIPPED = "clipped:"
AS = "|".join((*_WORDS, f"{_CLIPPED}C"))
"""The words, as help has them."""


@dataclass(frozen=True, slots=True)
class LoggedAs:
    """The user's statements about a log's numbers; None leaves a meaning to names or to what is usual.

    Attributes:
        is_sum: whether the loss, and so its gradient, is a sum over the tokens of the batch.
        is_square: whether what is logged of gradients are squares of norms.
        threshold: what the whole gradient was clipped to before its norms were logged; infinite where they are from
            before.
    """

    is_sum: bool | None = None
    is_square: bool | None = None
    threshold: float | None = None

    @classmethod
    def of(cls, words: Sequence[str]) -> "LoggedAs":
        """Read the meaning of a log's numbers from words.

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


def _threshold(word: str) -> float:
    """That of clipping.

    Raises:
        ValueError: the word has none.
    """
    try:
        limit = float(word.removeprefix(_CLIPPED)) if word.startswith(_CLIPPED) else math.nan
    except ValueError:
        limit = math.nan
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"logged_as must be of {AS.replace('|', ', ')}, with a positive number C, got {word!r}.")
    return limit


@dataclass(frozen=True, slots=True)
class Reading:
    """Step 1 of a log, converted to the mean loss and its gradient norms before clipping.

    Attributes:
        line: the numbers; without the norm where clipping hides it.
        lines: how they were read, where that is not what is usual.
        settled: what is known of the norm, and so explains nothing: of "sum", "square" and "clipped".
        is_to_scale: whether norms of single parameters are; else all have one factor in common that is not known.
        most: the norm that they have together at most, if they were clipped as was said.
        of: what was said.
    """

    line: LogLine
    lines: list[str] = field(default_factory=list)
    settled: frozenset[str] = frozenset()
    is_to_scale: bool = True
    most: float = math.inf
    of: LoggedAs = field(default_factory=LoggedAs)

    def check(self, layers: pd.DataFrame) -> None:
        """Refuse logged norms that contradict the stated clipping threshold.

        Args:
            layers: with columns layer, role and logged, as they stand beside theory.

        Raises:
            ValueError: together they are longer.
        """
        norms = layers.drop_duplicates(["layer", "role"])["logged"]
        times = float((norms**2).sum()) ** 0.5 / self.most
        if times > 1.0 + _NEAR:
            raise ValueError(_not_clipped(self.of, f"matrices alone are {times:.4g} times as long"))


def reading(line: LogLine, of: LoggedAs, positions: int = 1) -> Reading:
    """Convert step 1 of a log to numbers that can be compared with theory.

    Args:
        line: as it was logged.
        of: what was said of it, which goes before what names say.
        positions: tokens of the batch.

    Raises:
        ValueError: the norm is longer than what it is said to be clipped to, and called clipped.
    """
    names = (line.norm_name, *line.parameters)
    squared = [name for name in names if is_squared(name)] if of.is_square is None else []
    after = {name: is_clipped(name) for name in names} if of.threshold is None else {}
    share = 1.0 / positions if of.is_sum else 1.0

    def norm(name: str, value: float) -> float:
        is_root = of.is_square or name in squared
        return share * (math.copysign(abs(value) ** 0.5, value) if is_root else value)

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
            raise ValueError(_not_clipped(of, f"{line.norm_name} is {over:.4g} times as long"))
        if abs(over - 1.0) <= _NEAR:
            whole, is_to_scale, most = None, False, limit
            words.append(f"after clipping to {of.threshold:g}")
        elif over < 1.0:
            words.append(f"not clipped, as the norm is below {of.threshold:g}")
        else:  # torch's clip_grad_norm_ returns the norm from before, while parameters have what is clipped
            times, most = over, limit * over
            words.append(f"the norm from before and the others from after clipping to {of.threshold:g}")
    read = replace(
        line, loss=None if line.loss is None else share * line.loss, norm=whole,
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
    return f"logged_as must have what the gradient was clipped to, got {_CLIPPED}{of.threshold:g}, and {why}."


def has_line(numbers: Mapping[str, float | None]) -> str:
    """Return whether any of the numbers is known.

    >>> has_line({"loss": 6.25, "gradient norm": None})
    'loss 6.25, no gradient norm'
    """
    return ", ".join(f"no {name}" if value is None else f"{name} {value:.4g}" for name, value in numbers.items())


def _by_names(what: str, names: Iterable[str]) -> list[str]:
    names = [name for name in names if name]
    return [f"{what} by name ({names_line(names)})"] if names else []


def _numbers(line: LogLine, read: LogLine) -> str:
    """Loss and norm as they were read, of what is another number than was logged."""
    pairs = {"loss": (line.loss, read.loss), "gradient norm": (line.norm, read.norm)}
    changed = {name: after for name, (before, after) in pairs.items() if after is not None and after != before}
    return f": {has_line(changed)}" if changed else ""


def _lost(line: LogLine, read: LogLine, is_to_scale: bool) -> list[str]:
    """What cannot be judged for a factor that the log does not have."""
    lost = ["the gradient norm is not judged"] if read.norm is None and line.norm is not None else []
    lost += ["matrices are compared with one another alone"] if line.parameters and not is_to_scale else []
    what = "Clipping may have changed norms, by a factor that the log does not say"
    return [f"{what}: {', and '.join(lost)}."] if lost else []
