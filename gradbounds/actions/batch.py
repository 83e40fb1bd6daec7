"""`gradbounds predict --batch`: the first line of a training log, loss and gradient norm of a batch of any size."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from gradbounds.budget import SOON, Budget, OverBudgetError
from gradbounds.described_network import Description
from gradbounds.network_text import drawn_lines, matrix_name, note_lines, title
from gradbounds.result import Result
from gradbounds.units import duration, format_bytes
from simulate.counts import check_count
from simulate.text import TEXTS
from theory import Stack
from theory.configurations import drawn_by, model_type
from theory.configurations.vectors import BIASES, learned_vectors
from theory.coverage import require
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.cost import is_grouped, prediction_cost
from theory.mean_field.prediction import with_probes
from theory.mean_field.text_law import TextLaw

_NAMES = {
    "Wemb": "output matrix",
    "gain": "norms' gains",
    "shift": "norms' biases",
    "inputs": "table of inputs",
    "positions": "table of positions",
    "segment": "segment's vector",
}


_NOT_TEXT = (
    "Words are independent and differ, which is not text: text repeats words and labels, so that its gradients agree",
    "more; --text says how.",
)


def predict_batch(
    given: Mapping[str, Any], batch: int, of: Description, *, text: str | None = None,
    patterns: int | None, max_time: str, memory: str | None = None, plan: bool = False,
) -> Result:  # fmt: skip
    """Loss and gradient norm of a batch of so many sequences, with the share of every kind of parameter.

    Words are independent and differ, or follow the law of a text: as `TextLaw.read` has it, or one that comes along.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
        NoRuleError: there is no rule for the network.
        OverBudgetError: theory would take more than it may.
    """
    budget = Budget.of(max_time, memory)
    check_count("batch", batch, 1)
    if patterns is not None:
        check_count("patterns", patterns, 2)
    stack, notes = of.read(given)
    require(stack, "prediction")
    require(stack, "noise_scale")
    law = None
    if text is not None:
        law = TextLaw.read(str(TEXTS.get(text, text)), tokens=stack.tokens, vocab=stack.vocab)
    two = replace(stack, sequences=2)
    grouped = law is not None or is_grouped(two)
    cost = prediction_cost(two if law is None else with_probes(two), patterns=patterns, grouped=grouped)
    how = "groups of tokens" if grouped else "all tokens"
    takes = f"theory of two sequences by {how} takes about {duration(cost.seconds)} and {format_bytes(cost.bytes)}"
    if plan:
        numbers = {"seconds": cost.seconds, "bytes": cost.bytes, "grouped": grouped}
        return Result(about="what the gradient of a batch takes", values=numbers, lines=[f"{takes}."])
    if not budget.holds(cost):
        raise OverBudgetError(f"{takes}, more than {budget.exceeded(cost)}; take fewer --tokens or --patterns.")
    if cost.seconds > SOON:
        print(f"{takes}.", file=sys.stderr, flush=True)
    scale = noise_scale(
        stack, patterns=patterns, grouped=grouped, text=law, max_time=2 * budget.seconds, memory=2 * budget.bytes
    )
    family = model_type(notes)
    if family is None and of.is_model:
        family = "nanogpt"  # whose files name no family
    vectors = learned_vectors(stack, family, notes)
    squares, (norm, error) = scale.squares(batch, vectors), scale.norm(batch, vectors)
    names = [_NAMES.get(name, matrix_name(f"grad_{name}") if "_" not in name else _name(name)) for name in squares]
    whole = sum(squares.values())
    table = pd.DataFrame({
        "parameter": list(squares), "name": names, "grad_sq": list(squares.values()),
        "share": [square / whole if whole else 0.0 for square in squares.values()],
    })  # fmt: skip
    deviation = None if scale.loss_moments is None else scale.loss_deviation(batch)
    of_loss = "" if deviation is None else f" +- {deviation:.1g}"
    of_norm = f"{norm:.4g}" + (f" +- {error:.1g}" if error else "")
    width = max(map(len, names))
    shown = table.sort_values("share", ascending=False, kind="stable")
    lines = [
        title(stack),
        *drawn_lines(notes),
        "",
        f"Step 1 of such a run: loss {scale.loss:.4g}{of_loss}, gradient norm {of_norm}, at {batch} sequences of "
        f"{stack.tokens} tokens.",
        *(_NOT_TEXT if law is None else _of_law(law)),
        "The norm is the root of the mean square over draws of the weights, with the error of sampled patterns; the",
        "loss is a mean" + ("." if deviation is None else ", with the deviation of one run from it."),
        "",
        "Shares of the squared norm:",
        *(f"  {row.name_:<{width}} {row.share:7.2%}" for row in shown.rename(columns={"name": "name_"}).itertuples()),
        "",
        f"Noise scale of the matrices: {scale.whole:.4g} sequences.",
        *(_words_that_differ(stack, batch) if law is None else []),
        _included(stack.embeddings, family, vectors),
        *note_lines(notes),
    ]
    return Result(
        about=title(stack),
        tables={"batch": table},
        values={
            "stack": stack, "batch": batch, "loss": scale.loss, "loss_deviation": deviation, "gradient_norm": norm,
            "gradient_norm_sem": error,
            "noise_scale": scale.whole, "notes": notes, "drawn_by": drawn_by(notes),
        },
        lines=lines,
    )  # fmt: skip


def _of_law(law: TextLaw) -> list[str]:
    """How often words and labels repeat."""
    return [
        f"Two positions hold one word with the chance {law.within:.3g} within a sequence and {law.across:.3g} in two; "
        "their labels agree",
        f"with the chance {law.same_word_labels:.3g} where the words do, else {law.other_word_labels:.3g}.",
    ]


def _words_that_differ(stack: Stack, batch: int) -> list[str]:
    """Tied embeddings feel words that two sequences share, which theory has none of."""
    if stack.embeddings != "tied":
        return []
    return [
        f"All words are taken to differ. Of {batch * stack.tokens} independent ones each stands "
        f"{batch * stack.tokens / stack.vocab:.3g} times in the batch in the mean, which adds to what sequences share."
    ]


def _name(name: str) -> str:
    """A bias, or an encoder's matrix, in words."""
    kind, _, role = name.partition("_")
    return f"bias of {role}" if kind == "bias" else f"{role}, encoder" if kind == "encoder" else name


def _included(embeddings: str, family: str | None, vectors: Sequence[str]) -> str:
    """Which parameters the norm is of."""
    tied = " which is the table of inputs," if embeddings == "tied" else ""
    if family is None:
        return f"Included are the matrices and the output matrix,{tied} but no biases, gains or tables of inputs."
    biases = [name.removeprefix("bias_") for name in vectors if name.startswith("bias_")]
    of_matrices = f"biases of {', '.join(biases)}" if biases else "no biases of matrices"
    if family not in BIASES:
        of_matrices = f"no biases of matrices, which of {family} are not known here"
    others = [_NAMES[name] for name in vectors if name in _NAMES]
    return f"Included are the matrices and the output matrix,{tied} {', '.join(others)}, and {of_matrices}."
