"""The description of a command's computation, with its time and memory, which `--dry-run` prints instead."""

from collections.abc import Sequence
from typing import Any

from gradbounds.described_network import Description
from gradbounds.result import Result
from gradbounds.units import takes
from theory import Stack
from theory.configurations import Note, model_type
from theory.mean_field.cost import Cost
from theory.stack import TITLES

# The name for a text without a law, in which all tokens differ, and the default text law of other vocabularies.
DISTINCT, ZIPF = "distinct", "zipf:1"


def batch_text(sequences: int, tokens: int | str, text: str | None, of_tokens: str = "") -> str:
    """Describe a batch in words; the source of its number of tokens follows this number.

    >>> batch_text(64, 1024, "english"), batch_text(1, "16 and 8", None)
    ('64 sequences of 1024 tokens, English text', '1 sequence of 16 and 8 tokens that all differ')
    >>> batch_text(64, 1, None), batch_text(1, 1, None)
    ('64 sequences of 1 token, tokens all differ', '1 sequence of 1 token')
    """
    kinds = {None: "", DISTINCT: "", "english": ", English text", ZIPF: ", Zipf's law"}
    law, counted = kinds.get(text, f", text {text}"), f"{sequences} sequence{'s' * (sequences > 1)}"
    plural, differ = ("", ", tokens all differ" * (sequences > 1)) if str(tokens) == "1" else ("s", " that all differ")
    return f"{counted} of {tokens} token{plural}{differ * (not law)}{of_tokens}{law}"


def named(stack: Stack, notes: Sequence[Note], of: Description) -> str:
    """Return the name of a model, if there is one, with the sizes of its network."""
    sizes = f"{TITLES[stack.placement]}, {stack.depth} layer{'s' * (stack.depth > 1)}, width {stack.width}"
    name = of.like or model_type(notes)
    return f"{name} ({sizes})" if name else sizes


def planned(
    network: tuple[Stack, Sequence[Note], Description], batch: str, what: str, cost: Cost, *lines: str, **values: Any
) -> Result:
    """Return the description of a computation and its cost, which is the estimate that the command announces.

    Args:
        network: the network, with the notes on its configuration and its description.
        batch: its tokens, in words.
        what: the computed numbers.
        cost: estimated cost, without the libraries.
        lines: further lines.
        values: further values.
    """
    name = named(*network)
    return Result(
        about=f"the cost of predicting {name}",
        values={"stack": network[0], "seconds": cost.seconds, "bytes": cost.bytes, **values},
        lines=[
            f"{name}: {batch}", f"  computes  {what}",
            f"  cost      {takes(cost.seconds, cost.bytes)} (one core)", *lines,
        ],
    )  # fmt: skip
