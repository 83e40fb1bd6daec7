"""The description of a random Transformer stack, shared by theory, simulation and tables."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from theory.stack.activations import ACTIVATIONS
from theory.stack.depth_mixing import check_mixing
from theory.stack.fields import LARGEST, LARGEST_INTEGER, Group
from theory.stack.groups import Attention, Experts, FeedForward, Inputs, Loss, Matrices, Placement, Residual, Sizes
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.placements import COMPOSITIONS, TITLES, Composition, title
from theory.stack.registry import Table
from theory.stack.streams import check_streams

__all__ = ["BY_LAYER", "NAMED", "OWN", "PAPER", "SIZES", "TITLES", "Placement", "Stack", "title"]

NAMED: dict[str, Table[Any]] = {
    "placement": COMPOSITIONS,
    "lower_placement": COMPOSITIONS,
    "activation": ACTIVATIONS,
    "initialization": INITIALIZATIONS,
}
"""The tables of the fields whose names users may extend, by field."""


_G = TypeVar("_G", bound=Group)

# Branches are divided by this power of the depth.
_OF_DEPTH = {"depth": 0.5, "inverse_depth": 1.0}

BY_LAYER = {"layer": ("projection_gain", "down_gain"), "layer_up": ("projection_gain", "up_gain", "down_gain")}
"""The standard-deviation factors that are divided by sqrt(2 l) in layer l, by the value of `depth_scaling`."""

PAPER = ("post", "pre")
"""The two placements of Xiong et al. (2020), which the claims of the paper are about."""

SIZES = tuple(f.name for f in fields(Sizes))
"""The names of the fields that the paper's statements leave free; each other field drops an assumption of the paper."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Stack(Loss, Inputs, Attention, Residual, Matrices, Experts, FeedForward, Sizes):
    """A random Transformer at initialization: all fields of the network, and nothing about how it is sampled.

    The defaults are the simplified setting of the paper: one head, W^Q = W^K = 0 (uniform attention),
    W^V, W^1, W^2 of shape (d, d) with N(0, 1/d) entries, ReLU, no biases, inputs N(0, I_d), and an output
    matrix W_emb of shape (V, d) with N(0, σ_e²/d) entries under a softmax cross-entropy averaged over the
    n positions. Engine, device, draws, seed and text belong to sampling, not here.

    Fields are flat, and declared in the groups of `theory.stack.groups`; `of` takes whole groups, `part` gives one. A
    field added later must default to the paper's value, because cell keys contain only fields that differ from a
    default.

    Source: Xiong et al. (2020), arXiv:2002.04745v2, section 3.3 and Table 1; docs/setting.md for the other fields.

    Raises:
        ValueError: a field is outside its range; the message names the field, the allowed values and the given value.

    >>> Stack(placement="pre", width=128).non_default()
    {'placement': 'pre', 'width': 128}
    """

    @classmethod
    def of(cls, *groups: Group, **others: Any) -> Self:
        """Create a network description from groups of fields, such as `Attention`, and single fields.

        Args:
            groups: groups of fields, at most one of each kind.
            others: single fields of other groups.

        Raises:
            ValueError: a field is given twice, or is not allowed.

        >>> Stack.of(Attention(heads=8, mask="causal"), FeedForward(ffn="gated", activation="silu"), depth=2)
        Stack(depth=2, activation='silu', ffn='gated', heads=8, mask='causal')
        """
        given: dict[str, Any] = {}
        for group in groups:
            group_fields = {f.name: getattr(group, f.name) for f in fields(group)}
            if again := sorted(group_fields.keys() & (given.keys() | others.keys())):
                raise ValueError(f"{', '.join(again)} must be given once, got it and {type(group).__name__}.")
            given |= group_fields
        return cls(**given, **others)

    def part(self, group: type[_G]) -> _G:
        """Return the fields of one group, such as `Attention`, as an instance of the group.

        Args:
            group: class of the group, such as `Attention`.

        >>> Stack(heads=8, width=64).part(Attention)
        Attention(heads=8)
        """
        return group(**{f.name: getattr(self, f.name) for f in fields(group)})

    def of_layer(self, layer: int) -> "Stack":
        """Return a network in which every layer has the scales, LayerNorm placement and MLP of one given layer.

        Args:
            layer: number of the layer, from 1 to L.
        """
        alike = self.depth_scaling not in BY_LAYER and self.branch_scaling != "layer" and not self.lower_layers
        return self if alike and not self.dense_layers else _of_layer(self, layer)

    def _check(self) -> None:
        super()._check()
        if abs(self.ffn_ratio * self.width - self.ffn_width) > 1e-6 or not 1 <= self.ffn_width <= LARGEST_INTEGER:
            raise ValueError(
                f"ffn_ratio must make ffn_ratio * width an integer from 1 to {LARGEST_INTEGER}, got {self.ffn_ratio!r} "
                f"at width {self.width}."
            )
        if self.width % self.heads and not self.head_width:
            raise ValueError(f"heads must divide width = {self.width}, got {self.heads}.")
        self._check_inputs()
        self._check_scales()
        check_streams(self)
        check_mixing(self)
        if (self.mask == "given") != bool(self.mask_rows) or (self.mask_rows and len(self.given_mask) != self.tokens):
            raise ValueError(
                f"mask_rows must have tokens = {self.tokens} rows with mask 'given', and be empty with other masks, "
                f"got {self.mask_rows!r} with mask {self.mask!r}."
            )
        if self.rotary and (self.source_tokens or self.rotary_width < 2):
            raise ValueError(
                f"rotary must be 0 with a source, or rotate at least two coordinates of a head, got {self.rotary!r} "
                f"with {self.source_tokens} source tokens and heads of {self.key_width} coordinates."
            )
        if self.label_groups > self.tokens or (self.label_groups and self.embeddings == "tied"):
            raise ValueError(
                f"label_groups must be at most tokens = {self.tokens}, and 0 with tied embeddings, got "
                f"{self.label_groups!r} with embeddings {self.embeddings!r}."
            )
        gains = self.query_gain, self.key_gain
        if (self.query_key == "tied" and gains != (1.0, 1.0)) or (self.query_key_norm != "none" and 0.0 in gains):
            raise ValueError(
                "query_gain and key_gain must be 1 with query_key 'tied', and above 0 with "
                f"query_key_norm, got {self.query_gain!r} and {self.key_gain!r}."
            )
        normed = self.composition.output_norm or self.of_layer(1).composition.output_norm
        if 0.0 in (self.projection_gain, self.down_gain) and normed and not self.norm_epsilon:
            raise ValueError(
                "projection_gain and down_gain must be above 0 if norms after branches have no norm_epsilon, because "
                f"they cannot normalize zeros, got {self.projection_gain!r} and {self.down_gain!r}."
            )
        if self.transform_gain != 1.0 and self.output_transform == "none":
            raise ValueError(f"transform_gain must be 1 without output_transform, got {self.transform_gain!r}.")
        if self.branches != "both" and (self.source_tokens or self.embeddings == "tied"):
            raise ValueError(f"branches must be 'both' with a source or tied embeddings, got {self.branches!r}.")
        if self.layout == "parallel" and (self.source_tokens or self.composition.second_stream):
            raise ValueError(
                f"layout must be 'sequential' with a source or two streams, got {self.source_tokens} source tokens "
                f"and placement {self.placement!r}."
            )
        if self.lower_share and (self.composition.second_stream or self.of_layer(1).composition.second_stream):
            raise ValueError(
                f"lower_share must be 0 with two streams, got {self.lower_share!r} with placements "
                f"{self.lower_placement!r} and {self.placement!r}."
            )
        if self.lower_share and not 0 < self.lower_layers < self.depth:
            raise ValueError(
                f"lower_share must leave layers of both placements, got {self.lower_layers} of {self.depth} layers."
            )
        self._check_experts()
        _ = self.encoder  # which refuses what it cannot take

    def _check_experts(self) -> None:
        if not self.experts:
            if self.router_gain != 1.0:
                raise ValueError(f"router_gain requires experts, got router_gain {self.router_gain!r} without experts.")
            return
        for name in ("shared_ratio", "dense_ratio"):
            if (ratio := getattr(self, name)) and (
                abs(ratio * self.width - round(ratio * self.width)) > 1e-6
                or not 1 <= round(ratio * self.width) <= LARGEST_INTEGER
            ):
                raise ValueError(
                    f"{name} must be 0, or make {name} * width an integer from 1 to {LARGEST_INTEGER}, got {ratio!r} "
                    f"at width {self.width}."
                )
        if self.dense_layers >= self.depth:
            raise ValueError(
                f"dense_layers must be less than depth = {self.depth}, so that some layer has experts, got "
                f"{self.dense_layers}."
            )
        if self.source_tokens or self.branches == "attention" or self.composition.second_stream:
            raise ValueError(
                "experts must be 0 with source_tokens, without feed-forward branches, or with two streams, got "
                f"{self.experts} with {self.source_tokens} source tokens, branches {self.branches!r} and placement "
                f"{self.placement!r}."
            )

    def _check_inputs(self) -> None:
        for name in ("tokens", "source_tokens"):
            if (n := getattr(self, name)) > 1 and self.input_correlation < -1 / (n - 1):
                raise ValueError(
                    f"input_correlation must be at least -1/({name} - 1) = {-1 / (n - 1):g}, got "
                    f"{self.input_correlation!r}."
                )
        given = self.tokens if self.gram is None else len(self.gram)
        if given != self.tokens or (self.input_gram and self.input_correlation):
            raise ValueError(
                f"input_gram must have tokens = {self.tokens} rows, and cannot be combined with input_correlation, got "
                f"{given} rows and input_correlation = {self.input_correlation!r}."
            )
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"width must be even for sinusoidal positions, got {self.width}.")
        if self.embeddings == "tied" and (self.input_correlation or self.input_gram or self.vocab < self.rows):
            raise ValueError(
                f"embeddings must be untied with input_correlation or input_gram, or if vocab is less than the "
                f"{self.rows} tokens, which are all different; got {self.embeddings!r} with vocab = {self.vocab}."
            )

    def _check_scales(self) -> None:
        """Check the scales of a registered placement at this depth; registration checked only some other depths.

        Raises:
            ValueError: a scale is outside its range at this depth.
        """
        for name in ("residual", "branch", "gain") if self.placement in COMPOSITIONS.versions else ():
            if not 0 <= (scale := getattr(self.composition, name)(self.depth)) <= LARGEST:
                raise ValueError(
                    f"placement must have scales from 0 to {LARGEST:g}, but {self.placement!r} has {name} {scale!r} at "
                    f"depth {self.depth}."
                )

    @property
    def composition(self) -> Composition:
        """The rule that combines residual stream, branch and norm, with the scales and norms of this network."""
        composition = COMPOSITIONS[self.placement]
        if self.normalization == "none":
            composition = replace(composition, input_norm=False, output_norm=False, stream_norm=False, final_norm=False)
        if self.final_norm == "added":
            composition = replace(composition, final_norm=True)
        given = {"residual": self.residual_scale, "gain": self.branch_gain, "branch": self.branch_scale}
        changes: Any = {name: partial(_constant, value) for name, value in given.items() if value is not None}
        composition = replace(composition, **changes)
        if self.branch_scaling in _OF_DEPTH:
            branch, power = composition.branch, _OF_DEPTH[self.branch_scaling]
            composition = replace(composition, branch=lambda depth: branch(depth) * depth**-power)
        if self.input_scaling == "layer":
            placements_scale = composition.input_scale
            composition = replace(composition, input_scale=lambda layer: placements_scale(layer) * layer**-0.5)
        return composition

    @property
    def is_idle(self) -> bool:
        """Return whether all branches are multiplied by 0, so that nothing is added to the residual stream.

        The factor is τ = 0; the matrices of the branches then have no gradient.
        """
        return self.composition.branch(self.depth) == 0.0

    @property
    def has_scalars(self) -> bool:
        """Return whether every layer multiplies its branches by a learned scalar that is initially 0, as in ReZero."""
        return self.placement == "rezero" and self.branch_scale is None and not self.lower_layers

    @property
    def normalized_output(self) -> bool:
        """Return whether a norm gives every token before the output matrix the same length."""
        return self.composition.normalized_output and self.normalization != "tanh"

    @property
    def lower_layers(self) -> int:
        """The number of layers near the input that have a different LayerNorm placement from the upper layers.

        The field `lower_placement` names the lower placement.
        """
        return round(self.lower_share * self.depth)

    @property
    def ffn_width(self) -> int:
        """The number of hidden units of the MLP in each layer."""
        return round(self.ffn_ratio * self.width)

    @property
    def shared_width(self) -> int:
        """The number of hidden units of the expert that all tokens share; 0 without a shared expert."""
        return round(self.shared_ratio * self.width)

    @property
    def key_heads(self) -> int:
        """The number of attention heads with their own keys and values, at most the number of query heads."""
        return self.kv_heads or self.heads

    @property
    def key_width(self) -> int:
        """The width d_k of one attention head's queries, keys and values."""
        return self.head_width or self.width // self.heads

    @property
    def rotary_width(self) -> int:
        """The number of coordinates in each head that rotary position embeddings rotate, an even number."""
        return int(self.rotary * self.key_width) // 2 * 2

    @property
    def encoder(self) -> "Stack | None":
        """The encoder that a decoder attends to, with the decoder's fields but no mask; None without an encoder."""
        if not self.source_tokens:
            return None
        changes = {
            "input_gram": "",
            "embeddings": "untied",
            "mask": "none",
            "mask_rows": "",
            "window": 0,
            "loss_on": "all",
            "output_transform": "none",
            "transform_gain": 1.0,
        }
        sizes = {"tokens": self.source_tokens, "depth": self.encoder_depth or self.depth}
        return replace(self, **sizes, source_tokens=0, encoder_depth=0, label_groups=0, **changes)  # type: ignore[arg-type]

    @property
    def parts(self) -> "tuple[Stack, ...]":
        """A tuple of the network itself, followed by its encoder if it has one."""
        return (self,) if self.encoder is None else (self, self.encoder)

    @property
    def most_layers(self) -> int:
        """The number of layers of the network or of its encoder, whichever is larger."""
        return max(self.depth, self.encoder_depth)

    @property
    def rows(self) -> int:
        """The number of tokens in all sequences together, which is the number of rows of the input matrix."""
        return self.sequences * self.tokens

    @property
    def counted(self) -> slice:
        """The slice of token rows that can count in the loss: all rows, or the last row of every sequence."""
        return slice(self.tokens - 1, None, self.tokens) if self.loss_on == "last" else slice(None)

    @property
    def input_covariance(self) -> NDArray[np.float64]:
        """The covariance matrix between the Gaussian input tokens of one sequence.

        Its shape is (n, n). The factor `embedding_scale` and positions are not included.
        """
        if (gram := self.gram) is not None:
            return gram
        return np.eye(self.tokens) * (1.0 - self.input_correlation) + self.input_correlation

    @property
    def input_energies(self) -> NDArray[np.float64]:
        """The variances of the Gaussian input tokens of one sequence.

        They are the diagonal of `input_covariance`, computed without the matrix, which is too large for many tokens.
        """
        if (gram := self.gram) is not None:
            return gram.diagonal()
        return np.full(self.tokens, (1.0 - self.input_correlation) + self.input_correlation)

    @property
    def relaxed(self) -> dict[str, str | int | float | None]:
        """The fields with values outside the paper's simplified network, by name.

        The paper's statements require that there are none.
        """
        return {name: value for name, value in self.non_default().items() if name not in SIZES}

    @property
    def in_paper(self) -> bool:
        """Return whether a network is one that the paper's statements are about."""
        return self.placement in PAPER and not self.relaxed

    @property
    def versions(self) -> dict[str, str]:
        """The versions of registered activations, placements and initializations that the network uses, by field.

        Built-in entries have no version.
        """
        named = {name: getattr(self, name) for name in NAMED}
        return {name: NAMED[name].versions[value] for name, value in named.items() if value in NAMED[name].versions}


OWN = tuple(f.name for f in fields(Stack) if f.default is None)
"""The fields for which None means the value of the placement or of the initialization."""


def _constant(value: float, _: int) -> float:
    return value


_NO_EXPERTS = {f.name: f.default for f in fields(Experts)} | {"router_gain": 1.0}


@lru_cache(maxsize=4096)
def _of_layer(stack: Stack, layer: int) -> Stack:
    if stack.lower_layers:
        placement = stack.lower_placement if layer <= stack.lower_layers else stack.placement
        stack = replace(stack, placement=placement, lower_placement="post", lower_share=0.0)
    if stack.dense_layers:
        plain: dict[str, Any] = {"dense_layers": 0, "dense_ratio": 0.0}
        if layer <= stack.dense_layers:
            plain = _NO_EXPERTS | {"ffn_ratio": stack.dense_ratio or stack.ffn_ratio}
        stack = replace(stack, **plain)
    if stack.depth_scaling in BY_LAYER:
        gains = {name: getattr(stack, name) * (2.0 * layer) ** -0.5 for name in BY_LAYER[stack.depth_scaling]}
        stack = replace(stack, depth_scaling="none", **gains)
    if stack.branch_scaling == "layer":
        scale = stack.composition.branch(stack.depth) * layer**-0.5
        stack = replace(stack, branch_scaling="none", branch_scale=scale)
    return stack
