"""Learning rates over the updates of a training run, as data.

Source: Xiong et al. (2020), sections 3.2 and 4.1, after Vaswani et al. (2017). "The same inverse square root schedule"
of the paper has two readings: after a warm-up of T updates the rate is η √(T/t), or it is η min(1, √(T₀/t)) with one T₀
for every T. They agree at T = T₀; without warm-up (T = 1) the former is η/√t from the first update on.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from simulate.counts import check_count

Decay = Literal["constant", "inverse-sqrt", "inverse-sqrt-from"]


def check_rate(name: str, value: object) -> None:
    """Refuse what is not a positive finite number.

    Raises:
        ValueError: the value is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning rate for every update t = 1, 2, ...: t/T of the peak up to t = T, then a decay.

    Attributes:
        peak: η, the largest rate.
        warmup: T, the updates of the linear warm-up; 1 is none.
        decay: of the rate behind the warm-up. "constant": η. "inverse-sqrt": η √(T/t), reading (a).
            "inverse-sqrt-from": η min(1, √(T₀/t)), reading (b).
        start: T₀ of reading (b), at least T.

    Raises:
        ValueError: a value is outside its range, or missing.
    """

    peak: float
    warmup: int = 1
    decay: Decay = "constant"
    start: int | None = None

    def __post_init__(self) -> None:
        check_rate("peak", self.peak)
        check_count("warmup", self.warmup, 1)
        if self.decay not in get_args(Decay):
            raise ValueError(f"decay must be one of {', '.join(get_args(Decay))}, got {self.decay!r}.")
        if self.decay == "inverse-sqrt-from":
            check_count("start", self.start, self.warmup)
        elif self.start is not None:
            raise ValueError(
                f"start belongs to decay='inverse-sqrt-from'; decay={self.decay!r} has none, got {self.start!r}."
            )

    def rate(self, update: int) -> float:
        """The rate of an update, from 1; never zero.

        Raises:
            ValueError: the update is below 1.
        """
        check_count("update", update, 1)
        if update <= self.warmup:
            return self.peak * update / self.warmup
        if self.decay == "inverse-sqrt":
            return self.peak * math.sqrt(self.warmup / update)
        if self.start is not None:
            return self.peak * min(1.0, math.sqrt(self.start / update))
        return self.peak


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearDecay:
    """BERT's rates: t/T of the peak up to t = T, then a line down to zero behind the last update.

    Attributes:
        peak: η, the largest rate.
        warmup: T, the updates of the linear warm-up; 1 is none.
        end: the last update, at least T; its rate is the last that is above zero.

    Raises:
        ValueError: a value is outside its range.

    Source: Devlin et al. (2019), appendix A.2.
    """

    peak: float
    warmup: int = 1
    end: int

    def __post_init__(self) -> None:
        check_rate("peak", self.peak)
        check_count("warmup", self.warmup, 1)
        check_count("end", self.end, self.warmup)

    def rate(self, update: int) -> float:
        """The rate of an update, from 1; never zero.

        Raises:
            ValueError: the update is below 1, or behind the last.
        """
        check_count("update", update, 1)
        if update > self.end:
            raise ValueError(f"update must be at most end = {self.end}, got {update}.")
        return self.peak * min(update / self.warmup, (self.end + 1 - update) / (self.end + 1 - self.warmup))
