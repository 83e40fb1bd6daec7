"""Learning rates over the updates of a training run, as data.

Source: Xiong et al. (2020), sections 3.2 and 4.1, after Vaswani et al. (2017). "The same inverse square root schedule"
of the paper has two readings: after a warm-up of T updates the rate is η √(T/t), or it is η min(1, √(T₀/t)) with one T₀
for every T. They agree at T = T₀; without warm-up (T = 1) the former is η/√t from the first update on.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from simulate.counts import check_count

Decay = Literal["constant", "inverse-sqrt", "inverse-sqrt-from", "steps", "linear"]


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
            "inverse-sqrt-from": η min(1, √(T₀/t)), reading (b). "steps": η times `factor` for each of the `drops` that
            t has reached. "linear": down a line from η at T that is zero one update behind `last`.
        start: T₀ of reading (b), at least T.
        drops: updates at which the rate drops, ascending.
        factor: by which, in (0, 1).
        last: the last update that a linear decay has a rate for, at least T.

    Raises:
        ValueError: a value is outside its range, or missing.
    """

    peak: float
    warmup: int = 1
    decay: Decay = "constant"
    start: int | None = None
    drops: tuple[int, ...] = ()
    factor: float = 0.1
    last: int | None = None

    def __post_init__(self) -> None:
        check_rate("peak", self.peak)
        check_count("warmup", self.warmup, 1)
        if self.decay not in get_args(Decay):
            raise ValueError(f"decay must be one of {', '.join(get_args(Decay))}, got {self.decay!r}.")
        for name, value, user in (("start", self.start, "inverse-sqrt-from"), ("last", self.last, "linear")):
            if self.decay == user:
                check_count(name, value, self.warmup)
            elif value is not None:
                raise ValueError(f"{name} belongs to decay={user!r}; decay={self.decay!r} has none, got {value!r}.")
        if bool(self.drops) != (self.decay == "steps"):
            raise ValueError(f"drops must be given for decay='steps' and only then, got {self.drops!r}.")
        for drop in self.drops:
            check_count("drops", drop, self.warmup + 1)
        if list(self.drops) != sorted(set(self.drops)):
            raise ValueError(f"drops must ascend, got {self.drops!r}.")
        check_rate("factor", self.factor)
        if self.factor >= 1:
            raise ValueError(f"factor must be below 1, got {self.factor!r}.")

    def rate(self, update: int) -> float:
        """The rate of an update, from 1; never zero.

        Raises:
            ValueError: the update is below 1, or behind the last of a linear decay.
        """
        check_count("update", update, 1)
        if self.last is not None and update > self.last:
            raise ValueError(f"update must be at most last = {self.last}, got {update}.")
        if update <= self.warmup:
            return self.peak * update / self.warmup
        if self.decay == "inverse-sqrt":
            return self.peak * math.sqrt(self.warmup / update)
        if self.start is not None:
            return self.peak * min(1.0, math.sqrt(self.start / update))
        if self.last is not None:
            return self.peak * (self.last + 1 - update) / (self.last + 1 - self.warmup)
        return self.peak * self.factor ** sum(update >= drop for drop in self.drops)
