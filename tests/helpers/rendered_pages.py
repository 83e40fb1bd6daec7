"""Parts of the pages that are rendered and not written: `python -m tests.helpers.rendered_pages` writes them again.

A rendered part stands between `<!-- begin: name -->` and `<!-- end: name -->`; the text around it is free.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.test_architecture import ARROWS, MAY_IMPORT

DOCS = Path(__file__).parents[2] / "docs"
EVIDENCE = Path(__file__).parents[1] / "evidence"
FLOORS = ("theory", "simulate", "checks", "figures", "gradbounds")


def floors() -> str:
    """Which of our packages, and which other libraries, each package imports."""
    lines = ["| package | imports of ours | other libraries |", "|---|---|---|"]
    for package in FLOORS:
        own = sorted(name for name in MAY_IMPORT[package] if name.partition(".")[0] in FLOORS)
        others = sorted(MAY_IMPORT[package] - set(own))
        lines.append(f"| `{package}` | {_listed(own)} | {', '.join(others)} |")
    return "\n".join(lines)


def parts() -> str:
    """Which other parts of its own package each part imports, a list for each package."""
    lines = []
    for package, arrows in ARROWS.items():
        lines += [f"**`{package}`**", ""]
        lines += [f"- `{part}`: {_listed(sorted(names.split()))}" for part, names in arrows.items()]
        lines.append("")
    return "\n".join(lines).rstrip()


def quadratic_range() -> str:
    """How far the quadratic model describes the loss along a first step, over the critical rate."""
    found = json.loads((EVIDENCE / "first-step-range.json").read_text(encoding="utf-8"))
    titles = {"sgd": "SGD", "adam": "Adam", "muon": "Muon"}
    lines = [
        "| | " + " | ".join(f"{title}, {what}" for title in titles.values() for what in ("change", "loss")) + " |",
        "|---" * 7 + "|",
    ]
    for setting, by_optimizer in found["median, least, most over the critical rate"].items():
        ends = [by_optimizer[name][what] for name in titles for what in ("change", "loss")]
        title = setting if "L = " in setting else f"{setting}, L = 2"
        lines.append(f"| {title} | " + " | ".join("{:.2g} ({:.2g} to {:.2g})".format(*one) for one in ends) + " |")
    return "\n".join(lines)


def published_rates() -> str:
    """The first step of Adam from translation models, beside the rates of the papers; medians over networks."""
    content = json.loads((EVIDENCE / "first-step-translation.json").read_text(encoding="utf-8"))
    losses = " | ".join(f"loss at {rate:g}" for rate in content["published rates"])
    lines = [f"| | critical rate | Hessian rate | break-even rate | loss before | {losses} |", "|---" * 8 + "|"]
    for placement, models in content["models"].items():
        numbers = [
            *(median(one[name] for one in models) for name in ("critical rate", "Hessian rate", "break-even rate")),
            median(one["loss"] for one in models),
            *(median(found) for found in zip(*(m["losses at the published rates"] for m in models), strict=True)),
        ]
        title = {"post": "Post-LN", "pre": "Pre-LN"}[placement]
        lines.append(f"| {title} | " + " | ".join(f"{one:.3g}" for one in numbers) + " |")
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


RENDERED: dict[str, dict[str, Callable[[], str]]] = {
    "architecture.md": {"floors": floors, "parts": parts},
    "first_step.md": {"quadratic-range": quadratic_range, "published-rates": published_rates},
}


def rendered(page: str) -> str:
    """A page with its rendered parts made again.

    Raises:
        ValueError: the page lacks the marks of a part.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in RENDERED[page].items():
        marks = rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)"
        part = make()
        text, count = re.subn(marks, lambda found, part=part: f"{found[1]}\n{part}\n\n{found[2]}", text, flags=re.S)
        if count != 1:
            raise ValueError(f"{page} has {count} parts {name!r}; it needs one.")
    return text


if __name__ == "__main__":
    for name in RENDERED:
        (DOCS / name).write_text(rendered(name), encoding="utf-8")
