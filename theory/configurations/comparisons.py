"""Results of comparing each model family's own code with theory: how many numbers, and how many are off."""

from pathlib import Path
from typing import Any

from theory.configurations.classes import CLASSES
from theory.stack import Stack
from theory.stack.documents import parsed

FILE = Path(__file__).with_name("comparisons.json")
"""Made from the committed evidence (`python -m tests.helpers.rendered_pages`)."""

_SIZES = {"width", "depth", "tokens", "vocab", "heads", "kv_heads", "ffn_ratio"}
"""Fields in which a network may differ from those that were compared, which were small."""


def compared(family: str | None, stack: Stack, changed: frozenset[str] = frozenset()) -> str:
    """Describe in a sentence how theory compares with a family of models; "" if it was not compared.

    Args:
        family: its `model_type`.
        stack: the network.
        changed: its fields that are not those of the configuration.
    """
    table: dict[str, Any] = parsed(FILE.read_bytes(), "JSON")
    if family is None or family not in table["families"] or not changed <= _SIZES:
        return ""
    by_ends = table["families"][family]
    ends = stack.embeddings if stack.embeddings in by_ends else next(iter(by_ends))
    counts = by_ends[ends]
    of = f"{counts['beyond']} of {counts['numbers']} numbers off by more than 5% and 4 standard errors"
    also = ", as they are in networks of that width sampled here" if counts["beyond"] and counts["ours"] else ""
    other = f", with {ends} embeddings" if ends != stack.embeddings else ""
    length = f" (not at the {stack.tokens} of this network)" if stack.tokens != table["tokens"] else ""
    width = counts.get("width", table["width"])
    return (
        f"Compared with transformers' own {CLASSES[family].name} at width {width} and {table['tokens']} "
        f"tokens{length}{other}: {of}{also}."
    )


def compared_step(family: str | None, optimizer: str, embeddings: str) -> str:
    """Describe in a sentence how theory compares with the first step of a family's own class; "" if not compared.

    Args:
        family: its `model_type`.
        optimizer: that steps.
        embeddings: "tied" or "untied", as the network's; the others' numbers are said where there are no such.
    """
    table: dict[str, Any] = parsed(FILE.read_bytes(), "JSON")
    by_ends = table["steps"].get(family, {})
    of_family: dict[str, Any] = by_ends.get(embeddings) or next(iter(by_ends.values()), {})
    if optimizer not in of_family:
        return ""
    gain, gain_error, curvature, error = of_family[optimizer]
    assert family is not None, "it is in the table"
    ends = "tied" if of_family is by_ends.get("tied") else "apart"
    return (
        f"Compared with transformers' own {CLASSES[family].name} at width {of_family['width']} and "
        f"{table['step_tokens']} tokens, {optimizer}, embeddings {ends}: g.u {gain:.3f} +- {gain_error:.2g} and u'Gu "
        f"{curvature:.3f} +- {error:.2g} times theory's."
    )
