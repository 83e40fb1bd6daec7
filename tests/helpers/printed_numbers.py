"""Decimals, percentages and errors in the prose of a page, for the list of their sources."""

import io
import json
import re
import tokenize
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def prose(page: Path) -> str:
    """What a page says outside rendered parts, code and the addresses of links; of a script its comments."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return "\n".join(one.string for one in tokens if one.type == tokenize.COMMENT)
    text = re.sub(r"<!-- begin: (.*?) -->.*?<!-- end: \1 -->", "", text, flags=re.S)
    text = re.sub(r"```(?:python|console|toml)\n.*?```", "", text, flags=re.S)
    return re.sub(r"(?<=\])\([^)]*\)|`gradbounds [^`]*`", "", text)


def numbers(text: str) -> list[str]:
    """Every decimal, percentage and error in a text, as it is printed but for spaces and signs.

    >>> numbers("arXiv 2002.04745: 1.5, 27 %, at $d = 64$ by 0.3 +- 0.02, version 1.2.3")
    ['1.5', '27%', '0.3', '±0.02']
    """
    text = re.sub(r"\b\d{4}\.\d{4,5}(?:v\d)?\b", "", text)
    found = re.findall(r"((?:±|\+-|\\pm)\s?)?(?<![\w.])(\d+(?:\.\d+)?)(\s?\\?%)?(?!\.?\d)", text)
    return [
        ("±" if error else "") + digits + ("%" if percent else "")
        for error, digits, percent in found
        if "." in digits or percent or error
    ]


def says(page: str, *terms: str) -> bool:
    """Whether a paragraph, a point or a row of a page holds these numbers and terms in this order.

    The words between them are free, so that whoever improves a sentence breaks no test.

    Args:
        page: its name in docs, or README.md.
        terms: numbers as they are printed, which match whole ones alone, and terms of the field.
    """
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    return in_one_place(path.read_text(encoding="utf-8"), *terms)


def in_one_place(text: str, *terms: str) -> bool:
    r"""Whether a paragraph, a point or a row of a text holds these terms in this order.

    >>> in_one_place("From 4.631 at one\nlayer to 16 at two.\n\n6", "4.631", "layer", "16")
    True
    >>> in_one_place("From 4.631 at one\nlayer to 16 at two.\n\n6", "4.631", "6")
    False
    """
    places = re.split(r"\n\s*\n|\n(?=\s*(?:-|\||\d+\.) )", text)
    pattern = re.compile(".*?".join(map(_whole, terms)))
    return any(pattern.search(" ".join(place.replace("−", "-").split())) for place in places)


def _whole(term: str) -> str:
    """A pattern of a term, which is no part of a longer number."""
    term = " ".join(term.replace("−", "-").split())
    before, after = r"(?<![\d.])" * term[0].isdigit(), r"(?!\.?\d)" * term[-1].isdigit()
    return before + re.escape(term) + after


def leaves(value: Any) -> list[float]:
    """Every number in a JSON value, those in its texts included."""
    if isinstance(value, dict):
        return [leaf for key, one in value.items() for leaf in (*leaves(key), *leaves(one))]
    if isinstance(value, list):
        return [leaf for one in value for leaf in leaves(one)]
    if isinstance(value, str):
        return [float(digits) for digits in re.findall(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", value)]
    return [abs(float(value))] if isinstance(value, int | float) and not isinstance(value, bool) else []


def holds(file: Path, number: str) -> bool:
    """Whether a number of a JSON file rounds to a printed one; a percentage may be its distance from 1, too."""
    digits = number.strip("±%")
    places = len(digits.partition(".")[2])
    for leaf in leaves(json.loads(file.read_text(encoding="utf-8"))):
        values = (100 * leaf, 100 * abs(leaf - 1)) if number.endswith("%") else (leaf,)
        if any(f"{value:.{places}f}" == digits for value in values):
            return True
    return False
