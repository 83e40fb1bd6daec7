"""Parts of the pages that are rendered and not written: `python -m tests.helpers.rendered_pages` writes them again.

A rendered part stands between `<!-- begin: name -->` and `<!-- end: name -->`; the text around it is free.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import fill

from gradbounds.commands.predict import EXCLUDES, NEEDS
from tests.helpers.rendered.atlas import (
    comparisons,
    read_families,
    versions,
)
from tests.helpers.rendered.cheat_sheet import placements_at_a_glance
from tests.helpers.rendered.log_formats import log_formats
from tests.helpers.rendered.tables import (
    families,
    pre_norm,
)
from tests.helpers.rendered.training_codes import training_code_sources, training_codes
from tests.test_architecture import ARROWS, MAY_IMPORT
from theory.configurations.comparisons import FILE
from theory.coverage import GAPS, SUBJECTS

DOCS = Path(__file__).parents[2] / "docs"
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
        listed = (f"- `{part}`: {_listed(sorted(names.split()))}" for part, names in arrows.items())
        lines += [fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in listed]
        lines.append("")
    return "\n".join(lines).rstrip()


def coverage() -> str:
    """Networks without a rule, of what, and what is missing."""
    lines = ["| networks | what is not predicted | what is missing |", "|---|---|---|"]
    for gap in GAPS:
        subjects = ", ".join(SUBJECTS[name].replace(" of its ", " of the ").removeprefix("a ") for name in gap.subjects)
        lines.append(f"| {gap.networks} | {subjects} | {gap.because} |")
    return "\n".join(lines)


def flags_together() -> str:
    """Which flags of `predict` need others, and which exclude each other."""
    lines = ["| flag of `predict` | needs | excludes |", "|---|---|---|"]
    for name in dict.fromkeys([*NEEDS, *EXCLUDES]):
        others = EXCLUDES.get(name, ((), ""))[0]
        lines.append(f"| {_flag(name)} | {_flag(NEEDS.get(name, ''))} | {', '.join(map(_flag, others))} |")
    return "\n".join(lines)


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`" if name and " " not in name else name.replace("several", "several values of")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


RENDERED: dict[str, dict[str, Callable[[], str]]] = {
    "cheat_sheet.md": {"placements at a glance": placements_at_a_glance},
    "architecture.md": {"floors": floors, "parts": parts},
    "configurations.md": {
        "flags together": flags_together,
        "versions": versions,
        "families": read_families,
        "training codes": training_codes,
        "sources of training codes": training_code_sources,
    },
    "finite_width.md": {"families": families, "pre-norm": pre_norm},
    "first_step.md": {"log formats": log_formats},
    "relaxations.md": {"coverage": coverage},
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


def comparisons_file() -> str:
    """The text of the file behind `theory.configurations.comparisons`, a family on a line."""
    found, parts = comparisons(), []
    for part in ("families", "steps"):
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in found.pop(part).items())
        parts.append(f'"{part}": {{\n{rows}\n}}')
    return f"{json.dumps(found)[:-1]}, {', '.join(parts)}}}\n"


if __name__ == "__main__":
    for name in RENDERED:
        (DOCS / name).write_text(rendered(name), encoding="utf-8")
    FILE.write_text(comparisons_file(), encoding="utf-8")
