"""Read facts about a loss from its gradient: is it a cross-entropy, over which classes, with which labels?

The derivative of a cross-entropy with respect to the logits is softmax minus label, times the weight of a position. It
sums to 0 over the classes and is negative only at the label. The labels can therefore be read from it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from simulate.modules.layers import tensor_of

# Sums over classes that are rounding, over the sum of magnitudes.
_ROUNDING = 1e-3
_SINGLE = 1e-6
_SURE = 1e-4
# Fewer positions, or fewer different words, say nothing of where labels come from.
_POSITIONS, _WORDS = 8, 4
# How far labels are looked for, and how rarely words of another sample are labels by chance.
_FAR, _CHANCE = 8, 1e-4


def logits_of(output: Any) -> Tensor | None:
    """Return the logits in a module's output: `.logits`, an entry "logits", or the first tensor.

    The result is None without any of these.
    """
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else tensor_of(output)


def prediction_facts(loss: Tensor, logits: Tensor, inputs: Any) -> dict[str, float]:
    """Return facts about a cross-entropy loss, such as its classes and labels, from its gradient at the logits.

    The result is empty for another loss.

    Returns:
        "classes" (V, the last axis), "cross_entropy" (mean over positions), "loss_weight" (the sum of their weights in
        the loss: 1 for a mean). If labels are single classes: "label_entropy" (entropy of their frequencies in the
        batch, in nats: the loss of the best constant guess), "labels" (their number), "label_insight" (the number of
        standard errors by which the loss is below the loss of random labels with these frequencies). "label_is_next",
        "label_is_next_below" (along the first axis) and "label_is_own" are 1 if every position's label is the next
        token id of an input, or its own, else 0; "next_words" is the index of that input in `words_of`. Otherwise
        "label_distance" is the number of positions by which labels are shifted in the first input. For labels beyond a
        sample's end, "ends_in_next_sample" and "ends_in_own_start" are 1 if they are the first token ids of the next or
        of the same sample. If an input is named attention_mask, "labels_on_padding" is the number of labels where it is
        0.
    """
    try:
        (slope,) = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)
    except RuntimeError:
        return {}
    if slope is None or logits.ndim < 2 or logits.shape[-1] < 2:
        return {}
    classes = logits.shape[-1]
    rows, values = slope.detach().double().reshape(-1, classes), logits.detach().double().reshape(-1, classes)
    sizes = rows.abs().sum(-1)
    # A position whose label has all the probability has a loss of 0, and a derivative that is rounding.
    likely, guess = values.softmax(-1).max(-1)
    sure = (likely > 1 - _SURE) & (rows.gather(-1, guess[:, None])[:, 0] <= 0)
    counted = rows.any(-1) & values.isfinite().all(-1) & ~sure
    if not bool(counted.any()) and not (bool(sure.any()) and float(loss.detach()) < _ROUNDING):
        return {}
    # Single precision rounds 1 - p, too, times the weight of a position, which is 1/positions of a mean; where autocast
    # made the logits, their derivatives are rounded as these are.
    clear, rounding = rows[counted], max(_ROUNDING, torch.finfo(slope.dtype).eps) * sizes[counted] + _SINGLE / len(rows)
    if bool((clear.sum(-1).abs() > rounding).any()):
        return {}
    facts = {"classes": float(classes)}
    if bool(((clear < -rounding[:, None] / classes).sum(-1) != 1).any()):
        return facts | {"cross_entropy": float(loss.detach())}
    labels = torch.where(sure, values.argmax(-1), rows.argmin(-1))
    known = counted | sure
    every_log = values.log_softmax(-1)
    logs = every_log.gather(-1, labels[:, None])[:, 0]
    weights = -rows.gather(-1, labels[:, None])[:, 0] / -torch.expm1(logs).clamp(max=-1e-12)
    # A mean's weights add up to 1, and what is missing is that of sure positions; the others of them have no label.
    summed = float(weights[counted].sum())
    each = (1.0 - min(summed, 1.0)) / max(float(sure.sum()), 1.0)
    weights[sure] = each if summed < 1.0 + _ROUNDING else weights[counted].mean()
    size, total = float(-(logs * weights)[known].sum() / weights[known].sum()), float(weights[known].sum())
    known = known & (weights > weights[known].max() / 2)
    facts |= {"cross_entropy": size, "loss_weight": total} | _label_statistics(labels[known], every_log[known])
    every = torch.full(logits.shape[:-1], -1, device=logits.device)
    every[known.reshape(every.shape)] = labels[known]
    return facts | _label_origins(every, inputs, logits)


def _label_statistics(labels: Tensor, every_log: Tensor) -> dict[str, float]:
    """Return number and entropy of labels, and by how much a loss is below that of random labels.

    Args:
        labels: the labels, (positions,).
        every_log: logarithms of the probabilities of all classes, (positions, classes).
    """
    logs = every_log.gather(-1, labels[:, None])[:, 0]
    there, counts = labels.unique(return_counts=True)
    frequencies, every_log = counts.double() / len(labels), every_log[:, there]
    guessed, squared = every_log @ frequencies, every_log.square() @ frequencies
    error = float((squared - guessed.square()).mean().clamp(min=0) / len(labels)) ** 0.5
    return {
        "label_entropy": float(torch.special.entr(frequencies).sum()),
        "labels": float(len(labels)),
        "label_insight": float((logs - guessed).mean()) / max(error, 1e-12),
    }


def _label_origins(every: Tensor, inputs: Any, logits: Tensor) -> dict[str, float]:
    """Return facts about the inputs that the labels come from; labels are -1 at positions without one."""
    facts: dict[str, float] = {}
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if isinstance(mask, Tensor) and mask.shape == every.shape:
        facts["labels_on_padding"] = float((every[mask == 0] >= 0).sum())
    for number, words in enumerate(words_of(inputs, logits)):
        for name, label, word in (
            ("label_is_own", every, words),
            ("label_is_next", every[:, :-1], words[:, 1:]),
            ("label_is_next_below", every[:-1], words[1:]),
        ):
            there = label >= 0
            enough = int(there.sum()) >= _POSITIONS and len(word[there].unique()) >= _WORDS
            same = enough and torch.equal(label[there], word[there])
            # Another input that is the labels may be meant as such.
            if number == 0 or (same and name != "label_is_own"):
                facts[name] = max(facts.get(name, 0.0), float(same))
            if same and name != "label_is_own":
                facts.setdefault("next_words", float(number))
    # Logits may be cut, as where a module shifts them itself.
    words_there = words_of(inputs, logits) or words_of(inputs, logits, _FAR)
    if facts.get("label_is_next") == 1 or facts.get("label_is_next_below") != 1:
        for words in words_there[int(facts.get("next_words", 0)) :][:1]:
            facts |= _label_places(every, words)
    return facts


def _label_places(labels: Tensor, words: Tensor) -> dict[str, float]:
    """Find the distance by which labels are shifted token ids of an input, which may be longer than the labels."""
    labels = nn.functional.pad(labels, (0, words.shape[1] - labels.shape[1]), value=-1)
    for distance in sorted(range(-_FAR, _FAR + 1), key=lambda places: abs(places - 1)):
        first, last = max(-distance, 0), labels.shape[1] - max(distance, 0)
        if last <= first:
            continue
        label, word = labels[:, first:last], words[:, first + distance : last + distance]
        there = label >= 0
        enough = int(there.sum()) >= _POSITIONS and len(word[there].unique()) >= _WORDS
        if enough and torch.equal(label[there], word[there]):
            facts = {0: {"label_is_own": 1.0}, 1: {}}.get(distance, {"label_distance": float(distance)})
            return facts | (_ends(labels, words, distance) if distance > 0 else {})
    return {}


def _ends(labels: Tensor, words: Tensor, distance: int) -> dict[str, float]:
    """Check whether the last positions' labels, which are beyond their sample's end, begin a sample."""
    facts = {}
    last, first, different = labels[:, -distance:], words[:, :distance], len(words.unique())
    for name, label, word in (
        ("ends_in_own_start", last, first),
        ("ends_in_next_sample", last[:-1], first[1:]),
    ):
        there = label >= 0
        # Words that are drawn alike would be the same by chance.
        sure = different ** int(there.sum()) >= 1 / _CHANCE
        if sure and torch.equal(label[there], word[there]):
            facts[name] = 1.0
    return facts


def words_of(inputs: Any, logits: Tensor, longer: int = 0) -> list[Tensor]:
    """Return the token ids in a module's inputs that have the same positions as the logits, "input_ids" first.

    Labels are left out.

    Args:
        inputs: a module's inputs.
        logits: the module's output, (samples, positions, classes).
        longer: the number of positions by which token ids may be longer than the logits.
    """
    if isinstance(inputs, Mapping):
        names = sorted((name for name in inputs if "label" not in str(name)), key=lambda name: name != "input_ids")
        inputs = [inputs[name] for name in names]
    if isinstance(inputs, tuple | list):
        return [words for value in inputs for words in words_of(value, logits, longer)]
    words = isinstance(inputs, Tensor) and not inputs.is_floating_point() and inputs.ndim == 2
    if not words or logits.ndim != 3 or len(inputs) != len(logits):
        return []
    return [inputs] if 0 <= inputs.shape[1] - logits.shape[1] <= longer else []


def document_starts(inputs: Any, logits: Tensor) -> list[int]:
    """Return the positions at which documents begin in the first sample, from document or position ids.

    The ids are among the module's inputs.
    """
    for name, ids in inputs.items() if isinstance(inputs, Mapping) else ():
        if not isinstance(ids, Tensor) or ids.shape != logits.shape[:-1] or ids.is_floating_point():
            continue
        row = ids[0].tolist()
        if "position" in str(name) and row[0] == 0:
            return [place for place, number in enumerate(row) if number == 0]
        if any(word in str(name) for word in ("document", "doc_id", "segment", "seq_idx")):
            return [place for place, number in enumerate(row) if not place or number != row[place - 1]]
    return []
