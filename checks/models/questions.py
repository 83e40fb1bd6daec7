"""The three questions of `probe`, and which of its arguments and flags belong to which."""

from collections.abc import Iterable
from typing import Literal

Question = Literal["one", "grid", "steps"]

_SIZES = "a factory of a width and a depth"
_GIVEN = {"one": "one module", "grid": f"{_SIZES} without steps", "steps": "steps"}

BELONGS: dict[str, tuple[tuple[Question, ...], str]] = {
    **dict.fromkeys(("width", "widths", "depth", "depths", "steps"), (("grid", "steps"), f"with {_SIZES}")),
    "parametrization": (("steps",), f"with steps and {_SIZES}"),
    **dict.fromkeys(("optimizer", "learning_rate"), (("steps", "one"), "with steps or with one module")),
    **dict.fromkeys(("layers", "against", "stack"), (("grid", "one"), "without steps")),
    **dict.fromkeys(("loss", "trained", "logged"), (("one",), f"with one module, not with {_SIZES}")),
}
"""By argument or flag: the questions that it belongs to, and what it must stand with."""


def check_question(question: Question, given: Iterable[str]) -> None:
    """Refuse arguments of another question.

    Args:
        question: "one" module, a "grid" of sizes, or "steps" over it.
        given: names of all arguments or flags that were given.

    Raises:
        ValueError: one belongs to another question.
    """
    for name in given:
        questions, words = BELONGS.get(name, ((question,), ""))
        if question not in questions:
            raise ValueError(f"{name} must stand {words}, got {_GIVEN[question]}.")
