"""Results of comparisons between theory and each model family's own code: how many numbers agree."""

from pathlib import Path
from typing import Any

from theory.configurations.classes import CLASSES
from theory.stack import Stack
from theory.stack.documents import parsed

FILE = Path(__file__).with_name("comparisons.json")
"""The table of results, made from the committed evidence (`python -m tests.helpers.rendered_pages`)."""

# The fields in which a network may differ from the compared networks, which were small.
_SIZES = {"width", "depth", "tokens", "vocab", "heads", "kv_heads", "ffn_ratio"}


def compared(family: str | None, stack: Stack, changed: frozenset[str] = frozenset()) -> str:
    """Return a sentence on how well theory agrees with a model family's own class; "" if it was not compared.

    Args:
        family: `model_type` of the family; None if it is not known.
        stack: the network that the sentence is printed for.
        changed: names of fields of the network that differ from the configuration.
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
    """Return a sentence on how well theory predicts the first optimizer step of a model family's own class.

    The sentence is "" if they were not compared.

    Args:
        family: `model_type` of the family; None if it is not known.
        optimizer: name of the optimizer.
        embeddings: "tied" or "untied", as in the network; if there are no results for it, the other results are used.
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
