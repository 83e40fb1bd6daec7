"""The command `gradbounds predict`: the gradients of one network by layer, and of changed networks."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from checks.stacks.gradients_by_layer import Columns, layer_columns
from checks.trust import Trust
from gradbounds.actions.plan import batch_text, planned
from gradbounds.actions.remedies import remedy, search_seconds
from gradbounds.budget import Budget, OverBudgetError, Way, way
from gradbounds.described_network import Description, variants
from gradbounds.layer_summary import layer_summary
from gradbounds.network_comparison import comparison_lines
from gradbounds.network_text import (
    drawn_lines,
    network_lines,
    note_lines,
    sampled_lines,
    title,
    trust_lines,
    with_cosines,
)
from gradbounds.progress import LONG, shown
from gradbounds.result import Frames, Result
from gradbounds.units import TORCH, takes
from simulate.counts import check_count
from theory import NoRuleError, Prediction, Stack
from theory.configurations import Note, drawn_by, model_type
from theory.configurations.comparisons import compared
from theory.configurations.training_codes import HUGGING_FACE
from theory.mean_field.cost import Cost

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulate import Samples

_DRAWS = 16

# Changes that a search tests, by the estimate.
_CHANGES = 8

_WHOLE = "all requested tokens and attention samples"
_CHEAPER = "A cheaper method of the theory is used here, to stay within time and memory"


def predict_stack(
    given: Mapping[str, Any], of: Description, *, compare: Sequence[str], draws: int | None, seed: int,
    patterns: int | None, max_time: str | None, memory: str | None = None, every_layer: bool = False,
    further: bool = True, tables: bool = True, coarse: bool = False,
) -> Result:  # fmt: skip
    """Predict the gradients of one network layer by layer; on request, sample networks and compare with other networks.

    Without `further`, the change that evens out the layers is omitted. Without `tables`, the tables of
    layers are omitted if theory has a rule and nothing is sampled. `coarse` is the argument of `theory.predict`.

    Raises:
        ValueError: an argument is outside its range, a configuration cannot be read, or neither theory nor samples are
            within the time and the memory.
    """
    budget, (stack, notes) = Budget.of(max_time, memory), of.read(given)
    others = {changes: of.compared(given, changes) for changes in variants(compare)}
    for name, count, least in (("draws", draws, 2), ("seed", seed, 0), ("patterns", patterns, 2)):
        if count is not None:
            check_count(name, count, least)  # one draw has no error
    ways = {changes: way(other, patterns, budget) for changes, other in others.items()}
    chosen, reason, is_refused = way_or_reason(stack, patterns, budget, coarse=coarse)
    prediction = None if chosen is None else predicted(chosen)
    evener, evening = None, ""
    if chosen is not None and further:
        evener, evening = remedy(chosen.stack, layer_columns(prediction, None), budget, chosen)
    if chosen is None and draws is None:
        draws = _DRAWS
        _check_sampling(stack, draws, budget, reason * is_refused)
    samples = None if draws is None else _sampled(stack, draws, seed)
    table = layer_columns(prediction, samples)
    beside = {changes: layer_columns(predicted(each), None) for changes, each in ways.items()}
    evidence = "" if prediction is None else known_of(stack, notes, given)
    cheaper = "" if chosen is None else chosen.said
    shown_too = tables or prediction is None or draws is not None
    sentences = _sentences(stack, notes, table, evidence) | {"evened": evening}
    return Result(
        about=title(stack), tables=Frames({"prediction": table}),
        values={
            "stack": stack, "no_rule": reason or None, "not_judged": Trust.of(stack).why or None, "notes": notes,
            "drawn_by": drawn_by(notes), "cheaper": cheaper or None, "compared_with_code": evidence or None,
            "sentences": sentences, "evened_by": evener,
            "compared": [{"stack": others[key], "prediction": Frames({"": beside[key]})[""]} for key in others],
        },
        lines=[
            title(stack), *drawn_lines(notes), "", *sentences["stands_out"], *[evening] * bool(evening),
            *["", f"{_CHEAPER}: {cheaper}."] * bool(cheaper),
        ],
        below=[
            *([
                "", *network_lines(stack, table, reason, every_layer=every_layer, evidence=evidence),
            ] if shown_too else []),
            *chain.from_iterable(
                comparison_lines(changes, (stack.tokens, other.tokens), table, beside[changes], notes)
                for changes, other in others.items()
            ),
            *(note_lines(notes) if shown_too else []),
        ],
        figures={"gradient_over_layers": partial(_profile_figure, stack, table)},
    )  # fmt: skip


def _sentences(stack: Stack, notes: Sequence[Note], table: Columns, evidence: str) -> dict[str, Any]:
    # Return the text about a network by topic.
    lines = {
        "drawn": drawn_lines(notes), "stands_out": layer_summary(stack, table).lines,
        "trust": trust_lines(stack, evidence), "notes": note_lines(notes),
        "sampled": sampled_lines(stack, with_cosines(table)),
    }  # fmt: skip
    return {topic: [*filter(None, of_topic)] for topic, of_topic in lines.items()}


def way_or_reason(stack: Stack, patterns: int | None, budget: Budget, *, coarse: bool) -> tuple[Way | None, str, bool]:
    """Return how the network is predicted, or the reason why it is not, and whether the reason is time or memory."""
    try:
        return way(stack, patterns, budget, coarse=coarse), "", False
    except (OverBudgetError, NoRuleError) as error:
        return None, str(error), isinstance(error, OverBudgetError)


def predict_plan(
    given: Mapping[str, Any], of: Description, *, compare: Sequence[str] = (), draws: int | None = None,
    patterns: int | None, max_time: str | None, memory: str | None = None, seed: int = 0,
) -> Result:  # fmt: skip
    """Estimate the time and memory of the predictions for a network and for the compared networks.

    The search for a change of one network is included. The seed, as of samples, costs nothing.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
    """
    budget, (stack, notes) = Budget.of(max_time, memory), of.read(given)
    named = {"network": stack} | {" ".join(key): of.compared(given, key) for key in variants(compare)}
    rows, lines, whole = list[dict[str, Any]](), list[str](), Cost()
    for name, network in named.items():
        chosen, refused, _ = way_or_reason(network, patterns, budget, coarse=False)
        cost, how = (chosen.cost, chosen.said or _WHOLE) if chosen else (Cost(), refused)
        if chosen and network is stack:
            search = min(_CHANGES * cost.seconds, search_seconds(cost.seconds))
            cost += Cost(search)
        if not chosen or (draws and network is stack):
            cost += _sampling_cost(network, draws or _DRAWS)
            how += f"; {draws or _DRAWS} sampled networks"
        whole += cost
        rows.append({"stack": network, "seconds": cost.seconds, "bytes": cost.bytes, "way": how})
        lines.append(f"  {name}: {how}, {takes(cost.seconds, cost.bytes)}")
    what = "gradients of every layer, and a change for them"
    at = batch_text(stack.sequences, stack.tokens, None)
    return planned((stack, notes, of), at, what, whole, *lines, networks=rows)


def known_of(stack: Stack, notes: Sequence[Note], given: Mapping[str, Any]) -> str:
    """Describe how predictions for a published model agree with its own code, if measured; "" otherwise."""
    return compared(model_type(notes), stack, frozenset(given)) if drawn_by(notes) == HUGGING_FACE else ""


def predicted(chosen: Way) -> Prediction:
    """Predict a network; if a cheaper method than the requested one is used, report it before it starts."""
    cost = chosen.cost
    if chosen.said and cost.seconds > LONG:
        print(f"{_CHEAPER}: {chosen.said}", file=sys.stderr, flush=True)
    with shown("predicting the gradients", cost):
        return chosen.predicted()


def _check_sampling(stack: Stack, draws: int, budget: Budget, reason: str) -> None:
    """Refuse a network if neither theory nor samples are within the budget.

    Raises:
        ValueError: neither is within the budget; the error states the cost of both.
    """
    cost = _sampling_cost(stack, draws)
    if reason and not budget.holds(Cost(cost.seconds, cost.bytes - TORCH)):
        raise ValueError(f"{reason}. Sampling {draws} networks would take {takes(cost.seconds, cost.bytes)}.")


def _sampling_cost(stack: Stack, draws: int) -> Cost:
    # Return the cost of sampling.
    from simulate import Cell  # late: torch takes longer to load than a prediction takes
    from simulate.runs.cost import block_bytes, block_work

    cell = Cell(stack)
    return Cost(block_work(cell).cost * cell.blocks(draws), block_bytes(cell) + TORCH)


def _sampled(stack: Stack, draws: int, seed: int) -> "Samples":
    from simulate import sample  # late: torch takes longer to load than a prediction takes

    with shown(f"sampling {draws} networks", _sampling_cost(stack, draws)):
        return sample(stack, draws=draws, seed=seed)


def _profile_figure(stack: Stack, columns: Columns) -> "Figure":
    # Draw the gradient norms over the layers; the figure takes squared norms and draws their square roots.
    from figures.layer_profile import layer_profile  # late: it loads matplotlib

    table = Frames({"": columns})[""]
    shown = table[table["quantity"].str.startswith("grad_") & (table["layer"] > 0)].copy()
    shown["quantity"] = shown["quantity"].str.replace("grad_", "grad_sq_", regex=False)
    shown["sem"] = 2 * shown["mean"] * shown["sem"]
    shown[["mean", "predicted"]] = shown[["mean", "predicted"]] ** 2
    sizes = {"placement": stack.placement, "width": stack.width, "depth": stack.depth, "tokens": stack.tokens}
    return layer_profile(shown.assign(**sizes))
