"""The rows of a model's summary that state how its layers and matrices differ, and the profiles that they require."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from checks.stacks.gradients_by_layer import Columns, matrices
from gradbounds.network_text import (
    FLAT,
    MATRICES,
    ends_of_layers,
    matrix_name,
    sequences_text,
    tokens_text,
    with_cosines,
)
from theory import Stack
from theory.configurations import Note
from theory.first_step.noise_scale import NoiseScale
from theory.first_step.rules import epsilon_factor
from theory.mean_field.experts import rarely_chosen
from theory.stack.weights import copies, gain, weight_shapes

UNEVEN = 1.5
"""The ratio first / last layer above which layers count as uneven."""

# The name of the input embedding among the kinds of parameters.
_INPUTS = "table of inputs"

# The smallest share of the squared norm that the card lists, and that a reason for the largest share compares.
_LISTED, _SMALL = 0.05, 0.005

# The least squared norm of a layer, without which ratios of layers without a matrix would be 0/0.
_LEAST = 1e-100

# The largest part of a ratio, in the logarithm, that the other factor of a reason may have.
_SIMPLE = 1 / 3

NEARLY_EQUAL = 0.88
"""The cosine of two tokens above which attention hardly tells them apart.

Squared gradients of WQ and WK are proportional to (1 - cosine)² (docs/report.md, queries and keys), so that both norms
are less than an eighth of those of uncorrelated tokens. Coarse groups of tokens shift a cosine by up to 0.02.
"""

QUICK_RATIO, PLAIN_RATIO = 0.5, 0.3
"""The largest relative error of the ratio of WQ or WK in a quick estimate, by coarse groups and few attention samples.

Measured for 7 models with gated units: -21 to 37% of WQ, -39 to 46% of WK, and at most 5% of other matrices. For 4
with plain units it is smaller: -2 to 10% of WQ, -25 to 5% of WK.
"""

# The relative error of a ratio above which it is printed.
_UNSURE = 0.1

# AdamW's step in step 1, divided by its step for an epsilon of 0, below which a matrix counts as slowed.
_SLOWED = 0.85

# Matrices whose gradient comes through another matrix of their branch.
_FED_BY = {"W1": "W2", "WG": "W2", "WV": "WO"}


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """A summary of how the layers of a network differ, in lines of text and in the numbers that a verdict requires.

    Attributes:
        lines: a heading and rows; none without ratios of the first to the last layer.
        alike: number of layers with nearly equal tokens.
        slowest: result of `slowest_step`.
        fullest: the largest share of tokens that an expert takes in a layer; 0 if it is at most twice the even share.
    """

    lines: Sequence[str] = ()
    alike: int = 0
    slowest: tuple[float, str] = 1.0, ""
    fullest: float = 0.0


def layer_summary(
    stack: Stack, table: Columns, of: str = "", whole: float = 0.0, notes: Sequence[Note] = (), *, coarse: bool = False
) -> LayerSummary:  # fmt: skip
    """Summarize how the layers of a network differ in their gradients, their activations and their relative updates.

    Args:
        stack: The network. With one layer, there are no lines.
        table: Its `layer_table`, or the table "layers" of `predict_batch`.
        of: A name of the batch; "" for the sequences of the network.
        whole: The squared gradient norm of all parameters; 0 if it is unknown.
        notes: Notes on its configuration.
        coarse: Whether the table is a quick estimate.
    """
    value = "mean" if np.isnan(table["predicted"]).all() else "predicted"
    stream, gradients = profiles(with_cosines(table), value), gradient_profiles(table, value)
    cosine, loads = stream.get("cosine"), stream.get("expert_load_max", np.zeros(1))
    count, fullest = (
        0 if cosine is None else int((cosine > NEARLY_EQUAL).sum()),
        loads.max() * (loads.max() * stack.experts > 2 * stack.experts_per_token > 0),
    )
    if not (ratios := first_over_last(table, value)):
        return LayerSummary([], count, fullest=fullest)
    least = coarse * (QUICK_RATIO if stack.ffn == "gated" else PLAIN_RATIO)
    last, energies, growth = stack.depth, stream["hidden_energy"], growth_by_layer(table)
    absent = absent_from_first(stack, table)
    missing = {
        "too noisy to tell": [name for name in stream if name[:5] == "grad_" and name not in {*gradients, *absent}],
        "not in layer 1": absent,
    }
    has_embeddings = stack.positions == stack.embedding_norm == "none" and not count  # alone before layer 1
    sizes = (
        "rms before the norm {:.3g} in layer 1, {:.3g} in {}"
        if stack.composition.stream_norm
        else f"rms {stack.embedding_scale:.2g} before layer 1, {{:.2g}} after it, {{:.2g}} after {{}}"
        if has_embeddings
        else "rms {:.3g} after layer 1, {:.3g} after {}"
    )
    residual = sizes.format(*energies[[0, -1]] ** 0.5, last)
    if cosine is not None:
        known_as = f"{'~' * coarse}{count} layers " * bool(count) + f"alike: above {NEARLY_EQUAL}"
        residual += f"; tokens' cosine {'~' * (least == QUICK_RATIO)}{cosine[0]:.2f}, {cosine[-1]:.2f} ({known_as})"
    lines = [
        f"Layers: gradient norm and SGD's step, layer 1 / layer {last} (1x = equal), "
        f"{of or f'{sequences_text(stack)} of {tokens_text(stack.tokens)}'}",
        card_row(
            "by matrix",
            _by_ratio(table, value, ratios, least)
            + "".join(f"; {', '.join(map(role, names))} {why}" for why, names in missing.items() if names)
            + (f"; upper half {growth:.3g}x a layer (exponential)" if growth else ""),
        ),
        card_row("residual stream", residual),
    ]
    if none := [role(name) for name, of_layers in gradients.items() if not of_layers.any()]:
        lines.append(card_row("no gradient", f"{', '.join(none)}: {_reason_of_zero(stack, none)}"))
    slowest, experts = slowest_step(stack, table, whole), expert_rows(stack, table, notes) if of else []
    lines += [*experts, *_step_lines(stack, gradients, slowest, are_alike=bool(stack.query_key_scale and count))]
    return LayerSummary(lines, count, slowest, fullest)


def _reason_of_zero(stack: Stack, roles: Sequence[str]) -> str:
    # Say why matrices have no gradient.
    if roles == ["WR"] and stack.experts_per_token == 1 and stack.router_norm == "sum":
        return "the weight of the only chosen expert is always 1"
    return "attention to one token is constant" if stack.tokens == 1 else "a matrix of zeros comes after them"


def expert_rows(stack: Stack, table: Columns, notes: Sequence[Note]) -> list[str]:
    """Describe the loads of experts in a batch of text, and the balancing loss, which the predicted loss lacks.

    transformers computes one balancing loss E Σ_e f_e P_e from the mean shares and scores of all layers. Routers of two
    layers are independent, so that its mean is k + (mean balance of a layer - k) / layers. With weights of 0.001 and
    0.02, it changed gradient norms of 16 sampled Qwen3MoeForCausalLM by at most 0.07% (width 256, 8 and 16 layers).

    Args:
        stack: the network.
        table: the table "layers" of `predict_batch`.
        notes: notes on its configuration, which may have the weight of the loss.
    """
    stream = profiles(with_cosines(table), "predicted")
    if (loads := stream.get("expert_load_max")) is None:
        return []
    chosen, even = stack.experts_per_token, stack.experts_per_token / stack.experts
    weights = [note.value for note in notes if note.field == "router_aux_loss_coef"]
    weight = next((float(each) for each in weights if isinstance(each, int | float)), None)
    balance = chosen + (stream["expert_balance"].mean() - chosen) / len(loads)
    added = f"{balance:.3g} times its weight" if weight is None else f"{weight * balance:.2g}"
    change = "norm <0.1%" if (weight or 1.0) <= 0.02 else "norm: unknown"
    left_out = f"; the loss excludes the balancing loss, +{added} ({change})" * (
        stack.router_scores == "softmax" and weight != 0
    )
    first, most = stack.depth + 1 - len(loads), int(loads.argmax())
    others = "".join(f"{loads[k]:.0%} in {first + k}, " for k in dict.fromkeys((0, len(loads) - 1)) if k != most)
    reason = f"uneven{', as tokens are alike' * bool(stream.get('cosine', np.zeros(1)).max() > NEARLY_EQUAL)}: "
    few = rarely_chosen(stack, loads[-1])
    rare = f"; in layer {stack.depth}, about {few:.0f} of {stack.experts} get under {even / 10:.1%}"
    is_uneven = bool(loads.max() > 2 * even)
    return [
        card_row(
            "experts",
            f"{reason * is_uneven}one is chosen for about {loads[most]:.0%} of tokens in layer {first + most} "
            f"({others}even: {chosen}/{stack.experts} = {even:.0%}){rare * (is_uneven and few >= 1.0)}{left_out}",
        )
    ]


def growth_by_layer(table: Columns) -> float | None:
    """Return the factor per layer by which gradient norms grow towards the input; None without exponential growth.

    The factor is the geometric mean over the upper half of the layers, for the matrix that grows most. Growth counts as
    exponential if the residual stream keeps its size, and if the upper half's factor per layer is between the powers
    2/3 and 3/2 of that of all layers.

    Args:
        table: a `layer_table`, or the table "layers" of `predict_batch`.
    """
    energy = profiles(table, "predicted").get("hidden_energy", np.zeros(1))
    gradients = gradient_profiles(table, "predicted")
    most = max(gradients.values(), key=lambda of: of[0] / of[-1] if of.min() > 0 else 0.0, default=np.zeros(1))
    if most.min() <= 0 or most[0] < UNEVEN * most[-1] or max(energy) > UNEVEN * min(energy):
        return None
    upper, whole = np.log(most[len(most) // 2 :]), np.log(most)
    rate, mean = ((of[0] - of[-1]) / (len(of) - 1) if len(of) > 1 else 0.0 for of in (upper, whole))
    return math.exp(rate) if mean / 1.5 < rate < 1.5 * mean else None


def card_row(label: str, value: str) -> str:
    """Format a label and a value as one line of a model's summary."""
    return f"  {label:<16} {value}"


def role(name: str) -> str:
    """Return the name of a matrix from the name of its gradient: "W1" from "grad_W1"."""
    return name.replace("grad_", "")


def gradient_profiles(table: Columns, value: str) -> dict[str, NDArray[np.float64]]:
    """Return the gradients of every matrix that is known in all of several layers, without an encoder's matrices."""
    counts = Counter(np.asarray(table["quantity"])[np.asarray(table["layer"]) > 0])
    return {
        name: norms
        for name, norms in profiles(_interpolated(table, value), value).items()
        if name.startswith("grad_") and len(norms) == counts[name] > 1
    }


def _by_ratio(table: Columns, value: str, ratios: Mapping[str, float], least: float) -> str:
    """Format matrices with their ratios by part of the layer: "WQ and WK 100x, WV 7.1x; MLP WG 6x".

    A standard error above 10% follows the ratio, or the largest error `least` of WQ and WK where that is larger.
    """
    parts: dict[str, dict[str, list[str]]] = {}
    for name, ratio in ratios.items():
        whose = next((words for roles, words in MATRICES.items() if role(name) in roles), "")
        plain = re.sub(r"^of (attention$|the |its )?| \(.*", "", whose)
        of_part = parts.setdefault(re.sub("^(feed-forward block|gate)$", "MLP", plain), {})
        error = (ends_of_layers(table, name, value) or (0.0, 0.0))[1] / ratio
        within = least * (role(name) in ("WQ", "WK"))
        unsure = f" (+-{within:.0%})" * (within >= error) or f" (+-{error:.0%})"
        unsure *= max(error, within) > _UNSURE
        of_part.setdefault(f"{float(f'{ratio:.2g}'):g}x{unsure}", []).append(role(name))
    by_part = {
        part: ", ".join(f"{' and '.join(names)} {text}" for text, names in texts.items())
        for part, texts in parts.items()
    }  # fmt: skip
    text = "; ".join(f"{part} {texts}".strip() for part, texts in by_part.items())
    return re.sub(r"( \()(\+-\d+%\))(, WK \S+)\1\2", r"\3\1both \2", text)


def _step_lines(
    stack: Stack, gradients: Mapping[str, NDArray[np.float64]], slowest: tuple[float, str], *, are_alike: bool
) -> list[str]:  # fmt: skip
    """Compare the layers in a first step of AdamW or Muon.

    AdamW divides each entry of a gradient by its size, and Muon each matrix by its norm. With equal gradient spectra,
    Muon's steps then have equal sizes.

    Adam's step moves every entry by the learning rate, and changes the loss in proportion to the sum of the gradient's
    absolute entries. In small GPT-2, Llama and OPT models of transformers, its ratio first / last layer is 1.0 to 1.4
    times the ratio of norms. For Muon, the ratio of nuclear norms counts, which is up to 2.8 times as large there.

    Args:
        stack: the network.
        gradients: gradient norms by matrix and layer.
        slowest: result of `slowest_step`.
        are_alike: whether tokens are nearly equal in a layer, where steps in WQ and WK hardly change the loss.
    """
    _, adam = relative_updates(stack, gradients)
    if not adam:
        only = "only the scalars of the layers have a gradient: no matrix moves in step 1"
        return [card_row("a step", only)] if "grad_scalar" in gradients else []
    over_layers = max(size / adam[other] for (name, _), size in adam.items() for other in adam if other[0] == name)
    far = "equally far" if over_layers < 1 + FLAT else f"up to {over_layers:.2g}x as far as others, by initial sizes"
    unused = ", experts without tokens do not move" * bool(stack.experts)
    slower = f", but {slowest[1]} only ~{slowest[0]:.1g}x (AdamW's epsilon)" * bool(slowest[1])
    alike = "; WQ, WK hardly matter (alike tokens)" * are_alike
    return [
        card_row(
            "AdamW, Muon",
            f"{'' if are_alike else 'steps ignore gradient sizes: '}layers move {far}{slower}{unused}{alike}",
        )
    ]


def slowest_step(stack: Stack, table: Columns, whole: float, epsilon: float = 1e-8) -> tuple[float, str]:
    """Return AdamW's mean step in step 1, divided by its step for an epsilon of 0, in one matrix's median layer.

    The matrix is one with the smallest factor, and the first of WQ and WK. The result is (1.0, "") for a factor of at
    least `_SLOWED`. Gradients are clipped to norm 1, as most training codes do. Norms of WQ below the error of samples
    are those of WK, if shapes are equal, and vice versa. Other such norms count as the smallest. If those are
    half of a matrix's norms, the matrix is omitted. The smallest norm of all layers would be an effect of the samples.

    Args:
        stack: the network.
        table: the table "layers" of `predict_batch`.
        whole: the squared gradient norm of all parameters before clipping; 0 if it is unknown.
        epsilon: AdamW's epsilon.
    """
    norms = profiles({**table, "predicted": np.nan_to_num(table["predicted"])}, "predicted")
    norms = {name: of for name, of in norms.items() if name.startswith("grad_")}
    norms |= {
        name: np.where(norms[name] > 0.0, norms[name], norms[like])
        for name, like in (("grad_WQ", "grad_WK"), ("grad_WK", "grad_WQ"))
        if not stack.kv_heads and {name, like} <= norms.keys()
    }
    sgd, adam = relative_updates(stack, norms)
    sizes = {name: np.zeros(len(of)) for name, of in norms.items()}
    for name, layer in sgd:
        sizes[name][layer - 1 - stack.depth] = sgd[name, layer] / adam[name, layer]
    medians = {name: float(np.median(of)) for name, of in sizes.items() if np.median(of)}
    name = next((name for name, size in medians.items() if size < 1.4 * min(medians.values())), "")
    factor = epsilon_factor(medians[name] / max(1.0, whole**0.5), epsilon) if whole and name else 1.0
    return (factor, role(name)) if factor < _SLOWED else (1.0, "")


def enough_epsilon(factor: float) -> float:
    """Return the largest power of ten as AdamW's epsilon that hardly slows a matrix, by its factor for 1e-8."""
    rms = brentq(lambda size: epsilon_factor(size) - factor, 1e-20, 1e-6)
    return next(10.0**-k for k in range(8, 25) if epsilon_factor(rms, 10.0**-k) >= _SLOWED)


def slowed_text(slowest: tuple[float, str], setting: str = "") -> str:
    """Describe a result of `slowest_step` to one digit, with a setting of AdamW."""
    return f"AdamW's epsilon{setting} slows {slowest[1]} to ~{slowest[0]:.1g}x (median layer)"


def relative_updates(
    stack: Stack, gradients: Mapping[str, NDArray[np.float64]]
) -> tuple[dict[tuple[str, int], float], dict[tuple[str, int], float]]:
    """Return the norm of the update divided by the norm of the weights, at learning rate 1, for every matrix and layer.

    The two results are for SGD and for Adam with epsilon -> 0. Adam changes every entry by 1. Muon's update has a norm
    that depends only on the matrix's shape. If all layers have the same shapes, updates of both differ between layers
    only through |W|.
    """
    sgd, adam = {}, {}
    for name, norms in gradients.items():
        for layer, norm in enumerate(norms, start=stack.depth - len(norms) + 1):  # dense layers below have no router
            if name != "grad_scalar" and norm > 0 and (size := _size(stack, name, layer)) > 0:
                like = stack.of_layer(layer)
                entries = math.prod(weight_shapes(like)[role(name)]) * copies(like, role(name))
                sgd[name, layer], adam[name, layer] = float(norm / size), entries**0.5 / size
    return sgd, adam


def first_over_last(table: Columns, value: str = "predicted") -> dict[str, float]:
    """Return the gradient norm in the first layer divided by that in the last layer, for matrices that all layers have.

    Matrices of an encoder, or with a first or last norm lost in the error of sampling, are left out.

    Args:
        table: a `layer_table`.
        value: "predicted" or "mean".
    """
    gradients = gradient_profiles(table, value)
    depth = max(map(len, gradients.values()), default=0)
    return {name: float(of[0] / of[-1]) for name, of in gradients.items() if of.min() > 0 and len(of) == depth}


def absent_from_first(stack: Stack, table: Columns) -> list[str]:
    """Return the gradients of the matrices that layer 1 lacks because it has no experts."""
    shapes = weight_shapes(stack.of_layer(1))
    return [name for name in matrices(table) if stack.dense_layers and role(name) not in shapes]


def lost_matrices(stack: Stack, table: Columns) -> list[str]:
    """Return the matrices of layers 1 to L with a first or last gradient norm lost in the error of sampling."""
    norms = profiles({**table, "predicted": np.nan_to_num(table["predicted"])}, "predicted")
    known = {*gradient_profiles(table, "predicted"), *absent_from_first(stack, table)}
    return [role(name) for name, of in norms.items() if name.startswith("grad_") and len(of) > 1 and name not in known]


def _interpolated(norms: Columns, value: str) -> Columns:
    """Fill norms between two layers, which are lost in the error of sampling: they are no largest or smallest norm."""
    names, within = np.asarray(norms["quantity"]), np.array(norms[value])
    for name in dict.fromkeys(names):
        rows = np.flatnonzero(names == name)
        if (known := rows[~np.isnan(within[rows])]).size:
            within[rows] = np.interp(rows, known, within[known], left=np.nan, right=np.nan)
    return {**norms, value: within}


def profiles(table: Columns, value: str) -> dict[str, NDArray[np.float64]]:
    """Return every quantity of a table of layers as an array with one entry per layer, the first layer first."""
    layers, numbers = np.asarray(table["layer"]), np.asarray(table[value], float)
    rows = np.flatnonzero((layers > 0) & ~np.isnan(numbers))
    rows = rows[np.argsort(layers[rows], kind="stable")]
    names = np.asarray(table["quantity"])[rows]
    return {str(name): numbers[rows[names == name]] for name in dict.fromkeys(names)}


def _size(stack: Stack, name: str, layer: int) -> float:
    """Return the root mean square of a matrix's Frobenius norm; for experts, of all experts together."""
    role = name.removeprefix("grad_")
    like = stack.of_layer(layer)
    return float((gain(like, role) * weight_shapes(like)[role][1] * copies(like, role)) ** 0.5)


def squared_norms(table: Columns) -> dict[str, float]:
    """Return squared norms of every kind of matrix, summed over all layers."""
    quantities, norms = np.asarray(table["quantity"]), np.asarray(table["predicted"])
    names = [*matrices(table), *(name for name in ("grad_Wemb", "grad_WH") if name in quantities)]
    squares = {
        matrix_name(name) + ", encoder" * name.startswith("encoder_"): float(np.nansum(norms[quantities == name] ** 2))
        for name in names
    }
    return {name.replace("dL/d", "").replace("Wemb", "output matrix"): square for name, square in squares.items()}


def share_rows(
    squares: Mapping[str, float], stack: Stack, table: Columns, of: str, reasons_of: Sequence[str] = ()
) -> list[str]:
    """List the matrices with the largest shares of the squared norm, and the layer with a large share, with reasons.

    Args:
        squares: squared norms by kind of parameter.
        stack: the network.
        table: its `layer_table`, or the table "layers" of `predict_batch`.
        of: text at the end of the row.
        reasons_of: rows of `reasons_of_largest`.
    """
    whole = sum(squares.values())
    descending = sorted(squares.items(), key=lambda item: -float(f"{item[1]:.6g}"))  # equal but for rounding: in order
    shares = ", ".join(f"{name} {part / whole:.0%}" for name, part in descending[:3] if part > _LISTED * whole)
    at, sizes = np.asarray(table["layer"]), np.nan_to_num(table["predicted"])
    inside = (at > 0) & np.array([name.startswith("grad_") for name in table["quantity"]])
    layers = np.bincount(at[inside], sizes[inside] ** 2, minlength=1) / whole
    even = f"{layers.max():.0%} in layer {layers.argmax()} (even: {1 / stack.depth:.0%})"
    layer = f"; by layer: {even}" * bool(layers.max() > UNEVEN / stack.depth)
    head = "tied embedding" if stack.embeddings == "tied" else "output matrix"
    shares = f"{shares}{layer}{of}".replace(_INPUTS, "input embedding").replace("output matrix", head)
    is_small = any(squares.get(reason.split()[1], 0.0) < descending[0][1] / 2 for reason in reasons_of)
    return [card_row("of squared norm", shares), *([] if is_small else reasons_of)]  # others have the norm


def reasons_of_largest(scale: NoiseScale, sequences: int) -> list[str]:
    """Explain why one kind of matrix has a much larger gradient norm than another, in rows; none without a reason.

    The other matrix has a squared norm that is at least 2.25 times smaller.

    A squared norm is the sum of products (g_i·g_j)(x_i·x_j) over pairs of positions, with inputs x of the matrix and
    gradients g at its output. So it is |sum g_i|², the squared gradient of a bias there, times a mean of x_i·x_j. Over
    layers, each factor is the geometric mean over both orders in which gradients and inputs are exchanged. A factor is
    the only reason if it is the ratio of squared norms to a power between 2/3 and 4/3. The other matrix is the largest
    with one reason, or else with two. With experts e of weights p_ie, the squared gradient at W2's output is the sum of
    |sum_i p_ie g_i|². Networks that normalize each branch's output have none: small outputs enlarge gradients there.

    Args:
        scale: the noise scale of the network.
        sequences: number of sequences in the batch.
    """
    squares, parts = scale.squares(sequences, [*scale.vectors]), scale.grad_sq(sequences)
    known = sorted((name for name in parts if squares.get(f"bias_{name}", 0.0) > 0), key=lambda name: -squares[name])
    if scale.stack.composition.output_norm or not known:
        return []
    first, text = "WO" if known[0] == "WV" and "WO" in known else known[0], ""
    gradients = {
        name: np.maximum(np.nan_to_num(common + (single - common) / sequences), _LEAST)
        for name in known
        for single, common in [scale.vectors[f"bias_{name}"]]
        if len(common) == len(parts[first])  # of a decoder and not of an encoder
    }
    inputs = {name: np.maximum(np.nan_to_num(parts[name]), _LEAST) / part for name, part in gradients.items()}
    # Experts share the gradient, so that each of their matrices has a small norm.
    least = 0.0 if scale.stack.experts else _SMALL * sum(square for name, square in squares.items() if "_" not in name)
    for other in gradients:
        if (ratio := squares[first] / squares[other]) < UNEVEN**2 or squares[other] < least:
            continue
        by_gradient = math.prod(
            gradients[first] @ each / (gradients[other] @ each) for each in (inputs[first], inputs[other])
        ) ** 0.5  # fmt: skip
        power, times = math.log(by_gradient) / math.log(ratio), f"{by_gradient**0.5:.2g}x"
        of_inputs = f"{first}'s inputs are {(ratio / by_gradient) ** 0.5:.2g}x those of {other}"
        reason = (
            f"the backward signal reaches {first} before {other}, and {first} shrinks it {times}"
            if _FED_BY.get(other) == first
            else f"router weights make the backward signal at W2 {times} smaller than at {first}"
            if scale.stack.experts and other == "W2"
            else f"the backward signal at {first}'s output is {times} that at {other}"
        )
        if abs(power) < _SIMPLE:
            reason = of_inputs
        if min(abs(power), abs(power - 1.0)) < _SIMPLE:
            text = reason
            break
        if 0.0 < power < 1.0 and not text:
            text = f"{reason}, and {of_inputs}"
    return [card_row(f"why {first}", text)] * bool(text)
