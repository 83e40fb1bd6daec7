"""Predict the gradient norm of a batch at initialization, and the batch size above which larger batches help little.

The gradient of B independent sequences has E‖∇‖² = C + (S − C)/B, with S the mean square of one sequence's gradient
and C the mean product of two's. For two sequences, the gradient's kernel has diagonal blocks, S, and blocks between
the two, C. A squared norm is a sum over both, from one forward and one backward pass. The noise scale is (S − C)/C,
the trace of the covariance of one sequence's gradient divided by the squared norm of its mean.

Source: McCandlish et al. (2018), arXiv:1812.06162, section 2.2, B_simple, there of one example; large-width theory by
this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from theory.mean_field.kernels import Array
from theory.mean_field.prediction import predict_sequences
from theory.mean_field.text_law import TextLaw
from theory.mean_field.token_groups import Coarse
from theory.stack import Stack
from theory.stack.fields import integer

# Of S: a smaller product of two sequences' gradients is rounding.
_NONE = 1e-9
_check_sequences = integer(1, 1, "number of sequences").metadata["check"]
_SQUARE, _VECTOR, _STREAM = (
    "grad_sq_", "vector_sq_", ("hidden_energy", "token_correlation", "expert_load_max", "expert_balance")
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class NoiseScale:
    """The predicted mean squared gradient for any batch size, and the gradient noise scale, in sequences.

    Attributes:
        stack: the network, with one sequence.
        loss: the expected cross-entropy, which does not depend on the batch size.
        single: S of each matrix, by role: shape (L,), or () for "Wemb"; matrices of an encoder as "encoder_W1",
            experts together, and NaN for layers without such a matrix.
        product: C of each matrix, in the same form.
        single_sem: standard errors of S if attention samples or logits are sampled, otherwise 0.
        product_sem: standard errors of C, in the same form.
        vectors: S and C, (2, ...), of the parameters that a network may have in addition to its matrices: biases of
            its matrices, "bias_W1" and so on, by layer; gains and biases of its norms, "gain" and "shift", by
            sub-layer from below; and tables of "inputs", "positions" and the "segment", whose rows are added to the
            inputs.
        loss_moments: S and C of the loss's variance over networks, labels and texts, for one sequence and between
            two; None if only a share of the positions counts, or if embeddings are tied and there is no law of text.
        stream: the residual stream's "hidden_energy" and "token_correlation" (L,), within a sequence. With experts and
            a text, "expert_load_max" (L,) is the share of a large batch's tokens that the fullest expert takes, and
            "expert_balance" its load-balancing loss, of which k experts with even loads have k.
        masked: share of the positions that count in the loss of masked words; 0 if all count.
    """

    stack: Stack
    loss: float
    single: dict[str, Array]
    product: dict[str, Array]
    single_sem: dict[str, Array]
    product_sem: dict[str, Array]
    vectors: dict[str, Array]
    loss_moments: tuple[float, float] | None = None
    stream: dict[str, Array] = field(default_factory=dict)
    masked: float = 0.0

    def loss_deviation(self, sequences: int) -> float:
        """Return the standard deviation of a batch's loss over random networks, labels and texts, in nats.

        It does not vanish for many sequences, because a network has the same logits wherever labels agree.

        Args:
            sequences: number of sequences in the batch.

        Raises:
            ValueError: the number of sequences is less than 1, or there is no rule.
        """
        _check_sequences("sequences", sequences)
        if self.loss_moments is None:
            raise ValueError(
                "embeddings must be untied or text a law, and every position count, for the deviation of a loss."
            )
        single, product = self.loss_moments
        return float(max(product + (single - product) / sequences, 0.0) ** 0.5)

    @property
    def whole(self) -> float:
        """The gradient noise scale for all matrices together: the batch size above which noise no longer dominates.

        Its unit is one sequence.
        """
        single, product = (
            sum(float(np.nansum(part)) for part in parts.values()) for parts in (self.single, self.product)
        )
        return float(_scale(np.asarray(single), np.asarray(product)))

    @property
    def matrices(self) -> dict[str, Array]:
        """The gradient noise scale of each matrix in sequences; infinite if the mean gradient is zero.

        The mean gradient is 0 where gradients of two sequences are orthogonal in the mean.

        In the first layer this holds for every matrix whose input is a linear image of independent inputs. The inputs
        of W2 are hidden units, whose products have the mean kappa(0): 1/(2 pi) for ReLU, and 0 for odd activations.
        """
        return {role: _scale(self.single[role], self.product[role]) for role in self.single}

    def grad_sq(self, sequences: int) -> dict[str, Array]:
        """Return the mean squared gradient norm of each matrix for a batch of a given number of sequences.

        It is E‖∂L/∂W‖², by role.

        Args:
            sequences: number of sequences in the batch.

        Raises:
            ValueError: the number of sequences is less than 1.
        """
        _check_sequences("sequences", sequences)
        return {
            role: self.product[role] + (single - self.product[role]) / sequences for role, single in self.single.items()
        }

    def grad_sq_sem(self, sequences: int) -> dict[str, Array]:
        """Return the standard error, due to sampling, of each matrix's predicted mean squared gradient norm.

        They are the errors of `grad_sq`, by role.

        Args:
            sequences: number of sequences in the batch.
        """
        return {
            role: np.hypot(error / sequences, self.product_sem[role] * (1.0 - 1.0 / sequences))
            for role, error in self.single_sem.items()
        }

    def squares(self, sequences: int, vectors: Sequence[str] = ()) -> dict[str, float]:
        """Return the mean squared gradient norm of each kind of parameter for a batch, summed over layers.

        Args:
            sequences: number of sequences in the batch.
            vectors: names of the `vectors` that the network learns; names that it does not have are ignored.

        Raises:
            ValueError: the number of sequences is less than 1.
        """
        squares = {role: float(np.nansum(square)) for role, square in self.grad_sq(sequences).items()}
        for name in vectors:
            if name in self.vectors:
                single, product = self.vectors[name]
                squares[name] = float(np.sum(product + (single - product) / sequences))
        return squares

    def norm(self, sequences: int, vectors: Sequence[str] = ()) -> tuple[float, float]:
        """Return the gradient norm of all parameters for a batch, and its standard error due to sampling.

        The norm is √E‖∇L‖².

        Errors of the matrices in one layer are added as if they all had one sign; layers are taken as independent.

        Args:
            sequences: number of sequences in the batch.
            vectors: names of the `vectors` that the network learns.
        """
        square = max(0.0, sum(self.squares(sequences, vectors).values()))
        errors: dict[int, float] = {}
        for error in self.grad_sq_sem(sequences).values():
            for layer, value in enumerate(np.nan_to_num(np.atleast_1d(error))):
                errors[layer] = errors.get(layer, 0.0) + float(value)
        root = square**0.5
        return root, float(np.linalg.norm(list(errors.values()))) / (2.0 * root) if root else 0.0


def noise_scale(
    stack: Stack, windows: NDArray[np.integer] | None = None, *, patterns: int | None = None,
    grouped: bool | None = None, text: TextLaw | None = None, max_time: float | None = None,
    memory: float | None = None, coarse: Coarse = False,
) -> NoiseScale:  # fmt: skip
    """Predict how the gradient depends on the batch size, and the noise scale of McCandlish et al. (2018).

    The unit is one sequence of `stack.tokens` tokens. The cost is that of `predict` for two sequences.

    Args:
        stack: the network; its number of sequences is ignored.
        windows: token ids of shape (windows, n + 1), as in `predict`; consecutive pairs of rows are the two sequences
            that are compared. Without windows all token ids differ, within and between sequences.
        patterns: smallest number of attention samples, or of sampled logits with tied embeddings, as in `predict`.
        grouped: whether a few tokens represent groups of adjacent tokens, as in `predict`.
        text: the law of random text within and between sequences, as in `predict`.
        max_time: limit of the computing time in seconds, as in `predict`.
        memory: limit of the memory in bytes, as in `predict`.
        coarse: whether a text has about half as many groups of tokens, and few sampled heads above the first layer;
            tied embeddings then require half as many tokens. "heads" keeps the groups.

    Raises:
        ValueError: as in `predict` for two sequences.
        NoRuleError: `predict` has no rule for the network.

    Assumes d → ∞ at fixed L and n; corrections are O(L/d). If a share of the positions counts, each counts
    independently.

    >>> scale = noise_scale(Stack(width=512, depth=6, tokens=8, vocab=16))
    >>> print(f"{scale.whole:.1f} sequences, of the last W2 {scale.matrices['W2'][-1]:.1f}")
    9.3 sequences, of the last W2 5.9
    """
    two_sequences = predict_sequences(
        stack, windows, patterns=patterns, grouped=grouped, text=text, max_time=max_time, memory=memory, coarse=coarse
    )
    roles = {name.replace(_SQUARE, ""): name for name in two_sequences if _SQUARE in name}
    # Two sequences have (S + C)/2, in two parts.
    means = {role: 2.0 * two_sequences[name] for role, name in roles.items()}
    errors = {role: 2.0 * two_sequences.errors.get(name, 0.0 * two_sequences[name]) for role, name in roles.items()}
    every_position_counts = stack.loss_on == "all" and stack.loss_share == 1.0
    moments = two_sequences["loss_variance"] if "loss_variance" in two_sequences and every_position_counts else None
    return NoiseScale(
        stack=replace(stack, sequences=1),
        loss=float(two_sequences["loss"]),
        single={role: value[..., 0] for role, value in means.items()},
        product={role: value[..., 1] for role, value in means.items()},
        single_sem={role: value[..., 0] for role, value in errors.items()},
        product_sem={role: value[..., 1] for role, value in errors.items()},
        vectors={
            name.removeprefix(_VECTOR): 2.0 * np.moveaxis(two_sequences[name], -1, 0)
            for name in two_sequences
            if name.startswith(_VECTOR)
        },
        loss_moments=None if moments is None else (float(2.0 * moments[0]), float(2.0 * moments[1])),
        stream={name: two_sequences[name] for name in _STREAM if name in two_sequences},
        masked=text.counted[0] if text and text.counted else 0.0,
    )


def _scale(single: Array, product: Array) -> Array:
    """Return the noise scale (S − C)/C, infinite where C is 0."""
    return np.divide(single - product, product, out=np.full(np.shape(single), np.inf), where=product > _NONE * single)
