"""The three uses of the function `probe`, with the arguments and flags that each of them allows."""

from collections.abc import Iterable
from typing import Literal

Question = Literal["one", "grid", "steps"]

_SIZES = "a factory of a width and a depth"
_GIVEN = {"one": "one module", "grid": f"{_SIZES} without steps", "steps": "steps"}

BELONGS: dict[str, tuple[tuple[Question, ...], str]] = {
    **dict.fromkeys(("width", "widths", "depth", "depths", "steps"), (("grid", "steps"), f"requires {_SIZES}")),
    "parametrization": (("steps",), f"requires steps and {_SIZES}"),
    **dict.fromkeys(("optimizer", "learning_rate"), (("steps", "one"), "requires steps or one module")),
    **dict.fromkeys(("layers", "against", "stack"), (("grid", "one"), "cannot be combined with steps")),
    **dict.fromkeys(("loss", "trained", "logged"), (("one",), "requires one module")),
}
"""The uses of `probe` that allow an argument or flag, and the words for its requirement, by argument."""


def check_question(question: Question, given: Iterable[str]) -> None:
    """Check that every given argument of `probe` applies to the chosen use.

    Args:
        question: the use: "one" module, a "grid" of widths and depths, or optimizer "steps" over such a grid.
        given: names of all arguments or flags that were given.

    Raises:
        ValueError: an argument belongs to another use.
    """
    for name in given:
        questions, words = BELONGS.get(name, ((question,), ""))
        if question not in questions:
            raise ValueError(f"{name} {words}, got {_GIVEN[question]}.")
