"""The gradient noise scale: batches of other sizes, and networks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, layer_norm, linear, relu

import gradbounds as gb
from theory import NoRuleError, Stack, predict
from theory.first_step.noise_scale import noise_scale

SMALL = Stack(width=512, depth=3, tokens=4, vocab=16)


def test_the_first_layer():
    """ReLU units of independent inputs have the mean product kappa(0) = 1/(2 pi): one layer, one token, two words.

    Forward, two sequences' outputs are correlated by kappa(0)/(3/2), so that the softmax p of two words is the logistic
    function of normals of variance 2 with that correlation; backward, one sequence has E|p - y|^2 and two have
    E p.p' - 1/2 beside kappa(1) = 1/2 and kappa(0).
    """
    stack = Stack(width=512, depth=1, tokens=1, vocab=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights /= weights.sum()
    overlap = 1 / (2 * np.pi)
    correlation = overlap / 1.5
    p = 1 / (1 + np.exp(-np.sqrt(2) * nodes))
    others = correlation * nodes[:, None] + np.sqrt(1 - correlation**2) * nodes
    mean = weights @ (p[:, None] / (1 + np.exp(-np.sqrt(2) * others))) @ weights
    single, product = 0.5 * (2 * weights @ p**2), overlap * (2 * mean - 0.5)
    scales = noise_scale(stack).matrices
    assert scales["W2"][0] == pytest.approx((single - product) / product, rel=1e-3)
    assert np.isinf([scales[role][0] for role in ("WV", "W1")]).all()
    odd = noise_scale(replace(SMALL, activation="tanh")).matrices
    assert np.isinf([odd[role][0] for role in ("WV", "W1", "W2")]).all()


def differing(sampled, squares):
    """The matrices whose sampled squared norms are off by more than 5% and 4 standard errors: one in 10^3 by chance."""
    names = []
    for role, expected in squares.items():
        values = sampled[f"grad_sq_{role}"]
        errors = 4 * values.std(0) / len(values) ** 0.5
        if (abs(values.mean(0) - expected) > np.maximum(errors, 0.05 * expected)).any():
            names.append(role)
    return names


def test_experts():
    """48 sequences with positions in common, whose tokens one router sends to experts; evidence has more of them.

    A third to a half of the units' squared norms is what two sequences share, and of the router's a fifth.
    """
    fields = {"experts": 4, "experts_per_token": 2, "shared_ratio": 1.0, "shared_gate": "sigmoid", "dense_layers": 1}
    stack = Stack(width=128, depth=2, tokens=2, vocab=16, placement="pre", mask="causal", positions="learned", **fields)
    found = noise_scale(stack, patterns=512)
    sampled = gb.sample(replace(stack, sequences=48), draws=160, seed=1)
    assert not differing(sampled, found.grad_sq(48))
    nothing_shared = {role: single / 48 for role, single in found.single.items()}
    assert {"W1", "W2", "S1", "S2"} <= set(differing(sampled, nothing_shared))
    assert np.isnan(found.single["WR"][0])
    assert np.isfinite([found.whole, *found.norm(4)]).all()


def test_random_queries():
    """Four sequences of sampled networks."""
    stack = Stack(width=256, depth=2, tokens=4, vocab=16, heads=8, query_key_scale=1.5, placement="post")
    found = noise_scale(stack, patterns=64)
    sampled = gb.sample(replace(stack, sequences=4), draws=200, seed=1)
    assert not differing(sampled, found.grad_sq(4))
    assert "W2" in differing(sampled, found.grad_sq(8))
    assert (found.product_sem["W2"] < 0.02 * found.single["W2"]).all()
    with pytest.raises(ValueError, match="^sequences must be an integer of at least 1, got 0"):
        found.grad_sq(0)
    with pytest.raises(ValueError, match="^patterns must be an integer of at least 1 or None, got 0"):
        noise_scale(stack, patterns=0)
    with pytest.raises(ValueError, match="^windows must be integers of shape .* and at least 2, got"):
        noise_scale(stack, np.zeros((1, 5), dtype=int))
    with pytest.raises(NoRuleError, match="vocab of at least 2 tokens .* for a noise scale"):
        noise_scale(replace(SMALL, embeddings="tied", vocab=7))


KINDS = {
    "plain": {},
    "causal, sinusoidal": {"mask": "causal", "positions": "sinusoidal", "placement": "pre"},
    "a segment": {"positions": "learned_segment", "label_smoothing": 0.1},
    "a source": {"source_tokens": 3, "output_projection": "random"},
    "two streams": {"placement": "residual"},
    "a transform": {"output_transform": "added", "activation": "gelu", "embeddings": "tied"},
    "groups of labels": {"label_groups": 2},
    "the last position": {"loss_on": "last", "mask": "causal"},
    "parallel": {"layout": "parallel", "placement": "pre", "ffn": "gated", "activation": "silu"},
    "scalars": {"placement": "rezero"},
    "dropout": {"dropout": 0.2},
}


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_three_sequences_by_two(fields):
    """The prediction of three sequences, whose tokens have one kernel, is that of two in closed form, to rounding."""
    stack = replace(SMALL, width=128, **fields)
    squares, three = noise_scale(replace(stack, sequences=4)).grad_sq(3), predict(replace(stack, sequences=3))
    names = [name for name in three if "grad_sq_" in name]
    assert {name.replace("grad_sq_", "") for name in names} == squares.keys()
    for name in names:
        np.testing.assert_allclose(squares[name.replace("grad_sq_", "")], three[name], rtol=1e-9, err_msg=name)


RANDOM = {"query_key_scale": 1.0, "heads": 4, "mask": "causal", "placement": "pre", "output_projection": "random"}
TIED = {"embeddings": "tied", "embedding_scale": 0.3, "output_scale": 0.5}


@pytest.mark.parametrize("fields", [RANDOM | {"kv_heads": 2, "rotary": 1.0}, {"attention_dropout": 0.3}, TIED,
                                    TIED | RANDOM, RANDOM | {"experts": 3, "experts_per_token": 2}])  # fmt: skip
def test_three_sampled_sequences_by_two(fields):
    """Within 5 standard errors of both: of some 60 numbers one is off by chance once in 10^4 runs."""
    stack = replace(SMALL, width=128, depth=2, vocab=64, **fields)
    found, three = noise_scale(stack, patterns=128), predict(replace(stack, sequences=3), patterns=128)
    for role, square in found.grad_sq(3).items():
        name = f"grad_sq_{role}"
        error = np.hypot(three.errors[name], np.hypot(found.single_sem[role] / 3, found.product_sem[role] * 2 / 3))
        np.testing.assert_allclose(np.hypot(three.errors[name], found.grad_sq_sem(3)[role]), error)
        assert (abs(square - three[name]) <= 5 * error + 1e-9 * square).all(), (role, square, three[name], error)
        assert (error < 0.05 * square).all(), role


def test_windows_of_words():
    """Two windows in a row are two sequences: their prediction, of words and labels that repeat, and of a table."""
    stack = replace(SMALL, mask="causal", placement="pre")
    windows = np.random.default_rng(1).integers(6, size=(4, 5))
    sampled, two = noise_scale(stack, windows), predict(replace(stack, sequences=2), windows)
    for role, square in sampled.grad_sq(2).items():
        np.testing.assert_allclose(square, two[f"grad_sq_{role}"], rtol=1e-12, err_msg=role)
    single, product = sampled.vectors["inputs"]
    apart = noise_scale(stack).vectors["inputs"]
    assert apart[1] == 0.0 < 0.01 * apart[0] < abs(product) < single


def test_a_share_of_the_positions():
    """In a batch as many count as they are; here each by itself, which is 1/P off at most, P being 32."""
    stack = replace(SMALL, tokens=16, loss_share=0.5)
    squares, four = noise_scale(stack).grad_sq(4), predict(replace(stack, sequences=4))
    for role, square in squares.items():
        np.testing.assert_allclose(square, four[f"grad_sq_{role}"], rtol=1 / 32)
    assert (noise_scale(replace(stack, loss_share=1.0)).grad_sq(4)["W2"] < 0.7 * squares["W2"]).all()


@pytest.mark.parametrize(
    ("fields", "margin", "shared"),
    [
        ({}, 0.002, 0.002),
        ({"mask": "none", "input_correlation": 0.3}, 0.002, 0.002),
        ({"positions": "learned"}, 0.002, 0.005),
        (RANDOM | {"kv_heads": 2, "head_width": 64, "output_projection": "random"}, 0.08, 0.02),
    ],
)
def test_groups_of_two_sequences(fields, margin, shared):
    """By groups of 48 tokens, of which 12 stand for themselves, as by all of them: S, and C where there is one.

    At a width at which products of two tokens do not vary, which groups average over and all tokens do not.
    W^Q and W^K are known to some 6% at so few tokens (docs/report.md).
    """
    stack = replace(
        SMALL, width=2**20, depth=2, tokens=48, vocab=256, **{"mask": "causal", "placement": "pre"} | fields
    )  # fmt: skip
    each, groups = (noise_scale(stack, patterns=16, grouped=grouped) for grouped in (False, True))
    assert groups.loss == pytest.approx(each.loss, rel=1e-3)
    for role, single in each.single.items():
        np.testing.assert_allclose(groups.single[role], single, rtol=margin, err_msg=role)
        some = each.product[role] > 1e-6 * single
        np.testing.assert_allclose(groups.product[role][some], each.product[role][some], rtol=shared, err_msg=role)
        assert (abs(groups.product[role][~some]) < 1e-3 * single[~some]).all(), role


def test_what_places_have_in_common():
    """Random queries and a table of positions: C of W^Q and W^K by groups as by all of 36 tokens.

    At a width at which products of two tokens do not vary, within 4.5 standard errors of at most 4%; without what keys
    of one place share it is a fifth less.
    """
    stack = Stack(
        width=2**20, head_width=32, heads=4, depth=2, tokens=36, vocab=32, mask="causal", placement="pre",
        positions="learned", query_key_scale=1.0, output_projection="random",
    )  # fmt: skip
    each, groups = (noise_scale(stack, patterns=number, grouped=number > 32) for number in (32, 64))
    for role in ("WQ", "WK"):
        error = np.hypot(each.product_sem[role], groups.product_sem[role]) / each.product[role]
        assert (error < 0.04).all(), (role, error)
        assert (abs(groups.product[role] / each.product[role] - 1) < 4.5 * error).all(), role


def test_groups_of_three_sequences():
    """The prediction of three sequences by groups is that of two in closed form, to rounding."""
    stack = Stack(width=256, depth=2, tokens=48, vocab=256, mask="causal", placement="pre", positions="learned")
    squares, three = noise_scale(stack, grouped=True).grad_sq(3), predict(replace(stack, sequences=3), grouped=True)
    for role, square in squares.items():
        np.testing.assert_allclose(square, three[f"grad_sq_{role}"], rtol=1e-9, err_msg=role)


def test_few_heads_of_gated_units():
    """Two of four heads between the first and the last layer change the norm of a batch of text by less than 1%."""
    stack = Stack(
        width=64, depth=4, tokens=24, vocab=64, ffn="gated", activation="silu", normalization="rms", **RANDOM
    )  # fmt: skip
    few, every = (
        noise_scale(stack, text=gb.TextLaw.zipf(1.0, 64), patterns=4, coarse=coarse).norm(8)[0]
        for coarse in ("heads", False)
    )
    assert 0.0 < abs(few / every - 1.0) < 0.01


def test_tied_groups_of_two_sequences():
    """S within 2%, and C, some thousandths of it, within 10%, which sampled labels of all tokens would bury."""
    noise_scale(Stack(tokens=16, vocab=32, width=64, **TIED), patterns=2, grouped=True, coarse=True)  # V < 4 n
    stack = Stack(width=64, depth=2, tokens=24, vocab=512, mask="causal", placement="pre", positions="learned", **TIED)
    each, groups = (noise_scale(stack, patterns=4, grouped=grouped) for grouped in (False, True))
    for role, single in each.single.items():
        np.testing.assert_allclose(groups.single[role], single, rtol=0.02, err_msg=role)
        np.testing.assert_allclose(groups.product[role], each.product[role], rtol=0.1, err_msg=role)
        assert (each.product[role] < 0.01 * single).all()


def test_words_behind_a_transform_are_of_one_sequence():
    """By groups, as by all tokens: two sequences whose words differ share next to nothing of a tied W_emb."""
    stack = replace(
        SMALL, width=256, depth=1, tokens=48, vocab=256, mask="causal", placement="pre", embeddings="tied",
        output_transform="added",
    )  # fmt: skip
    each, groups = (noise_scale(stack, grouped=grouped).product["Wemb"] for grouped in (False, True))
    assert float(groups) == pytest.approx(float(each), rel=0.02)


SEQUENCES, DRAWS = 3, 100
BASE = {"width": 192, "depth": 2, "tokens": 4, "vocab": 32, "placement": "pre", "output_projection": "random"}


def squares(stack: Stack, seed: int) -> dict[str, float]:
    """Squared gradients of one network by kind: causal, with norms before or after branches, and uniform attention."""
    generator = torch.Generator().manual_seed(seed)
    d, n, rows = stack.width, stack.tokens, SEQUENCES * stack.tokens
    found: dict[str, list[torch.Tensor]] = {}

    def parameter(name: str, *shape: int, std: float = 0.0, mean: float = 0.0) -> torch.Tensor:
        value = (std * torch.randn(shape, generator=generator) + mean).requires_grad_()
        found.setdefault(name, []).append(value)
        return value

    def norm(x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (d,), parameter("gain", d, mean=1.0), parameter("shift", d), 0.0)

    def matrix(role: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, parameter(role, d, d, std=d**-0.5), parameter(f"bias_{role}", d))

    embedding = parameter("Wemb", stack.vocab, d, std=stack.output_scale * d**-0.5)
    if stack.embeddings == "tied":
        inputs = embedding[:rows] * (stack.embedding_scale / (stack.output_scale * d**-0.5))
    else:
        inputs = parameter("inputs", rows, d, std=stack.embedding_scale)
    x = inputs.reshape(SEQUENCES, n, d)
    if stack.positions == "learned":
        x = x + parameter("positions", n, d, std=stack.embedding_scale)
    seen = torch.tril(torch.ones(n, n))
    seen = seen / seen.sum(-1, keepdim=True)
    before, after = (norm, torch.clone) if stack.placement == "pre" else (torch.clone, norm)
    for _ in range(stack.depth):
        x = x + after(matrix("WO", seen @ matrix("WV", before(x))))
        x = x + after(matrix("W2", relu(matrix("W1", before(x)))))
    labels = torch.randint(stack.vocab, (rows,), generator=generator)
    cross_entropy(norm(x).reshape(rows, d) @ embedding.T, labels).backward()
    return {name: sum(float(p.grad.square().sum()) for p in values) for name, values in found.items()}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"placement": "output"},
        {"positions": "learned"},
        {"embeddings": "tied", "embedding_scale": 0.3, "output_scale": 0.5},
    ],
)
def test_every_vector_of_a_plain_module(fields):
    """Within 4 standard errors and 4% of large width: a false alarm once in some 10^3 runs."""
    stack = Stack(**BASE | {"mask": "causal"} | fields)
    theory = noise_scale(stack, patterns=64)
    draws = [squares(stack, seed) for seed in range(DRAWS)]
    expected = {role: float(value.sum()) for role, value in theory.grad_sq(SEQUENCES).items()}
    for name, (single, product) in theory.vectors.items():
        expected[name] = float(np.sum(product + (single - product) / SEQUENCES))
    assert expected.keys() >= draws[0].keys()
    for name in draws[0]:
        values = np.array([draw[name] for draw in draws])
        error = values.std(ddof=1) / DRAWS**0.5
        assert abs(values.mean() - expected[name]) < 4 * error + 0.04 * expected[name], (name, values.mean(), expected)
        assert error < 0.05 * expected[name], name
    parts = theory.squares(SEQUENCES, [name for name in draws[0] if name != "Wemb"])
    assert parts == pytest.approx({name: expected[name] for name in parts})
    root, error = theory.norm(SEQUENCES, list(theory.vectors))
    assert root**2 == pytest.approx(sum(expected.values()))
    assert (error > 0) == (stack.embeddings == "tied")
