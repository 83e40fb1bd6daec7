"""The one description of a random Transformer stack, shared by theory, simulation and tables."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from theory.stack.activations import ACTIVATIONS, Activation
from theory.stack.fields import choice, integer, matrix, named, real
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.placements import COMPOSITIONS, Composition
from theory.stack.registry import Table

Placement = Literal[*COMPOSITIONS]  # type: ignore[valid-type]
Ffn = Literal["plain", "gated"]
Initialized = Literal[*INITIALIZATIONS]  # type: ignore[valid-type]
Projection = Literal["identity", "random"]
Normalization = Literal["layer", "rms", "none"]
QueryKey = Literal["untied", "tied"]
AttentionScale = Literal["sqrt", "linear"]
Mask = Literal["none", "causal"]
Positions = Literal["none", "sinusoidal", "learned"]
Embeddings = Literal["untied", "tied"]
Labels = Literal["uniform", "zipf"]
LossOn = Literal["all", "last"]
FinalNorm = Literal["own", "added"]
Branches = Literal["both", "attention", "feed_forward"]

NAMED: dict[str, Table[Any]] = {
    "placement": COMPOSITIONS,
    "activation": ACTIVATIONS,
    "initialization": INITIALIZATIONS,
}
"""The fields whose names users may add to."""


class _Titles(Mapping[str, str]):
    """Titles of the placements that there are now."""

    def __getitem__(self, name: str) -> str:
        return COMPOSITIONS[name].title

    def __iter__(self) -> Iterator[str]:
        return iter(COMPOSITIONS)

    def __len__(self) -> int:
        return len(COMPOSITIONS)


TITLES = _Titles()
"""Placements as prose and pictures have them."""


def title(name: object) -> str:
    """A placement as prose has it; the name of something else, such as a module, as it is."""
    return TITLES[str(name)] if str(name) in COMPOSITIONS else str(name)


PAPER = ("post", "pre")
"""The placements of Xiong et al. (2020): what the paper claims is about these."""

_LEAK = 0.01
_SOME = "a finite number of at least 0"

SIZES = ("placement", "width", "depth", "tokens", "vocab", "output_scale")
"""The fields that the paper's statements leave free; each of the others relaxes an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A random Transformer stack at initialization: everything about the network, nothing about sampling.

    The defaults are the simplified setting of the paper: one head, W^Q = W^K = 0 (uniform attention),
    W^V, W^1, W^2 of shape (d, d) with N(0, 1/d) entries, ReLU, no biases, inputs N(0, I_d), and an output
    matrix W_emb of shape (V, d) with N(0, σ_e²/d) entries under a softmax cross-entropy averaged over the
    n positions. Engine, device, draws, seed and text belong to sampling, not here.

    A field added later must default to the paper's value: cell keys hold only what differs from a default.

    Source: Xiong et al. (2020), arXiv:2002.04745v2, section 3.3 and Table 1; docs/setting.md for the other fields.

    Raises:
        ValueError: a field is outside its range; the message names the field, what is allowed and what came.

    >>> Stack(placement="pre", width=128).non_default()
    {'placement': 'pre', 'width': 128}
    """

    placement: Placement | str = named(
        "post", COMPOSITIONS, "where LayerNorm stands: after each residual sum (post), before each branch (pre), ..."
    )
    # d = 2 is the least width at which LayerNorm has a direction left; V = 2 the least with a choice.
    width: int = integer(512, 2, "hidden width d")
    depth: int = integer(6, 1, "number of layers L", most=100_000)
    tokens: int = integer(8, 1, "sequence length n", most=1_000_000)
    vocab: int = integer(512, 2, "number of output classes V")
    output_scale: float = real(
        1.0, "sigma_e; entries of W_emb are N(0, sigma_e^2/d)",
        allowed="a positive finite number, from 1e-100 to 1e100", low=1e-100, high=1e100,
    )  # fmt: skip
    ffn_ratio: float = real(1.0, "r; the feed-forward width is r d", allowed="a positive finite number", low=5e-324)
    activation: Activation | str = named("relu", ACTIVATIONS, "nonlinearity phi of the feed-forward units")
    leaky_slope: float = real(_LEAK, "slope of leaky ReLU left of 0", allowed="a number in [-1, 1]", low=-1, high=1)
    ffn: Ffn = choice("plain", get_args(Ffn), "feed-forward units phi(x W1), or gated ones phi(x WG) * (x W1)")
    initialization: Initialized | str = named(
        "xavier_normal", INITIALIZATIONS, "law of the layers' matrices; xavier_normal and fan_in agree on square ones"
    )
    output_projection: Projection = choice("identity", get_args(Projection), "W^O after attention: none, or random")
    branches: Branches = choice("both", get_args(Branches), "branches of every layer, or one kind of them")
    residual_scale: float = real(0.0, "alpha of every residual sum; 0 for the placement's own", allowed=_SOME, low=0)
    branch_gain: float = real(0.0, "beta of the branches' matrices; 0 for the placement's own", allowed=_SOME, low=0)
    final_norm: FinalNorm = choice("own", get_args(FinalNorm), "norm before the output: the placement's, or added")
    normalization: Normalization = choice(
        "layer", get_args(Normalization), "every norm: LayerNorm, RMSNorm, or none at all"
    )
    norm_epsilon: float = real(0.0, "number added to a norm's variance", allowed="a number of at least 0", low=0)
    dropout: float = real(
        0.0, "p; share of the coordinates of a branch's output that is dropped", allowed="a number in [0, 1)",
        low=0, high=np.nextafter(1, 0),
    )  # fmt: skip
    attention_dropout: float = real(
        0.0, "share of the attention weights that is dropped", allowed="a number in [0, 1)",
        low=0, high=np.nextafter(1, 0),
    )  # fmt: skip
    query_key_scale: float = real(
        0.0,
        "s; entries of W^Q and W^K are N(0, s^2/d), and the paper has 0",
        allowed="a number in [0, 4]",
        low=0,
        high=4,
    )
    query_key: QueryKey = choice("untied", get_args(QueryKey), "whether W^Q and W^K are one matrix")
    heads: int = integer(1, 1, "attention heads h, which divide the width")
    attention_scale: AttentionScale = choice(
        "sqrt", get_args(AttentionScale), "what logits are divided by: sqrt(d/h), or d/h (linear)"
    )
    mask: Mask = choice("none", get_args(Mask), "which tokens a token attends to")
    input_correlation: float = real(
        0.0, "correlation of the Gaussian inputs of a sequence", allowed="a number in [-1, 1]", low=-1, high=1
    )
    input_gram: str = matrix("covariance of the n Gaussian inputs, as a list of rows")
    positions: Positions = choice("none", get_args(Positions), "encodings added to the inputs")
    embeddings: Embeddings = choice(
        "untied", get_args(Embeddings), "whether inputs are the rows of W_emb, times sqrt(d)/sigma_e"
    )
    labels: Labels = choice("uniform", get_args(Labels), "law of the independent labels; zipf has p_k ~ 1/k")
    label_groups: int = integer(0, 0, "groups of neighbouring positions that share a label; 0 for a label of each")
    label_smoothing: float = real(0.0, "share of the target spread over all V classes", allowed="a number in [0, 1]",
                                  low=0, high=1)  # fmt: skip
    loss_on: LossOn = choice("all", get_args(LossOn), "positions of a sequence whose cross-entropies are averaged")
    sequences: int = integer(
        1, 1, "independent sequences whose losses are averaged, at the same weights", most=1_000_000
    )
    source_tokens: int = integer(
        0, 0, "tokens of a source, which an encoder like the stack reads and every layer attends to; 0 for none",
        most=1_000_000,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, f.metadata["check"](f.name, getattr(self, f.name)))
        if abs(self.ffn_ratio * self.width - self.ffn_width) > 1e-6 or self.ffn_width < 1:
            raise ValueError(
                f"ffn_ratio must make ffn_ratio * width an integer of at least 1, got {self.ffn_ratio!r} at "
                f"width {self.width}."
            )
        if self.tokens > 1 and self.input_correlation < -1 / (self.tokens - 1):
            raise ValueError(
                f"input_correlation must be at least -1/(tokens - 1) = {-1 / (self.tokens - 1):g}, got "
                f"{self.input_correlation!r}."
            )
        given = len(self.input_covariance) if self.input_gram else self.tokens
        if given != self.tokens or (self.input_gram and self.input_correlation):
            raise ValueError(
                f"input_gram must have tokens = {self.tokens} rows, and stand without input_correlation, got "
                f"{given} rows and input_correlation = {self.input_correlation!r}."
            )
        if self.source_tokens > 1 and self.input_correlation < -1 / (self.source_tokens - 1):
            raise ValueError(
                f"input_correlation must be at least -1/(source_tokens - 1) = {-1 / (self.source_tokens - 1):g}, got "
                f"{self.input_correlation!r}."
            )
        if self.width % self.heads:
            raise ValueError(f"heads must divide width = {self.width}, got {self.heads}.")
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"width must be even for sinusoidal positions, got {self.width}.")
        if self.embeddings == "tied" and (self.input_correlation or self.input_gram or self.vocab < self.rows):
            raise ValueError(
                f"embeddings must be untied with input_correlation or input_gram, and where vocab is less than the "
                f"{self.rows} tokens, which are words of their own; got {self.embeddings!r} with vocab = {self.vocab}."
            )
        if self.attention_dropout and self.composition.output_norm and not self.norm_epsilon:
            raise ValueError(
                f"norm_epsilon must be above 0 with attention_dropout and placement {self.placement!r}: where all of a "
                "token's weights are dropped its branch is 0, which has no norm."
            )
        if self._first_branch_is_zero:
            raise ValueError(
                f"norm_epsilon must be above 0 with placement {self.placement!r} and inputs that sum to zero: the "
                "first attention takes their mean, and its branch is 0, which has no norm."
            )
        if self.leaky_slope != _LEAK and self.activation != "leaky_relu":
            raise ValueError(f"leaky_slope must stand with activation 'leaky_relu', got {self.activation!r}.")
        if self.label_groups > self.tokens or (self.label_groups and self.embeddings == "tied"):
            raise ValueError(
                f"label_groups must be at most tokens = {self.tokens}, and 0 with tied embeddings, got "
                f"{self.label_groups!r} with embeddings {self.embeddings!r}."
            )
        if self.branches != "both" and (self.source_tokens or self.embeddings == "tied"):
            raise ValueError(f"branches must be 'both' with a source or tied embeddings, got {self.branches!r}.")
        if self.normalization == "none" and self.norm_epsilon:
            raise ValueError(f"norm_epsilon must be 0 where normalization is 'none', got {self.norm_epsilon!r}.")
        _ = self.encoder  # which refuses what it cannot take

    @property
    def _first_branch_is_zero(self) -> bool:
        """Whether the first attention takes the mean of tokens, which is 0, and a norm without epsilon follows it."""
        composition = self.composition
        weighted = self.query_key_scale or self.mask != "none"
        if not composition.output_norm or self.norm_epsilon or weighted or self.positions != "none":
            return False
        gram = self.input_covariance
        if composition.input_norm:
            sizes = np.sqrt(np.diag(gram))
            gram = gram / np.outer(sizes, sizes)
        return bool(gram.sum() <= 1e-12 * np.trace(gram))

    @property
    def composition(self) -> Composition:
        """How the placement makes a sub-layer of residual, branch and norm."""
        composition = COMPOSITIONS[self.placement]
        if self.normalization == "none":
            composition = replace(composition, input_norm=False, output_norm=False, stream_norm=False, final_norm=False)
        if self.final_norm == "added":
            composition = replace(composition, final_norm=True)
        if self.residual_scale:
            composition = replace(composition, residual=lambda _: self.residual_scale)
        if self.branch_gain:
            composition = replace(composition, gain=lambda _: self.branch_gain)
        return composition

    @property
    def ffn_width(self) -> int:
        """The number of feed-forward units, r d."""
        return round(self.ffn_ratio * self.width)

    @property
    def encoder(self) -> "Stack | None":
        """What reads the source: as deep as the stack and built like it, without a mask; None if there is no source."""
        if not self.source_tokens:
            return None
        own = {"input_gram": "", "embeddings": "untied", "mask": "none", "loss_on": "all", "label_groups": 0}
        return replace(self, tokens=self.source_tokens, source_tokens=0, **own)  # type: ignore[arg-type]

    @property
    def parts(self) -> "tuple[Stack, ...]":
        """The stack, and its encoder if it has one."""
        return (self,) if self.encoder is None else (self, self.encoder)

    @property
    def rows(self) -> int:
        """Tokens of all sequences: rows of the input matrix."""
        return self.sequences * self.tokens

    @property
    def input_covariance(self) -> NDArray[np.float64]:
        """Covariance of the Gaussian inputs of a sequence, (n, n), positions left out."""
        if self.input_gram:
            return np.array(json.loads(self.input_gram))
        return np.eye(self.tokens) * (1.0 - self.input_correlation) + self.input_correlation

    @property
    def relaxed(self) -> dict[str, str | int | float]:
        """The fields that leave the paper's simplified setting; the paper's statements are about stacks with none."""
        return {name: value for name, value in self.non_default().items() if name not in SIZES}

    @property
    def in_paper(self) -> bool:
        """Whether this is a network that the paper's statements are about."""
        return self.placement in PAPER and not self.relaxed

    @property
    def versions(self) -> dict[str, str]:
        """The versions of what was registered, by field; none of what is built in."""
        named = {name: getattr(self, name) for name in NAMED}
        return {name: NAMED[name].versions[value] for name, value in named.items() if value in NAMED[name].versions}

    def __repr__(self) -> str:
        """What makes this stack, without the fields that are at their defaults."""
        return f"Stack({', '.join(f'{name}={value!r}' for name, value in self.non_default().items())})"

    def non_default(self) -> dict[str, str | int | float]:
        """The fields that differ from the defaults, in field order: what makes two stacks different."""
        return {
            f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default or f.default is MISSING
        }
