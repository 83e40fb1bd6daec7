"""Units on the way down and up of one step: those of a feed-forward branch, and of a transform before the output.

A unit's gradients reach what comes out of a matrix before it through slopes f, φ'(u) or what a gate multiplies. A step
moves u by C Δ, and units by f ∘ C (f ∘ Δ): the mean of f f' takes coefficients through, and what fluctuates about it is
random to all above.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from theory.first_step.motion import TokenMotion, mean_kernel
from theory.first_step.rules import MatrixUse, Rule, parts_of, sign_deviation, sign_rule
from theory.first_step.samples import SAMPLES, gaussian_samples
from theory.mean_field.activations import activation_of
from theory.mean_field.kernels import Array, MatrixLayout
from theory.mean_field.outputs import units_to_be_normed
from theory.mean_field.sublayers import TokenMoments, normed
from theory.stack import Stack
from theory.stack.weights import gain, transform_gain, weight_shapes


@dataclass(slots=True, eq=False)
class Units:
    """φ(x W) or, gated, φ(x WG) ∘ x W.

    Attributes:
        gains: of the matrices before the units, by role; of the gate first.
        shape: (d, units).
        uses: those matrices.
        factors: samples of what gradients of each are multiplied by, (samples, N).
        drawn: samples of the units, (samples, N).
        kernel: E of a unit of two tokens, (1, N, N).
    """

    stack: Stack
    tokens: MatrixLayout
    given: Array
    seed: int
    gains: Mapping[str, float]
    shape: tuple[int, int]
    samples: int = SAMPLES
    uses: list[MatrixUse] = field(init=False)
    factors: dict[str, Array] = field(init=False)
    drawn: Array = field(init=False)
    kernel: Array = field(init=False)

    def __post_init__(self) -> None:
        stack, roles = self.stack, list(self.gains)
        activation, lines = activation_of(stack.activation, stack.leaky_slope), self.given * self.gains[roles[-1]]
        before = self.given * self.gains[roles[0]]
        slope, active = activation.slope_kernel(self.tokens, before), activation.kernel(self.tokens, before)
        rows, generator = stack.width * self.given, np.random.default_rng(self.seed)
        u = gaussian_samples(before[0], generator, self.samples)
        if len(roles) == 2:
            other = gaussian_samples(lines[0], generator, self.samples)
            self.kernel, factors = active * lines, [slope * lines, active]
            self.factors = dict(zip(roles, (activation.slope(u) * other, activation.value(u)), strict=True))
            self.drawn = activation.value(u) * other
        else:
            self.kernel, factors = active, [slope]
            self.factors, self.drawn = {roles[0]: activation.slope(u)}, activation.value(u)
        seen = gaussian_samples(self.given[0], generator, self.samples)
        self.uses = [
            MatrixUse(role, self.shape, rows, seen, factor, self.factors[role])
            for role, factor in zip(roles, factors, strict=True)
        ]

    def down(self, gradient: Array) -> tuple[Array, dict[str, Array]]:
        """As `FixedAttention.down`, from gradients at the units."""
        gradients = {use.role: use.below(gradient) for use in self.uses}
        return sum((gradients[role] * role_gain for role, role_gain in self.gains.items()), np.zeros(1)), gradients

    def up(self, moved: TokenMotion, gradient: Array, steps: dict[str, Array]) -> TokenMotion:
        """How units move, whose gradients have this Gram matrix."""
        widths = self.shape[1] / self.shape[0]
        c, energy, before = np.zeros(1), np.zeros(1), {}
        for use in self.uses:
            assert use.factor is not None
            role_gain = self.gains[use.role]
            before[use.role] = moved.coefficients * role_gain + steps.get(use.role, 0.0)
            c = c + before[use.role] * use.factor
            energy = energy + moved.energy * role_gain * widths * use.factor
        return TokenMotion(c, energy + self._turned(before, gradient, steps))

    def steps(
        self, rule: Rule, gradient: Array, gradients: dict[str, Array], matrices: Collection[str]
    ) -> dict[str, Array]:
        """C of the matrices that move; of signs "beyond" is what these make beyond C Δ, (samples, N)."""
        chosen = [use for use in self.uses if use.role in matrices]
        steps = {use.role: rule(use, gradients[use.role]) for use in chosen}
        if rule is sign_rule and chosen:
            deltas = self._unit_gradients(gradient)
            steps["beyond"] = np.sum([sign_deviation(use, deltas, steps[use.role]) for use in chosen], axis=0)
        return steps

    def _unit_gradients(self, gradient: Array) -> Array:
        """Samples of gradients at a unit of the Gram matrix of all, (samples, N)."""
        generator = np.random.default_rng([2, self.seed])
        return gaussian_samples(mean_kernel(gradient) / self.shape[1], generator, self.samples)

    def _turned(self, coefficients: dict[str, Array], gradient: Array, steps: dict[str, Array]) -> Array:
        """E of the part along gradients, behind φ: the mean over slopes of (f c f) K (f c f)ᵀ, of mean c and K.

        What signs make of a unit's gradients beyond c goes with the same slopes f, so that it is sampled with them.
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
class FeedForward:
    """φ(x W1) W2 or, gated, (φ(x WG) ∘ x W1) W2.

    Attributes:
        units: what W2 is given.
        uses: its matrices; the last is W2.
    """

    stack: Stack
    tokens: MatrixLayout
    given: Array
    seed: int
    samples: int = SAMPLES
    units: Units = field(init=False)
    uses: list[MatrixUse] = field(init=False)

    def __post_init__(self) -> None:
        stack, shapes = self.stack, weight_shapes(self.stack)
        gains = {role: gain(stack, role) for role in (("WG", "W1") if stack.ffn == "gated" else ("W1",))}
        self.units = Units(stack, self.tokens, self.given, self.seed, gains, shapes["W1"], self.samples)
        second = MatrixUse("W2", shapes["W2"], stack.ffn_width * self.units.kernel, self.units.drawn)
        self.uses = [*self.units.uses, second]

    def down(self, gradient: Array) -> tuple[Array, dict[str, Array]]:
        """As `FixedAttention.down`."""
        below, gradients = self.units.down(gradient * gain(self.stack, "W2"))
        return below, gradients | {"W2": gradient}

    def up(self, moved: TokenMotion, gradients: dict[str, Array], steps: dict[str, Array]) -> TokenMotion:
        """As `FixedAttention.up`."""
        role_gain, widths = gain(self.stack, "W2"), self.stack.ffn_width / self.stack.width
        of_units = self.units.up(moved, gradients["W2"] * role_gain, steps)
        c = of_units.coefficients * role_gain + steps.get("W2", 0.0)
        return TokenMotion(c, of_units.energy * role_gain / widths + c @ gradients["W2"] @ c.mT)

    def steps(self, rule: Rule, gradients: dict[str, Array], matrices: Collection[str]) -> dict[str, Array]:
        """As `FixedAttention.steps` and `Units.steps`."""
        steps = self.units.steps(rule, gradients["W2"] * gain(self.stack, "W2"), gradients, matrices)
        return steps | ({"W2": rule(self.last, gradients["W2"])} if "W2" in matrices else {})

    @property
    def last(self) -> MatrixUse:
        """As `FixedAttention.last`."""
        return self.uses[-1]

    def parts(self, steps: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
        """As `FixedAttention.parts`."""
        return parts_of(self.uses, steps, gradients)


@dataclass(slots=True, eq=False)
class OutputTransform:
    """z = N(φ(x W^H)), what the output matrix is given of the layers' output x.

    Attributes:
        units: φ(x W^H).
        scales: what the norm divides their kernel by.
        rows: samples of a coordinate of z, (samples, N).
    """

    stack: Stack
    tokens: MatrixLayout
    given: Array
    seed: int
    samples: int = SAMPLES
    units: Units = field(init=False)
    scales: Array = field(init=False)
    rows: Array = field(init=False)

    def __post_init__(self) -> None:
        stack, square = self.stack, (self.stack.width, self.stack.width)
        gains = {"WH": transform_gain(stack)}
        self.units = Units(stack, self.tokens, self.given, self.seed, gains, square, self.samples)
        kernel = units_to_be_normed(stack, self.tokens, self.given * gains["WH"])
        _, self.scales = normed(stack, self.tokens, TokenMoments(kernel), norm=True)
        drawn = self.units.drawn if stack.normalization == "rms" else self.units.drawn - self.units.drawn.mean(0)
        self.rows = drawn / np.sqrt(np.linalg.diagonal(self.scales[0]))

    @property
    def uses(self) -> list[MatrixUse]:
        """Its matrix."""
        return self.units.uses

    def down(self, gradient: Array) -> tuple[Array, dict[str, Array]]:
        """As `FixedAttention.down`; "total" is the gradient at z."""
        below, gradients = self.units.down(gradient / self.scales)
        return below, gradients | {"total": gradient}

    def up(self, moved: TokenMotion, gradients: dict[str, Array], steps: dict[str, Array]) -> TokenMotion:
        """As `FixedAttention.up`."""
        of_units = self.units.up(moved, gradients["total"] / self.scales, steps)
        return TokenMotion(of_units.coefficients / self.scales, of_units.energy / self.scales)

    def steps(self, rule: Rule, gradients: dict[str, Array], matrices: Collection[str]) -> dict[str, Array]:
        """As `Units.steps`."""
        return self.units.steps(rule, gradients["total"] / self.scales, gradients, matrices)

    def parts(self, steps: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
        """As `FixedAttention.parts`."""
        return parts_of(self.uses, steps, gradients)
