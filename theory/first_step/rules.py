"""The rules of optimizers: how one step of a weight matrix changes the matrix's outputs, at large width.

The gradient of a matrix is g = Hᵀ Δ, with H (N, d_in) the rows that it multiplies and Δ (N, d_out) the gradients at
its output. Every step u here is a function of g such that H u = C Δ, with a matrix of coefficients C (N, N) and, for
the sign only, a remainder orthogonal to Δ. A rule gives C from the laws of H and Δ, mostly from their Gram matrices.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gamma, ndtri

from theory.first_step.motion import Gradients, Steps, mean_kernel, sample_mean
from theory.first_step.samples import gaussian_samples
from theory.mean_field.kernels import Array
from theory.stack import Stack
from theory.stack.optimizers import Optimizer
from theory.stack.weights import gain, transform_gain

RANGE_CUT = 1e-10
"""The share of the largest squared singular value of a gradient below which a direction counts as 0."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients a, b, c of Muon's Newton-Schulz step X ← a X + b X Xᵀ X + c (X Xᵀ)² X.

Source: Jordan et al. (2024), and torch.optim.Muon.
"""

_ITERATIONS = 5


@dataclass(frozen=True, slots=True, eq=False)
class MatrixUse:
    """A weight matrix together with its input rows and the activation slopes that multiply its output gradients.

    Attributes:
        role: role of the matrix.
        shape: (d_in, d_out).
        rows: H Hᵀ, (N, N) with or without leading axes.
        inputs: samples of a coordinate of the rows, (samples, N).
        factor: E f_i f_j of the factors f that multiply gradients in the backward pass to the matrix's output, φ'(u)
            for W1; None without such factors.
        factors: samples of the factors, (samples, N).
    """

    role: str
    shape: tuple[int, int]
    rows: Array
    inputs: Array
    factor: Array | None = None
    factors: Array | None = None

    @property
    def has_tokens(self) -> bool:
        """Return whether a matrix's inputs are Gaussian tokens instead of hidden units.

        No factors then multiply its gradients.
        """
        return self.factors is None and self.role != "W2"

    def below(self, gradient: Array) -> Array:
        """Return inner products of gradients before an activation function, from those after it.

        They are ΔΔᵀ, and the products after the activation are multiplied by those of the slopes.
        """
        return gradient if self.factor is None else gradient * self.factor


# ln t of a quadrature, from and to: of its errors e^(−2π²) is that of steps of 1, and less is beyond its ends.
_LOGARITHMS = (-36, 36)

STREAM_SAMPLES = 1024
"""The number of gradient samples from which the difference between sign steps and C Δ is computed."""

# The smallest correlation of two tokens' factors that is a divisor, in standard deviations of its sampling error.
_WEAK = 4.0

Rule = Callable[[MatrixUse, Array], Array]
"""A function from a matrix and the Gram matrix ΔΔᵀ of its gradients to C, (..., N, N)."""


def gradient_rule(use: MatrixUse, _: Array) -> Array:
    """Return the change of a matrix's outputs in one SGD step, as a weighted sum of output gradients.

    The step is the gradient, u = g, and the weights in H u = C Δ are C = H Hᵀ.
    """
    return use.rows


def sign_rule(use: MatrixUse, gradient: Array) -> Array:
    """Return the change of a matrix's outputs in Adam's first step, as a weighted sum of output gradients.

    Adam's ε tends to 0.

    The step is u = sign g for every entry, and the weights are C in H u = C Δ.

    Coordinates of Δ are Gaussian, times the factors f. By Stein's lemma the part of Σ_α h_α sign(h_α·δ) along δ is

        C_ij = d_in √(2/π) E [h_i h_j f_i f_j / √((fh)' Σ (fh))] / E f_i f_j,      Σ = ΔΔᵀ/d_out above the factors.
    """
    if use.has_tokens:
        return use.shape[0] * sign_coefficients(use.rows / use.shape[0], gradient / use.shape[1])
    seen = use.inputs if use.factors is None else use.inputs * use.factors
    above = gradient if use.factor is None else _over(gradient, use.factor)
    squares = (seen[:, :, None] * seen[:, None, :]).reshape(len(seen), -1)
    sizes = np.sqrt(np.maximum(above.reshape(-1, squares.shape[1]) @ squares.T, 0.0) / use.shape[1])
    weights = _over(np.ones(1), sizes) * (2 / np.pi) ** 0.5 * use.shape[0] / len(seen)
    c = (weights @ squares).reshape(gradient.shape)
    if use.factor is None:
        return c
    # Where factors hardly correlate, the quotient of two small means is β E h_i h_j, with β the regression's slope.
    beta = (weights @ squares**2 / (squares**2).mean(0)).reshape(gradient.shape) * use.rows / use.shape[0]
    diagonal = np.diagonal(use.factor, axis1=-2, axis2=-1)
    is_weak = use.factor**2 * len(seen) < _WEAK**2 * diagonal[..., :, None] * diagonal[..., None, :]
    return np.where(is_weak, beta, _over(c, use.factor))


def epsilon_factor(rms: float, epsilon: float = 1e-8) -> float:
    """Return the mean step of AdamW in step 1 divided by the learning rate, for the entries of one gradient matrix.

    With bias correction, AdamW moves an entry with gradient g by R |g|/(|g| + ε). The result is the mean of this factor
    over Gaussian entries. It is concave in their mean square, so that entries of unequal variances move less. In any
    matrix, the mean factor is at most rms/(rms + ε).

    Args:
        rms: root mean square entry of the gradient after clipping.
        epsilon: AdamW's ε, by default torch's.
    """
    sizes = rms * ndtri(0.5 + np.arange(0.5, 2000) / 4000)  # quantiles: the error of their mean is below 0.1%
    return float(np.mean(sizes / (sizes + epsilon)))


def sign_coefficients(rows: Array, gradient: Array) -> Array:
    """Return the coefficients C of output gradients in a step along the gradient's sign, divided by d_in.

    The outputs of the matrix change by C Δ. The result C/d_in is √(2/π) E h h'/√(h'Σh) for Gaussian rows h, and 0 where
    all gradients are 0.

    Args:
        rows: covariance K of a coordinate of the rows, (..., N, N).
        gradient: Σ of a coordinate of the gradients, (..., N, N).
    """
    return (2 / np.pi) ** 0.5 * _gaussian_quotient(rows, gradient, 0.5)


def sign_energy(rows: Array, gradient: Array) -> Array:
    """Return inner products of the changes of a matrix's outputs in a step along the gradient's sign.

    They are the products between tokens of H sign(HᵀΔ), for Gaussian rows, divided by d_in² d_out.

    It is (2/π) K E [δδ'/(δ'Kδ)] K over δ ~ N(0, Σ).

    Args:
        rows: covariance K of a coordinate of the rows, (..., N, N).
        gradient: Σ of a coordinate of the gradients, (..., N, N).
    """
    return np.asarray(2 / np.pi * rows @ _gaussian_quotient(gradient, rows, 1.0) @ rows)


def _gaussian_quotient(covariance: Array, form: Array, power: float) -> Array:
    """Return E x x'/(x'Fx)^p over x ~ N(0, K), by s^(−p) = ∫ t^(p−1) e^(−ts) dt/Γ(p).

    With the eigenvalues λ of F in a root of K the mean of x_i² e^(−ts) is Π_j (1 + 2tλ_j)^(−1/2)/(1 + 2tλ_i), which
    the trapezoidal rule in ln t integrates with an exponentially small error.

    Args:
        covariance: K.
        form: F.
        power: p.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    values, turned = np.linalg.eigh(root.mT @ form @ root)
    largest = np.where(values[..., -1:] > np.finfo(float).tiny ** 0.5, values[..., -1:], np.inf)
    shares = np.maximum(values / largest, RANGE_CUT)[..., None]
    t = np.exp(np.arange(*_LOGARITHMS, dtype=float))
    grown = 1.0 + t * shares
    integrand = t**power * np.exp(-0.5 * np.log(grown).sum(-2, keepdims=True)) / grown
    means = integrand.sum(-1) / gamma(power) * (2.0 * largest) ** -power
    turned = root @ turned
    return np.asarray((turned * means[..., None, :]) @ turned.mT)


def sign_remainder(use: MatrixUse, gradient: Array, coefficients: Array) -> Array:
    """Return inner products of the part of an output change that is not along the output gradients.

    The mean part is along the output gradients: the rest is H sign g − C Δ. The result (N, N) is for mean kernels and
    without factors.

    Args:
        use: the matrix.
        gradient: ΔΔᵀ, (..., N, N).
        coefficients: C, (..., N, N).
    """
    mean, c = mean_kernel(gradient) / use.shape[1], mean_kernel(coefficients)
    whole = use.shape[0] ** 2 * sign_energy(mean_kernel(use.rows) / use.shape[0], mean)
    return np.asarray(use.shape[1] * (whole - c @ mean @ c.T))


def sign_deviation(use: MatrixUse, deltas: Array, coefficients: Array) -> Array:
    """Return samples of the part of an output change that is not along the output gradients.

    The mean part is along the output gradients: the rest is H sign g − C Δ with mean coefficients C, (samples, N).

    With factors f the coordinate is f δ, and its effect is multiplied by f again. For Gaussian rows with kernel K and
    y = f δ, Σ_α h_α sign(h_α·y) = d_in √(2/π) K y/√(y'Ky). For hidden units it is a mean over samples.

    Args:
        use: the matrix.
        deltas: samples of a coordinate of Δ, (samples, N).
        coefficients: C, (..., N, N).
    """
    c = mean_kernel(coefficients)
    if use.role == "W2":
        moved = np.sign(deltas @ use.inputs.T) @ use.inputs * (use.shape[0] / len(use.inputs))
        return np.asarray(moved - deltas @ c.T)
    factors = np.ones(1) if use.factors is None else use.factors
    seen = factors * deltas
    turned = seen @ mean_kernel(use.rows)
    sizes = np.sqrt(np.maximum((seen * turned).sum(-1, keepdims=True), 0.0) / use.shape[0])
    return np.asarray(factors * (_over(turned * (2 / np.pi) ** 0.5, sizes) - seen @ c.T))


def _over(first: Array, second: Array) -> Array:
    """Return a quotient that is 0 where the divisor is 0."""
    return np.divide(first, second, out=np.zeros(np.broadcast_shapes(first.shape, second.shape)), where=second > 0)


def newton_schulz(singular: Array) -> Array:
    """Return the singular values of a matrix after Muon's five Newton-Schulz steps, from values in [0, 1]."""
    a, b, c = NEWTON_SCHULZ
    for _ in range(_ITERATIONS):
        square = singular**2
        singular = singular * (a + b * square + c * square**2)
    return singular


def _inverse_root(values: Array) -> Array:
    return np.asarray(values**-0.5)


def _polynomial(values: Array) -> Array:
    return newton_schulz(values**0.5 / (values.sum(-1, keepdims=True) ** 0.5)) / values**0.5


def muon_rule(use: MatrixUse, gradient: Array, function: Callable[[Array], Array] = _polynomial) -> Array:
    """Return the change of a matrix's outputs in one step of torch.optim.Muon, as a sum of output gradients.

    The step of a function f is √max(1, d_out/d_in) times g with the singular values x f(x²). With S = √(HHᵀ) ΔΔᵀ
    √(HHᵀ), whose eigenvalues are the squared singular values of g, the weights in H u = C Δ are √(HHᵀ) f(S) √(HHᵀ).

    Args:
        use: the matrix.
        gradient: ΔΔᵀ, (..., N, N).
        function: f on the numerical range of g. x f(x²) is a polynomial of x/|g| for Muon's five Newton-Schulz steps,
            in exact arithmetic; torch computes it in bfloat16. It is 1 for the polar factor.
    """
    turned, _, chosen = _singular(use, gradient, function)
    return np.asarray((max(1.0, use.shape[1] / use.shape[0]) ** 0.5) * (turned * chosen[..., None, :]) @ turned.mT)


def muon_rule_of_batch(
    labels: NDArray[np.integer], alike: NDArray[np.bool_], varied: Array, repeated: NDArray[np.integer],
    modes: Array, of_modes: Array, sequences: float, groups: int, *, noise: bool = False,
) -> Rule:  # fmt: skip
    """Return Muon's rule for positions of which each represents several positions of a batch.

    The represented positions share a part of their rows h and of their gradients δ; the own parts h̃ and δ̃ differ. The
    product of shared parts is that of two alike positions. The gradient of the matrix is

        Σ h̄ (Σ δ)' + Σ h̃ δ̃',

    with the mean h̄ of a position's rows and the sum of its gradients. The second term is noise.

    A position's own gradient moves its output, because both have one context. Positions with other contexts do not
    move along it, and most positions have others. So C Δ has the shared part of gradients, its regression on Δ. The
    own parts contribute to the gain only.

    Args:
        labels: number m of positions that each position represents, (N,).
        alike: mask of the positions that are like those which a position represents, (N, N).
        varied: share of the squared sum of gradients by which the gradients in this sum differ, (N,).
        repeated: number of positions with each label.
        modes: squared singular values of the attention weights of the batch's sequences, (K,).
        of_modes: number of singular values with each square, (K,).
        sequences: number of sequences in the batch, or more if only the tokens of a window share contexts.
        groups: number of groups of positions that share contexts; position i is in group i modulo this number.
        noise: whether the change is along the own parts of gradients instead of the shared parts. Its product with all
            gradients is their gain.
    """
    laws, group = _noise_laws(repeated, modes, of_modes), np.arange(len(labels)) % groups
    near = (group[:, None] == group) & ~np.eye(len(labels), dtype=bool)

    def rule(use: MatrixUse, gradient: Array) -> Array:
        blocks, rest = divmod(use.rows.shape[-1], len(labels))  # tied embeddings have rows of tokens and of gradients
        if rest:  # an expert has some of the positions
            return muon_rule(use, gradient) * (not noise)
        others, count = np.kron(np.eye(blocks), alike).astype(float), np.tile(labels, blocks)
        many, eye = 1.0 - 1.0 / count, np.eye(len(count))
        apart = np.linalg.diagonal(use.rows) - (use.rows * others).sum(-1) / others.sum(-1)
        separate = np.maximum(apart, 0.0) * many
        contexts, differing, lost = _own_gradients(use.role, gradient, others, count, np.tile(varied, blocks))
        energies = separate * (differing + contexts / count)
        summed, shared = (gradient - (part * many)[..., None] * eye for part in (contexts, lost))
        if use.role in ("WQ", "WK", "WV"):
            shared = shared * _pair_factors(gradient, near, groups / sequences)
        mean = replace(use, rows=use.rows - separate[..., None] * eye)
        turned, squared, inside = _singular(mean, summed, np.ones_like)
        law = laws[use.role in ("WV", "WO")]
        signal, of_noise = _overlaps(squared * inside, energies.sum(-1, keepdims=True), law, use.shape)
        c, moving = (turned * (signal * inside)[..., None, :]) @ turned.mT, _regression(shared, gradient)
        alone = (of_noise * _over(energies, np.linalg.diagonal(gradient)))[..., None] * eye
        c = c @ (_regression(summed, gradient) - moving) + alone if noise else c @ moving
        return np.asarray(max(1.0, use.shape[1] / use.shape[0]) ** 0.5 * c)

    return rule


def _own_gradients(
    role: str, gradient: Array, others: Array, count: NDArray[np.integer], varied: Array
) -> tuple[Array, Array, Array]:
    """Return the squared own parts of gradients: from contexts, from labels, and the part that moves no other position.

    A position represents m positions, and g = G_ii is the square of their summed gradient. The shared part s is the
    mean of G_ij over the alike positions j; if they represent other numbers, it is m_i Σ_j G_ij/Σ_j m_j. With the
    share v by which labels differ, the three parts are

        contexts  a = max(g − s − v g, 0),      labels  v g,      no other position's  a.

    The third part has three exceptions. At WK and WV, gradients come from other positions, so that labels belong to a
    context, too: it is g − s, and s is the plain mean of G_ij. At WQ, a label's part is multiplied by a context. So the
    share a/(g − v g) of it moves no other position, either, and the third part is min(a/(1 − v), g).

    Args:
        role: role of the matrix.
        gradient: products G of the gradients, each for the sum over a position's represented positions, (..., N, N).
        others: `alike` of `muon_rule_of_batch`, (N, N).
        count: number m of represented positions, (N,).
        varied: share of the squares by which labels differ, (N,).
    """
    squares, times = np.linalg.diagonal(gradient), np.ones(len(count)) if role in ("WK", "WV") else count
    shared = np.clip(times * (gradient * others).sum(-1) / (others * times).sum(-1), 0.0, squares)
    differing = varied * squares
    contexts = np.maximum(squares - shared - differing, 0.0)
    at_queries = np.minimum(contexts * _over(squares, squares - differing), squares)
    lost = {"WK": squares - shared, "WV": squares - shared, "WQ": at_queries}.get(role, contexts)
    return contexts, differing, lost


def _pair_factors(gradient: Array, near: NDArray[np.bool_], in_sequence: float) -> Array:
    """Return factors on the products of gradients, so that as many pairs share a context as in the batch, (N, N).

    A step moves two positions alike if their gradients are alike, and gradients in one sequence are more alike. There
    are fewer groups W than sequences, so that a pair of positions is more often in one group than in one sequence. A
    pair in a group is in one sequence with the probability f = W/(number of sequences). Other pairs have the products
    of two groups. So the factor for a pair in a group is f + (1 − f) c, and 1 for others. Here c is the mean cosine
    between groups divided by the mean cosine in a group. With one group, c is not known, and all factors are 1.

    Args:
        gradient: products G of gradients, (..., N, N).
        near: mask of the pairs in a group, (N, N).
        in_sequence: f, at most 1.
    """
    sizes, far = np.sqrt(np.maximum(np.linalg.diagonal(gradient), 0.0)), ~near & ~np.eye(len(near), dtype=bool)
    lengths = sizes[..., :, None] * sizes[..., None, :]
    within, across = (_over((gradient * pairs).sum(), (lengths * pairs).sum()) for pairs in (near, far))
    ratio = np.clip(across / within, 0.0, 1.0) if far.any() and within > 0.0 else 1.0
    return np.where(near, in_sequence + (1.0 - in_sequence) * ratio, 1.0)


def _regression(part: Array, gradient: Array) -> Array:
    """Return the regression P G⁻¹ of a part of gradients on the gradients, with eigenvalues limited to [0, 1].

    The eigenvalues are in this range if the part and the rest are not correlated.

    Args:
        part: products P of the part, (..., N, N).
        gradient: products G of the gradients, (..., N, N).
    """
    values, vectors = np.linalg.eigh(gradient)
    sizes = np.sqrt(np.maximum(values, np.maximum(RANGE_CUT * values[..., -1:], np.finfo(float).tiny ** 0.5)))
    root, inverse = vectors * sizes[..., None, :], vectors / sizes[..., None, :]
    shares, vectors = np.linalg.eigh(inverse.mT @ part @ inverse)
    return np.asarray(root @ (vectors * np.clip(shares, 0.0, 1.0)[..., None, :]) @ vectors.mT @ inverse.mT)


def _noise_laws(repeated: NDArray[np.integer], modes: Array, of_modes: Array) -> list[tuple[Array, Array]]:
    """Return ln g and B = tr N'N g/(1 + N'N g) of a batch's noise N with |N| = 1, without and with attention.

    In Σ_i h̃_i δ̃_i, positions with label l have one gradient and independent rows. So there is one random term for each
    label, with the square b_l, and B = Σ b g/(1 + b g).

    At WV and WO, the attention weights A of each sequence are between the two: Σ_ij h̃_j A_ij δ̃_i. With the squared
    singular values c of all A, it is taken as Σ_kl x_k √c_k z_kl √b_l y_l' with Gaussian z. Then g = p r/B, with

        B = Σ b p/(1 + b p) = Σ c r/(1 + c r).

    This is the multiplication of free random matrices. For gradients whose mean over the law of labels is 0, as a
    softmax has them, the second B is within 8% of the sampled one (tests/theory/first_step/test_batch_step.py). With
    another mean, the sampled B is smaller.

    Args:
        repeated: number of positions with each label, proportional to b.
        modes: squared singular values c of A, (K,).
        of_modes: number of all matrices' singular values with each square, (K,).
    """
    (sizes, times), x = np.unique(repeated, return_counts=True), np.arange(-30.0, 40.0, 0.1)
    labels, mixed = (
        many @ (1.0 - 1.0 / (1.0 + np.outer(squares / (many @ squares), np.exp(x))))
        for squares, many in ((sizes, times), (modes, of_modes))
    )
    trace = min(labels[-1], mixed[-1]) * expit(np.arange(-24.0, 24.0, 0.1))
    both = sum(np.interp(trace, each, x) for each in (labels, mixed)) - np.log(trace)
    return [(x, labels), (both, trace)]


def _overlaps(values: Array, noise: Array, law: tuple[Array, Array], shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return E x'f(G)y/α for G = Σ_k α_k x_k y_k' + N and f of Newton-Schulz steps, and E tr N'f(G) divided by |N|².

    Vectors x and y are the singular vectors of the mean rows' gradient; N is noise in random directions. For
    f(s) = s/(s² + t²), E x'f(G)y/α is q/(1 + α² q), and E tr N'f(G) is B(g). With A = Σ α² q/(1 + α² q),

        g = q (1 − A/d_in)(1 − A/d_out),      t² g = (1 − (A + B)/d_in)(1 − (A + B)/d_out).

    This is the addition of free rectangular matrices at d → ∞. A step function of s is 2/π ∫ s/(s² + t²) dt.
    Newton-Schulz steps are this integral with their mean value near t as a weight.

    Args:
        values: α² of the mean rows, (..., N).
        noise: |N|², (..., 1).
        law: ln g and B for |N| = 1, from `_noise_laws`.
        shape: (d_in, d_out).
    """
    # From where t is large to where Newton-Schulz steps vanish.
    q, factors = np.exp(np.arange(-12.0, 22.0, 0.2)), NEWTON_SCHULZ[0] ** np.linspace(-1.0, 1.0, 32)
    tiny, whole = np.finfo(float).tiny, np.maximum(values.sum(-1, keepdims=True) + noise, np.finfo(float).tiny)
    alpha = (values / whole)[..., None]
    taken = alpha * q / (1.0 + alpha * q)
    left = [np.maximum(1.0 - taken.sum(-2) / side, 0.0) for side in shape]
    g = np.maximum(q * left[0] * left[1], tiny)
    removed = np.interp(np.log(np.maximum(noise / whole, tiny)) + np.log(g), *law) * (noise > 0.0)
    remains = [np.maximum(part - removed / side, 0.0) for part, side in zip(left, shape, strict=True)]
    t = np.sqrt(remains[0] * remains[1] / g)
    weight = newton_schulz(np.minimum(t, 1.0 / NEWTON_SCHULZ[0])[..., None] * factors).mean(-1) * 2.0 / np.pi
    signal = -np.trapezoid(weight[..., None, :] * q / (1.0 + alpha * q), t[..., None, :]) / whole**0.5
    of_noise = -np.trapezoid(weight * removed, t)[..., None] * whole**0.5 / np.maximum(noise, tiny)
    return np.asarray(signal), np.asarray(of_noise)


def _singular(use: MatrixUse, gradient: Array, function: Callable[[Array], Array]) -> tuple[Array, Array, Array]:
    """Return √(HHᵀ) times the eigenvectors of S, the eigenvalues of S, and f of these."""
    values, vectors = np.linalg.eigh(use.rows)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ vectors.mT
    squared, vectors = np.linalg.eigh(root @ gradient @ root)
    inside = squared > RANGE_CUT * np.maximum(squared[..., -1:], np.finfo(float).tiny)
    # Outside the range 0 stands in the norm, and 1 under a root whose value is dropped.
    with np.errstate(divide="ignore", invalid="ignore"):
        chosen = np.where(inside, function(np.where(inside, squared, 0.0)), 0.0)
    return root @ vectors, squared, chosen


def squared_size(use: MatrixUse, gradient: Array, optimizer: Optimizer) -> float:
    """Return the mean squared Frobenius norm |u|² of an optimizer's step u of one matrix.

    For "normalized", the caller divides the result by |g|² of all matrices. For "adam", an entry of u is 0 if its
    hidden unit is inactive for all tokens, and ±1 otherwise.

    Args:
        use: the matrix.
        gradient: ΔΔᵀ, (..., N, N).
        optimizer: name of the optimizer.
    """
    if optimizer in ("sgd", "normalized"):
        return float((use.rows * gradient).sum((-2, -1)).mean())
    if optimizer == "adam":
        met = [samples for samples in (use.inputs, use.factors) if samples is not None]
        return float(use.shape[0] * use.shape[1] * np.prod([(samples != 0).any(-1).mean() for samples in met]))
    _, squared, chosen = _singular(use, gradient, _inverse_root if optimizer == "polar" else _polynomial)
    return float(max(1.0, use.shape[1] / use.shape[0]) * (chosen**2 * squared).sum(-1).mean())


@dataclass(slots=True, eq=False)
class Branch:
    """A part of the network with weight matrices: a branch, the output transform, or the embedding tables.

    Attributes:
        stack: the network.
        uses: its matrices, in the order of the forward pass.
    """

    stack: Stack
    uses: list[MatrixUse] = field(init=False)

    @property
    def last(self) -> MatrixUse | None:
        """The branch's matrix that adds to the residual stream; None unless exactly one does."""
        return self.uses[-1]

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of each matrix's outputs in one optimizer step, as a weighted sum of output gradients.

        The weights are the coefficients C by role; sign steps also have the parts beyond C Δ.

        Args:
            rule: the optimizer's rule.
            gradients: gradients at the matrices, by role.
            matrices: roles of the matrices that are stepped.
        """
        chosen = [use for use in self.uses if use.role in matrices]
        return {use.role: rule(use, self.whole_gram(use.role, gradients)) for use in chosen}

    def deviation(self, deltas: Array, steps: Steps) -> Array:
        """Return samples of the change of the branch's output by a sign step beyond C Δ, (samples, N).

        Args:
            deltas: samples of a coordinate of the gradients at the branch's output, (samples, N).
            steps: steps of its matrices.
        """
        assert self.last is not None, "a matrix adds to the residual stream"
        return sign_deviation(self.last, deltas, steps[self.last.role])

    def squared_sizes(self, optimizer: Optimizer, steps: Steps, gradients: Gradients) -> dict[str, Array]:
        """Return the mean squared norms of each stepped matrix's step and of its weights, (2,) by role.

        Args:
            optimizer: name of the optimizer.
            steps: steps of the matrices.
            gradients: gradients from which the step was made.
        """
        return {
            use.role: np.array([
                squared_size(use, self.whole_gram(use.role, gradients), optimizer),
                (transform_gain(self.stack) if use.role == "WH" else gain(self.stack, use.role)) * use.shape[1],
            ])
            for use in self.uses
            if use.role in steps or f"{use.role} signs" in steps
        }  # fmt: skip

    def whole_gram(self, role: str, gradients: Gradients) -> Array:
        """Return inner products, between tokens, of the gradients at a matrix's output, over all heads."""
        return gradients[role].gram

    def inner_products_by_matrix(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        """Return each updated matrix's term of the inner product between an optimizer step and a gradient.

        Args:
            steps: the step.
            gradients: gradients from which the step was made.
            others: gradients of the product, possibly of another loss; or symmetric products of both gradients, from
                `symmetric_products`.
        """
        return {
            use.role: (steps[use.role] * others[use.role].gram).sum((-2, -1)) for use in self.uses if use.role in steps
        }


def sign_steps(uses: Collection[MatrixUse], gradients: Gradients) -> Steps:
    """Return the changes of all matrices' outputs in a step along the gradient's sign.

    They are the coefficients C and "ROLE remainder" by role, for gradients that differ between networks.

    Gradients may differ by orders of magnitude between networks. Signs do not depend on their size, so all gradients
    are scaled to one size before the mean over networks is taken.

    Args:
        uses: the matrices.
        gradients: gradients at the matrices, by role.
    """
    steps = Steps()
    for use in uses:
        squares = np.trace(gradients[use.role].gram, axis1=-2, axis2=-1)[..., None, None]
        size = np.sqrt(np.where(squares > 0, squares, 1.0))
        gram = gradients[use.role].gram / size**2
        c = sign_rule(use, gram)
        remainder = _squared_signs(use, mean_kernel(gram)) - c @ gram @ c.mT
        steps |= {use.role: c / size, f"{use.role} remainder": remainder}
    return steps


def _squared_signs(use: MatrixUse, gradient: Array) -> Array:
    """Return the Gram matrix of H sign g, the whole motion of the output by signs."""
    if use.has_tokens:
        return sign_remainder(use, gradient, 0.0 * gradient)
    deltas = gaussian_samples(gradient / use.shape[1], np.random.default_rng(1), STREAM_SAMPLES)
    moved = sign_deviation(use, deltas, 0.0 * gradient)
    return np.asarray(use.shape[1] * sample_mean(moved, moved))


Rules = Mapping[Optimizer, Rule]
"""The rules of the optimizers, by name."""

RULES: Rules = {
    "sgd": gradient_rule,
    "normalized": gradient_rule,
    "adam": sign_rule,
    "polar": partial(muon_rule, function=_inverse_root),
    "muon": muon_rule,
}
