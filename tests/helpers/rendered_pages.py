"""Parts of the pages that are rendered and not written: `python -m tests.helpers.rendered_pages` writes them again.

A rendered part stands between `<!-- begin: name -->` and `<!-- end: name -->`; the text around it is free.
"""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from gradbounds.commands.predict import EXCLUDES, NEEDS
from gradbounds.flags import flag_text
from tests.helpers.rendered.atlas import comparisons, versions
from tests.helpers.rendered.log_formats import log_formats
from tests.helpers.rendered.placements import placements_at_a_glance
from tests.helpers.rendered.statements import corrections, statements_of_the_field, statements_that_fail
from tests.helpers.rendered.tables import families, pre_norm
from tests.helpers.rendered.training_codes import training_codes
from tests.test_architecture import MAY_IMPORT
from theory.configurations import PUBLISHED
from theory.configurations.classes import CLASSES
from theory.configurations.comparisons import FILE
from theory.coverage import GAPS
from theory.stack.groups import GROUPS

DOCS = Path(__file__).parents[2] / "docs"
_PREDICTED = {
    "prediction": "Not predicted at all",
    "queries": "No prediction of W^Q and W^K",
    "first_step": "No prediction of the first step",
    "grouped": "No prediction by groups of tokens",
    "noise_scale": "No noise scale",
    "finite_width": "No corrections for finite width",
}
_EMPTY = '""'
FLOORS = ("theory", "simulate", "checks", "figures", "gradbounds")


def floors() -> str:
    """Which of our packages, and which other libraries, each package imports."""
    lines = ["| package | imports of ours | other libraries |", "|---|---|---|"]
    for package in FLOORS:
        own = sorted(name for name in MAY_IMPORT[package] if name.partition(".")[0] in FLOORS)
        others = sorted(MAY_IMPORT[package] - set(own))
        lines.append(f"| `{package}` | {_listed(own)} | {', '.join(others)} |")
    return "\n".join(lines)


def coverage() -> str:
    """Return a list of the networks without a rule, by the command's prediction; the error states the reason.

    Networks without any prediction are listed once, under the first title.
    """
    lines, (at_all, *_) = [], _PREDICTED
    for subject, title in _PREDICTED.items():
        lines += [f"**{title}**", ""]
        listed = [gap for gap in GAPS if subject in gap.subjects and (subject == at_all or at_all not in gap.subjects)]
        lines += [f"- {gap.networks}" for gap in listed]
        lines.append("")
    return "\n".join(lines).rstrip()


def flags_together() -> str:
    """Return a table of the flags of `predict` that require or exclude other flags."""
    lines = ["| flag of `predict` | requires | cannot be combined with |", "|---|---|---|"]
    for name in dict.fromkeys([*NEEDS, *EXCLUDES]):
        excluded = ", ".join(map(flag_text, EXCLUDES.get(name, ((), ""))[0]))
        lines.append(f"| {flag_text(name)} | {flag_text(NEEDS[name]) if name in NEEDS else ''} | {excluded} |")
    return re.sub("(--[a-z-]+[a-z])", r"`\1`", "\n".join(lines))


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def fields_of_a_network() -> str:
    """Return a table of the fields of a Stack, by group, with their default, meaning and choices."""
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for group in GROUPS:
        lines.append(f"| **{group.__name__}** | | |")
        for field in fields(group):
            default = f"`{field.default or _EMPTY}`" if isinstance(field.default, str) else field.default
            names = [f"`{name}`" for name in field.metadata.get("choices", ()) if name != "NAME"]
            same = field.name == "lower_placement"  # as `placement`
            meaning = "; ".join([field.metadata["help"], *([", ".join(names)] if names and not same else [])])
            lines.append(f"| `{field.name}` | {'`own`' if default is None else default} | {meaning} |")
    return "\n".join(lines)


RENDERED: dict[str, dict[str, Callable[[], str]]] = {
    "claim_tutorial.md": {"statements that fail": statements_that_fail},
    "theory.md": {"placements at a glance": placements_at_a_glance},
    "extending.md": {"floors": floors},
    "configurations.md": {
        "flags together": flags_together,
        "published": lambda: _listed(list(PUBLISHED)) + ".",
        "families": lambda: _listed(list(CLASSES)) + ".",
        "training codes": training_codes,
    },
    "finite_width.md": {"coverage": coverage},
    "report.md": {
        "versions": versions,
        "families": families,
        "pre-norm": pre_norm,
        "statements of the field": statements_of_the_field,
        "corrections": corrections,
    },
    "setting.md": {"fields": fields_of_a_network},
    "training_logs.md": {"log formats": log_formats},
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
