"""The first step with tied embeddings, and the output matrix's behind a transform: against matrices written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from theory import Stack, predict
from theory.first_step import tied_networks as networks
from theory.first_step.output_matrix import OutputMatrix, input_scale
from theory.first_step.outputs import counted_positions, step_statistics
from theory.first_step.prediction import first_step
from theory.first_step.tangent import TwoPassSolution
from theory.first_step.tied_networks import TiedStep, sampled_tied_outputs
from theory.mean_field.inputs import gaussian_inputs
from theory.mean_field.kernels import MatrixLayout
from theory.mean_field.tied.loss import Output, embedding_energy
from theory.stack.weights import weight_shapes

TIED = {"width": 256, "depth": 2, "tokens": 4, "vocab": 16, "embeddings": "tied", "output_scale": 0.2, "heads": 8}
QUERIES = {"query_key_scale": 1.3, "output_projection": "random"}
STACKS = [
    {"placement": "post", "depth": 1, "label_smoothing": 0.1, "kv_heads": 2},
    {"placement": "peri", "layout": "parallel", "loss_on": "last", "embedding_scale": 0.4, "positions": "sinusoidal"},
    {"placement": "pre", "ffn": "gated", "kv_heads": 2, "head_width": 48, "output_projection": "random"},
    {"placement": "pre", "mask": "causal", "logit_softcap": 2.0, "kv_heads": 4, **QUERIES},
    {"placement": "pre", "rotary": 1.0, "query_key_norm": "head", **QUERIES},
    {"placement": "output", "query_key_norm": "all", "kv_heads": 2, **QUERIES},
    {"placement": "deepnorm", "sequences": 2, "tokens": 2, "query_key_scale": 0.7, "loss_share": 0.5},
]


def of(fields, optimizer, matrices=None):
    """A few networks, their step, and what their logits move by."""
    stack = Stack(**TIED | fields)
    solution = TwoPassSolution.of(stack, 3, 410)
    drawn = sampled_tied_outputs(solution, np.random.default_rng(5), 256, counted_positions(stack, 0))
    step = TiedStep.of(solution, optimizer, matrices or tuple(weight_shapes(stack)), drawn)
    return solution, drawn, step, *step.logits(solution, drawn)


@pytest.mark.parametrize("fields", STACKS)
@pytest.mark.parametrize("optimizer", ["sgd", "polar", "adam"])
def test_a_way_up_is_the_adjoint_of_the_way_down(fields, optimizer):
    """g·u by logits is that by matrices, and u'Gu alike; the output matrix's is r times its own logits and g_0 ẋ_0."""
    solution, drawn, step, w, speeds = of(fields, optimizer)
    gain, curvature = step.inner_products_by_matrix(solution, drawn, w)
    values = step_statistics(drawn, w, speeds, normalized=False)
    # Samples of gates and lines are not quite independent.
    margin = 0.01 if solution.stack.ffn == "gated" else 1e-4
    assert sum(part.sum() for part in gain.values()) == pytest.approx(values["gain"].mean(), rel=margin)
    seen = (values["curvature"] - values["spread"]).mean()
    # Means over some hundreds of samples of units, which are not quite symmetric.
    assert sum(part.sum() for part in curvature.values()) == pytest.approx(seen, rel=3e-3)
    _, drawn, step, w, _ = of(fields, optimizer, ("Wemb",))
    words = np.eye(drawn.r.shape[1], drawn.r.shape[2]) * input_scale(solution.stack)
    right = np.concatenate([drawn.r, np.broadcast_to(words, drawn.r.shape)], -2)
    by_columns = ((step.left @ step.embedding) * right).sum((-2, -1))
    assert_allclose((drawn.r * w).sum((-2, -1)), by_columns, rtol=margin)


def test_the_product_of_the_two_uses_of_the_embeddings():
    """The squared gradient is the recursion's, for the same networks."""
    solution, drawn, _, w, _ = of(STACKS[0], "sgd", ("Wemb",))
    stack, n = solution.stack, solution.stack.rows
    own, rest = drawn.r[..., :n], drawn.r[..., n:]
    down = networks._down(solution, drawn.r)
    output = Output(np.zeros(len(own)), own, rest @ rest.mT)
    energy = embedding_energy(
        stack, MatrixLayout(n), gaussian_inputs(stack), solution.forward.output, output,
        down.bottom.kernel(solution.first), down.across.mT,
    )  # fmt: skip
    assert_allclose((drawn.r * w).sum((-2, -1)), stack.width * energy, rtol=1e-6)


def test_gain_is_the_squared_gradient():
    """Of the recursion, whose samples are others."""
    stack = Stack(**TIED | {"placement": "pre", "depth": 1})
    step, predicted = first_step(stack), predict(stack)
    for role, share in step.gain_shares.items():
        assert_allclose(share * step.gain, predicted[f"grad_sq_{role}"], rtol=0.03, err_msg=role)
    assert sum(float(share.sum()) for share in step.curvature_shares.values()) == pytest.approx(1)


def test_steps_where_gradients_differ_by_orders_of_magnitude():
    """Networks that are sure of their words, some of which are labels: no mean over networks may mix their sizes."""
    step = first_step(Stack(**TIED | {"output_scale": 1.0, "depth": 1}), "polar")
    assert 0 < step.spread < 0.1
    assert step.critical_rate > 0


WIDTH, TOKENS, VOCAB = 6000, 3, 6
STACK = Stack(
    width=WIDTH, depth=1, tokens=TOKENS, vocab=VOCAB, embeddings="tied", output_transform="added", activation="relu",
    embedding_scale=0.3, output_scale=0.5,
)  # fmt: skip
SCALE = 0.3 * WIDTH**0.5 / 0.5


def step(gradient, optimizer):
    """Of a (d, V) matrix."""
    if optimizer == "polar":
        left, values, right = np.linalg.svd(gradient, full_matrices=False)
        rank = int((values > 1e-5 * values[0]).sum())
        return left[:, :rank] @ right[:rank]
    return np.sign(gradient) if optimizer == "adam" else gradient


@pytest.mark.parametrize("ids", [[0, 1, 2], [4, 1, 4]])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "polar"])
def test_a_step_of_both_uses(optimizer, ids):
    """Two networks with non-Gaussian z, and gradients at inputs as large as at outputs, also where an id repeats.

    d = 6000 coordinates, of which entries scatter by a few percent; what is left out is compared to that below.
    """
    generator, solution = np.random.default_rng(8), TwoPassSolution.of(STACK)
    output = OutputMatrix.of(STACK, solution.output, solution.transform, words=np.array(ids))
    rows = output.rows[generator.integers(len(output.rows), size=WIDTH)].T
    root = np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 1.0]]) / WIDTH**0.5 / SCALE
    g = [size * root @ generator.standard_normal((TOKENS, WIDTH)) * WIDTH**0.5 for size in (1.0, 0.7)]
    r = generator.standard_normal((2, TOKENS, VOCAB))
    at_words = np.array([one @ one.T for one in g])
    words = output.words(optimizer, r, at_words)
    logits = output.moves(optimizer, r, at_words)
    squares = []
    for k in range(2):
        gradient = rows.T @ r[k]
        np.add.at(gradient.T, ids, SCALE * g[k])
        u = step(gradient, optimizer)
        squares.append((u**2).sum())
        # Products of z and g, which are random: 4 of their standard errors. Those of z scatter, too.
        scatter = 4 * np.linalg.norm(u) / np.linalg.norm(gradient) * SCALE * np.linalg.norm(g[k], axis=1).max()
        assert_allclose(logits[k], rows @ u, atol=scatter + 0.06 * np.abs(logits[k]).max())
        moved, c = SCALE * u[:, ids].T, words.coefficients[min(k, len(words.coefficients) - 1)]
        scatter *= np.linalg.norm(rows.T @ r[k][:, ids], axis=0).max() / WIDTH**0.5
        assert_allclose(c @ at_words[k], moved @ g[k].T, atol=scatter)
        if optimizer == "polar":
            energy = c @ at_words[k] @ c.T + words.energy[k]
            assert_allclose(energy, moved @ moved.T, atol=0.05 * energy.max())
            assert words.energy[k].trace() > (0.2 if len({*ids}) == TOKENS else 0.1) * energy.trace()
    assert output.squared_size(optimizer, r, at_words) == pytest.approx(np.mean(squares), rel=0.05)


def test_energy_of_both_uses():
    """Where one kernel serves all networks their mean is exact; signs have all of it in samples."""
    generator, solution = np.random.default_rng(9), TwoPassSolution.of(STACK)
    output = OutputMatrix.of(STACK, solution.output, solution.transform)
    r = generator.standard_normal((400, TOKENS, VOCAB))
    at_words = np.eye(TOKENS)[None] / SCALE**2 * WIDTH
    words = output.words("sgd", r, at_words)
    expected = SCALE**2 * WIDTH * np.trace(output.kernel) * np.eye(TOKENS)
    assert_allclose(words.energy[0], expected, atol=0.2 * expected.max())
    signs = output.words("adam", r, at_words).signs(generator.standard_normal((4000, TOKENS)) / SCALE)
    assert_allclose(np.abs(signs), SCALE)
    assert_allclose(signs.mean(0), 0.0, atol=0.1 * SCALE)
