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


RECIPES: tuple[Recipe, ...] = tuple(
    Recipe(**fields) for fields in parsed(Path(__file__).with_name("recipes.toml").read_bytes(), "TOML")["recipe"]
)
"""All that are known."""
