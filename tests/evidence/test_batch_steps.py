"""First steps of own networks on a text: gain, curvature, critical rate and the change of the loss, beside theory.

TEXT names a UTF-8 file. Its tokens are the 2048 most frequent words between spaces; other words are left out. Twenty
networks of two widths and depths, tied and not, take a step from 1, 16 or 64 windows of 32 tokens by one of three
optimizers. Muon's five Newton-Schulz steps are in single precision here, as theory has them in exact arithmetic.
"""

import itertools
import os
from collections import Counter
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradbounds.actions.learning_rate import kernel_scale
from simulate.curvature.first_step import along, direction, gradients, measure_step
from simulate.curvature.problems import Problem, StackModule, TokenLoss
from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.given_outputs import exact_muon
from theory import Stack
from theory.configurations.reading import Note
from theory.first_step.batch_step import ERRORS, batch_steps
from theory.mean_field.text_law import TextLaw
from theory.stack.optimizers import Optimizer

TEXT = os.environ.get("TEXT", "")

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(not TEXT, reason="TEXT must name a file of English text"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

VOCAB, TOKENS, MASKED_SHARE = 2048, 32, 0.15
KINDS = "untied", "tied"
RULES: tuple[Optimizer, ...] = "sgd", "adam", "muon"
DRAWS = {1: 4, 2: 4, 4: 4, 8: 2, 16: 2, 24: 2, 32: 2, 48: 1, 64: 1, 128: 1}


def listed(
    widths: tuple[int, ...], depths: tuple[int, ...], sequences: tuple[int, ...], kinds: tuple[str, ...] = KINDS
) -> list[tuple[Any, ...]]:
    """Twenty networks, as width, depth, kind, sequences and optimizer."""
    networks = list(itertools.product(widths, depths, kinds))
    return [(*networks[k % len(networks)], sequences[k % 3], RULES[(k + k // 3) % 3]) for k in range(20)]


CASES = listed((256, 512), (2, 6), (1, 16, 64))
# Twenty others, fixed after the gap of few tied tokens was narrowed for a batch's scale, and before any was drawn.
OTHERS = listed((192, 320), (3, 8), (4, 32, 128))
# One sequence each, fixed after its own positions replaced every second one of twice as many, and before any was drawn.
ALONE = [(*case[:3], 1, case[4]) for case in OTHERS[:8]]
# Ten others, fixed after frequent words were given a position of their own, and before any was drawn.
REPEATED = listed((384, 448), (4, 5), (2, 8, 48))[5:15]
# Ten of one or two sequences, fixed after theory took the mean over eight batches, and before any was drawn.
FEW = listed((256, 384), (3, 7), (1, 2, 2))[:10]
# Twenty gated networks with embeddings of size 1 and of size 0.02, fixed before any was drawn.
GATED = listed((256, 512), (2, 6), (1, 16, 64), ("gated", "llama"))
# Twenty for the ranges that `--learning-rate` prints, fixed before any was drawn. Ranges of the networks above held for
# 16; the four others, of one sequence each, lay below. So the ranges were widened to contain these.
RANGED = listed((320, 448), (2, 6), (1, 16, 64))
# Twenty for the widened ranges, fixed before any was drawn.
HELD = listed((192, 384), (2, 6), (1, 8, 64))
# Sixteen networks with experts, fixed before any was drawn and before their rule was written. Kinds are "experts", the
# size of embeddings and matrices (as Qwen3 at its own width, or unit embeddings), E, k and the law of ids.
EXPERTS = [
    (
        (64, 128, 192, 256)[k % 4], (2, 3, 4, 6)[(k + k // 4) % 4],
        f"experts {('qwen', 'unit')[k // 2 % 2]} {(8, 16, 32)[k % 3]} {(1, 2, 4)[k // 3 % 3]} "
        f"{('text', 'random')[(k + k // 4) % 4 == 3]}",
        (1, 4, 16, 32)[(k + k // 2) % 4], optimizer,
    )
    for optimizer in ("adam", "sgd") for k in range(16)
]  # fmt: skip
# Twelve others for the ranges of `--learning-rate`, which EXPERTS set, fixed before any was drawn.
EXPERTS_HELD = [
    (
        (96, 160, 224)[k % 3], (2, 3, 5)[(k + k // 3) % 3],
        f"experts {('qwen', 'unit')[k % 2]} {(8, 16, 64)[(k + k // 2) % 3]} {(2, 4, 8)[k // 2 % 3]} "
        f"{('text', 'random')[k % 4 == 2]}",
        (1, 2, 8, 24)[(k + k // 4) % 4], optimizer,
    )
    for optimizer in ("adam", "sgd") for k in range(12)
]  # fmt: skip
# Twenty with every kind of network, fixed after positions attended within groups, and before any was drawn.
GROUPED = listed((384, 512), (3, 5), (1, 16, 64), (*KINDS, "gated", "llama"))
# Post-LN and Peri-LN networks, and encoders as BERT, fixed before any was drawn. All other lists are of Pre-LN ones.
PLACED = [
    (256, depth, f"{placement} {kind}", sequences, optimizer)
    for placement, depth, kind in itertools.product(("post", "peri"), (2, 6), KINDS)
    for sequences, optimizer in itertools.product((1, 16, 64), RULES)
]
PLACED_OTHERS = [
    case
    for kinds in (("bert",), ("peri gated", "peri llama"))
    for case in listed((256, 384), (2, 6), (1, 16, 64), kinds)
]
# Twenty others for the ranges from these, fixed before any was drawn. Of 13 with SGD and AdamW, three with AdamW and
# tied embeddings lay below, at 0.81 and 0.82 of 0.83 (Post-LN) and 0.78 of 0.88 (Peri-LN). So the ranges were widened
# to contain these. Of Muon's networks, 15 in all three lists were not drawn for lack of time.
PLACED_HELD = listed((192, 320), (3, 8), (1, 8, 64), ("post untied", "post tied", "peri untied", "peri tied"))
# Networks that were chosen before Muon's gain was measured on them.
#
# The change of the loss is to be within the stated error in 5 of 6.
OF_MUON = [
    (*network, "muon")
    for network in (
        (384, 4, "untied", 16), (384, 4, "tied", 64), (384, 2, "untied", 64), (256, 4, "tied", 16),
        (512, 4, "untied", 64), (256, 4, "untied", 64),
    )
]  # fmt: skip

# Encoders in which 15% of the words have labels, as in BERT, fixed before any was drawn: kind, width, depth, sequences.
#
# A kind has the fields of another one and its own. All networks of the first list have the same four seeds.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "pre tied": ("bert", {"placement": "pre", "embedding_norm": "none"}),
    "gated": ("llama", {"mask": "none", "embeddings": "tied", "output_transform": "added"}),
    "pre untied": ("untied", {"mask": "none"}),
}
MASKED = [
    (256, depth, f"masked {kind}", sequences)
    for sequences, depth, kind in itertools.product((1, 16, 64), (2, 6), ENCODERS)
]
MASKED_HELD = [
    (*size, f"masked {kind}", sequences)
    for size, sequences, kind in itertools.product(((320, 3), (192, 4)), (8, 1, 64), ENCODERS)
]
# Networks of these lists that were not drawn for lack of time: one of the first and five of the second.
NOT_DRAWN = [
    (256, 6, "masked pre untied", 64), (320, 3, "masked gated", 64),
    *((192, 4, f"masked {kind}", 64) for kind in ENCODERS),
]  # fmt: skip

# Networks trained by Muon and AdamW, fixed before any was drawn, and the ratios of AdamW's rate to Muon's by name.
MIXED = [
    (width, depth, kind, sequences)
    for sequences, depth, width, kind in itertools.product((4, 16), (2, 4), (128, 256), (*KINDS, "llama", "llama tied"))
]
RATIOS = {"muon": ("muon", None), "mixed 0.02": ("muon", 0.02), "mixed 0.3": ("muon", 0.3)}

# Eight networks with SGD and AdamW, fixed before any was drawn with these seeds, for the labels of a text, and for
# labels from laws of each id's labels: that of the text's pairs, and three without its pairs.
ORDERS = "text", "pairs", "by id", "alike", "independent"
OF_ORDERS = [
    (256, 2, kind, 16)
    for kind in (*KINDS, *(f"{placed} {kind}" for placed in ("post", "peri") for kind in KINDS), "gated", "llama")
]

# What theory moves logits by at the rates at which the loss is measured.
#
# First that was the root mean square alone. In three networks with one sequence, the first that were measured, the loss
# then fell by 0.5 to 0.9 of theory: labels' logits moved by 2 and more, where all logits moved by 0.5. Their
# move counts
# since then.
LOGIT_MOVES = (0.5, 2.0)

# Multiples of the critical rate at which the loss itself is sampled, and the lists of networks with their first seeds.
MULTIPLES = (0.25, 0.5, 0.7, 1, 1.4, 2, 4, 8, 16, 32)
BEYOND = (CASES, 0), (GROUPED, 7000), (PLACED_OTHERS, 10000), (PLACED, 9000), (RANGED, 5000), (GATED, 3000)


@lru_cache
def words(kind: str = "text") -> np.ndarray:
    if kind.endswith("random"):
        return np.random.default_rng(0).integers(VOCAB, size=2**17)
    text = Path(TEXT).read_text(encoding="utf-8").split()
    ids = {word: k for k, (word, _) in enumerate(Counter(text).most_common(VOCAB))}
    return np.array([ids[word] for word in text if word in ids])


def stack(width: int, depth: int, kind: str) -> Stack:
    """A causal Pre-LN network with GELU units, tied as GPT-2, or with gated units, RMSNorm and rotary positions.

    Kinds that begin with "post" or "peri" have that placement. "bert" is an encoder with BERT's placement and norms.
    Kinds that begin with "masked" are encoders of `ENCODERS`.

    "llama" has the initialization of Llama: a standard deviation of 0.02 for all matrices, embeddings included.
    "experts qwen" has embeddings of 0.02, and matrices of the gain that Qwen3-30B-A3B has by its width.
    """
    fields: dict[str, Any] = {
        "width": width, "depth": depth, "tokens": TOKENS, "vocab": VOCAB, "heads": width // 64, "mask": "causal",
        "placement": "pre", "output_projection": "random", "activation": "gelu", "ffn_ratio": 4.0,
    }  # fmt: skip
    if kind.startswith(("post ", "peri ")):
        return replace(stack(width, depth, kind[5:]), placement=kind[:4])
    if kind.startswith("masked "):
        other, own = ENCODERS[kind[7:]]
        return replace(stack(width, depth, other), **own)
    if kind == "llama tied":
        return replace(stack(width, depth, "llama"), embeddings="tied")
    if kind == "bert":
        return replace(
            stack(width, depth, "post tied"), mask="none", depth_scaling="none", embedding_norm="added",
            output_transform="added",
        )  # fmt: skip
    if kind.startswith("experts"):
        scale = 0.02 * 2048**0.5 if "qwen" in kind else 1.0
        return Stack(**fields | {
            "ffn": "gated", "activation": "silu", "ffn_ratio": 0.75, "normalization": "rms", "rotary": 1.0,
            "heads": width // 32, "query_key_norm": "head", "experts": int(kind.split()[2]),
            "experts_per_token": int(kind.split()[3]), "router_norm": "sum", "query_key_scale": scale,
            "output_scale": scale, "init_std": scale * width**-0.5, "embedding_scale": 0.02 if "qwen" in kind else 1.0,
        })  # fmt: skip
    if kind in ("gated", "llama"):
        fields |= {"ffn": "gated", "activation": "silu", "ffn_ratio": 2.5, "normalization": "rms", "rotary": 1.0}
    if kind in ("untied", "gated"):
        return Stack(**fields, query_key_scale=1.0, init_std=width**-0.5)
    scale = 0.02 * width**0.5
    fields |= {"embedding_scale": 0.02} | ({"embeddings": "tied", "depth_scaling": "depth"} if kind == "tied" else {})
    return Stack(**fields, query_key_scale=scale, output_scale=scale, init_std=0.02)


@lru_cache
def successors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count how often each id follows each id, (V, V), and its pairs of equal labels and of labels, (V,)."""
    counts = np.bincount(words()[:-1] * VOCAB + words()[1:], minlength=VOCAB**2).reshape(VOCAB, VOCAB)
    return counts, (counts * (counts - 1.0)).sum(1), counts.sum(1) * (counts.sum(1) - 1.0)


def label_law(word: int, order: str, generator: np.random.Generator) -> np.ndarray:
    """Return the law of one id's labels, (V,), in one of `ORDERS`.

    "by id" and "alike" are Dirichlet laws around the law of all labels, with a stated agreement of two labels. In
    "by id", it is this id's in the text, but not less than for independent labels, and labels are this id as often as
    there. In "alike", it is the mean over pairs of equal ids, as in `TextLaw`.
    """
    (counts, agreeing, pairs), is_own, itself = successors(), order == "by id", np.arange(VOCAB) == word
    sizes = (counts[word] if order == "pairs" else np.bincount(words(), minlength=VOCAB)) * (1.0 - is_own * itself)
    mean, chosen = sizes / sizes.sum(), word if is_own else slice(None)
    if order not in ("by id", "alike"):
        return mean
    least, share = (mean**2).sum(), is_own * counts[word, word] / max(1, counts[word].sum())
    more = np.clip(agreeing[chosen].sum() / max(1.0, pairs[chosen].sum()) - least, 1e-4, 0.99 - least)
    return (1.0 - share) * generator.dirichlet(((1.0 - least) / more - 1.0) * mean + 1e-9) + share * itself


def problem(network: Stack, sequences: int, seed: int, kind: str = "text", order: str = "text") -> Problem:
    """Draw a network and a batch whose labels are the next words, or the masked ones if the kind is masked."""
    generator = np.random.default_rng(seed)
    starts = generator.choice((len(words(kind)) - 1) // TOKENS, sequences, replace=False) * TOKENS
    windows = words(kind)[starts[:, None] + np.arange(TOKENS + 1)]
    seen, labels = windows[:, :-1], windows[:, 1:].copy()
    of_labels = np.random.default_rng([seed, 1])
    levels = of_labels.permutation((np.arange(seen.size) + 0.5) / seen.size).reshape(seen.shape)
    for word in np.unique(seen) if order != "text" else ():
        labels[seen == word] = np.searchsorted(label_law(word, order, of_labels).cumsum()[:-1], levels[seen == word])
    is_tied, is_masked, counts = network.embeddings == "tied", kind.startswith("masked"), np.full(seen.shape, True)
    if is_masked:  # as `TextLaw.masked`, with the last id as [MASK]
        counts, change = generator.random(seen.shape) < MASKED_SHARE, generator.random(seen.shape)
        labels, noise = seen, generator.integers(VOCAB, size=seen.shape)
        seen = np.select([~counts, change < 0.8, change < 0.9], [seen, np.full_like(seen, VOCAB - 1), noise], seen)
    model, loss = StackModule(network, seed, torch.float32, "sampled_step"), TokenLoss(int(counts.sum()), 0.0)
    table = network.embedding_scale * torch.randn(
        VOCAB, network.width, generator=torch.Generator().manual_seed(seed + 2**20)
    )
    pieces = []
    for rows in (slice(first, first + (1 if is_tied else 8)) for first in range(0, sequences, 1 if is_tied else 8)):
        ids, places = torch.as_tensor(seen[rows]), torch.as_tensor(np.flatnonzero(counts[rows]))
        x = {"x": torch.zeros(1, TOKENS, network.width), "words": ids[0]} if is_tied else {"x": table[ids]}
        pieces += [(x | ({"places": places} if is_masked else {}), torch.as_tensor(labels[rows][counts[rows]]))] * bool(
            counts[rows].any()
        )
    return Problem(model, loss, pieces)


def drawn_step(
    given: Problem, loss: Any, gradient: dict[str, torch.Tensor], optimizer: Any, adam_ratio: float | None = None
) -> tuple[Any, Any]:
    u = exact_muon(gradient) if optimizer == "muon" else direction(gradient, optimizer)
    if adam_ratio is not None:
        u["Wemb"] = adam_ratio * direction(gradient, "adam")["Wemb"]
    return u, measure_step(given, gradient, u, loss, ends=False)


def beside(width: int, depth: int, kind: str, sequences: int, optimizer: Any, first: int = 0) -> dict[str, Any]:
    network = stack(width, depth, kind)
    law = TextLaw.of_counts(np.bincount(words(kind), minlength=VOCAB))
    step = batch_steps(network, [optimizer], sequences, law)[optimizer]
    step = step.rescaled((scale := kernel_scale(network, law, sequences, {optimizer: step})) or 1.0)
    rates = [move / step.logit_move for move in LOGIT_MOVES]
    rows = []
    for seed in range(first, first + DRAWS[sequences]):
        given = problem(network, sequences, seed, kind)
        loss, gradient = gradients(given)
        u, measured = drawn_step(given, loss, gradient, optimizer)
        held = {name: p.detach() for name, p in given.model.named_parameters()}
        with torch.no_grad():
            after = [sum(float(given.loss(*piece)) for piece in along(given, held, u, rate)) for rate in rates]
        rows.append([measured.gain, measured.curvature, *(one - loss for one in after)])
    gain, curvature, *changes = np.mean(rows, axis=0).tolist()
    return {
        "scale": scale, "rates": rates, "changes": changes, "theory": [step.change(rate)[0] for rate in rates],
        "errors": [step.change(rate)[1] for rate in rates], "gain": step.gain / gain,
        "curvature": step.curvature / curvature, "critical_rate": step.critical_rate / (2 * gain / curvature),
    }  # fmt: skip


def means_beside(
    width: int, depth: int, kind: str, sequences: int, first: int, draws: int, chosen: dict[str, tuple[Any, Any]]
) -> dict[str, Any]:
    """Return means of sampled steps with the theory's: in encoders with masked words, or of Muon and AdamW together.

    An optimizer and the ratio of AdamW's rate to Muon's are chosen by name.
    """
    network, law = stack(width, depth, kind), TextLaw.of_counts(np.bincount(words(), minlength=VOCAB))
    masked = MASKED_SHARE * kind.startswith("masked")
    steps = {
        name: batch_steps(network, [optimizer], sequences, law, masked=masked, adam_ratio=ratio)[optimizer]
        for name, (optimizer, ratio) in chosen.items()
    }
    notes = [Note("masked words", masked, "left out", "")] * bool(masked)
    scale = kernel_scale(network, law, sequences, {}, notes=notes) or 1.0
    rows = []
    for seed in range(first, first + draws):
        given = problem(network, sequences, seed, kind)
        loss, gradient = gradients(given)
        rows.append([
            [one.gain, one.curvature]
            for each in chosen.values() for _, one in [drawn_step(given, loss, gradient, *each)]
        ])  # fmt: skip
    return {
        name: {
            "scale": scale, "sampled": [gain, curvature], "gain": step.gain / gain,
            "curvature": step.curvature / curvature, "critical_rate": step.critical_rate / (2 * gain / curvature),
        }
        for (name, one), (gain, curvature) in zip(steps.items(), np.mean(rows, axis=0).tolist(), strict=True)
        for step in [one.rescaled(scale)]
    }  # fmt: skip


def changes_beyond(width: int, depth: int, kind: str, sequences: int, optimizer: Any, seed: int) -> list[float]:
    """Return the change of one network's loss at each multiple of its own critical rate, to second order."""
    given = problem(stack(width, depth, kind), sequences, seed, kind)
    loss, gradient = gradients(given)
    u, measured = drawn_step(given, loss, gradient, optimizer)
    held = {name: p.detach() for name, p in given.model.named_parameters()}
    rates = [times * 2 * measured.gain / measured.curvature for times in MULTIPLES]
    with torch.no_grad():
        return [sum(float(given.loss(*piece)) for piece in along(given, held, u, rate)) - loss for rate in rates]


def test_losses_beyond_the_critical_rate(kept_folder):
    """Most losses fall at a quarter of the critical rate. `RISES` has the multiples at which they first rise."""
    changes = {
        " ".join(map(str, case)): kept_case(kept_folder, f"{case} beyond", partial(changes_beyond, *case, first))
        for chosen, first in BEYOND for case in chosen if case[0] <= 384 or case[3] <= 16
    }  # fmt: skip
    record("batch-losses", {"multiples": MULTIPLES, "networks": rounded(changes)}, short=True)
    assert np.mean([values[0] < 0 for values in changes.values()]) > 0.5


def test_masked_steps(kept_folder):
    """AdamW's critical rates of encoders with masked words are within the stated error in 9 of 10 networks."""
    rules = {name: (name, None) for name in RULES}
    seeds = {case: 20000 for case in MASKED} | {case: 21000 + 4 * k for k, case in enumerate(MASKED_HELD)}
    cases = {
        f"{' '.join(map(str, case))} {optimizer}": one
        for case, first in seeds.items() if case not in NOT_DRAWN
        for make in [partial(means_beside, *case, first, 4, rules)]
        for optimizer, one in kept_case(kept_folder, f"{case} {first}", make).items()
    }  # fmt: skip
    record(
        "masked-steps",
        {"tokens": TOKENS, "vocab": VOCAB, "masked": MASKED_SHARE, "networks": rounded(cases)},
        short=True,
    )
    assert np.mean([
        abs(np.log(one["critical_rate"])) < np.log(1 + ERRORS["critical_rate"])
        for name, one in cases.items() if name.endswith("adam")
    ]) >= 0.9  # fmt: skip


def test_mixed_steps(kept_folder):
    """Rates of Muon and AdamW together are within the stated error in 9 of 10 networks with plain units."""
    cases = {
        f"{' '.join(map(str, case))} {name}": one
        for case in MIXED
        for name, one in kept_case(
            kept_folder, f"{case} mixed", partial(means_beside, *case, 30000, DRAWS[case[3]], RATIOS)
        ).items()
    }
    record("mixed-steps", {"tokens": TOKENS, "vocab": VOCAB, "networks": rounded(cases)}, short=True)
    assert np.mean([
        abs(np.log(one["critical_rate"])) < np.log(1 + ERRORS["critical_rate"])
        for name, one in cases.items() if "mixed" in name and "llama" not in name
    ]) >= 0.9  # fmt: skip


def steps_in_orders(width: int, depth: int, kind: str, sequences: int, first: int) -> dict[str, Any]:
    """Return mean gains and curvatures of SGD and AdamW in every order, divided by those of independent labels."""
    rows = {
        f"{order} {optimizer}": np.mean([
            (one.gain, one.curvature)
            for seed in range(first, first + DRAWS[1])
            for given in [problem(stack(width, depth, kind), sequences, seed, order=order)]
            for _, one in [drawn_step(given, *gradients(given), optimizer)]
        ], axis=0)
        for order, optimizer in itertools.product(ORDERS, RULES[:2])
    }  # fmt: skip
    return {name: (row / rows[f"independent {name.split()[-1]}"]).tolist() for name, row in rows.items()}


def test_orders_of_words(kept_folder):
    """A text's labels act by their pairs with ids, to 10%. Labels that agree as often do better than independent ones.

    Labels that agree as often for each id are no better than labels that agree alike for all ids.
    """
    np.testing.assert_allclose(
        [label_law(word, "by id", np.random.default_rng(word))[word] for word in range(VOCAB)],
        successors()[0].diagonal() / np.maximum(1, successors()[0].sum(1)), atol=1e-6,
    )  # fmt: skip
    cases = {
        " ".join(map(str, case)): kept_case(kept_folder, f"{case} orders", partial(steps_in_orders, *case, 40000))
        for case in OF_ORDERS
    }
    record("word-orders", {"tokens": TOKENS, "vocab": VOCAB, "networks": rounded(cases)}, short=True)
    errors = {
        order: np.abs([
            np.log(np.divide(one[f"{order} {name}"], one[f"pairs {name}"]))
            for one in cases.values() for name in RULES[:2]
        ])
        for order in ORDERS
    }  # fmt: skip
    assert errors["text"].max() < np.log(1.1)
    assert max(errors[order][:, 0].mean() for order in ("by id", "alike")) < errors["independent"][:, 0].mean()


def test_batch_steps(kept_folder):
    """The change of the loss within the stated error where logits move by 0.5, and the errors of gain and curvature.

    In each list of 20 networks or more, changes are within it in 9 of 10. For other numbers, the bar is 18 of 20 in the
    first list and in the second.
    """
    lists = (
        (CASES + OF_MUON, 0),
        (OTHERS + ALONE, 1000),
        (REPEATED, 2000),
        (GATED, 3000),
        (FEW, 4000),
        (RANGED, 5000),
        (HELD, 6000),
        (EXPERTS, 7000),
        (EXPERTS_HELD, 8000),
        (GROUPED, 7000),
        (PLACED, 9000),
        (PLACED_OTHERS, 10000),
        (PLACED_HELD, 11000),
    )
    cases = {
        " ".join(map(str, case)): kept_case(kept_folder, f"{case} {first}", partial(beside, *case, first))
        for chosen, first in lists
        for case in chosen
    }
    record("batch-steps", {"tokens": TOKENS, "vocab": VOCAB, "networks": rounded(cases)}, short=True)
    outside = [
        np.mean([abs(one["changes"][0] - one["theory"][0]) > one["errors"][0] for one in rows])
        for chosen, _ in lists if len(chosen) >= 20
        for rows in [[cases[" ".join(map(str, case))] for case in chosen]]
    ]  # fmt: skip
    assert max(outside) <= 0.1, outside
    missed = {
        name: [
            sum(abs(np.log(cases[" ".join(map(str, case))][number])) > np.log(1 + error) for case in chosen)
            for number, error in ERRORS.items()
        ]
        for name, chosen in (("first", CASES), ("others", OTHERS))
    }
    assert max(map(max, missed.values())) <= 2, missed
