"""The table of versions of transformers, and the comparisons with classes, of committed results only.

`rendered_pages` puts them between their marks.
"""

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[2] / "evidence"


def committed(name: str) -> Any:
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def versions() -> str:
    """Versions of transformers with which the table was compared, and what they have otherwise."""
    rows = []
    for version, found in committed("configuration-classes")["versions"].items():
        other = [
            f"{family}: {', '.join(_other(what, one) for what, one in parts.items())}"
            for family, parts in found["other than in the table"].items()
        ]
        rows.append([version, str(found["families"]), "; ".join(other) or "none"])
    return table(["transformers", "families", "other than in the table"], rows)


def _other(what: str, one: Any) -> str:
    if what == "deviations":
        return " and ".join(f"{role} {times:.3g} times" for role, times in one.items())
    if what == "defaults":
        return f"default of {', '.join(one)}"
    return {"rope": "base of rotations", "tied": "when both ends are tied"}[what]


def _counted(found: dict[str, Any]) -> dict[str, Any]:
    """How many matrices of a family are compared, how many are beyond, and whether those of the Stack are too."""
    beyond = [role for role, row in found["matrices"].items() if abs(row["ratio"] - 1) > max(0.05, 4 * row["sem"])]
    ours = found.get("networks of the Stack", {"matrices": {}})["matrices"]
    too = bool(beyond) and all(abs(ours[role]["ratio"] - 1) > 0.05 for role in beyond)
    return {"numbers": len(found["matrices"]), "beyond": len(beyond), "ours": too}


def comparisons() -> dict[str, Any]:
    """What `theory.configurations.comparisons` has of each family: numbers, and how many are beyond 5% and 4 errors.

    By `model_type` and by whether embeddings were tied; and of those beyond, whether networks of the Stack of that
    width are off by more than 5% too.
    """
    classes = json.loads((_FOLDER.parents[1] / "theory/configurations/classes.json").read_text(encoding="utf-8"))
    of_layers, of_matrices, t5 = (
        committed(name) for name in ("configurations", "configuration-gradients", "configurations-t5")
    )
    families: dict[str, Any] = {}
    for family, one in of_matrices["models"].items():
        ends = "tied" if "WH" in classes["classes"][family]["deviations"] else "untied"
        families[family] = {ends: _counted(one)}
    of_experts = committed("configuration-experts")
    for name, one in of_experts["models"].items():
        counts, before = _counted(one), families.get(family := name.partition(",")[0], {}).get("untied")
        if before is not None:  # in two forms
            counts |= {key: before[key] + counts[key] for key in ("numbers", "beyond")}
            counts["ours"] = before["ours"] or counts["ours"]
        families[family] = {"untied": counts | {"width": of_experts["width"]}}
    plain = {family.replace("_", ""): family for family in classes["classes"]}
    for name, one in of_layers["models"].items():
        built, _, tied = name.partition(", ")
        family = plain[built.lower()]
        ends = "tied" if tied or family in ("bert", "roberta") else "untied"
        families.setdefault(family, {})[ends] = {"numbers": one["numbers"], "beyond": len(one["beyond"]), "ours": False}
    both = t5["models"].values()
    numbers, beyond = sum(one["numbers"] for one in both), sum(len(one["beyond"]) for one in both)
    families["t5"] = {"untied": {"numbers": numbers, "beyond": beyond, "ours": False}}
    sizes = {(found["width"], found["tokens"]) for found in (of_layers, of_matrices, t5)}
    ((width, tokens),) = sizes
    steps, tied = committed("configuration-steps"), committed("configuration-steps-tied")
    ends = {f"{family}, tied": one for family, one in tied["models"].items()}
    # Of those that were built wider the widest.
    of_widths = {steps["width"]: steps["models"] | ends} | committed("configuration-steps-wide")["models"]
    by_family: dict[str, Any] = {}
    for at, models in of_widths.items():
        for name, one in models.items():
            family, _, kind = name.partition(", ")
            by_family.setdefault(family, {})[kind or "untied"] = {"width": int(at)} | {
                optimizer: [numbers[name][key] for name in ("gain", "curvature") for key in ("ratio", "sem")]
                for optimizer, numbers in one["optimizers"].items()
            }
    return {
        "width": width, "tokens": tokens, "families": dict(sorted(families.items())),
        "step_tokens": steps["tokens"], "steps": dict(sorted(by_family.items())),
    }  # fmt: skip
