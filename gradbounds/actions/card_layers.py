"""The rows of the card that compare the layers of step 1, and the advised change that makes them even."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from checks.stacks.gradients_by_layer import Columns
from gradbounds.actions.batch import Asked, law_of
from gradbounds.actions.first_line import quick_cost
from gradbounds.actions.remedies import (
    EVEN,
    Remedy,
    as_flags,
    change_of_batch,
    changes_of,
    furthest,
    remedy,
    smaller_embeddings,
)
from gradbounds.budget import Budget, way
from gradbounds.described_network import Description
from gradbounds.layer_summary import PLAIN_RATIO, QUICK_RATIO, UNEVEN, card_row, layer_lines
from gradbounds.network_text import tokens_text
from gradbounds.result import Result
from theory import Stack
from theory.configurations import Note

# The largest difference of losses that count as equal.
SAME_LOSS = 0.01

# The fewest tokens of a sequence that represents a longer one; tokens repeat too rarely in shorter ones.
FEWEST_TOKENS = 128

# Attention samples of one sequence with coarse groups where only its stream and the change of a field are printed.
FEW_SAMPLES = 4

# Seconds by the estimate, at most, of a change's batch, and of its batch of shorter sequences where that takes longer:
# else the change is that of one sequence. With embeddings of 20 and 50, ratios of Qwen3-30B-A3B for 160 tokens are then
# within 4% of those for 40960 (WK: 20%), and of Qwen2.5-7B and Mixtral-8x7B for 512 tokens within 1% (WK: 29%).
_CHANGE_SECONDS, _SHORT_SECONDS = 6.0, 3.0

# The most tokens of the sequences for which a milder change is tested.
_FEW_TOKENS = 512

_EVENED = "if you use SGD"


def layer_rows(stack: Stack, table: Columns, run: Result | None, notes: Sequence[Note], *, rest: str) -> list[str]:
    """Compare the layers, in the batch of step 1 if it is known; all layers are listed by the flag or place `rest`."""
    others = {
        name: f"{float(f'{ratio:.2g}'):g}x" for name, ratio in (run.values["of_larger_batch"] if run else {}).items()
    }
    others |= run.values["unsure_of_larger_batch"] if run else {}
    larger = [f" (larger batches: {name} {ratio})" for name, ratio in others.items()]
    of, whole = (f"in step 1{''.join(larger[:1])}", run.values["gradient_norm"] ** 2) if run else ("", 0.0)
    coarse = run is not None and run.values["coarse"]
    lines = layer_lines(stack, run.columns("layers") if run else table, of, whole, notes, coarse=coarse)
    return [f"{lines[0]}; all: {rest}", *lines[1:]] if lines else []


def change_of_step(
    given: Mapping[str, Any], of: Description, single: Result, run: Result | None, text: str,
    limits: Mapping[str, Any], *, coarse: bool,
) -> Remedy | None:  # fmt: skip
    """Return one change that makes the layers of step 1 even.

    Changes are tested for one sequence, and the best one for the batch. If that takes long, its sequences are halved,
    to at least `FEWEST_TOKENS`. A milder change is tested for at most 512 tokens. Where the changed tied network fails
    for the batch, it is untied. Without a text, the change is that of one sequence, if it was searched for.
    """
    if not text:
        return single.values["evened_by"]
    stack, table = single.values["stack"], single.columns()
    if furthest(table if run is None else run.columns("layers")) < UNEVEN:
        return None
    budget = Budget.of(limits["max_time"], limits["memory"])
    own = way(stack, limits["patterns"] or (FEW_SAMPLES if coarse else None), budget, coarse=coarse)
    change, _ = remedy(stack, table, budget, own)
    if not (change and run):
        return change
    whole, limit = run.values["stack"], _CHANGE_SECONDS
    while limit < quick_cost(whole, law_of(whole, text), limits["patterns"]).seconds:
        whole, limit = replace(whole, tokens=whole.tokens // 2), _SHORT_SECONDS
        if whole.tokens < FEWEST_TOKENS:
            return change
    of_batch = Asked({**given, "tokens": whole.tokens}, text), run.values["batch"], of, run
    untied = [each for each in changes_of(stack, table) if each[1].get("embeddings") and each[1] != change.values]
    larger = [(each.words, each.values) for each in [change.larger] if each and each.first_over_last < EVEN]
    advised: Remedy | None = None
    for words, values in [(change.words, change.values), *larger, *untied]:
        if advised is None or (advised.first_over_last >= EVEN and (words, values) in larger):
            advised = change_of_batch(*of_batch, words, values, **limits) or advised
    if advised is None:
        return None
    short = replace(of_batch[0], given={**given, "tokens": min(_FEW_TOKENS, whole.tokens)})
    for words, values in smaller_embeddings(stack, advised):
        advised = replace(advised, milder=change_of_batch(short, *of_batch[1:], words, values, **limits))
    is_shorter = whole.tokens < run.values["stack"].tokens
    return replace(advised, norms=None, tokens=whole.tokens) if is_shorter else advised


def change_rows(
    table: Columns, run: Result | None, change: Remedy | None, tokens: int, *, has_loss: bool
) -> list[str]:  # fmt: skip
    """Return one change that makes the layers even, with its effect and cost, or state that there is none.

    Args:
        table: one sequence's `layer_table`.
        run: result of `predict --batch`, or None. If its layers are even, there is nothing to change.
        change: the change.
        tokens: number of tokens of the sequence.
        has_loss: whether theory has the loss.
    """
    if furthest(table if run is None else run.columns("layers")) < UNEVEN:
        return []
    if change is None:
        return [
            card_row(_EVENED, "no tested change halves the layers' difference (log scale); all, with costs: --compare")
        ]
    before, after = change.losses
    loss = f", loss {after - before:+.2f}" * (has_loss and abs(after - before) >= SAME_LOSS)
    of = "" if change.tokens else f"; for one sequence of {tokens_text(tokens)}"
    of = "; norm {:.3g} -> {:.3g}".format(*change.norms) if change.norms else of
    effect = change.effect
    if run is not None and (change.norms or change.tokens):
        error = QUICK_RATIO if run.values["stack"].ffn == "gated" else PLAIN_RATIO
        effect = re.sub(r"\((W[QK])\)", rf"(\1, +-{error:.0%})", effect)
        effect = re.sub(r"[\d.]+(?=x )", lambda x: f"{float(x[0]):.{3 - bool(change.tokens)}g}", effect)
    effect = re.sub(r"^(\S+x) \((\w+)\) to \1 \(", r"\1 (\2 to ", effect)
    effect = effect.replace("; ", ", ").replace("cosine of two tokens", "cosine")
    cost = _cost_text(change, int(max(table["layer"])))
    code = f"{cost}code: " * (run is not None and "embedding_scale" in change.values)
    flags = " ".join(as_flags(change.values))
    is_for_all = "; cosine of two tokens" in change.effect  # which matters to every optimizer
    return [
        card_row(
            "alike tokens" if is_for_all else _EVENED,
            f"{'mended by ' * is_for_all}{change.words}: then {effect}{of}{loss}; {code}--compare {flags}",
        )
    ]


def _cost_text(change: Remedy, depth: int) -> str:
    # State which share of the residual stream the layers still add after larger embeddings, and a milder value.
    #
    # Layers add nearly the same mean square to all larger embeddings, so that the milder value's share follows. In
    # shorter sequences they add more, because attention averages fewer values.
    before, after = (f"{float(f'{100 * share:.2g}'):g}%" for share in change.added)
    if not 0.0 < change.added[1] < change.added[0] or "embedding_scale" not in change.values:
        return ""
    most = "up to " * bool(change.tokens)
    text = f"cost: layers 2 to {depth} add {most}{after} of the stream (now {before}); "
    if (milder := change.milder) is None:
        return text
    times = float(milder.values["embedding_scale"]) / float(change.values["embedding_scale"])
    share = 1.0 / (1.0 + (1.0 / change.added[1] - 1.0) * times**2)
    apart = f"{milder.values['embedding_scale']:g} ({milder.first_over_last:.2g}x apart"
    return f"{text}milder: {apart}, {most or 'about '}{share:.0%}); "
