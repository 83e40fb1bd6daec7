"""The table of docs/configurations.md on how training codes draw, of their rules alone."""

import math
from collections.abc import Mapping

from tests.helpers.rendered.atlas import table
from theory.configurations.training_codes import TRAINING_CODES

_PARTS = {
    "matrices": "others", "up": "$W^1$ of gated units", "projection": "$W^O$", "down": "$W^2$", "embeddings": "inputs",
    "head": r"$W_\mathrm{emb}$",
}  # fmt: skip


def training_codes() -> str:
    """The variance of an entry of every matrix, and where normal entries are cut."""
    rows = []
    for code in TRAINING_CODES.values():
        if not code.refused:
            variances = {part: getattr(code, part) for part in _PARTS}
            cells = [_product(variances[part] or (code.matrices if part == "up" else {})) for part in _PARTS]
            if code.units:
                cells[1] = f"{_product(code.units)}; so are its gate and the $W^1$ of plain ones"
            cuts = ", ".join(f"{part} {cut:g}" for part, cut in code.cut.items()) or "none"
            rows.append([f"`{code.pattern}`", f"{code.title}, {code.rule}", *cells, cuts])
    return table(["name", "code, rule", *_PARTS.values(), "cut at"], rows)


def _product(powers: Mapping[str, float]) -> str:
    times = powers.get("times", 1.0)
    symbols = {"sigma": r"\sigma", "d0": "d_0", "L0": "L_0"}
    factors = [
        symbols.get(name, name) + (f"^{{{power:g}}}" if power != 1 else "")
        for name, power in powers.items()
        if name != "times"
    ]
    if times != 1.0 or not factors:
        factors.insert(0, f"{times:g}" if times >= 1e-4 or not times else f"10^{{{math.log10(times):.3g}}}")
    return f"${' '.join(factors)}$"
