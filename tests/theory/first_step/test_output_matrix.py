"""The step of an output matrix whose columns are inputs, behind a transform, against matrices that are written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from theory import Stack
from theory.first_step.output_matrix import OutputMatrix
from theory.first_step.tangent import TwoPassSolution

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


def size_of(u, gradient):
    """How large a step is beside its gradient."""
    return np.linalg.norm(u) / np.linalg.norm(gradient)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "polar"])
def test_a_step_of_both_uses(optimizer):
    """Two networks: of z that is no Gaussian, and gradients at inputs as large as those of the outputs.

    d = 6000 coordinates, of which entries scatter by a few percent; what is left out is compared to that below.
    """
    generator, solution = np.random.default_rng(8), TwoPassSolution.of(STACK)
    output = OutputMatrix.of(STACK, solution.output, solution.transform)
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
        gradient[:, :TOKENS] += SCALE * g[k].T
        u = step(gradient, optimizer)
        squares.append((u**2).sum())
        # Products of z and g, which are random: 4 of their standard errors. Those of z scatter, too.
        scatter = 4 * size_of(u, gradient) * SCALE * np.linalg.norm(g[k], axis=1).max()
        assert_allclose(logits[k], rows @ u, atol=scatter + 0.06 * np.abs(logits[k]).max())
        moved, c = SCALE * u[:, :TOKENS].T, words.coefficients[min(k, len(words.coefficients) - 1)]
        scatter *= np.linalg.norm(rows.T @ r[k][:, :TOKENS], axis=0).max() / WIDTH**0.5
        assert_allclose(c @ at_words[k], moved @ g[k].T, atol=scatter)
        if optimizer == "polar":
            energy = c @ at_words[k] @ c.T + words.energy[k]
            assert_allclose(energy, moved @ moved.T, atol=0.05 * energy.max())
            assert words.energy[k].trace() > 0.2 * energy.trace()
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
