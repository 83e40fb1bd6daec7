"""The fields of a network description, in groups by the part of the network: attention, MLP, inputs, loss.

A Stack inherits the fields of all groups, so that flags, files and configuration keys are flat. A group can be
created and kept separately, and combined with others: `Stack.of(Attention(heads=8), ...)`. A group checks its own
fields, and the Stack checks conditions between groups.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from theory.stack.activations import ACTIVATIONS, LEAK, Activation
from theory.stack.depth_mixing import mixing
from theory.stack.fields import Group, choice, integer, matrix, named, own_unless_given, real, zeros_and_ones
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.placements import COMPOSITIONS

Placement = Literal[*COMPOSITIONS]  # type: ignore[valid-type]
Ffn = Literal["plain", "gated"]
Initialized = Literal[*INITIALIZATIONS]  # type: ignore[valid-type]
DepthScaling = Literal["none", "depth", "layer", "layer_up"]
Projection = Literal["identity", "random"]
Normalization = Literal["layer", "rms", "tanh", "none"]
BranchScaling = Literal["none", "depth", "inverse_depth", "layer"]
InputScaling = Literal["none", "layer"]
QueryKey = Literal["untied", "tied"]
AttentionScale = Literal["sqrt", "linear"]
Mask = Literal["none", "causal", "given"]
QueryKeyNorm = Literal["none", "head", "all"]
Positions = Literal["none", "sinusoidal", "learned", "learned_segment"]
Embeddings = Literal["untied", "tied"]
EmbeddingNorm = Literal["none", "added"]
Labels = Literal["uniform", "zipf"]
LossOn = Literal["all", "last"]
OutputTransform = Literal["none", "added"]
FinalNorm = Literal["own", "added"]
Branches = Literal["both", "attention", "feed_forward"]
Layout = Literal["sequential", "parallel"]
RouterScores = Literal["softmax", "sigmoid"]
RouterNorm = Literal["none", "sum"]
SharedGate = Literal["none", "sigmoid"]

_TANH = 0.5
_SOME = "a number from 0 to 1e100"
_POSITIVE: Any = {"allowed": "a positive finite number, from 1e-100 to 1e100", "low": 1e-100, "high": 1e100}
_OF_MATRICES: Any = _POSITIVE | {
    "allowed": f"{_POSITIVE['allowed']} (matrices of zeros have no norm; branch_scale 0 takes branches out)"
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Sizes(Group):
    """The fields that the paper varies: LayerNorm placement, network sizes, and the output matrix's scale."""

    placement: Placement | str = named(
        "post", COMPOSITIONS, "position of LayerNorm: after each residual sum (post), before each branch (pre), ..."
    )
    # d = 2 is the least width at which LayerNorm has a direction left; V = 2 the least with a choice.
    width: int = integer(512, 2, "hidden width d")
    depth: int = integer(6, 1, "number of layers L", most=100_000)
    tokens: int = integer(8, 1, "sequence length n", most=1_000_000)
    vocab: int = integer(512, 2, "number of output classes V")
    output_scale: float = real(1.0, "sigma_e; entries of W_emb are N(0, sigma_e^2/d)", **_POSITIVE)


@dataclass(frozen=True, kw_only=True, repr=False)
class FeedForward(Group):
    """The fields of the feed-forward branch (MLP) in every layer."""

    ffn_ratio: float = real(1.0, "r; the feed-forward width is r d", **_POSITIVE)
    activation: Activation | str = named("relu", ACTIVATIONS, "nonlinearity phi of the feed-forward hidden units")
    leaky_slope: float = real(LEAK, "slope of leaky ReLU below 0", allowed="a number in [-1, 1]", low=-1, high=1)
    ffn: Ffn = choice("plain", get_args(Ffn), "hidden units of the MLP: phi(x W1), or gated, phi(x WG) * (x W1)")
    feed_forward_factor: float = real(1.0, "factor on tau of feed-forward branches only", **_POSITIVE)

    def _check(self) -> None:
        super()._check()
        if self.leaky_slope != LEAK and self.activation != "leaky_relu":
            raise ValueError(f"leaky_slope requires activation 'leaky_relu', got {self.activation!r}.")


@dataclass(frozen=True, kw_only=True, repr=False)
class Experts(Group):
    """The fields of a mixture of experts, which replaces a layer's MLP, and of the router that chooses experts.

    Each expert is an MLP of width r d. A token's scores are the softmax or the sigmoid of its router's logits. The k
    largest scores choose the experts, whose outputs are added with their scores, or with the scores divided by their
    sum. The softmax divided by its sum is the softmax of the chosen logits only.
    """

    experts: int = integer(0, 0, "E; number of experts that replace the MLP; 0 for none", most=2**16)
    experts_per_token: int = integer(1, 1, "k; number of experts per token, those with the largest scores", most=2**16)
    router_scores: RouterScores = choice(
        "softmax", get_args(RouterScores), "scores: the softmax of all the router's logits, or the sigmoid of each"
    )
    router_norm: RouterNorm = choice(
        "none", get_args(RouterNorm), "weights of the chosen experts: their scores, or scores divided by their sum"
    )
    routed_scale: float = real(1.0, "factor on the weights of the chosen experts", **_POSITIVE)
    shared_ratio: float = real(
        0.0, "width / d of a shared expert that every token uses; 0 for none", allowed=_SOME, low=0
    )
    shared_gate: SharedGate = choice(
        "none", get_args(SharedGate), "weight of the shared expert: 1, or the sigmoid of a logit of its own"
    )
    dense_layers: int = integer(0, 0, "number of first layers with a plain MLP instead of experts")
    dense_ratio: float = real(0.0, "MLP width / d in these layers; 0 for ffn_ratio", allowed=_SOME, low=0)

    def _check(self) -> None:
        super()._check()
        without = self.non_default().keys() & Experts.__annotations__.keys()
        if not self.experts and without:
            raise ValueError(f"experts must be at least 1 with {', '.join(sorted(without))}, got 0.")
        if self.experts and self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token must be at most experts = {self.experts}, got {self.experts_per_token}."
            )
        if self.shared_gate != "none" and not self.shared_ratio:
            raise ValueError(f"shared_ratio must be above 0 with shared_gate {self.shared_gate!r}, got 0.")
        if self.dense_ratio and not self.dense_layers:
            raise ValueError(f"dense_layers must be above 0 with dense_ratio {self.dense_ratio!r}, got 0.")


@dataclass(frozen=True, kw_only=True, repr=False)
class Matrices(Group):
    """The fields of the weight initialization of all layers."""

    initialization: Initialized | str = named(
        "xavier_normal",
        INITIALIZATIONS,
        "initialization of the layers' matrices; fan_in and xavier_normal agree on square ones",
    )
    init_std: float | None = own_unless_given(
        "standard deviation of W^V, W^O, W1, W2 and WG, independent of their shapes; own: from initialization",
        **_OF_MATRICES,
    )
    truncation: float = real(
        0.0, "c; normal entries are cut at c standard deviations, which makes them smaller; 0 for no cut",
        allowed="0 or a number from 0.01 to 5", low=0, high=5,
    )  # fmt: skip
    depth_scaling: DepthScaling = choice(
        "none", get_args(DepthScaling),
        "factor on the standard deviation of W^O and W2: none, 1/sqrt(2 L) (depth), 1/sqrt(2 l) in layer l (layer), "
        "also on W1 (layer_up)",
    )  # fmt: skip
    query_gain: float = real(1.0, "factor on the standard deviation of W^Q; 0 for a W^Q of zeros", allowed=_SOME, low=0)
    key_gain: float = real(1.0, "factor on the standard deviation of W^K; 0 for a W^K of zeros", allowed=_SOME, low=0)
    value_gain: float = real(1.0, "factor on the standard deviation of W^V", **_POSITIVE)
    projection_gain: float = real(
        1.0, "factor on the standard deviation of W^O; 0 for a W^O of zeros", allowed=_SOME, low=0
    )
    gate_gain: float = real(1.0, "factor on the standard deviation of WG", **_POSITIVE)
    up_gain: float = real(1.0, "factor on the standard deviation of W1", **_POSITIVE)
    down_gain: float = real(1.0, "factor on the standard deviation of W2; 0 for a W2 of zeros", allowed=_SOME, low=0)
    transform_gain: float = real(1.0, "factor on the standard deviation of W^H", **_POSITIVE)
    router_gain: float = real(
        1.0, "factor on the standard deviation of the router's W^R, and of the gate of a shared expert", **_POSITIVE
    )

    def _check(self) -> None:
        super()._check()
        if self.init_std is not None and self.initialization != "xavier_normal":
            raise ValueError(
                f"init_std cannot be combined with another initialization, got {self.init_std!r} with "
                f"{self.initialization!r}."
            )
        if self.truncation and (self.truncation < 0.01 or INITIALIZATIONS[self.initialization].uniform):
            raise ValueError(
                "truncation must be 0 or a number from 0.01 to 5, and 0 for uniform entries, got "
                f"{self.truncation!r} with {self.initialization!r}."
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class Residual(Group):
    """The fields of the residual stream: its branches, its norms, and the scales that multiply the branches."""

    branches: Branches = choice("both", get_args(Branches), "branches of every layer: both kinds or one kind")
    layout: Layout = choice(
        "sequential", get_args(Layout), "one branch after the other, or both in parallel with the same input"
    )
    lower_placement: Placement | str = named("post", COMPOSITIONS, "placement of the first lower_share L layers")
    lower_share: float = real(
        0.0, "share of the layers, from the input, with lower_placement", allowed="a number in [0, 1]", low=0, high=1
    )
    residual_scale: float | None = own_unless_given(
        "alpha; factor on the residual stream in every sum; own: from placement", allowed=_SOME, low=0
    )
    branch_scale: float | None = own_unless_given(
        "tau; factor on every branch's output; own: from placement", allowed=_SOME, low=0
    )
    depth_mixing: str = mixing("weights of all earlier outputs: none (1), a published scheme, or rows of a matrix")
    branch_scaling: BranchScaling = choice(
        "none", get_args(BranchScaling),
        "factor on tau: none, 1/sqrt(L) (depth), 1/L (inverse_depth), or 1/sqrt(l) in layer l (layer)",
    )  # fmt: skip
    input_scaling: InputScaling = choice(
        "none", get_args(InputScaling),
        "factor on every branch's input, after its norm: none, or 1/sqrt(l) in layer l (layer)",
    )  # fmt: skip
    branch_gain: float | None = own_unless_given(
        "beta; factor on the branches' matrices; own: from placement", **_OF_MATRICES
    )
    final_norm: FinalNorm = choice(
        "own", get_args(FinalNorm), "norm before the output matrix: as in placement, or added"
    )
    normalization: Normalization = choice(
        "layer", get_args(Normalization), "every norm: LayerNorm, RMSNorm, tanh(tanh_scale x), or none"
    )
    tanh_scale: float = real(_TANH, "alpha of tanh(alpha x); requires normalization tanh", **_POSITIVE)
    norm_gain: float = real(1.0, "gamma; gain of every norm of the residual stream", **_POSITIVE)
    norm_epsilon: float = real(
        0.0, "number added to a norm's variance", allowed="a number from 0 to 1e10", low=0, high=1e10
    )
    dropout: float = real(
        0.0, "p; probability that a coordinate of a branch's output is dropped", allowed="a number in [0, 1)",
        low=0, high=np.nextafter(1, 0),
    )  # fmt: skip

    def _check(self) -> None:
        super()._check()
        if self.normalization in ("none", "tanh") and self.norm_epsilon:
            raise ValueError(
                f"norm_epsilon must be 0 with normalization {self.normalization!r}, got {self.norm_epsilon!r}."
            )
        if self.tanh_scale != _TANH and self.normalization != "tanh":
            raise ValueError(f"tanh_scale requires normalization 'tanh', got {self.normalization!r}.")
        if self.lower_placement != "post" and not self.lower_share:
            raise ValueError(f"lower_share must be above 0 with lower_placement {self.lower_placement!r}, got 0.")
        if self.layout == "parallel" and self.branches != "both":
            raise ValueError(f"layout must be 'sequential' for layers of one kind of branch, got {self.branches!r}.")


@dataclass(frozen=True, kw_only=True, repr=False)
class Attention(Group):
    """The fields of attention: heads, queries and keys, logits, rotary positions, and mask."""

    output_projection: Projection = choice("identity", get_args(Projection), "W^O after attention: none, or random")
    attention_factor: float = real(1.0, "factor on tau of attention branches, also cross-attention", **_POSITIVE)
    attention_dropout: float = real(
        0.0, "probability that an attention weight is dropped", allowed="a number in [0, 1)",
        low=0, high=np.nextafter(1, 0),
    )  # fmt: skip
    query_key_scale: float = real(
        0.0,
        "s; entries of W^Q and W^K are N(0, s^2/d); 0 in the paper",
        allowed="a number in [0, 4]",
        low=0,
        high=4,
    )
    query_key: QueryKey = choice("untied", get_args(QueryKey), "whether W^Q and W^K are one matrix")
    query_key_norm: QueryKeyNorm = choice(
        "none", get_args(QueryKeyNorm), "RMSNorm of queries and keys: none, per head, or over all heads"
    )
    heads: int = integer(1, 1, "attention heads h; must divide the width unless head_width is given")
    kv_heads: int = integer(
        0, 0, "heads of keys and values, shared by query heads; must divide heads; 0 for as many as heads"
    )
    head_width: int = integer(0, 0, "width d_k of a head's queries, keys and values; 0 for d/h")
    attention_scale: AttentionScale = choice(
        "sqrt", get_args(AttentionScale), "divisor of attention logits: sqrt(d_k) (sqrt), or d_k (linear)"
    )
    logit_factor: float = real(1.0, "factor on attention logits, before logit_softcap", **_POSITIVE)
    rotary: float = real(
        0.0, "share of a head's coordinates with rotary position embeddings", allowed="a number in [0, 1]",
        low=0, high=1,
    )  # fmt: skip
    rotary_base: float = real(
        10_000.0,
        "base of the rotary frequencies",
        allowed="a number above 1, at most 1e100",
        low=np.nextafter(1, 2),
    )
    logit_softcap: float = real(0.0, "c; attention logits a become c tanh(a/c); 0 for none", allowed=_SOME, low=0)
    mask: Mask = choice(
        "none",
        get_args(Mask),
        "tokens that a token attends to: all (none), earlier ones and itself (causal), or by mask_rows (given)",
    )
    mask_rows: str = zeros_and_ones(
        "n rows of a mask, 1 where a token sees another and 0 elsewhere; requires mask given"
    )
    window: int = integer(
        0, 0, "w; size of the sliding attention window, including the token itself; requires mask causal; 0 for none"
    )

    @property
    def given_mask(self) -> NDArray[np.int64]:
        """The attention mask that the user gave, as a square matrix; an empty array without one.

        An entry of the (n, n) matrix is 1 where the row's token attends to the column's token. Without one the shape is
        (0,).
        """
        return np.array(json.loads(self.mask_rows or "[]"), dtype=np.int64)

    def _check(self) -> None:
        super()._check()
        if self.head_width and self.output_projection == "identity":
            raise ValueError(
                "output_projection must be 'random' with head_width, because it maps the heads back to the width, got "
                f"{self.output_projection!r} with head_width = {self.head_width}."
            )
        if self.kv_heads and (self.heads % self.kv_heads or (self.query_key == "tied" and self.kv_heads < self.heads)):
            raise ValueError(
                f"kv_heads must be 0 or divide heads = {self.heads}, and equal heads with query_key 'tied', got "
                f"{self.kv_heads}."
            )
        if self.query_key == "tied" and (self.query_key_norm != "none" or self.rotary or self.logit_softcap):
            raise ValueError("query_key must be 'untied' with query_key_norm, rotary or logit_softcap, got 'tied'.")
        if self.window and self.mask != "causal":
            raise ValueError(f"window requires mask 'causal', got {self.window} with mask {self.mask!r}.")
        if self.query_key_norm != "none" and not self.query_key_scale:
            raise ValueError("query_key_scale must be above 0 with query_key_norm, which cannot normalize zeros.")


@dataclass(frozen=True, kw_only=True, repr=False)
class Inputs(Group):
    """The fields of the network's inputs: token embeddings, positions, number of sequences, and encoder input."""

    input_correlation: float = real(
        0.0, "correlation of the Gaussian inputs of a sequence", allowed="a number in [-1, 1]", low=-1, high=1
    )
    input_gram: str = matrix("covariance of the n Gaussian inputs, as a list of rows")
    embedding_scale: float = real(
        1.0, "standard deviation of input embeddings and learned positions, per coordinate", **_POSITIVE
    )
    positions: Positions = choice(
        "none", get_args(Positions),
        "position encodings added to the inputs; learned_segment also adds one vector common to all tokens (BERT)",
    )  # fmt: skip
    embedding_norm: EmbeddingNorm = choice(
        "none", get_args(EmbeddingNorm), "norm after the input embeddings: none, or added"
    )
    embeddings: Embeddings = choice(
        "untied", get_args(Embeddings),
        "whether input embeddings are the rows of the output matrix W_emb, scaled to embedding_scale (tied)",
    )  # fmt: skip
    sequences: int = integer(
        1, 1, "number of independent sequences in the batch, whose losses are averaged", most=1_000_000
    )
    source_tokens: int = integer(
        0, 0, "encoder input length; every layer attends to the output of an encoder like the stack; 0 for none",
        most=1_000_000,
    )  # fmt: skip
    encoder_depth: int = integer(0, 0, "layers of the encoder; 0 for as many as depth", most=100_000)

    def _check(self) -> None:
        super()._check()
        if self.encoder_depth and not self.source_tokens:
            raise ValueError(
                f"encoder_depth must be 0 without source_tokens, which an encoder reads, got {self.encoder_depth}."
            )

    @property
    def gram(self) -> NDArray[np.float64] | None:
        """The covariance matrix between the tokens of a sequence that the user gave; None if none was given.

        The shape is (n, n).
        """
        return np.array(json.loads(self.input_gram)) if self.input_gram else None


@dataclass(frozen=True, kw_only=True, repr=False)
class Loss(Group):
    """The fields of the loss: labels, positions that count, and the layer before the output matrix."""

    labels: Labels = choice("uniform", get_args(Labels), "distribution of the independent labels; zipf: p_k ~ 1/k")
    label_groups: int = integer(0, 0, "groups of adjacent positions that share a label; 0 for one label per position")
    label_smoothing: float = real(
        0.0, "share of the target that is spread over all V classes", allowed="a number in [0, 1]", low=0, high=1
    )
    loss_share: float = real(
        1.0, "share of positions that count in the loss, random in every network; in a text, masked words of BERTs",
        allowed="a number in (0, 1]",
        low=5e-324, high=1,
    )  # fmt: skip
    loss_on: LossOn = choice(
        "all", get_args(LossOn), "positions of a sequence that count in the loss: all, or the last"
    )
    output_transform: OutputTransform = choice(
        "none", get_args(OutputTransform),
        "layer before the output matrix: none, or a matrix W^H, the activation and a norm (added; BERT's head)",
    )  # fmt: skip

    def _check(self) -> None:
        super()._check()
        if self.loss_share < 1.0 and self.loss_on != "all":
            raise ValueError(f"loss_share must be 1 with loss_on {self.loss_on!r}, got {self.loss_share!r}.")


GROUPS: tuple[type[Group], ...] = (Sizes, FeedForward, Experts, Matrices, Residual, Attention, Inputs, Loss)
"""All groups of fields, in the order in which a Stack has them."""
