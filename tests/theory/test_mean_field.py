"""The recursion against a slow twin over tokens, closed forms, and itself in another layout."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from theory import QUANTITIES, Stack, predict
from theory.mean_field.gaussian import softmax_overlap
from theory.mean_field.inputs import Inputs, of_counted
from theory.mean_field.kernels import MatrixLayout, Pair, PairLayout, eigen_root
from theory.mean_field.recursion import recursion


def slow_prediction(stack, inputs_equal, labels_equal):
    """Forward and backward by loops over pairs of tokens, each rule written out from docs/theory.md.

    `labels_equal[i][j]` is the probability that two labels agree.
    """
    n, post = stack.tokens, stack.placement == "post"
    pairs = [(i, j) for i in range(n) for j in range(n)]
    q = {(i, j): float(inputs_equal[i][j]) for i, j in pairs}

    def normalized(k):
        return {(i, j): k[i, j] / math.sqrt(k[i, i] * k[j, j]) for i, j in pairs}

    def relu(k, derivative):
        out = {}
        for i, j in pairs:
            scale = math.sqrt(k[i, i] * k[j, j])
            rho = min(1.0, k[i, j] / scale)
            angle = math.acos(rho)
            slope = (math.pi - angle) / (2 * math.pi)
            out[i, j] = slope if derivative else scale * (math.sqrt(1 - rho**2) / (2 * math.pi) + rho * slope)
        return out

    out = {name: [] for name in QUANTITIES}
    kept = []
    for _ in range(stack.depth):
        into = q if post else normalized(q)
        mean = sum(into.values()) / n**2
        after_attention = {p: q[p] + mean for p in pairs}
        out["attention_energy"].append(sum(after_attention[i, i] for i in range(n)) / n)
        middle = normalized(after_attention)  # x3 (Post) and LN(x3) (Pre): what the feed-forward branch sees
        stream = middle if post else after_attention
        hidden = relu(middle, False)
        total = {p: stream[p] + hidden[p] for p in pairs}
        out["ffn_hidden_energy"].append(sum(hidden[i, i] for i in range(n)) / n)
        out["hidden_energy"].append(sum(total[i, i] for i in range(n)) / n)
        off = [total[i, j] for i, j in pairs if i != j]
        out["token_correlation"].append(sum(off) / len(off) if off else math.nan)
        kept.append((q, mean, after_attention, middle, hidden, total))
        q = normalized(total) if post else total
    last = kept[-1][-1]
    final = normalized(last)
    g = {}
    for i, j in pairs:
        overlap = softmax_overlap(min(1.0, final[i, j]), stack.output_scale, stack.vocab)
        g[i, j] = (stack.output_scale / n) ** 2 * (overlap - 2 / stack.vocab + labels_equal[i][j])
    out["loss_gradient_sq"] = n**2 * sum(g[i, i] for i in range(n)) / n
    out["grad_sq_Wemb"] = stack.width * sum(final[p] * g[p] for p in pairs) / stack.output_scale**2
    each = [n**2 * g[i, i] / last[i, i] for i in range(n)]
    out["loss_through_norm_sq"] = sum(each) / n
    out["chain_positions_sq"] = sum(e * kept[-1][4][i, i] for i, e in enumerate(each)) * stack.width / n
    out["chain_jacobian_sq"] = out["chain_positions_sq"]
    out["norm_jacobian"] = sum(last[i, i] ** -0.5 for i in range(n)) / n

    def through_norm(k, grad):
        return {(i, j): grad[i, j] / math.sqrt(k[i, i] * k[j, j]) for i, j in pairs}

    if not post:
        g = through_norm(last, g)
    for before, mean, after_attention, middle, hidden, total in reversed(kept):
        if post:
            g = through_norm(total, g)
        slope = relu(middle, True)
        below = {p: g[p] * slope[p] for p in pairs}
        out["grad_sq_W2"].insert(0, stack.width * sum(hidden[p] * g[p] for p in pairs))
        out["grad_sq_W1"].insert(0, stack.width * sum(middle[p] * below[p] for p in pairs))
        back = below if post else through_norm(after_attention, below)
        g = {p: g[p] + back[p] for p in pairs}
        if post:
            g = through_norm(after_attention, g)
        out["grad_sq_WV"].insert(0, stack.width * mean * sum(g.values()))
        spread = {p: sum(g.values()) / n**2 for p in pairs}
        back = spread if post else through_norm(before, spread)
        g = {p: g[p] + back[p] for p in pairs}
    out["input_gradient_sq"] = sum(g[i, i] for i in range(n))
    return {name: value for name, value in out.items() if not (isinstance(value, list) and not value)}


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize(("depth", "tokens", "vocab", "scale"), [(1, 1, 2, 1.0), (3, 2, 5, 0.3), (4, 5, 11, 2.0)])
def test_exchangeable_tokens_against_loops(placement, depth, tokens, vocab, scale):
    stack = Stack(placement=placement, width=32, depth=depth, tokens=tokens, vocab=vocab, output_scale=scale)
    slow = slow_prediction(stack, np.eye(tokens), np.where(np.eye(tokens) > 0, 1.0, 1 / vocab))
    prediction = predict(stack)
    for name, value in slow.items():
        assert_allclose(prediction[name], value, rtol=1e-12, err_msg=name)
    assert set(prediction) == {name for name, q in QUANTITIES.items() if q.predicted and q.in_paper}


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_windows_of_words_against_loops(placement):
    """Repeated words and repeated labels, several windows averaged."""
    stack = Stack(placement=placement, width=32, depth=3, tokens=4, vocab=9)
    windows = np.array([[1, 2, 1, 1, 3], [4, 5, 6, 7, 8], [2, 2, 2, 2, 2]])
    slow = []
    for row in windows:
        words, labels = row[:-1], row[1:]
        slow.append(slow_prediction(stack, words[:, None] == words, (labels[:, None] == labels).astype(float)))
    prediction = predict(stack, windows)
    for name in slow[0]:
        # the overlap of many pairs is interpolated: its own error, 1e-7 of the largest overlap, enters the gradients
        assert_allclose(prediction[name], np.mean([s[name] for s in slow], axis=0), rtol=1e-7, err_msg=name)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_matrix_form_equals_pairs(placement):
    stack = Stack(placement=placement, depth=7, tokens=6, vocab=30)
    same = np.where(np.eye(6) > 0, 1.0, 1 / 30)
    matrices = recursion(stack, MatrixLayout(6), Inputs(np.eye(6)[None], same[None]), np.random.default_rng(0))
    for name, value in predict(stack).items():
        assert_allclose(matrices[name][..., 0], value, rtol=1e-10, err_msg=name)


def test_many_windows_are_chunked_without_a_trace(monkeypatch):
    stack = Stack(width=16, depth=2, tokens=3, vocab=8)
    windows = np.random.default_rng(0).integers(0, 8, (17, 4))
    whole = predict(stack, windows)
    monkeypatch.setattr("theory.mean_field.cost.CHUNK_ENTRIES", 5 * 3**2 * 2)
    for name, value in predict(stack, windows).items():
        assert_allclose(value, whole[name], rtol=1e-12, err_msg=name)


def test_one_token_closed_forms():
    """Attention is a linear map. Post-LN is flat in l; Pre-LN has q_l = 1 + 3l/2 and gradients d G/(2 q_l)."""
    vocab, depth, width = 40, 9, 64
    gradient = 1 - 2 / vocab + softmax_overlap(1.0, 1.0, vocab)
    post = predict(Stack(placement="post", width=width, depth=depth, tokens=1, vocab=vocab))
    assert_allclose(post["grad_sq_W2"], width * gradient / 3, rtol=1e-12)
    assert_allclose(post["grad_sq_W1"], width * gradient / 3, rtol=1e-12)
    assert_allclose(post["grad_sq_WV"], width * gradient / 2, rtol=1e-12)
    assert_allclose(post["input_gradient_sq"], gradient, rtol=1e-12)
    pre = predict(Stack(placement="pre", width=width, depth=depth, tokens=1, vocab=vocab))
    energy = 1 + 1.5 * np.arange(1, depth + 1)
    assert_allclose(pre["hidden_energy"], energy, rtol=1e-12)
    assert_allclose(pre["grad_sq_W2"], width * gradient / (2 * energy), rtol=1e-12)
    assert np.isnan(post["token_correlation"]).all()


@pytest.mark.parametrize(
    "windows", [np.zeros((3, 5)), np.zeros((3, 4), int), np.zeros(5, int), np.zeros((0, 5), int), [["a"] * 5]]
)
def test_windows_of_a_wrong_form(windows):
    with pytest.raises(ValueError, match=r"^windows must be integers of shape \(windows, tokens \+ 1\)"):
        predict(Stack(tokens=4), windows)


def test_arguments_of_another_kind():
    with pytest.raises(ValueError, match="^windows must hold token ids of at least 0, got -1"):
        predict(Stack(tokens=2), [[0, -1, 2]])
    for name in ("finite_width", "grouped"):
        with pytest.raises(ValueError, match=f"^{name} must be True or False, got 'no'"):
            predict(Stack(), **{name: "no"})


@pytest.mark.parametrize("more", [{}, {"query_key_scale": 1.0, "tokens": 2}])
@pytest.mark.parametrize(("depth", "message"), [
    (7, "^logits are too large for a prediction: .* the last tokens have norm"),
    (14, "^depth must be less than 1[01] for a prediction: the energy of tokens overflows there"),
])  # fmt: skip
def test_energies_that_overflow_are_refused(depth, message, more):
    """Gated units square the energy of every layer where nothing normalizes it, and nobody gave an output_scale."""
    with pytest.raises(ValueError, match=message):
        predict(Stack(ffn="gated", normalization="none", depth=depth, **more), patterns=2)


@pytest.mark.parametrize(("share", "count"), [(0.4, 2), (0.8, 4), (0.1, 1), (1.0, 5)])
def test_positions_that_count_are_all_subsets_of_their_number(share, count):
    """The chance that two positions count is the mean over every subset of that size; in both layouts."""
    subsets = [np.isin(np.arange(5), chosen) * 1.0 for chosen in itertools.combinations(range(5), count)]
    together = np.mean([np.outer(one, one) for one in subsets], axis=0)
    stack, kernel = Stack(tokens=5, loss_share=share), np.full((5, 5), 0.3) + np.eye(5)
    assert_allclose(of_counted(stack, MatrixLayout(5), kernel), kernel * together, rtol=1e-14)
    pair = of_counted(stack, PairLayout(5), Pair(1.3, 0.3))
    assert_allclose((pair.diagonal, pair.off), (1.3 * together[0, 0], 0.3 * together[0, 1]), rtol=1e-14)


def test_roots_differ_by_rounding_only_where_eigenvalues_are_equal():
    """The eigenvectors are then arbitrary, and processors return different ones."""
    noise = 1e-13 * np.random.default_rng(0).standard_normal((6, 6))
    equal = 0.5 + 0.5 * np.eye(6)
    assert np.allclose(eigen_root(equal + noise + noise.T), eigen_root(equal), atol=1e-11)
