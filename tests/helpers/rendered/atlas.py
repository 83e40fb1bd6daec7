"""Tables of docs/configurations.md, of committed results alone.

`rendered_pages` puts them between their marks.
"""

import json
from pathlib import Path
from typing import Any

from theory.configurations.training_codes import TRAINING_CODES

_FOLDER = Path(__file__).parents[2] / "evidence"
_ROLES = ("WQ", "WV", "W1", "W2")
_LLAMA = "llama-3-8b"


def committed(name: str) -> Any:
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def architectures() -> str:
    """Architectures built by their own code, over what their configs predict."""
    found = committed("configurations")
    rows = []
    for name, one in found["models"].items():
        worst = one["largest deviation"]
        rows.append(
            [
                name, str(one["numbers"]), str(len(one["beyond"])), f"{100 * one['median sem']:.1f}%",
                f"{100 * (one['mean ratio'] - 1):+.1f}%".replace("-", "−"),
                f"{worst['ratio']:.3f} ± {worst['sem']:.3f} (dL/d{worst['of']}, layer {worst['layer']})",
            ]
        )  # fmt: skip
    return table(
        ["architecture", "numbers", "beyond", "median error", "mean deviation", "largest ratio to theory"], rows
    )


def setting() -> str:
    """What those architectures were reduced to."""
    found = committed("configurations")
    return (
        f"d = {found['width']}, L = {found['depth']}, V = {found['vocab']}, n = {found['tokens']}, {found['draws']} "
        f"networks each, transformers {found['transformers']}."
    )


def atlas() -> str:
    """Published models at initialization, the ratio of W^Q at their own length, and who else draws them here."""
    rows, longer = [], committed("models-over-tokens")["at their own length"]
    by_codes = committed("training-codes")["models"]
    for name, one in committed("atlas")["models"].items():
        own = longer[name]
        other = TRAINING_CODES[by_codes[name]["code"]].title if name in by_codes else ""
        rows.append([name, *_of(one), f"{_with_error(*own['first over last']['WQ'])}, n = {own['tokens']}", other])
    return table(["model", *_HEAD, "dL/dWQ at its own length", "below also by"], rows)


def models_over_tokens() -> str:
    """First layer over last of published models at more and more tokens; one has a table of its own."""
    found = {name: lengths for name, lengths in committed("models-over-tokens")["models"].items() if name != _LLAMA}
    rows = [
        [name, f"dL/d{role}", *(_with_error(*one["first over last"][role]) for one in lengths)]
        for name, lengths in found.items()
        for role in ("WQ", "WV", "W2")
    ]
    return table(["model", "gradient", *(f"n = {one['tokens']}" for one in next(iter(found.values())))], rows)


def llama_over_tokens() -> str:
    """The same of Llama 3 8B, with what it takes."""
    lengths, roles = committed("models-over-tokens")["models"][_LLAMA], ("WQ", "WK", "WV", "W1", "W2")
    rows = []
    for one in lengths:
        ratios = one["first over last"]
        cells = [_with_error(*ratios[role]) if role in ratios else "-" for role in roles]
        rows.append([str(one["tokens"]), *cells, f"{one['CPU seconds']:.1f}"])
    return table(["n", *(f"dL/d{role}" for role in roles), "CPU seconds"], rows)


def _with_error(ratio: float, error: float) -> str:
    """A ratio of two decimals in the file and its standard error, of one digit."""
    return f"{ratio:.3g} ± {error:.0f}" if error >= 9.5 else f"{ratio:.3g} ± {max(error, 0.01):.1g}"


def many_tokens() -> str:
    """Squared gradients of W^Q and W^K by groups of tokens, over those of networks; those at 1024 with small errors."""
    rows, cases = [], committed("many-tokens")["of each case"]
    for part in ("pre", "normalized"):
        long = committed(f"many-tokens-{part}")["networks"]
        cases |= {f"{network}, n = 1024": one for network, one in long.items()}
    for name, one in cases.items():
        for role in ("WQ", "WK"):
            of_role = one["squared gradients"][role]
            ratios = (f"{100 * ratio:+.1f}%".replace("-", "−") for ratio in of_role["over networks"])
            rows.append([f"{name}, $W^{role[1]}$", *ratios, f"{100 * max(of_role['standard errors']):.1f}%"])
    return table(["", *(f"layer {layer}" for layer in (1, 2, 3, 4)), "error"], rows)


def pattern_costs() -> str:
    """Seconds of one core to an error of 0.5%, before and after sampled patterns were worth more."""
    found, name = committed("pattern-costs"), "CPU seconds to 0.5% of W^Q, W^K"
    rows = []
    for case, after in found["after"].items():
        before = found["before"].get(case)
        ratio = f"{before[name] / after[name]:.3g}" if before else "not measured"
        rows.append([case, f"{before[name]:.3g}" if before else "not measured", f"{after[name]:.3g}", ratio])
    return table(["model", "before, s", "after, s", "times cheaper"], rows)


def tied_tokens() -> str:
    """Squared gradients with tied embeddings by groups of tokens, over those of networks: the least and the largest."""
    found, rows = committed("tied-tokens")["squared gradients"], []
    for name, of_roles in found.items():
        row = [name]
        for roles in (("WQ", "WK"), ("WV", "WG", "W1", "W2")):
            every = [of_roles[role] for role in roles if role in of_roles]
            ratios = [ratio for of_role in every for ratio in of_role["over networks"]]
            errors = [error for of_role in every for error in of_role["standard errors"]]
            ends = " to ".join(f"{100 * end:+.1f}%".replace("-", "−") for end in (min(ratios), max(ratios)))
            row.append(f"{ends} ({100 * max(errors):.1f}%)")
        rows.append(row)
    return table(["network", "$W^Q$, $W^K$ (largest error)", "others (largest error)"], rows)


_HEAD = [*(f"dL/d{role}" for role in _ROLES), "stream, first", "last", "cosine, first", "last"]


def _of(one: dict[str, Any]) -> list[str]:
    ratios = [f"{one['first over last'][role]:.3g}" for role in _ROLES]
    return [*ratios, *(f"{value:.3g}" for value in one["energy"]), *(f"{value:.2f}" for value in one["cosine"])]


def models_by_training_codes() -> str:
    """Published models as transformers draws them, and as training codes do."""
    by_class, rows = committed("atlas")["models"], []
    for name, one in committed("training-codes")["models"].items():
        rows.append([f"**{name}**", "transformers", *_of(by_class[name])])
        rows.append(["", TRAINING_CODES[one["code"]].title, *_of(one)])
    return table(["model", "drawn by", *_HEAD], rows)


def modules_by_training_codes() -> str:
    """Plain modules drawn by the rules, over theory."""
    rows = []
    for name, one in committed("training-codes")["modules"].items():
        far, (least, most) = one["largest deviation"], (min(one["stream"]), max(one["stream"]))
        furthest = f"{far['ratio']:.3f} ± {far['sem']:.3f} (dL/d{far['of']}, layer {far['layer']})"
        rows.append([name, str(one["width"]), str(one["numbers"]), f"{least:.3f} to {most:.3f}", furthest])
    return table(["module", "d", "numbers", "stream over theory", "furthest ratio to theory"], rows)


def choices() -> str:
    """The same with one choice of the model undone, or another's taken over."""
    found = committed("atlas")
    rows = []
    for name, others in found["choices"].items():
        rows.append([f"**{name}**", *_of(found["models"][name])])
        rows += [[f"{name}: {choice}", *_of(one)] for choice, one in others.items()]
    return table(["model and change", *_HEAD], rows)


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


def read_families() -> str:
    """Families that are read, and the matrix whose gradient is furthest from what its configuration predicts."""
    classes = json.loads((_FOLDER.parents[1] / "theory/configurations/classes.json").read_text(encoding="utf-8"))
    measured = committed("configuration-gradients")["models"] | committed("configuration-experts")["models"]
    rows = []
    for family, one in classes["classes"].items():
        text = "in the next section"
        if family in measured:
            text = _furthest(measured[family])
        rows.append([f"`{family}`", one["name"], text])
    return table(["model_type", "class", "furthest norm over prediction"], rows)


def experts() -> str:
    """Norms of models with experts over their predictions: the router's, the experts', and the furthest of all."""
    rows = []
    for name, one in committed("configuration-experts")["models"].items():
        shown = [f"{row['ratio']:.3f} ± {row['sem']:.3f}" for row in (one["matrices"][r] for r in ("WR", "W1", "W2"))]
        rows.append([name, str(one["draws"]), *shown, _furthest(one)])
    return table(["model", "networks", "dL/dWR", "dL/dW1", "dL/dW2", "furthest of all"], rows)


def wide_experts() -> str:
    """The same of networks of the Stack, of 1024 coordinates, sampled here."""
    names = ("grad_sq_WR", "grad_sq_W1", "grad_sq_WG", "grad_sq_W2", "hidden_energy")
    rows = [
        [name, *(f"{one[of]['ratio']:.3f} ± {one[of]['sem']:.3f}" for of in names)]
        for name, one in committed("experts")["networks"].items()
    ]
    return table(["network", "dL/dWR", "dL/dW1", "dL/dWG", "dL/dW2", "stream"], rows)


def batches_of_experts() -> str:
    """Norms of the gradients of many sequences over predicted ones, and what two of them share."""
    rows = [
        [f"dL/d{role.replace('Wemb', 'W_emb')}", f"{one['ratio']:.3f} ± {one['sem']:.3f}", f"{one['shared']:.2f}"]
        for role, one in committed("experts")["batches"].items()
    ]
    return table(["matrix", "norm over predicted", "shared"], rows)


def tied_experts() -> str:
    """Norms over predicted ones where both ends are one matrix: of routers, and the furthest of all."""
    rows = []
    for name, one in committed("experts")["tied"].items():
        router = one["WR"]
        rows.append([name, f"{router['ratio']:.3f} ± {router['sem']:.3f}", _furthest({"matrices": one})])
    return table(["network", "dL/dWR", "furthest of all"], rows)


def grouped_experts() -> str:
    """Squared gradients by groups of tokens over those of all, and the furthest of them in standard errors."""
    rows = []
    for name, one in committed("expert-groups")["networks"].items():
        gradients = {role: row for role, row in one.items() if role.startswith("grad_sq_")}
        shown = [one.get(f"grad_sq_{role}") for role in ("WQ", "WR", "W1")] + [one["expert_load_max"]]
        far = max(gradients, key=lambda role: abs(gradients[role]["ratio"] - 1.0) / max(gradients[role]["sem"], 1e-4))
        *cells, text = ("" if row is None else f"{row['ratio']:.3f} ± {row['sem']:.3f}" for row in [*shown, one[far]])
        rows.append([name, *cells, f"{text} (dL/d{far.removeprefix('grad_sq_')})"])
    return table(["network", "dL/dWQ", "dL/dWR", "dL/dW1", "fullest expert", "furthest"], rows)


def _furthest(found: dict[str, Any]) -> str:
    """The matrix whose norm is furthest from its prediction, and what networks of the Stack have of it, if any do."""
    role, far = max(found["matrices"].items(), key=lambda item: abs(item[1]["ratio"] - 1))
    where = f"{role.removeprefix('encoder_')}{', encoder' if role.startswith('encoder_') else ''}"
    text = f"{far['ratio']:.3f} ± {far['sem']:.3f} (dL/d{where})"
    if "networks of the Stack" not in found:
        return text
    ours = found["networks of the Stack"]["matrices"][role]
    return f"{text}; ours {ours['ratio']:.3f} ± {ours['sem']:.3f}"


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
