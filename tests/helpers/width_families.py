"""The networks that coefficients of finite width are measured with, one of every family, and errors of a whole step."""

from collections.abc import Iterator
from itertools import product

from checks.trust import NUMBERS, REFERENCE_DEPTH, REFERENCE_SCALE, Number, Trust, family, step_reference
from theory import Stack
from theory.coverage import gaps
from theory.stack.optimizers import Optimizer
from theory.stack.placements import COMPOSITIONS

_ATTENTION: dict[str, dict[str, object]] = {
    "uniform": {},
    "queries": {"heads": 4},
    "linear queries": {"heads": 32, "attention_scale": "linear"},
}


def reference_stacks(width: int) -> Iterator[tuple[str, Stack]]:
    """One stack of every family of predictions, which is that of the paper but for what makes the family."""
    for placement, ffn, kind, source in product([*COMPOSITIONS, "no norms"], ("plain", "gated"), _ATTENTION, (0, 4)):
        bare = placement == "no norms"
        # Energies of gated units with a source and no norms leave the range of every quadrature.
        if source and (kind == "linear queries" or (bare and ffn == "gated")):
            continue
        fields: dict[str, object] = {"placement": "pre" if bare else placement, "ffn": ffn, "source_tokens": source}
        fields |= {"normalization": "none"} if bare else {}
        fields |= {"activation": "silu"} if ffn == "gated" else {}
        fields |= ({"query_key_scale": REFERENCE_SCALE} | _ATTENTION[kind]) if kind != "uniform" else {}
        stack = Stack(width=width, depth=REFERENCE_DEPTH, tokens=4, vocab=16, **fields)  # type: ignore[arg-type]
        if not gaps(stack, "queries"):
            yield family(stack), stack


def step_references(width: int) -> Iterator[Stack]:
    """One stack of every family of first steps; of placements those of most published models."""
    for placement, ffn, attention in product(("post", "pre", "output"), ("plain", "gated"), ("uniform", "queries")):
        yield step_reference(placement, ffn, attention, width)


def step_errors(stack: Stack, optimizer: Optimizer) -> dict[Number, float]:
    return {number: Trust.of(stack, number, optimizer).error for number in NUMBERS}
