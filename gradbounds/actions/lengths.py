"""The view `gradbounds predict --tokens 16 256 4096`: the gradients of one network at several sequence lengths."""

from collections.abc import Mapping, Sequence
from typing import Any

from checks.stacks.gradients_by_layer import Columns, layer_columns, matrices
from gradbounds.actions.predict import predict_plan, predicted
from gradbounds.budget import Budget, way
from gradbounds.described_network import Description
from gradbounds.network_comparison import length_lines
from gradbounds.network_text import drawn_lines, ends_of_layers, note_lines, title, with_cosines
from gradbounds.progress import shown
from gradbounds.result import Frames, Result
from theory.configurations import drawn_by
from theory.mean_field.cost import Cost

# What a ratio gains from the least number of tokens to the largest where it is said to grow.
_GROWN = 1.1

_WHY = (
    "As n grows, gradients of W^Q, W^K and W^V grow in the first layer relative to the last. The last layer's tokens "
    "have less in common, so that its gradients shrink; the first layer's shrink less (docs/report.md, Groups of "
    "tokens)."
)


def predict_lengths(
    given: Mapping[str, Any], lengths: Sequence[int], of: Description, *, patterns: int | None, max_time: str | None,
    memory: str | None = None, plan: bool = False,
) -> Result:  # fmt: skip
    """Predict the ratio of gradient norms first layer / last layer for every matrix, at several sequence lengths.

    Raises:
        ValueError: an argument is outside its range, a configuration cannot be read, or a length is beyond the time or
            the memory, before any is predicted.
        NoRuleError: theory has no rule for the network.
    """
    if plan:
        return predict_plan(given, of, patterns=patterns, max_time=max_time, memory=memory)
    budget = Budget.of(max_time, memory)
    read = {n: of.read({**given, "tokens": n}) for n in sorted(set(lengths))}
    ways = {n: way(stack, patterns, budget) for n, (stack, _) in read.items()}
    with shown("predicting the gradients", sum((each.cost for each in ways.values()), Cost())):
        tables = {n: layer_columns(predicted(each), None) for n, each in ways.items()}
    stack, notes = read[max(read)]
    named = title(stack, ", ".join(map(str, read)))
    counts: dict[str, list[str]] = {}
    for n, each in ways.items():
        counts.setdefault(each.said, []).append(str(n))
    cheaper = [f"At n = {', '.join(at)}: {words}." for words, at in counts.items() if words]
    return Result(
        about=named,
        tables=Frames({"lengths": _length_columns(tables)}),
        values={
            "stacks": [stack for stack, _ in read.values()], "notes": notes, "drawn_by": drawn_by(notes),
            "cheaper": cheaper or None,
        },
        lines=[
            named, *drawn_lines(notes), *length_lines(tables), "", *([_WHY] if _grows(tables) else []), *cheaper,
            *note_lines(notes),
        ],
    )  # fmt: skip


def _length_columns(tables: Mapping[int, Columns]) -> dict[str, list[Any]]:
    # Return by matrix and length: norm of first / last layer, and norm of the last layer, with errors.
    names = ("quantity", "tokens", "first_over_last", "first_over_last_sem", "last", "last_sem")
    rows = [
        (name, tokens, *ends)
        for tokens, table in tables.items()
        for name in matrices(table)
        if (ends := ends_of_layers(table, name, "predicted")) is not None
    ]
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def _grows(tables: Mapping[int, Columns]) -> bool:
    # Return whether more tokens raise W^V's first / last ratio more than W^2's, and lower the last layer's cosine.
    few, many = (with_cosines(tables[n]) for n in (min(tables), max(tables)))
    ends = {
        name: (ends_of_layers(few, name, "predicted"), ends_of_layers(many, name, "predicted"))
        for name in ("grad_WV", "grad_W2", "cosine")
    }
    if any(end is None for both in ends.values() for end in both):
        return False
    gained = {name: both[1][0] / both[0][0] for name, both in ends.items()}  # type: ignore[index]
    aligned = [end[2] for end in ends["cosine"]]  # type: ignore[index]
    return gained["grad_WV"] > _GROWN * max(1.0, gained["grad_W2"]) and aligned[1] < aligned[0]
