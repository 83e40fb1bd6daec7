"""The printed text about one network: predicted and sampled gradient norms by layer, its title and its notes."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks.stacks.gradients_by_layer import Columns, matrices
from checks.trust import Trust
from gradbounds.plain_text import table_lines
from theory import Stack
from theory.configurations import Note, drawn_by, model_type
from theory.configurations.classes import CLASSES
from theory.configurations.family import DEPTH, HEADS, WIDTH
from theory.configurations.training_codes import TRAINING_CODES
from theory.coverage import attends_randomly, has_experts, holds_words
from theory.stack import TITLES

STREAM = {"hidden_energy": "|x|^2/d", "cosine": "cosine"}
"""The columns of a layer table for the residual stream, by quantity."""

MATRICES = {
    ("WQ", "WK", "WV", "WO"): "of attention",
    ("XQ", "XK", "XV", "XO"): "of attention to the encoder",
    ("W1", "W2"): "of the feed-forward block",
    ("WG",): "of its gate",
    ("WR",): "of the router (W1, W2 and WG are of all experts together)",
    ("S1", "S2", "SG"): "of the shared expert",
    ("SR",): "of the shared expert's gate",
}
"""The part of the layer to which each matrix belongs."""

# The logarithm of a ratio first / last layer up to which layers count as equal.
FLAT = 0.05

# Keys for the width of muP's base model, in files of training codes. Classes of transformers do not read them.
_BASE_WIDTHS = ("mup_base_width", "mup_base_hidden_size", "mup_base_d_model", "mup_base_dim", "base_width")

# Longest value of a field that a title has whole.
_LONG = 40

SEEN = 0.01
"""The relative error of theory's own sampling above which it is printed."""


def network_lines(
    stack: Stack, table: Columns, reason: str, *, every_layer: bool = True, evidence: str = ""
) -> list[str]:
    """Return the lines that print a network's predicted and sampled gradient norms, layer by layer.

    Args:
        stack: the network.
        table: `layer_table` of the network.
        reason: why theory has no rule; "" if it has one.
        every_layer: whether every layer is printed, or those that double, and the last.
        evidence: measured agreement of theory for such networks, as text; "" for the rules of `checks.trust`.
    """
    has_theory, draws = not np.isnan(table["predicted"]).all(), int(np.max(table["draws"]))
    table = with_cosines(table)
    shown = None if every_layer else set(_doubled(stack.depth))
    lines = []
    if has_theory:
        lines += [
            "Large-width theory: root mean square of gradient norms over random networks, "
            f"for {sequences_text(stack)} of {tokens_text(stack.tokens)}",
            *_block(table, "predicted", "predicted_sem", shown, least=SEEN), *_legend(stack, table),
            *([_omitted(stack.depth)] if shown and len(shown) < stack.depth else []), "",
            *sampled_lines(stack, table), *trust_lines(stack, evidence),
        ]  # fmt: skip
    else:
        lines += [f"Theory: {reason}", ""]
    if draws:
        scaled = table
        if has_theory:
            # Of 0 nothing is a multiple, and of a cosine, which may be near 0, none says anything.
            expected = np.where(table["predicted"] == 0, np.nan, table["predicted"])
            expected = np.where(np.isin(table["quantity"], ["cosine", "encoder_cosine"]), 1.0, expected)
            scaled = {**table, "mean": table["mean"] / expected, "sem": table["sem"] / np.abs(expected)}
        what = "Samples / theory" if has_theory else "Samples, root mean squares"
        cosine = " (cosine: of the samples)" if has_theory and "cosine" in set(table["quantity"]) else ""
        lines += [f"{what}: {draws} networks, +- standard error{cosine}", *_block(scaled, "mean", "sem", shown), ""]
    return [*lines, *over_layers(stack, table, "predicted" if has_theory else "mean")]


def gradient_lines(stack: Stack, table: Columns, *, every_layer: bool) -> list[str]:
    """Return a table of gradient norms by layer and matrix, for every layer or for layers 1, 2, 4, ... and the last.

    Args:
        stack: the network.
        table: table like a `layer_table`, with quantity, layer, norms in "predicted" and errors in "predicted_sem".
        every_layer: whether every layer is printed.
    """
    shown = None if every_layer else set(_doubled(stack.depth))
    lines = _block(table, "predicted", "predicted_sem", shown, least=SEEN)
    return [*lines, *([_omitted(stack.depth)] if shown and len(shown) < stack.depth else [])]


def with_cosines(table: Columns) -> dict[str, NDArray[Any]]:
    """Add the cosine similarity of two tokens to a table of a network's layers: mean inner product / mean square.

    The errors of both are combined as if independent, which they are not: the cosine's error is at most their sum. A
    table that has these rows is unchanged.
    """
    columns = {name: np.asarray(table[name]) for name in table}
    names, layers, parts = columns["quantity"], columns["layer"], [columns]
    for prefix in ("", "encoder_") if "cosine" not in names else ():
        product, square = (np.flatnonzero(names == prefix + name) for name in ("token_correlation", "hidden_energy"))
        if product.size and square.size:
            square = square[np.searchsorted(layers[square], layers[product])]  # known wherever the product is
            part = {name: column[product] for name, column in columns.items()}
            part["quantity"] = np.full(len(product), prefix + "cosine", dtype=object)
            for value, error in (("predicted", "predicted_sem"), ("mean", "sem"))[: 1 + ("mean" in columns)]:
                of, off, over, off_over = (columns[name][at] for at in (product, square) for name in (value, error))
                with np.errstate(divide="ignore", invalid="ignore"):
                    part |= {value: of / over, error: np.hypot(off, of / over * off_over) / over}  # of may be 0
            parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in columns}


def sequences_text(stack: Stack) -> str:
    """Return a stack's number of sequences as text."""
    return "one sequence" if stack.sequences == 1 else f"a batch of {stack.sequences} sequences"


def tokens_text(tokens: int) -> str:
    """Return a number of tokens as text."""
    return f"{tokens} token{'s' * (tokens > 1)}"


def _doubled(depth: int) -> list[int]:
    """Return the layers 1, 2, 4, 8, ... and the last.

    >>> _doubled(12)
    [1, 2, 4, 8, 12]
    """
    return sorted({min(2**power, depth) for power in range(depth.bit_length() + 1)})


def _omitted(depth: int) -> str:
    return f"  The table shows {len(_doubled(depth))} of {depth} layers; --all prints every layer."


def _legend(stack: Stack, table: Columns) -> list[str]:
    plain = {name.removeprefix("encoder_").removeprefix("grad_") for name in matrices(table)}
    of = [
        f"{', '.join(role for role in roles if role in plain)} {whose}"
        for roles, whose in MATRICES.items()
        if plain & set(roles)
    ]
    cosine = "; cosine: mean cosine between two tokens" if "cosine" in set(table["quantity"]) else ""
    where = "before the layer's last norm" if stack.composition.stream_norm else "after the layer"
    return [
        f"  |x|^2/d: mean square of the residual stream {where} (d: width){cosine}.",
        *([f"  dL/dW: norm of the loss gradient of a matrix: {'; '.join(of)}."] if of else []),
    ]


def sampled_lines(stack: Stack, table: Columns) -> list[str]:
    """State which random parts of the network are sampled for a prediction, and the largest standard error.

    There are no lines if nothing is sampled.
    """
    names = np.asarray(table["quantity"])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.nan_to_num(table["predicted_sem"] / np.abs(table["predicted"]), posinf=np.inf)
    errors = np.where(np.isin(names, [*matrices(table), *STREAM]), errors, 0.0)
    if not (worst := errors.max(initial=0.0)) > 0:
        return []
    least_sure, layers = int(errors.argmax()), np.asarray(table["layer"])
    sampled = {
        "logits": holds_words(stack),
        "attention weights": attends_randomly(stack),
        "choices of experts": has_experts(stack),
    }
    what = " and ".join(name for name, asked in sampled.items() if asked)
    return [
        f"Theory averages over random {what} here, with standard errors of at most {100 * worst:.2g}% "
        f"({matrix_name(str(names[least_sure]))}, layer {layers[least_sure]}). Smaller differences may be "
        f"chance; --patterns N reduces these errors.", "",
    ]  # fmt: skip


def trust_lines(stack: Stack, evidence: str) -> list[str]:
    """State how far the predictions may be off at finite width, if such networks were never compared with samples."""
    why = Trust.of(stack).why
    unknown = why.removeprefix("no coefficient: ")
    lines = [evidence] if evidence else []
    if unknown == why:
        reason = re.sub("stacks of the family '.*?'", "networks of this kind", why)
        lines += [f"Finite width may change these numbers by more than 3%: {reason} (d: width)."] if why else []
    elif not evidence:
        lines += [
            f"The error by finite width is unknown here: {unknown}. --draws 16 compares theory with sampled networks."
        ]
    return [*lines, ""] if lines else []


def title(stack: Stack) -> str:
    """Describe a network in one line: its LayerNorm placement, its sizes, and the fields that differ from the paper's.

    >>> title(Stack(depth=2, tokens=4))
    'Post-LN: width 512, depth 2, tokens 4, vocab 512'
    """
    sizes = {name: getattr(stack, name) for name in ("width", "depth", "tokens", "vocab")}
    named = {name: value for name, value in (sizes | stack.non_default()).items() if name != "placement"}
    fields = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in named.items()]
    fields = [field if len(field) < _LONG else f"{field[:_LONG]}..." for field in fields]
    return f"{TITLES[stack.placement]}: {', '.join(fields)}"


def _block(table: Columns, value: str, error: str, layers: set[int] | None = None, *, least: float = 0.0) -> list[str]:
    """Return a line for each layer with a column for each stream statistic and matrix; an encoder comes first.

    Args:
        table: a `layer_table` with cosines.
        value: name of the column of numbers.
        error: name of the column of their errors.
        layers: layers that are shown; None for all.
        least: relative error above which errors are shown.
    """
    lines = []
    rows = zip(*(table[name] for name in ("quantity", "layer", value, error)), strict=True)
    cells = {(name, at): number_text(mean, sem, least) for name, at, mean, sem in rows if not math.isnan(mean)}
    for prefix in ("encoder_", ""):
        wanted = [prefix + name for name in STREAM]
        wanted += [name for name in matrices(table) if name.startswith("encoder_") == bool(prefix)]
        here = sorted({at for name, at in cells if name in wanted and at > 0 and (layers is None or at in layers)})
        columns = [name for name in wanted if any((name, at) in cells for at in here)]
        if columns:
            of_layers = [[str(at), *(cells.get((name, at), "-") for name in columns)] for at in here]
            lines += [*["encoder"] * bool(prefix), *table_lines(["layer", *map(matrix_name, columns)], of_layers)]
    whole = {"grad_WH": "dL/dW_H", "grad_Wemb": "dL/dW_emb", "loss": "loss"}
    outside = [f"{head} {cells[name, 0]}" for name, head in whole.items() if (name, 0) in cells]
    return [*lines, "  " + ",  ".join(outside)]


def matrix_name(name: str) -> str:
    """Return the column heading of a quantity in a table of layers, such as "dL/dW2" for "grad_W2"."""
    plain = name.removeprefix("encoder_")
    return STREAM.get(plain, plain.replace("grad_", "dL/d"))


def number_text(value: float, error: float, least: float = 0.0) -> str:
    """Format a number; its error is added, to the second digit, if error / number is above a threshold."""
    if not error > least * abs(value):
        return f"{value:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    if decimals > 6 or abs(value) >= 1e6:
        return f"{value:.4g} +- {error:.2g}"
    return f"{value:.{decimals}f} +- {error:.{decimals}f}"


def over_layers(stack: Stack, table: Columns, value: str) -> list[str]:
    """State for every matrix of all layers the gradient norm in the first layer divided by that in the last layer.

    Ratios within 5% of 1 are marked as equal. An encoder has its own line.
    """
    by_part: dict[str, list[str]] = {}
    for name in matrices(table):
        ends, layers = ends_of_layers(table, name, value), np.asarray(table["layer"])[table["quantity"] == name]
        if ends is not None and layers.min() == 1 < layers.max():
            whose, flat = (
                ", encoder" if name.startswith("encoder_") else "",
                " (equal within 5%)" * (abs(ends[0] - 1) < 0.1 and abs(math.log(ends[0])) < FLAT),
            )
            by_part.setdefault(whose, []).append(f"{matrix_name(name)} {ratio_text(*ends[:2])}{flat}")
    return [
        f"Gradient norm, first layer / last layer, at {tokens_text(stack.tokens)}{whose}: {', '.join(texts)}."
        for whose, texts in by_part.items()
    ]


def ends_of_layers(table: Columns, name: str, value: str) -> tuple[float, float, float, float] | None:
    """Return a quantity's ratio first layer / last layer, and its value in the last layer, each with its error.

    The result is None if the last layer's value is 0 or missing.

    Args:
        table: a `layer_table`, with cosines or not.
        name: name of the quantity.
        value: "predicted" or "mean".
    """
    layers, numbers = np.asarray(table["layer"]), np.asarray(table[value], float)
    rows = np.flatnonzero((np.asarray(table["quantity"]) == name) & (layers > 0) & ~np.isnan(numbers))
    rows = rows[np.argsort(layers[rows], kind="stable")]
    if not rows.size or not (last := float(numbers[rows[-1]])):
        return None
    errors = np.nan_to_num(np.asarray(table["predicted_sem" if value == "predicted" else "sem"], float)[rows])
    ratio = float(numbers[rows[0]]) / last
    # Of one layer the ratio is 1.
    error = math.hypot(errors[0], ratio * errors[-1]) / abs(last) if rows.size > 1 else 0.0
    return ratio, error, last, float(errors[-1])


def ratio_text(ratio: float, error: float) -> str:
    """Format a ratio with three digits; its error is added if it is above 1%."""
    return number_text(ratio, error) if error > SEEN * abs(ratio) else f"{ratio:.3g}"


def drawn_lines(notes: Sequence[Note], *, others: bool = True) -> list[str]:
    """State which code initializes the weights, `others` that differ, and which sizes the file does not set."""
    lacking = lacking_sizes(notes)
    lacks = [f"The file does not set {lacking}; these are the defaults of its class."] * bool(lacking)
    codes = [
        f"{code.title} ({code.rule}) trains such models with another initialization; --drawn-by {name} predicts it."
        for name in other_codes(notes)
        for code in [TRAINING_CODES[name.partition(":")[0]]]
    ]
    drawn = [f"Weights are drawn {note.reason}." for note in notes if note.what == "drawn"]
    return [
        *lacks,
        *drawn,
        *(f"{note}; --depth-scaling none predicts that." for note in notes if note.what == "older"),
        *codes * others,
    ]


def other_codes(notes: Sequence[Note]) -> list[str]:
    """Return the names of the training frameworks that initialize the weights of such models differently."""
    bases = (note.value for note in notes if note.what == "unread" and note.field in _BASE_WIDTHS)
    codes = [f"mup:{width}" for width in bases if type(width) is int and 1 <= width <= 1e9][:1]
    codes += [name for name, code in TRAINING_CODES.items() if model_type(notes) in code.families]
    return [name for name in codes if name != drawn_by(notes)]


def loss_of_head(stack: Stack) -> float:
    """Return the loss for independent normal logits with variance s² and V tokens: ln V + s²/2."""
    return math.log(stack.vocab) + stack.output_scale**2 / 2.0


def lacking_sizes(notes: Sequence[Note]) -> str:
    """List the sizes that the file does not set, with the defaults of its class, unless `unread_line` states them."""
    named = [note.reason for note in notes if note.what == "unread"]
    return ", ".join(
        size
        for note in notes
        for size in [f"{note.field} = {note.value}"]
        if note.what == "default" and note.field in {*WIDTH, *DEPTH, *HEADS, "vocab_size"} and size not in named
    )


def unread_line(notes: Sequence[Note], most: int = 6) -> list[str]:
    """Name the keys that the model's class does not read, in one line, or in none.

    Args:
        notes: notes on the configuration.
        most: number of keys that are named; keys in whose place another value holds come first.
    """
    unread = sorted((note for note in notes if note.what == "unread"), key=lambda note: not note.reason)
    keys = [str(note) if note.reason else note.field for note in unread]
    keys[most:] = [f"{len(keys) - most} others (--layers)"] * (len(keys) > most)
    return [f"Not read by {CLASSES[str(model_type(notes))].name}: {', '.join(keys)}" for _ in keys[:1]]


def note_lines(notes: Sequence[Note], *, masked: float = 0.0) -> list[str]:
    """List the fields of a configuration that are not predicted, have default values, or have no effect.

    With a share of masked words, their note is omitted, because they are predicted.
    """
    lines = [f"- {note}" for note in notes if note.what == "left out" and not (masked and note.field == "masked words")]
    defaults = ", ".join(f"{note.field} = {note.value!r}" for note in notes if note.what == "default")
    neutral = ", ".join(sorted({note.field for note in notes if note.what == "neutral"} - {"router_aux_loss_coef"}))
    return [
        *unread_line(notes, len(notes)),
        *(["", "Fields of the configuration that are not predicted", *lines] if lines else []),
        *([f"Defaults of the class, because the file does not set them: {defaults}."] if defaults else []),
        *([f"Fields of the configuration without effect at initialization: {neutral}."] if neutral else []),
        *(
            f"The loss lacks the balancing loss, of weight router_aux_loss_coef = {note.value!r}."
            for note in notes
            if note.field == "router_aux_loss_coef" and note.value
        ),
    ]
