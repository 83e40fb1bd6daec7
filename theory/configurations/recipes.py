"""Published peak learning rates, by family of models."""

from dataclasses import dataclass
from pathlib import Path

from theory.stack.documents import parsed


@dataclass(frozen=True, slots=True)
class Recipe:
    """A published training with Adam.

    Attributes:
        model: its name.
        family: the model_type of its config.json.
        rate: the peak learning rate, after warm-up.
        source: where that stands.
        date: of the source, a year or a month.
    """

    model: str
    family: str
    rate: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where the loss of one model is back at its start after a step of Adam, over the critical rate.

    Attributes:
        model: its name.
        family: the model_type of its config.json.
        tokens: of its sequence.
        ratio: of the two rates.
        low: end of its 95% interval.
        high: the other.
    """

    model: str
    family: str
    tokens: int
    ratio: float
    low: float
    high: float


_KNOWN = parsed(Path(__file__).with_name("recipes.toml").read_bytes(), "TOML")

RECIPES: tuple[Recipe, ...] = tuple(Recipe(**fields) for fields in _KNOWN["recipe"])
"""All that are known."""

BREAK_EVEN: tuple[BreakEven, ...] = tuple(BreakEven(**fields) for fields in _KNOWN["break_even"])
"""Those that were extrapolated from smaller networks."""
