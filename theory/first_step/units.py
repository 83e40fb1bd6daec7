"""The hidden units of an MLP or of a transform before the output matrix, and their change in one optimizer step.

A unit's gradients reach the output of the matrix before it through slopes f, φ'(u) or the other factor of a gate. A
step moves u by C Δ, and units by f ∘ C (f ∘ Δ): the mean of f f' passes on coefficients, and the fluctuation about it
is random to all layers above.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from theory.first_step.motion import (
    Gradients,
    MatrixGradient,
    Steps,
    TokenMotion,
    inverse,
    mean_kernel,
    sample_mean,
)
from theory.first_step.rules import Branch, MatrixUse, Rule, sign_deviation, sign_rule, sign_steps
from theory.first_step.samples import SAMPLES, gaussian_samples
from theory.mean_field.activations import activation_of
from theory.mean_field.kernels import Array, MatrixLayout, eigen_root
from theory.mean_field.outputs import units_to_be_normed
from theory.mean_field.sublayers import TokenMoments, normed
from theory.mean_field.tied.units import response
from theory.stack.weights import gain, transform_gain, weight_shapes


@dataclass(slots=True, eq=False)
class UnitBranch(Branch):
    """A part of the network with hidden units, from samples of their pre-activations.

    Attributes:
        stack: the network.
        tokens: layout of its tokens.
        given: kernel of the part's input, (1, N, N).
        seed: random seed of the samples.
        uses: its matrices, in the order of the forward pass.
    """

    tokens: MatrixLayout
    given: Array
    seed: int


@dataclass(slots=True, eq=False)
class Units(UnitBranch):
    """The hidden units of a plain or gated MLP, with their gradients and their change in one optimizer step.

    They are φ(x W), or φ(x WG) ∘ x W with a gate WG.

    Attributes:
        stack: the network.
        tokens: layout of its tokens.
        given: kernel of the input x, (1, N, N).
        seed: random seed of the samples.
        gains: gains of the matrices before the units, by role, the gate's first.
        shape: (d, units).
        samples: largest number of samples.
        uses: the matrices before the units.
        before: samples of the pre-activations, by role, (samples, N).
        slope: φ' of the samples.
        active: φ of the samples.
        factors: samples of the factors on the gradients of each matrix, (samples, N).
        drawn: samples of the units, (samples, N).
        kernel: expected product of a unit for two tokens, (1, N, N).
    """

    gains: Mapping[str, float]
    shape: tuple[int, int]
    samples: int = SAMPLES
    before: dict[str, Array] = field(init=False)
    slope: Array = field(init=False)
    active: Array = field(init=False)
    factors: dict[str, Array] = field(init=False)
    drawn: Array = field(init=False)
    kernel: Array = field(init=False)

    def __post_init__(self) -> None:
        stack, roles, generator = self.stack, list(self.gains), np.random.default_rng(self.seed)
        activation = activation_of(stack.activation, stack.leaky_slope)
        kernels = [self.given * size for size in self.gains.values()]
        slope = activation.slope_kernel(self.tokens, kernels[0])
        self.kernel = activation.kernel(self.tokens, kernels[0])
        self.before = {
            role: gaussian_samples(kernel[0], generator, self.samples)
            for role, kernel in zip(roles, kernels, strict=True)
        }
        u, factors = self.before[roles[0]], [slope]
        self.active, self.slope = activation.value(u), activation.slope(u)
        self.drawn, self.factors = self.active, {roles[0]: self.slope}
        if len(roles) == 2:
            lines, factors = self.before[roles[1]], [slope * kernels[1], self.kernel]
            self.factors = {roles[0]: self.slope * lines, roles[1]: self.active}
            self.kernel, self.drawn = self.kernel * kernels[1], self.active * lines
        seen = gaussian_samples(self.given[0], generator, self.samples)
        self.uses = [
            MatrixUse(role, self.shape, stack.width * self.given, seen, factor, self.factors[role])
            for role, factor in zip(roles, factors, strict=True)
        ]

    def down(self, gradient: Array) -> tuple[Array, Gradients]:
        """Return the loss gradients at the hidden units' input and at their matrices, from the gradients at the units.

        Args:
            gradient: Gram matrix of the gradients at the units.
        """
        grams = {use.role: use.below(gradient) for use in self.uses}
        below = sum((grams[role] * role_gain for role, role_gain in self.gains.items()), np.zeros(1))
        return below, {role: MatrixGradient.without_overlaps(gram) for role, gram in grams.items()}

    def up(self, moved: TokenMotion, gradient: Array, steps: Steps) -> TokenMotion:
        """Return the change of the hidden units when their input and their matrices take one optimizer step.

        Args:
            moved: motion of the input tokens.
            gradient: Gram matrix of the gradients at the units.
            steps: steps of the matrices.
        """
        widths = self.shape[1] / self.shape[0]
        c, energy, before = np.zeros(1), np.zeros(1), {}
        for use in self.uses:
            assert use.factor is not None
            role_gain = self.gains[use.role]
            before[use.role] = moved.coefficients * role_gain + steps.get(use.role, 0.0)
            c = c + before[use.role] * use.factor
            energy = energy + moved.energy * role_gain * widths * use.factor
        return TokenMotion(c, moved.overlaps, energy + self._energy_along_gradients(before, gradient, steps))

    def sign_deviations(self, gradient: Array, steps: Steps) -> Steps:
        """Return samples of the hidden units' change that is not along their gradients.

        The step is along the gradient's sign. Each matrix changes the units by C Δ on average, along their gradients Δ.
        The samples are the rest, summed over the matrices, as "beyond", (samples, N).
        """
        deltas = self._unit_gradients(gradient)
        moved = [sign_deviation(use, deltas, steps[use.role]) for use in self.uses if use.role in steps]
        return {"beyond": np.sum(moved, axis=0)} if moved else {}

    def _unit_gradients(self, gradient: Array) -> Array:
        """Return samples of the gradients at one unit from the Gram matrix of all units, (samples, N)."""
        generator = np.random.default_rng([2, self.seed])
        return gaussian_samples(mean_kernel(gradient) / self.shape[1], generator, self.samples)

    def _energy_along_gradients(self, coefficients: dict[str, Array], gradient: Array, steps: Steps) -> Array:
        """Return the energy along gradients after φ: the mean over slopes of (f c f) K (f c f)ᵀ, for mean c and K.

        The effect of signs on a unit beyond c has the same slopes f, so that it is sampled with them.
        """
        c = {role: mean_kernel(coefficient) for role, coefficient in coefficients.items()}
        turned = sum((f[:, :, None] * c[role] * f[:, None, :] for role, f in self.factors.items()), np.zeros((1, 1, 1)))
        energy: Array = (turned @ mean_kernel(gradient) @ turned.mT).mean(0)
        if "beyond" not in steps:
            return energy
        crossed = (turned @ self._unit_gradients(gradient)[:, :, None])[:, :, 0].T @ steps["beyond"]
        whole = (steps["beyond"].T @ steps["beyond"] + crossed + crossed.T) / len(steps["beyond"])
        return np.asarray(energy + self.shape[1] * whole)


@dataclass(slots=True, eq=False)
class FeedForward(UnitBranch):
    """A plain or gated MLP, with its gradients and the change of its output in one optimizer step.

    It is φ(x W1) W2, or (φ(x WG) ∘ x W1) W2 with a gate WG.

    Attributes:
        stack: the network.
        tokens: layout of its tokens.
        given: kernel of the branch's input, (1, N, N).
        seed: random seed of the samples.
        samples: largest number of samples.
        units: hidden units, the input of W2.
        uses: its matrices; the last is W2.
    """

    samples: int = SAMPLES
    units: Units = field(init=False)

    def __post_init__(self) -> None:
        stack, shapes = self.stack, weight_shapes(self.stack)
        gains = {role: gain(stack, role) for role in (("WG", "W1") if stack.ffn == "gated" else ("W1",))}
        self.units = Units(stack, self.tokens, self.given, self.seed, gains, shapes["W1"], self.samples)
        second = MatrixUse("W2", shapes["W2"], stack.ffn_width * self.units.kernel, self.units.drawn)
        self.uses = [*self.units.uses, second]

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """Return the loss gradients at the MLP's input and matrices, from the gradient at its output.

        None of these gradients overlaps with the residual stream.

        Args:
            noise: kernel of the gradient at the output, (..., N, N).
            part: coefficients on the output, passed through unchanged.
        """
        below, gradients = self.units.down(noise * gain(self.stack, "W2"))
        return below, part, gradients | {"W2": MatrixGradient.without_overlaps(noise)}

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the MLP's output when its input and its matrices take one optimizer step.

        Args:
            moved: motion of the input tokens.
            gradients: gradients at the matrices.
            steps: steps of the matrices.
        """
        role_gain, widths = gain(self.stack, "W2"), self.stack.width / self.stack.ffn_width
        of_units = self.units.up(moved, gradients["W2"].gram * role_gain, steps)
        return of_units.through(role_gain, widths, "W2", steps, gradients)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of each MLP matrix's outputs in one optimizer step, as a weighted sum of gradients.

        The weights are the coefficients C; sign steps also have samples "beyond" C Δ.
        """
        steps = Branch.steps(self, rule, gradients, matrices)
        at_units = gradients["W2"].gram * gain(self.stack, "W2")
        return steps | (self.units.sign_deviations(at_units, steps) if rule is sign_rule else {})


class TiedFeedForward(FeedForward):
    """An MLP in a network with tied embeddings, with its gradients and its change in one optimizer step.

    Gradients overlap with the MLP's output. The MLP is φ(x W1) W2 or (φ(x WG) ∘ x W1) W2.

    Gradients at the units h = φ(u) are P h/√d and noise ν, those at the pre-activations f ∘ (P h/√d + ν) with the
    factors f. The part of u̇ that is random to all else is Gaussian with a known covariance with u, so that it is a
    multiple of u and a rest. All means are over samples of u.
    """

    def __post_init__(self) -> None:
        FeedForward.__post_init__(self)
        *before, second = self.uses
        none, rows = np.ones((1, 1)), self.stack.ffn_width * sample_mean(self.units.drawn, self.units.drawn)[None]
        self.uses = [MatrixUse(use.role, use.shape, use.rows, none) for use in before]
        self.uses.append(MatrixUse("W2", second.shape, rows, self.units.drawn))

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """Return the loss gradients at the MLP's input and matrices, from the gradient at its output.

        Args:
            noise: kernel of the gradient's noise, (..., N, N).
            part: coefficients of the gradient on the branch's output, (..., N, N).
        """
        stack, ratio, size = self.stack, self.stack.ffn_width / self.stack.width, gain(self.stack, "W2")
        along = part @ (size * self.uses[-1].rows / stack.ffn_width)
        gradients = {"W2": MatrixGradient(noise + along @ part.mT, part, along)}
        noise, part = size * gradients["W2"].gram, size / ratio * part
        below, of_tokens = np.zeros(1), np.zeros(1)
        for role, factor in self.units.factors.items():
            role_gain, kernel = gain(stack, role), self.given * gain(stack, role)
            if stack.ffn == "gated" and role == "W1":
                answer = part * sample_mean(self.units.active, self.units.active)
            else:
                of_lines = gain(stack, "W1") * self.given if role == "WG" else 1.0
                answer = response(part * of_lines, kernel, self.units.before[role], self.units.active, self.units.slope)
            certain = factor * (self.units.drawn @ part.mT)
            gram = noise * sample_mean(factor, factor) + ratio * sample_mean(certain, certain)
            gradients[role] = MatrixGradient(gram, answer, ratio * answer @ kernel)
            below, of_tokens = below + role_gain * gram, of_tokens + ratio * role_gain * answer
        return below, of_tokens, gradients

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the MLP's output when its input and its matrices take one optimizer step.

        Args:
            moved: motion of the input tokens.
            gradients: gradients at the matrices.
            steps: steps of the matrices.
        """
        stack, ratio, size = self.stack, self.stack.ffn_width / self.stack.width, gain(self.stack, "W2")
        noise, certain = self._noise_kernel(gradients), self._overlap_samples(gradients)
        follows = moved.overlaps @ inverse(self.given)
        signs = self._sign_steps(gradients, steps)
        along = {role: gain(stack, role) * moved.coefficients + steps.get(role, 0.0) for role in self.units.factors}
        # Networks' own coefficients may differ by orders of magnitude, as one over their gradients.
        apart = bool(signs) or any(len(role_c) > 1 for role_c in along.values())
        c, energy, change = np.zeros(1), np.zeros(1), np.zeros(1)
        by_noise, turned = np.zeros(1), 0.0 * self.given
        for role, factor in self.units.factors.items():
            role_c, slopes = along[role], sample_mean(factor, factor)
            change = change + factor * (self.units.before[role] @ follows.mT + (factor * certain) @ role_c.mT)
            rest = ratio * gain(stack, role) * (moved.energy - follows @ self.given @ follows.mT)
            c, energy = c + role_c * slopes, energy + rest * slopes
            if apart:
                by_noise = by_noise + factor * ((factor * self._noise_samples(gradients)) @ role_c.mT)
            else:
                turned = turned + factor[:, :, None] * mean_kernel(role_c) * factor[:, None, :]
        for role, moves in signs.items():
            c, change = c + self._noise_coefficients(role, moves, gradients), change + self.units.factors[role] * moves
        energy = energy + ratio * sample_mean(change + by_noise, change + by_noise)
        energy = energy + (turned @ mean_kernel(noise) @ turned.mT).mean(0)
        of_units = TokenMotion(c, ratio * sample_mean(change, self.units.drawn), energy)
        return of_units.through(size, 1.0 / ratio, "W2", steps, gradients)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of each MLP matrix's outputs in one optimizer step, as a weighted sum of gradients.

        The weights are the coefficients C.

        For signs, W2 has a remainder, and matrices before the activation have "ROLE signs" instead of coefficients on
        Δ.
        """
        if rule is not sign_rule:
            return Branch.steps(self, rule, gradients, matrices)
        steps = sign_steps(self.uses[-1:] if "W2" in matrices else (), gradients)
        return steps | {f"{role} signs": np.ones(1) for role in self.units.factors if role in matrices}

    def inner_products_by_matrix(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        """Return each matrix's term of the inner product between an optimizer step and a gradient.

        The arguments are those of `Branch.inner_products_by_matrix`.
        """
        parts = Branch.inner_products_by_matrix(self, steps, gradients, others)
        ratio = self.stack.ffn_width / self.stack.width
        for role, moves in self._sign_steps(gradients, steps).items():
            seen = (self.units.factors[role] * moves * self._overlap_samples(others)).sum(-1).mean(-1)
            c = self._noise_coefficients(role, moves, gradients)
            parts[role] = ratio * seen + (c * self._noise_kernel(others)).sum((-2, -1))
        return parts

    def _noise_kernel(self, gradients: Gradients) -> Array:
        """Return the kernel of the noise ν at the units."""
        return np.asarray(gain(self.stack, "W2") * gradients["W2"].gram)

    def _overlap_samples(self, gradients: Gradients) -> Array:
        """Return samples of P h, the gradient's part along the units, (..., samples, N)."""
        part = gain(self.stack, "W2") * self.stack.width / self.stack.ffn_width * gradients["W2"].part
        return np.asarray(self.units.drawn @ part.mT)

    def _noise_samples(self, gradients: Gradients) -> Array:
        """Return samples of √d ν, the gradient's noise at the units."""
        noise = self._noise_kernel(gradients) * self.stack.width / self.stack.ffn_width
        normal = np.random.default_rng((self.seed, 1)).standard_normal((len(noise), *self.units.drawn.shape))
        return np.asarray(normal @ eigen_root(noise).mT)

    def _sign_steps(self, gradients: Gradients, steps: Steps) -> dict[str, Array]:
        """Return √d H sign(HᵀΔ) for samples of Δ and Gaussian H, by role, for the matrices with sign steps."""
        signs = dict[str, Array]()
        for role in (role for role in self.units.factors if f"{role} signs" in steps):
            gradient = self.units.factors[role] * (self._overlap_samples(gradients) + self._noise_samples(gradients))
            moved = gradient @ self.given
            sizes = np.sqrt(np.maximum((moved * gradient).sum(-1, keepdims=True), 0.0))
            scale = (2 / np.pi) ** 0.5 * self.stack.width**1.5
            signs[role] = scale * np.divide(moved, sizes, out=np.zeros_like(moved), where=sizes > 0)
        return signs

    def _noise_coefficients(self, role: str, moves: Array, gradients: Gradients) -> Array:
        """Return the coefficients on ν of the units' motion by signs, by Stein's lemma."""
        moved = sample_mean(self.units.factors[role] * moves, self._noise_samples(gradients))
        return np.asarray(self.stack.ffn_width / self.stack.width * moved @ inverse(self._noise_kernel(gradients)))


@dataclass(slots=True, eq=False)
class OutputTransform(UnitBranch):
    """The output transform: one matrix, an activation and a norm between the last layer and the output matrix.

    It is z = N(φ(x W^H)) for the layers' output x.

    Attributes:
        stack: the network.
        tokens: layout of its tokens.
        given: kernel of x, (1, N, N).
        seed: random seed of the samples.
        samples: largest number of samples.
        units: φ(x W^H).
        uses: its matrix W^H.
        scales: divisors of the units' kernel in the norm.
        rows: samples of a coordinate of z, (samples, N).
    """

    samples: int = SAMPLES
    units: Units = field(init=False)
    scales: Array = field(init=False)
    rows: Array = field(init=False)

    def __post_init__(self) -> None:
        stack, square = self.stack, (self.stack.width, self.stack.width)
        gains = {"WH": transform_gain(stack)}
        self.units = Units(stack, self.tokens, self.given, self.seed, gains, square, self.samples)
        self.uses = self.units.uses
        kernel = units_to_be_normed(stack, self.tokens, self.given * gains["WH"])
        _, self.scales = normed(stack, self.tokens, TokenMoments(kernel), norm=True)
        drawn = self.units.drawn if stack.normalization == "rms" else self.units.drawn - self.units.drawn.mean(0)
        self.rows = drawn / np.sqrt(np.linalg.diagonal(self.scales[0]))

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """Return the loss gradients at the output transform's input, matrix and output.

        The gradient at the output z is "total".
        """
        below, gradients = self.units.down(noise / self.scales)
        return below, part, gradients | {"total": MatrixGradient.without_overlaps(noise)}

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the output transform's output when its input and its matrix take an optimizer step."""
        return self.units.up(moved, gradients["total"].gram / self.scales, steps).scaled(1.0 / self.scales)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of the output transform's pre-activations in one step, as a sum of gradients.

        The weights are the coefficients C, if W^H is stepped; sign steps also have samples "beyond" C Δ.
        """
        steps = Branch.steps(self, rule, gradients, matrices)
        return steps | (
            self.units.sign_deviations(gradients["total"].gram / self.scales, steps) if rule is sign_rule else {}
        )
