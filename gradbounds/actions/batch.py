"""The view `gradbounds predict --batch`: the predicted loss and gradient norm of step 1 for a batch of text."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from checks.stacks.gradients_by_layer import Columns, matrices
from gradbounds.actions.first_line import (
    COARSE,
    FirstLine,
    cost_of_batch,
    first_line,
    normal_ranges,
    quick_cost,
    quick_sampling,
    scale_of_batch,
    spread_of_texts,
    text_lines,
)
from gradbounds.actions.plan import DISTINCT, ZIPF, batch_text, planned
from gradbounds.budget import Budget, OverBudgetError
from gradbounds.described_network import Description
from gradbounds.layer_summary import (
    absent_from_first,
    card_row,
    expert_rows,
    first_over_last,
    reasons_of_largest,
    share_rows,
)
from gradbounds.network_text import (
    drawn_lines,
    ends_of_layers,
    gradient_lines,
    matrix_name,
    note_lines,
    number_text,
    over_layers,
    title,
    with_cosines,
)
from gradbounds.plain_text import table_lines
from gradbounds.progress import LONG
from gradbounds.result import Frames, Result
from gradbounds.units import cpu_time
from simulate.counts import check_count
from simulate.text import TEXTS
from theory import Stack
from theory.configurations import Note, context, drawn_by, model_type
from theory.configurations.encoder_decoders import shares_ends
from theory.configurations.vectors import BIASES, learned_vectors
from theory.coverage import gaps, require
from theory.first_step.noise_scale import NoiseScale
from theory.mean_field.kernels import Array
from theory.mean_field.text_law import KINDS, LEAST_VOCAB, TextLaw

NAMES_OF_ROLES = {
    "Wemb": "output matrix",
    "gain": "norms' gains",
    "shift": "norms' biases",
    "inputs": "table of inputs",
    "positions": "table of positions",
    "segment": "segment's vector",
}
"""Names of parameters in printed text, by role."""


# Of a text, on one core, to count its words, pairs and repeats: 40 MB took 6.6 CPU seconds.
_SECONDS_OF_BYTE = 1.7e-7

# The number of characters that distinguish words from token ids; the share of one token that causes a warning.
_LOOKED_AT, _FREQUENT = 4096, 0.2

# The smallest logarithm of a ratio of ratios that is printed.
_FIFTH = 0.2

_LOST = '  "-": smaller than the error of the attention samples; --patterns N uses more samples.'

_ABSENT = '  "-" up to layer {}: no such matrix there.'

_NOT_TEXT = (
    "Text: none, all tokens differ. In a real text, tokens and labels repeat, which makes the gradient norm larger;",
    "--text english predicts it.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A network and the text of its batch, with the reasons for the values that the user did not give.

    Attributes:
        given: fields of the network.
        text: name or file of a text law, as in `law_of`; None if all tokens differ.
        of_tokens: source of the number of tokens, as text; "" if it was given or is the default of every network.
        is_default: whether the text is a model's default because none was given.
        is_quick: whether only a quick estimate at this number of tokens is within the limits.
    """

    given: Mapping[str, Any]
    text: str | None
    of_tokens: str = ""
    is_default: bool = False
    is_quick: bool = False


def resolve_batch(
    given: Mapping[str, Any], of: Description, *, text: str | None, patterns: int | None, max_time: str | None,
    memory: str | None = None,
) -> Asked:  # fmt: skip
    """Choose the network and the text of a batch, and the length of its sequences if the user does not give one.

    A model's sequences are as long as its context, by a quick estimate if a prediction exceeds the limits of time and
    memory. If both exceed them, sequences have half of the context, a quarter, and so on.

    Raises:
        ValueError: the configuration or a law cannot be read.
    """
    if not of.is_model:
        return Asked(given, text)
    fields, of_tokens, is_quick = dict(given), "", False
    if (longest := given.get("tokens") or context(of.read(given)[1])) is not None:
        tokens, is_quick = _within(longest, given, of, text, patterns, Budget.of(max_time, memory))
        if tokens is not None and "tokens" not in given:
            fields["tokens"] = tokens
            most = f"the most within --max-time and --memory of the configuration's context of {longest}"
            of_tokens = ", the context of the configuration" if tokens == longest else f", {most}"
    stack, _ = of.read(fields)
    law = _law(stack, text)
    return Asked(fields, law, of_tokens, is_default=text is None and law is not None, is_quick=is_quick)


def _law(stack: Stack, text: str | None) -> str | None:
    """Return the given text law, or a model's default: English if its law is known, else Zipf's, else None.

    The default is None if theory has no rule for text in this network.
    """
    refused = gaps(replace(stack, sequences=2), "grouped") or stack.input_correlation
    return text if text is not None or refused else ("english" if stack.vocab >= LEAST_VOCAB else ZIPF)


def _within(
    longest: int, given: Mapping[str, Any], of: Description, text: str | None, patterns: int | None, budget: Budget
) -> tuple[int | None, bool]:
    # Return the largest number of tokens, found by halving, whose batch is within the budget; None if none is. The
    # second result is whether only a quick estimate is, which is tried for the longest sequences.
    tokens = longest
    while tokens > 1:
        try:
            stack, _ = of.read({**given, "tokens": tokens})
            law = law_of(stack, _law(stack, text))
            if budget.holds(cost_of_batch(stack, law, patterns)[0]):
                return tokens, False
            if tokens == longest and budget.holds(quick_cost(stack, law, patterns)):
                return tokens, True
        except ValueError:  # a mask of its own asks for its number of tokens, or words are fewer
            pass
        tokens //= 2
    return None, False


def predict_batch(
    asked: Asked, batch: int, of: Description, *, patterns: int | None, max_time: str | None,
    memory: str | None = None, plan: bool = False, every_layer: bool = False, coarse: bool = False,
) -> Result:  # fmt: skip
    """Predict the loss and the gradient norm of a batch of sequences, and each kind of parameter's share in the norm.

    Token ids are independent. They all differ, or follow the law of a text: a file or name that `TextLaw.read` reads,
    or a law that ships with gradbounds. `coarse` has the same meaning as in `noise_scale`.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
        NoRuleError: there is no rule for the network.
        OverBudgetError: theory would take more than it may.
    """
    budget = Budget.of(max_time, memory)
    check_count("batch", batch, 1)
    if patterns is not None:
        check_count("patterns", patterns, 2)
    stack, notes = of.read(asked.given)
    require(stack, "prediction")
    require(stack, "noise_scale")
    law = law_of(stack, asked.text)
    if asked.is_quick:
        patterns, coarse = quick_sampling(stack, law, patterns)
    if plan:
        return planned(
            (stack, notes, of), batch_text(batch, stack.tokens, asked.text, asked.of_tokens),
            "loss, gradient norms, their shares", cost_of_batch(stack, law, patterns, coarse=coarse)[0],
        )  # fmt: skip
    try:
        scale = scale_of_batch(stack, law, patterns, budget, coarse=coarse, notes=notes)
    except ValueError as error:
        if isinstance(error, OverBudgetError) or not asked.is_default:
            raise
        raise ValueError(f"{error} --text {DISTINCT} assumes that no token occurs twice.") from error
    family = _family_of(notes, of)
    vectors = vectors_of(stack, notes, of)
    table = _shares(scale.squares(batch, vectors))
    line = first_line(scale, batch, vectors, law, spread := spread_of_texts(asked.text, stack.vocab))
    line = replace(line, quick=COARSE * (coarse and stack.ffn == "gated"))
    layers = _with_stream(norms_by_layer(scale.grad_sq(batch), scale.grad_sq_sem(batch)), scale.stream)
    larger = _of_larger_batch(scale, first_over_last(layers), quick=bool(coarse))
    reasons, names = reasons_of_largest(scale, batch), [name.replace("dL/d", "") for name in table["name"]]
    rows = [(table["name"][k], f"{table['share'][k]:z.2%}") for k in np.argsort(-table["share"], kind="stable")]
    return Result(
        about=title(stack), tables=Frames({"batch": table, "layers": layers}),
        values={
            "stack": stack, "batch": batch, "loss": None if shares_ends(notes) else scale.loss,
            "loss_deviation": None if line.is_bound or shares_ends(notes) else line.loss_deviation,
            "gradient_norm": line.norm,
            "gradient_norm_sem": scale.norm(batch, vectors)[1], "gradient_norm_deviation": line.norm_deviation,
            "matrices_sq": sum(float(np.nansum(square)) for square in scale.grad_sq(batch).values()),
            "noise_scale": scale.whole, "line": line, "notes": notes, "drawn_by": drawn_by(notes),
            "coarse": coarse, "of_larger_batch": larger,
            "reasons_of_largest": reasons,
        },
        lines=[
            f"Step 1 of a run: {line_text(line, notes)}, "
            f"at {batch_text(batch, stack.tokens, asked.text, asked.of_tokens)}.",
            *map(card_row, ("loss", "gradient norm"), normal_ranges(line, notes, texts=spread > 0.0)),
            *(text_lines(stack, asked.text, line) if asked.is_default or asked.text in KINDS else []),
            *(_NOT_TEXT if law is None else [] if asked.text in KINDS else _of_law(law, line.masked)),
            *_warnings(asked.text, law), *deviation_lines(line),
            "", "Shares of the squared norm:",
            *table_lines(["", ""], rows)[1:],
            *share_rows(dict(zip(names, table["grad_sq"], strict=True)), stack, layers, "", reasons)[1:], "",
            f"Gradient norms of the matrices, for the batch of {batch} sequences",
            *["  In sampled GPT-2s and Llamas of width 256 to 1024, kinds of matrices were within 5%."]
            * (not stack.experts),
            *gradient_lines(stack, with_cosines(layers), every_layer=every_layer),
            *_below(stack, layers, larger, law), *expert_rows(stack, layers, notes), "",
            _format_noise_scale(scale.whole, law), *[
                f"Assumption: all {batch * stack.tokens} tokens differ. Independent tokens would each occur "
                f"{batch * stack.tokens / stack.vocab:.3g} times on average, and sequences would share more tokens."
            ] * (law is None and stack.embeddings == "tied"),  # theory omits tokens that two sequences share
            _included(stack.embeddings, family, vectors), "", title(stack), *drawn_lines(notes),
            *note_lines(notes, masked=line.masked),
        ],
    )  # fmt: skip


def quick_batch(asked: Asked, batch: int, of: Description, **limits: Any) -> Result:
    """Predict a batch in a few seconds; a text has few attention samples or coarse groups where more would take long.

    Raises:
        ValueError: as `predict_batch`.
    """
    stack, _ = of.read(asked.given)
    patterns, coarse = quick_sampling(stack, law_of(stack, asked.text), limits["patterns"])
    return predict_batch(asked, batch, of, **limits | {"patterns": patterns}, coarse=coarse)


def _shares(squares: Mapping[str, float]) -> Columns:
    # Return each kind of parameter's share of the squared gradient norm.
    names = [
        f"bias of {name.removeprefix('bias_')}" if name.startswith("bias_")
        else f"{name.removeprefix('encoder_')}, encoder" if name.startswith("encoder_")
        else NAMES_OF_ROLES.get(name, matrix_name(f"grad_{name}"))
        for name in squares
    ]  # fmt: skip
    whole, sizes = sum(squares.values()), np.array([*squares.values()], dtype=float)
    roles, named = (np.array([*of], dtype=object) for of in (squares, names))
    return {"parameter": roles, "name": named, "grad_sq": sizes, "share": sizes / whole if whole else 0.0 * sizes}


def _format_noise_scale(sequences: float, law: TextLaw | None) -> str:
    # State the noise scale in sequences, or explain why it is infinite.
    if math.isfinite(sequences):
        return (
            f"Noise scale of the matrices: {sequences:.4g} sequences; "
            "the gradient norm of a much larger batch hardly depends on its size."
        )
    of_text = "; repeated tokens of a text change this result (--text)" if law is None else ""
    return (
        "Noise scale of the matrices: none. Gradients of two sequences have no common part, so that a larger batch "
        f"always lowers the norm{of_text}."
    )


def norms_by_layer(squares: Mapping[str, Array], errors: Mapping[str, Array]) -> Columns:
    """Return the gradient norm of every matrix by layer, with errors, as rows of a `layer_table`.

    Layer 0 is the whole network. If a squared norm is below its error, the norm is NaN.
    """
    rows = []
    for role, square in squares.items():
        prefix, name = ("encoder_", role.removeprefix("encoder_")) if role.startswith("encoder_") else ("", role)
        known = np.where(square > errors[role], square, np.where(errors[role] > 0, np.nan, np.maximum(square, 0.0)))
        norms = np.sqrt(known)
        halves = np.divide(errors[role], 2.0 * norms, out=np.zeros_like(norms), where=norms > 0)
        numbers = enumerate(zip(norms, halves, strict=True), 1) if norms.ndim else [(0, (norms, halves))]
        rows += [(f"{prefix}grad_{name}", layer, float(norm), float(half)) for layer, (norm, half) in numbers]
    return dict(
        zip(("quantity", "layer", "predicted", "predicted_sem"), map(np.array, zip(*rows, strict=True)), strict=True)
    )


def _below(stack: Stack, layers: Columns, larger: Mapping[str, float], law: TextLaw | None) -> list[str]:
    # State the ratios first / last layer, in this batch and in a much larger one, and what the table lacks. Repeated
    # tokens enlarge the norms of W^K above layer 1 by up to 2 kappa, where kappa is the probability of equal tokens.
    error = 2.0 * law.within * bool(stack.query_key_scale and stack.depth > 1) if law is not None else 0.0
    rows = np.isnan(layers["predicted"]) & np.isin(layers["quantity"], matrices(layers))
    lost = set(layers["quantity"][rows])
    no_matrix = np.isin(layers["quantity"], absent_from_first(stack, layers)) & (layers["layer"] <= stack.dense_layers)
    known = {**layers, "predicted": np.where(np.isin(layers["quantity"], [*lost]), np.nan, layers["predicted"])}
    others = ", ".join(f"dL/d{name} {ratio:.3g}" for name, ratio in larger.items())
    return [
        *[_ABSENT.format(stack.dense_layers)] * bool(no_matrix.any()), *[_LOST] * bool((rows & ~no_matrix).any()),
        *[f"  The norms of W^K above layer 1 may be up to {error:.1%} larger, because tokens repeat."] * (error > 0.01),
        *over_layers(stack, known, "predicted"),
        *[f"In a much larger batch: {others}."] * bool(larger),
    ]  # fmt: skip


def _of_larger_batch(scale: NoiseScale, here: Mapping[str, float], *, quick: bool) -> dict[str, float]:
    # Return ratios first / last layer in a batch so large that only common gradients remain, those that differ most
    # from the given ones first. Differences below a fifth, or below two standard errors of sampling, are omitted, and
    # so are quick estimates of WQ and WK.
    table = norms_by_layer(scale.product, scale.product_sem)
    common = {name: ratio for name, ratio in first_over_last(table).items() if name in here}
    apart = {name: abs(math.log(common[name] / here[name])) for name in common}
    errors = {name: (ends_of_layers(table, name, "predicted") or (1.0, 0.0))[1] / common[name] for name in common}
    known = [name for name in common if apart[name] > max(_FIFTH, 2.0 * errors[name])]
    return {
        name[5:]: common[name]
        for name in sorted(known, key=lambda name: -round(apart[name], 2))
        if not (quick and name[5:] in ("WQ", "WK"))
    }


def _with_stream(layers: Columns, stream: Mapping[str, Array]) -> Columns:
    # Add the residual stream's numbers, whose sampling errors are omitted, to the gradient norms by layer.
    rows = ((name, layer, value, math.nan) for name, of in stream.items() for layer, value in enumerate(of, 1))
    return {name: np.append(layers[name], new) for name, new in zip(layers, zip(*rows, strict=True), strict=True)}


def law_of(stack: Stack, text: str | None) -> TextLaw | None:
    """Return the distribution of token ids that a name or a file gives; None if all tokens differ.

    Raises:
        ValueError: the text or the law cannot be read; see `TextLaw.read`.
    """
    if text in (None, DISTINCT):
        return None
    file = str(TEXTS.get(text, text))
    _say_how_long(file)
    return TextLaw.read(file, tokens=stack.tokens, vocab=stack.vocab)


@cache
def _say_how_long(file: str) -> None:
    # Print once how long it takes to count the tokens of a text file, if it takes long.
    size = (
        Path(file).stat().st_size if not file.startswith(("zipf:", "counts:", "law:")) and Path(file).is_file() else 0
    )
    if size * _SECONDS_OF_BYTE > LONG:
        print(f"counting the tokens of {file}, about {cpu_time(size * _SECONDS_OF_BYTE)}", file=sys.stderr, flush=True)


def _family_of(notes: Sequence[Note], of: Description) -> str | None:
    # Return the `model_type` of a configuration; "nanogpt" if it has none, and None if flags describe the network.
    family = model_type(notes)
    return "nanogpt" if family is None and of.is_model else family  # whose files name no family


def vectors_of(stack: Stack, notes: Sequence[Note], of: Description) -> tuple[str, ...]:
    """Return the names of the biases, gains and tables that a described network learns."""
    return learned_vectors(stack, _family_of(notes, of), notes)


def line_text(line: FirstLine, notes: Sequence[Note] = ()) -> str:
    """Return one line of text with a loss, a gradient norm, and their standard deviations.

    `notes` on the configuration state whether the loss is unknown.
    """
    loss = f"{line.loss:.4g} +- {'at most ' * line.is_bound}{line.loss_deviation:.1g}"
    norm = number_text(line.norm, line.norm_deviation)
    return f"loss {'unknown' if shares_ends(notes) else loss}, gradient norm {norm}"


def deviation_lines(line: FirstLine) -> list[str]:
    """Return two lines of text that explain the standard deviations printed after "+-"."""
    most = " (at most, with tied embeddings)" if line.is_bound else ""
    return [
        f"+-: standard deviation of one run{most} over random weights and texts. For the norm, it includes theory's",
        "own error, measured on sampled networks (docs/report.md).",
    ]


def _warnings(text: str | None, law: TextLaw | None) -> list[str]:
    # Warn if a text file contains words instead of token ids, or if one token makes up more than a fifth of it.
    if law is None or text in KINDS:
        return []
    lines = []
    if text is not None and Path(text).is_file():
        with Path(text).open(encoding="utf-8") as file:
            if not all(word.isdecimal() for word in file.read(_LOOKED_AT).split()[:-1]):
                lines.append(
                    "The file contains words instead of token ids. Words and token ids do not repeat equally often."
                )
    if (most := float(law.frequencies.max())) > _FREQUENT:
        lines.append(
            f"One token makes up {most:.0%} of the text. Check for runs of spaces, as in wrapped or indented lines."
        )
    return lines


def _of_law(law: TextLaw, masked: float) -> list[str]:
    # State how often tokens and labels repeat; with a share of masked words, labels are the tokens before masking.
    if masked:
        within, across = (f"{chance:.3g}" for chance in (law.within, law.across))
        apart = f" ({across} in two sequences)" * (within != across)
        return [f"Before masking, two tokens are equal with probability {within}{apart}."]
    chances = (law.within, law.across, law.same_word_labels, law.other_word_labels)
    if len(set(chances)) == 1:
        return [
            f"Two tokens are equal with probability {law.across:.3g}, and two labels with probability {law.across:.3g}."
        ]
    return [
        f"Two tokens of a sequence are equal with probability {law.within:.3g}, and two tokens of different sequences "
        f"with probability {law.across:.3g}.",
        f"Two labels are equal with probability {law.same_word_labels:.3g} after equal tokens, "
        f"and {law.other_word_labels:.3g} after different tokens.",
    ] + (
        ["In one sequence, these two probabilities are {:.3g} and {:.3g}.".format(*law.labels_within)]
        if law.labels_within
        else []
    )


def _included(embeddings: str, family: str | None, vectors: Sequence[str]) -> str:
    # State which parameters the gradient norm includes.
    tied = " (which is also the embedding table)" if embeddings == "tied" else ""
    if family is None:
        return (
            f"The gradient norm includes the matrices of all layers and the output matrix{tied}, "
            "but no biases, gains or embedding tables."
        )
    biases = [name.removeprefix("bias_") for name in vectors if name.startswith("bias_")]
    of_matrices = f"biases of {', '.join(biases)}" if biases else "no biases of matrices"
    if family not in BIASES:
        of_matrices = f"no biases of matrices (unknown for {family})"
    others = [NAMES_OF_ROLES[name] for name in vectors if name in NAMES_OF_ROLES]
    return (
        f"The gradient norm includes the matrices of all layers, the output matrix{tied}, {', '.join(others)}, and "
        f"{of_matrices}."
    )
