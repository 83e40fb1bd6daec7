"""The optimizer step of the output matrix and of embedding tables: the effect on logits and input embeddings.

Its gradient is Σ_j z_j r_jv in column v, with z its input and r the gradients at the logits. With tied embeddings,
the column v of a word, of which the word's input is κ times, also has the gradient κ g, with g the gradient at the
input. After a transform neither z nor g has an overlap of order √d with words or with each other. So the step lies in
the span of both: inputs move along their gradients, and along z, which is independent of all matrices below.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from theory.coverage import is_tied
from theory.first_step.motion import Gradients, Steps, TokenMotion, inverse, mean_kernel
from theory.first_step.rules import RULES, STREAM_SAMPLES, Branch, MatrixUse, Rule, Rules, sign_rule, squared_size
from theory.first_step.units import OutputTransform
from theory.mean_field.kernels import Array, Number
from theory.stack import Stack
from theory.stack.optimizers import LINEAR, Optimizer

# Products of samples of z with gradients: so many at once, and of all networks together.
_HELD, _PRODUCTS, _FEWEST = 2**20, 2**31, 256


def input_scale(stack: Stack) -> float:
    """Return the factor κ between a column of the output matrix and the input embedding."""
    return stack.embedding_scale * stack.width**0.5 / stack.output_scale


@dataclass(frozen=True, slots=True, eq=False)
class WordSteps:
    """The change of tied input embeddings when the output matrix takes an optimizer step.

    Attributes:
        coefficients: coefficients on the gradients at the inputs, (M or 1, N, N).
        energy: kernel of the part along none of these gradients, (M or 1, N, N); 0 for signs, which `signs` samples.
        scale: κ, by which a column of the output matrix is multiplied to give the input.
        along: samples of Σ_j z_j r_jv at the inputs' own words, (samples, N); empty except for signs.
    """

    coefficients: Array
    energy: Array
    scale: float
    along: Array

    def signs(self, deltas: Array) -> Array:
        """Return samples of the input embeddings' change, if the step is along the gradient's sign.

        The shape is (samples, N).

        Args:
            deltas: samples of the gradients at the inputs, each the sum over equal token ids, (samples, N).
        """
        return self.scale * np.sign(self.along[: len(deltas)] + self.scale * deltas)


@dataclass(frozen=True, slots=True, eq=False)
class OutputMatrix:
    """The output matrix, which maps tokens to logits, with the effects of its optimizer step.

    The matrix is W_emb.

    Attributes:
        stack: the network.
        kernel: z_i·z_j/d for the matrix's input z, (N, N).
        rows: samples of a coordinate of z, (samples, N); None if it is Gaussian.
        rules: the optimizers' rules.
        ids: class of each position's token id, (N,); tied inputs with one id are one row.
    """

    stack: Stack
    kernel: Array
    rows: Array | None
    rules: Rules
    ids: NDArray[np.integer]

    @classmethod
    def of(
        cls, stack: Stack, kernel: Array, transform: OutputTransform | None, rules: Rules = RULES,
        words: NDArray[np.integer] | None = None,
    ) -> "OutputMatrix":  # fmt: skip
        """Create the output matrix, with samples of its input if there is a transform before it.

        Without `words`, all token ids differ.
        """
        ids = np.arange(len(kernel)) if words is None else words.ravel()
        return cls(stack, kernel, None if transform is None else transform.rows, rules, ids)

    @property
    def _equal(self) -> Array:
        """The pairs of positions with one token id, as 0 or 1, (N, N)."""
        return np.asarray((self.ids[:, None] == self.ids) * 1.0)

    @property
    def _gram(self) -> Array:
        """The products of the matrix's input rows, (N, N)."""
        return self.stack.width * self.kernel

    def moves(self, optimizer: Optimizer, r: Array, at_words: Array) -> Array:
        """Return the change of the logits when only the output matrix takes an optimizer step.

        The shape is (M, N, V) for M networks; the inputs of the matrix stay fixed.

        Args:
            optimizer: name of the optimizer.
            r: gradients at the logits, (M, N, V).
            at_words: Gram matrices of the gradients at the inputs, (M or 1, N, N), which only tied embeddings need.
        """
        if optimizer == "adam":
            return self._moved_by_signs(r, at_words)
        if optimizer in LINEAR or not is_tied(self.stack):
            return np.asarray(self.rules[optimizer](self._use, r @ r.mT) @ r)
        return np.asarray(self._gram @ self._spectral(optimizer, r, at_words)[:, : len(self.kernel)])

    def words(self, optimizer: Optimizer, r: Array, at_words: Array) -> WordSteps:
        """Return the change of tied input embeddings when the output matrix takes an optimizer step.

        Args:
            optimizer: name of the optimizer.
            r: gradients at the logits, (M, N, V).
            at_words: Gram matrices of the gradients at the inputs, (M or 1, N, N).
        """
        n, scale = len(self.kernel), input_scale(self.stack)
        if optimizer == "adam":
            return self._words_by_signs(r, at_words)
        if optimizer in LINEAR:
            along, c = r[..., self.ids], self._equal[None] * scale**2
        else:
            step = self._spectral(optimizer, r, at_words)[..., self.ids]
            along, c = step[:, :n], scale * step[:, n:].mT
        energy = scale**2 * along.mT @ self._gram @ along
        return WordSteps(c, energy.mean(0, keepdims=True) if len(c) == 1 else energy, scale, np.zeros((0, n)))

    def squared_size(self, optimizer: Optimizer, r: Array, at_words: Array) -> float:
        """Return the mean squared Frobenius norm |u|² of the optimizer's step u of the output matrix.

        Args:
            optimizer: name of the optimizer; for "normalized", the result is still to be divided by |g|².
            r: gradients at the logits, (M, N, V).
            at_words: Gram matrices of the gradients at the inputs, (M or 1, N, N).
        """
        if not is_tied(self.stack) or optimizer == "adam":
            return squared_size(self._use, r @ r.mT, optimizer)
        if optimizer in LINEAR:
            of_words = input_scale(self.stack) ** 2 * (self._equal * mean_kernel(at_words)).sum()
            return squared_size(self._use, r @ r.mT, optimizer) + float(of_words)
        step, n = self._spectral(optimizer, r, at_words), len(self.kernel)
        outputs, words = step[:, :n], step[:, n:]
        squares = (outputs * (self._gram @ outputs)).sum((-2, -1)) + (words * (at_words @ words)).sum((-2, -1))
        return float(squares.mean())

    @property
    def _use(self) -> MatrixUse:
        seen = np.ones((1, len(self.kernel))) if self.rows is None else self.rows
        return MatrixUse("Wemb", (self.stack.width, self.stack.vocab), self._gram[None], seen)

    def _spectral(self, optimizer: Optimizer, r: Array, at_words: Array) -> Array:
        """Return the step as coefficients on the rows z and g, (M, 2N, V)."""
        none = np.zeros((len(r), len(self.kernel), len(self.kernel)))
        words = np.broadcast_to(input_scale(self.stack) * (self.ids[:, None] == np.arange(r.shape[-1])), r.shape)
        left = np.concatenate([
            np.concatenate([none + self._gram, none], -1),
            np.concatenate([none, none + at_words], -1),
        ], -2)  # fmt: skip
        return spectral_step(self.rules[optimizer], self.stack, left, np.concatenate([r, words], -2))

    def _moved_by_signs(self, r: Array, at_words: Array) -> Array:
        """Return the change of logits by a sign step, d E z_i sign(z·r_v + κ g_v) with Gaussian g."""
        if self.rows is None:
            # Coordinates of the output tokens are Gaussian: E x_i sign(x·r) is closed, of the gradients r of a class.
            moved = self.kernel @ r
            size = np.sqrt(np.maximum((r * moved).sum(-2, keepdims=True), np.finfo(float).tiny))
            return np.asarray(self.stack.width * (2 / np.pi) ** 0.5 * moved / size)
        moved, drawn = np.zeros_like(r), 0
        for rows in self._blocks(r):
            along = rows @ r
            signs = np.sign(along)
            if is_tied(self.stack):
                sizes = np.maximum(self._sizes(at_words), np.finfo(float).tiny)
                signs[..., self.ids] = erf(along[..., self.ids] / (sizes[:, None] * 2**0.5))
            moved, drawn = moved + rows.T @ signs, drawn + len(rows)
        return self.stack.width / drawn * moved

    def _words_by_signs(self, r: Array, at_words: Array) -> WordSteps:
        """Return the motion of inputs by a sign step.

        By Stein's lemma, each input moves only along its own gradient, given all z.
        """
        assert self.rows is not None, "inputs are rows of it behind a transform"
        n, scale = len(self.kernel), input_scale(self.stack)
        sizes = np.maximum(self._sizes(at_words), np.finfo(float).tiny ** 0.4)  # whose inverse square is finite
        of_words, density, drawn = r[..., self.ids], np.zeros((len(r), n)), 0
        for rows in self._blocks(of_words):
            density = density + np.exp(-((rows @ of_words / sizes[:, None]) ** 2) / 2).sum(-2)
            drawn += len(rows)
        c = scale**2 * (2 / np.pi) ** 0.5 * density / (drawn * sizes)
        generator = np.random.default_rng(3)
        picked, networks = (generator.integers(count, size=STREAM_SAMPLES) for count in (len(self.rows), len(r)))
        along = (self.rows[picked][:, None] @ of_words[networks])[:, 0]
        # `STREAM_SAMPLES` is a request: samples come in pairs, and some more.
        return WordSteps(c[..., None] * self._equal, np.zeros((1, n, n)), scale, np.resize(along, (4 * len(along), n)))

    def _sizes(self, at_words: Array) -> Array:
        """Return the root mean squares of the coordinates of κ g, (M or 1, N), with g a sum over equal token ids."""
        squares = np.linalg.diagonal(self._equal @ at_words @ self._equal) / self.stack.width
        return np.asarray(input_scale(self.stack) * np.sqrt(np.maximum(squares, 0.0)))

    def _blocks(self, r: Array) -> Iterator[Array]:
        """Yield blocks of samples of z, as many as can be multiplied by all gradients in a reasonable time."""
        assert self.rows is not None
        count = product_count(r.size, len(self.rows))
        # Samples come in pairs of opposite sign before the units, half of them apart.
        half, step = len(self.rows) // 2, max(1, _HELD // (len(r) * r.shape[-1]))
        chosen = np.concatenate([self.rows[: count // 2], self.rows[half : half + count // 2]])
        yield from (chosen[start : start + step] for start in range(0, len(chosen), step))


def product_count(numbers: float, most: int) -> int:
    """Return the number of samples of the output matrix's input that are multiplied by gradients at the logits.

    Args:
        numbers: number of gradient entries.
        most: largest number of samples.
    """
    return int(np.clip(_PRODUCTS // numbers, min(_FEWEST, most), most))


def spectral_step(rule: Rule, stack: Stack, left: Array, right: Array) -> Array:
    """Return the output matrix's step for an optimizer that acts on the gradient's singular values.

    The gradient is LᵀR, and the step is given by coefficients on the rows of L.

    The optimizer's rule acts on singular values; the shape is (M, 2N, V).

    Args:
        rule: the optimizer's rule.
        stack: the network.
        left: LLᵀ, (M, 2N, 2N).
        right: R, (M, 2N, V).
    """
    # Rows of one length: those of gradients are much shorter than tokens.
    lengths = np.sqrt(np.linalg.diagonal(left))
    lengths = np.where(lengths > 0, lengths, 1.0)
    unit, given = left / (lengths[..., :, None] * lengths[..., None, :]), right * lengths[..., None]
    use = MatrixUse("Wemb", (stack.width, stack.vocab), unit, np.zeros((1, left.shape[-1])))
    return np.asarray(inverse(unit) @ rule(use, given @ given.mT) @ given / lengths[..., None])


@dataclass(slots=True, eq=False)
class Embeddings(Branch):
    """The input embeddings, as rows of tables, with their gradients and their change in one optimizer step.

    The tables are one of tokens and, if positions are learned, one of positions. The inputs are
    x_0,i = w_i or w_i + p_i, before a norm if there is one.

    Attributes:
        stack: the network.
        scales: divisors of the kernel in that norm; 1 if there is none.
        words: 1 where two tokens have equal ids, (..., N, N).
        uses: the tables. Every token selects one row of each, so that H has a 1 there, and H Hᵀ is 1 for equal rows.
    """

    scales: Number
    words: Array

    def __post_init__(self) -> None:
        stack, none = self.stack, np.zeros((1, self.stack.rows))
        shapes = table_shapes(stack)
        places = np.tile(np.eye(stack.tokens), (stack.sequences, stack.sequences))
        rows = {
            "inputs": self.words.reshape(stack.rows, stack.rows),
            "positions": places,
            "segments": np.ones((stack.rows, stack.rows)),
        }
        self.uses = [MatrixUse(name, shape, rows[name][None], none) for name, shape in shapes.items()]

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of the input embeddings in one optimizer step, as a weighted sum of input gradients.

        The weights are the coefficients C by table; a row's gradient is the sum over its tokens.
        """
        if rule is not sign_rule:
            return Branch.steps(self, rule, gradients, matrices)
        chosen = [use for use in self.uses if use.role in matrices]
        squares = {use.role: np.linalg.diagonal(use.rows @ gradients[use.role].gram @ use.rows) for use in chosen}
        return {
            use.role: use.rows
            * np.sqrt(2 / np.pi * self.stack.width / np.maximum(squares[use.role], np.finfo(float).tiny))[..., None]
            for use in chosen
        }  # fmt: skip

    def sign_deviations(self, deltas: Array, steps: Steps, words: WordSteps | None = None) -> Steps:
        """Return samples of the inputs' change that is not along their gradients.

        The step is along the gradient's sign. It changes the inputs by C Δ on average, along their gradients Δ. The
        samples are the rest, as "beyond", (samples, N).

        Args:
            deltas: samples of the gradients Δ, (samples, N).
            steps: coefficients C by table.
            words: motion of the inputs by the output matrix, if inputs are its rows.
        """
        chosen = [use for use in self.uses if use.role in steps]
        signs = [
            (np.sign if words is None or use.role != "inputs" else words.signs)(deltas @ use.rows[0]) for use in chosen
        ]
        parts = [moved - deltas @ mean_kernel(steps[use.role]).T for use, moved in zip(chosen, signs, strict=True)]
        return {"beyond": np.sum(parts, axis=0)} if parts else {}

    def up(self, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the input tokens when the embedding tables take one optimizer step."""
        n = self.stack.rows
        c = sum((steps[use.role] for use in self.uses if use.role in steps), np.zeros((1, n, n)))
        energy = c @ gradients["inputs"].gram @ c.mT + steps.get("words", 0.0)
        return TokenMotion(c / self.scales, np.zeros((1, n, n)), energy / self.scales)


def table_shapes(stack: Stack) -> dict[str, tuple[int, int]]:
    """Return the shape (rows, width) of every embedding table, by the table's name."""
    shapes = {"inputs": (stack.vocab, stack.width)}
    shapes |= {"positions": (stack.tokens, stack.width)} if stack.positions.startswith("learned") else {}
    return shapes | ({"segments": (1, stack.width)} if stack.positions == "learned_segment" else {})
