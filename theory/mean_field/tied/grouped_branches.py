"""A gradient with overlaps on its way back through a branch, by representatives of groups of tokens.

With M the mean coefficients on what the branch made, and m those of each token's own variation, the known part of the
gradient is also noise to what is below: all of it passes by the rule without overlaps. Added are what is known below,
and what a certain gradient at logits or slopes adds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.mean_field.activations import Activation, activation_of
from theory.mean_field.attention.grouped import GroupedAttention
from theory.mean_field.attention.grouped_patterns import GroupedPatterns, root, turned
from theory.mean_field.attention.patterns import bare_logit_scale
from theory.mean_field.attention.sampled import head_gain
from theory.mean_field.kernels import Array
from theory.mean_field.sequence_blocks import whole, within
from theory.mean_field.sublayers import Overlaps, SquaredNorms, SublayerState, of_biases, with_more
from theory.mean_field.token_groups import GroupLayout, TokenMatrix, with_diagonal
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio

POINTS = 256
"""Gaussian samples of an activation's inputs."""
# Nodes of the mean over what a token has beside the others of its group.
_NODES = 10
# Tokens that are equal, or nearly, have no inverse.
_SMALLEST = 1e-10


def below_units(
    stack: Stack, tokens: GroupLayout, noise: Array, part: TokenMatrix, variation: Array, inside: SublayerState[Array],
    generator: np.random.Generator,
) -> tuple[Array, TokenMatrix, Array, SquaredNorms]:  # fmt: skip
    """Below φ(x W1) W2 or (φ(x WG) ∘ x W1) W2; w = s ∘ (M h) as in `units.below_units`.

    In Σ_p M_ip h_p the units of a group's tokens are their mean given what they have in common, as often as there are
    tokens, and what differs by the root of that.
    """
    activation, ratio = activation_of(stack.activation, stack.leaky_slope), stack.ffn_width / stack.width
    first, second, gated = gain(stack, "W1"), gain(stack, "W2"), stack.ffn == "gated"
    gate = gain(stack, "WG") if gated else first
    added = (part @ tokens.matrix(inside.made) @ part.mT).plus_diagonal(variation**2 * np.linalg.diagonal(inside.made))
    below, energies = inside.pullback(noise + added.kernel, None)
    part, variation = second / ratio * part, second / ratio * variation
    gates = _Points.of(tokens, inside.given * gate, generator)
    units, slopes = gates.applied(activation)
    hidden, group = units
    if gated:
        lines = _Points.of(tokens, inside.given * first, generator)
        hidden, group = hidden * lines.single, (group[0] * lines.common, group[1] * lines.another)
        bent = _bent(tokens, inside.given * gate, gates.single, units[0], slopes)
        from_lines = tokens.matrix(inside.given * first)
        squares = _mean(units[0], units[0])
        paths = {
            "W1": (units[0], _entrywise(tokens, part, squares), variation * np.linalg.diagonal(squares)),
            "WG": (slopes * lines.single, *_response(
                tokens, _entrywise(tokens, part, from_lines.kernel), variation * from_lines.diagonal, slopes, bent
            )),
        }  # fmt: skip
    else:
        bent = _bent(tokens, inside.given * first, gates.single, units[0], slopes)
        paths = {"W1": (slopes, *_response(tokens, part, variation, slopes, bent))}
    # What all tokens' units make of the coefficients, and what a token's own vary by.
    differing = group[1] - group[0]
    sums = hidden * part.alone[..., None, :]
    sums = sums + (group[0] * tokens.sizes + differing * np.sqrt(tokens.sizes)) @ part.smooth.mT
    along, own_along = 0.0 * part, 0.0 * variation
    for role, (factors, response, own_response) in paths.items():
        w, varying = factors * sums, np.square(factors * hidden).mean(-2) * variation**2
        squares = _mean(w, w)
        squares = ratio * with_diagonal(squares, np.linalg.diagonal(squares) + varying)
        size = gain(stack, role)
        energies[role] = energies[role] + tokens.total(inside.given * squares)
        energies = with_more(energies, of_biases(stack, tokens, **{role: squares}))
        below = below + size * squares
        along, own_along = along + ratio * size * response, own_along + ratio * size * own_response
    return below, along, own_along, energies


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """Gaussian samples of pre-activations, (batch, points, r): of a token, of another of its group, and of a group.

    Attributes:
        single: of one token.
        common: what its group has in common.
        another: of one more.
        spread: standard deviation of what differs, (batch, 1, r).
    """

    single: Array
    common: Array
    another: Array
    spread: Array

    @classmethod
    def of(cls, tokens: GroupLayout, kernel: Array, generator: np.random.Generator) -> "_Points":
        smooth, extra = tokens.split(kernel)
        shape = (*kernel.shape[:-2], POINTS, kernel.shape[-1])
        common = generator.standard_normal(shape) @ root(smooth).mT
        spread = np.sqrt(np.maximum(extra, 0.0))[..., None, :]
        return cls(
            common + spread * generator.standard_normal(shape), common,
            common + spread * generator.standard_normal(shape), spread,
        )  # fmt: skip

    def applied(self, activation: Activation) -> tuple[tuple[Array, tuple[Array, Array]], Array]:
        """Units of one token, of a group in the mean and of one more; and slopes of the one."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        mean = sum(
            weight * activation.value(self.common + node * self.spread)
            for node, weight in zip(nodes, weights / weights.sum(), strict=True)
        )
        group = np.asarray(mean), activation.value(self.another)
        return (activation.value(self.single), group), activation.slope(self.single)


def _mean(left: Array, other: Array) -> Array:
    """The mean of left_i other_j over the points."""
    return left.mT @ other / left.shape[-2]


def _entrywise(tokens: GroupLayout, part: TokenMatrix, kernel: Array) -> TokenMatrix:
    """Products of entries with those of a kernel."""
    smooth, _ = tokens.split(kernel)
    diagonal = part.diagonal * np.linalg.diagonal(kernel)
    smooth = part.smooth * smooth
    return TokenMatrix(part.sizes, smooth, diagonal - np.linalg.diagonal(smooth))


def _bent(tokens: GroupLayout, kernel: Array, units: Array, active: Array, slopes: Array) -> Array:
    """E φ''(u_i) φ(u_p), integrated by parts."""
    products = _mean(units * slopes, active) - kernel * _mean(slopes, slopes)
    return np.asarray(products / np.linalg.diagonal(kernel)[..., :, None])


def _response(
    tokens: GroupLayout, part: TokenMatrix, variation: Array, slopes: Array, bent: Array
) -> tuple[TokenMatrix, Array]:
    """The coefficients on u of w_i = φ'(u_i) Σ_p M_ip φ(u_p), as in `units`, and those of own variations."""
    kernel = _mean(slopes, slopes)
    smooth, _ = tokens.split(bent)
    on_itself = (part.smooth * smooth) @ tokens.sizes + part.alone * np.linalg.diagonal(bent)
    return _entrywise(tokens, part, kernel).plus_diagonal(on_itself), variation * np.linalg.diagonal(kernel + bent)


def below_attention(
    stack: Stack, tokens: GroupLayout, noise: Array, part: TokenMatrix, variation: Array, inside: SublayerState[Array],
    overlaps: Overlaps[Array], generator: np.random.Generator,
) -> tuple[Array, TokenMatrix, Array, SquaredNorms]:  # fmt: skip
    """Below softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O, or A x W^V W^O with fixed weights."""
    ratio, projected = inner_ratio(stack), stack.output_projection == "random"
    size = head_gain(stack, "W")
    known = (part @ tokens.matrix(inside.made) @ part.mT).plus_diagonal(variation**2 * np.linalg.diagonal(inside.made))
    arrived = noise + known.kernel if projected else noise
    # The matrix after attention makes noise of all of it, and leaves what is known.
    part, variation = size / ratio * part, size / ratio * variation
    weights = _Weights.of(tokens, inside.attended)
    if inside.attended is None:
        below, energies = inside.pullback(arrived + known.kernel / ratio, overlaps)
    else:
        of_heads = _of_heads(stack, tokens, part, variation, inside.given, weights)
        below, energies = inside.attended[1](arrived, overlaps, of_heads)
    if projected:
        energies["WO"] = ratio * tokens.total(inside.made / size * arrived)
        energies |= of_biases(stack, tokens, WO=arrived)
    back, value_gain, given = _passed_back(tokens, part, weights), gain(stack, "WV"), tokens.matrix(inside.given)
    mean_back = TokenMatrix(tokens.sizes, back.smooth.mean((1, 2)), back.alone.mean((1, 2)))
    shared = stack.heads // stack.key_heads
    if shared > 1:
        # Heads that share values add up what they ask of them, and products of two are between different patterns.
        of_two = _of_two_heads(back, value_gain * given)
        between = ratio * (shared - 1) * of_two
        energies["WV"] = energies["WV"] + tokens.total(inside.given * between)
        energies = with_more(energies, of_biases(stack, tokens, WV=between))
        below = below + value_gain * between
    along = value_gain * ratio * mean_back
    if inside.attended is not None:
        patterns = inside.attended[0].whole
        certain = _Certain(stack, tokens, patterns, weights, part, variation, given, value_gain, generator)
        fresh, of_tokens, of_queries = certain.passed_back()
        below, along = below + fresh, along + of_tokens
        energies |= {role: energies[role] + energy for role, energy in of_queries.items()}
    return below, along, 0.0 * variation, energies


@dataclass(frozen=True, slots=True, eq=False)
class _Weights:
    """Attention weights, (batch, heads, samples, r, r): of all of a group that a row sees, and of one token."""

    of_group: Array
    of_one: Array

    @classmethod
    def of(cls, tokens: GroupLayout, attended: Any) -> "_Weights":
        if attended is not None:
            return cls(whole(attended[0].mean), whole(attended[0].own))
        weights = np.broadcast_to(1.0 / tokens.seen.sum(-1, keepdims=True), tokens.seen.shape)
        return cls((weights * tokens.seen)[None, None, None], (weights * (tokens.seen > 0))[None, None, None])


def _of_each(matrix: TokenMatrix) -> TokenMatrix:
    """A matrix per entry of the batch, for every head and sample."""
    return TokenMatrix(matrix.sizes, matrix.smooth[:, None, None], matrix.alone[:, None, None])


def _of_heads(
    stack: Stack, tokens: GroupLayout, part: TokenMatrix, variation: Array, given: Array, weights: _Weights
) -> Array:
    """Kernel of what is known of the gradient at every head's output, (batch, heads, samples, r, r)."""
    smooth, extra = tokens.split(gain(stack, "WV") * given)
    inner = weights.of_group @ smooth[:, None, None] @ weights.of_group.mT
    # Those that a row attends to are others than the one token that its gradient is passed back to.
    others = np.roll(weights.of_one, 1, axis=2)
    others = within(others, tokens.sequences)
    inner = inner + whole(tokens.shared(others, others, extra[:, None, None]))
    of_heads = _of_each(part)
    known = of_heads @ tokens.matrix(inner) @ of_heads.mT
    square = np.square(variation)[:, None, None] * np.linalg.diagonal(inner)
    return stack.key_width / stack.width * known.plus_diagonal(square).kernel


def _passed_back(tokens: GroupLayout, part: TokenMatrix, weights: _Weights) -> TokenMatrix:
    """Aᵀ M A of every head: between two tokens by groups' weights, of one token by its own."""
    each, of_heads = weights.of_group / tokens.sizes, _of_each(part)
    above = of_heads.smooth * np.outer(tokens.sizes, tokens.sizes)
    above = with_diagonal(above, np.linalg.diagonal(above) + of_heads.alone * tokens.sizes)
    smooth = each.mT @ above @ each
    above, of_one = (within(array, tokens.sequences) for array in (above, weights.of_one))
    alone = tokens.gathered(above, of_one, of_one) - np.linalg.diagonal(smooth)
    return TokenMatrix(part.sizes, smooth, alone)


def _of_two_heads(back: TokenMatrix, values: TokenMatrix) -> Array:
    """The mean of B V B'ᵀ over two different heads, (batch, r, r)."""
    heads = back.smooth.shape[1]
    each = TokenMatrix(back.sizes, back.smooth.mean(2), back.alone.mean(2))
    total = TokenMatrix(back.sizes, each.smooth.sum(1), each.alone.sum(1))
    of_all = (total @ values @ total.mT).kernel
    if heads == 1:  # with fixed weights all heads have one pattern
        return np.asarray(of_all)
    of_each = TokenMatrix(values.sizes, values.smooth[:, None], values.alone[:, None])
    alike = (each @ of_each @ each.mT).kernel.sum(1)
    return np.asarray((of_all - alike) / (heads * (heads - 1)))


@dataclass(frozen=True, slots=True, eq=False)
class _Certain:
    """The certain gradient at the logits, ā_ij = A_ij (r̄_ij − Σ_m A_im r̄_im) with r̄ = √d M A V/h, and what is below it.

    Attributes:
        stack: the network.
        tokens: their layout.
        patterns: of attention.
        weights: the patterns' weights.
        part: M after W^O.
        variation: coefficients of tokens' own variations there, (batch, r).
        given: kernel of what attention is given.
        value_gain: of W^V.
        generator: of the coordinates that rotations are sampled at.
    """

    stack: Stack
    tokens: GroupLayout
    patterns: GroupedPatterns
    weights: _Weights
    part: TokenMatrix
    variation: Array
    given: TokenMatrix
    value_gain: float
    generator: np.random.Generator

    def passed_back(self) -> tuple[Array, TokenMatrix, SquaredNorms]:
        """Noise and coefficients at what attention is given, and energies of W^Q and W^K."""
        stack, tokens, patterns = self.stack, self.tokens, self.patterns
        values = _of_each(self.value_gain * self.given)
        # What a row attends to, with a token of a group, and what one token has beyond.
        attended = patterns.mean @ values.smooth
        beyond = self.weights.of_one * values.alone[..., None, :]
        part = _of_each(self.part)
        several = part.smooth * tokens.sizes
        share = tokens.seen / tokens.sizes
        certain = self._queries_and_keys(
            several @ attended + part.alone[..., None] * attended,
            several @ (share * beyond) + part.alone[..., None] * beyond,
        )
        alone = self._queries_and_keys(attended, beyond)
        factor = (stack.key_width / stack.width) ** 2 * stack.width
        shrink = stack.heads * factor * bare_logit_scale(stack) ** 2
        gains = gain(stack, "WQ"), gain(stack, "WK")
        others = (1.0, 1.0) if patterns.sizes is not None else (gains[1], gains[0])
        of_queries = (certain.at_queries @ certain.at_queries.mT).mean((1, 2))
        varying = np.square(alone.at_queries).sum(-1).mean((1, 2)) * self.variation**2
        of_queries = with_diagonal(of_queries, np.linalg.diagonal(of_queries) + varying)
        of_keys = self._keys(certain, tokens.pairs + 0.0 * of_queries)
        of_keys = of_keys + self._keys(alone, (tokens.sizes * self.variation**2)[..., None] * np.eye(len(tokens.sizes)))
        along, of_two = self._along(certain)
        of_keys = of_keys + (stack.heads // stack.key_heads - 1) * of_two
        kernels = [shrink * other * kernel for other, kernel in zip(others, (of_queries, of_keys), strict=True)]
        energies: SquaredNorms = {
            role: tokens.total(self.given.kernel * kernel) for role, kernel in zip(("WQ", "WK"), kernels, strict=True)
        }
        along = along * (stack.heads * factor**0.5 * bare_logit_scale(stack) / stack.width**0.5)
        energies |= of_biases(stack, tokens, WQ=kernels[0], WK=kernels[1])
        return gains[0] * kernels[0] + gains[1] * kernels[1], along, energies

    def _queries_and_keys(self, products: Array, beyond: Array) -> "_AtQueries":
        """Of r̄ without its factor: with a token of a group, and what one token has beyond, in which it is itself."""
        tokens, patterns, stack = self.tokens, self.patterns, self.stack
        # The mean that is subtracted holds one's own.
        others = np.where(tokens.sizes > 1, 1.0 - patterns.own, 1.0)
        products = products - (patterns.mean * products).sum(-1, keepdims=True)
        twice = tokens.seen * patterns.own_changed * beyond * others
        attended = twice.sum(-1, keepdims=True) * patterns.attended
        leaning, extra = self._leaning()
        drawn = tokens.seen / np.sqrt(tokens.sizes) * np.roll(patterns.own_changed, -1, 2)
        differing = np.roll(patterns.own_keys, -1, 2) - patterns.mean_keys
        leans = (products * (patterns.changed - drawn) + 2.0 * twice) @ extra[..., None]
        coherent = patterns.changed * products + twice
        at_queries = coherent @ patterns.mean_keys + (products * drawn) @ differing + leans * leaning - attended
        at_queries = turned(stack, tokens.places, at_queries, -1)
        if patterns.sizes is not None:
            queries = turned(stack, tokens.places, patterns.queries, -1)
            along = (at_queries * queries).sum(-1, keepdims=True) / np.square(queries).sum(-1, keepdims=True)
            at_queries = (at_queries - along * queries) / patterns.sizes[0][..., None]
        of_mean, of_own = (1.0, 1.0) if patterns.sizes is None else (s[..., None, :] for s in patterns.sizes[1:])
        mean_beyond = (tokens.seen * self.weights.of_one * beyond).sum(-1, keepdims=True)
        of_one = patterns.own_changed * (products + beyond - mean_beyond) * others / of_own
        coherent = coherent - patterns.changed * twice.sum(-1, keepdims=True)
        return _AtQueries(at_queries, coherent / tokens.sizes / of_mean, of_one)

    def _leaning(self) -> tuple[Array, Array]:
        """How far keys of a group lean to a query under its weights, over their variance; and that variance."""
        patterns, stack = self.patterns, self.stack
        extra = self.given.alone[:, None, None]
        if patterns.sizes is None:
            return (gain(stack, "WQ") * gain(stack, "WK")) ** 0.5 * bare_logit_scale(stack) * patterns.queries, extra
        return bare_logit_scale(stack) * patterns.queries, extra * gain(stack, "WK") / patterns.sizes[1] ** 2

    def _keys(self, side: "_AtQueries", pairs: Array) -> Array:
        """Σ_ik P_ik ā_ij ā_kl q_i·q_k, a mean over heads: by groups' weights, of one token by its own."""
        rule = GroupedAttention(self.stack, np.ones(1), self.generator)
        above = pairs[:, None, None]
        queries = self.patterns.queries
        sequences = self.tokens.sequences
        of_each, of_one = (within(part, sequences) for part in (side.of_each, side.of_one))
        between = rule._at_keys(self.tokens, self.patterns, above, of_each, of_each) * self.stack.key_width
        products = within(above * (queries @ queries.mT), sequences)
        of_one = self.tokens.gathered(products, of_one, of_one).mean((1, 2))
        return with_diagonal(between, of_one)

    def _along(self, side: "_AtQueries") -> tuple[TokenMatrix, Array]:
        """Coefficients on the tokens, products of the gradients with queries and keys times the inverse of Q.

        And products of two heads' gradients at keys that they share.
        """
        tokens, patterns, stack = self.tokens, self.patterns, self.stack
        queries, keys, single = (
            turned(stack, tokens.places, rows, -1) for rows in (patterns.queries, patterns.mean_keys, patterns.own_keys)
        )
        factors: tuple[Any, ...] = ((gain(stack, "WQ") * gain(stack, "WK")) ** 0.5,) * 3
        if patterns.sizes is not None:
            factors = tuple(size[..., None] for size in patterns.sizes)
        queries, keys, single = (rows * size for rows, size in zip((queries, keys, single), factors, strict=True))
        of_queries = (side.at_queries @ queries.mT).mean((1, 2))
        counted = tokens.sizes[:, None]
        at_keys, at_one = (
            turned(stack, tokens.places, (counted * weights).mT @ patterns.queries, -1)
            for weights in (side.of_each, side.of_one * (tokens.seen / tokens.sizes))
        )
        of_keys = at_keys @ keys.mT
        of_one = (at_one * single).sum(-1) - np.linalg.diagonal(of_keys)
        keys_products = TokenMatrix(tokens.sizes, of_keys.mean(2), of_one.mean(2))
        given = TokenMatrix(tokens.sizes, self.given.smooth[:, None], self.given.alone[:, None])
        of_heads = _over(keys_products, given)
        along_keys = TokenMatrix(tokens.sizes, of_heads.smooth.mean(1), of_heads.alone.mean(1))
        total = TokenMatrix(tokens.sizes, keys_products.smooth.sum(1), keys_products.alone.sum(1))
        heads = of_keys.shape[1]
        of_gains = gain(stack, "WK") * (gain(stack, "WQ") if patterns.sizes is None else 1.0)
        # Of two heads that share keys, whose gradients there are independent but for what is along the keys.
        alike = (of_heads @ keys_products.mT).kernel.sum(1)
        of_two = (heads * (along_keys @ total.mT).kernel - alike) / max(1, heads * (heads - 1))
        of_two = of_two / (of_gains * stack.key_width)
        return _over(tokens.matrix(of_queries), self.given) + along_keys, of_two


@dataclass(frozen=True, slots=True, eq=False)
class _AtQueries:
    """Below certain gradients of the logits: gradients at queries, (batch, heads, samples, r, d_k), and ā per token.

    Attributes:
        at_queries: not rotated, below norms.
        of_each: ā_ij of a token of group j, below keys' norms, (batch, heads, samples, r, r).
        of_one: of one token.
    """

    at_queries: Array
    of_each: Array
    of_one: Array


def _over(products: TokenMatrix, kernel: TokenMatrix) -> TokenMatrix:
    """Z with Z K = P: z e = p of one token with itself, and Z (S K + e) = P − z K of two."""
    counted = np.sqrt(products.sizes)
    extra = np.maximum(kernel.alone, 0.0)
    several = extra > _SMALLEST * np.linalg.diagonal(kernel.smooth)
    alone = np.where(several, products.alone / np.where(several, extra, 1.0), 0.0)
    positive = root(kernel.smooth)
    scaled = counted[:, None] * (positive @ positive.mT) * counted
    inverse = np.linalg.pinv(scaled + extra[..., None] * np.eye(len(counted)), rcond=_SMALLEST, hermitian=True)
    left = products.smooth - alone[..., None] * kernel.smooth
    return TokenMatrix(products.sizes, ((left * counted) @ inverse) / counted, alone)
