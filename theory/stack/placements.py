"""Placements of LayerNorm: where a Transformer normalizes its residual stream, and how it scales its branches.

A sub-layer with branch f takes the stream x to

    z = α x + τ N_out(f(κ_l N_in(x))),    then N(z) if the stream is normalized,

with N the LayerNorm, or the identity where the composition has none. Theory and simulation each read this table.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from theory.stack.registry import Table

Scale = Callable[[int], float]


def _one(_: int) -> float:
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A placement of LayerNorm: the rule that combines residual stream, branch and norm into a sub-layer.

    Attributes:
        title: the name in text and figures.
        source: the paper that proposed it.
        input_norm: whether the branch's input is the normalized stream.
        output_norm: whether the branch's output is normalized.
        stream_norm: whether the residual sum is normalized.
        final_norm: whether there is a norm between the last layer and the output matrix.
        second_stream: whether branches are also added to a second stream, which only the final norm normalizes; the
            output matrix multiplies the sum of both streams.
        residual: α as a function of the depth L.
        branch: τ as a function of the depth L.
        gain: β as a function of the depth L: the standard deviation of W^V, W1 and W2 is β d^(−1/2).
        input_scale: κ_l as a function of the layer l = 1..L.
    """

    title: str
    source: str
    input_norm: bool = False
    output_norm: bool = False
    stream_norm: bool = False
    final_norm: bool = False
    second_stream: bool = False
    residual: Scale = _one
    branch: Scale = _one
    gain: Scale = _one
    input_scale: Scale = _one

    @property
    def normalized_output(self) -> bool:
        """Return whether the output matrix multiplies normalized tokens."""
        return self.final_norm or self.stream_norm


_BUILT_IN = {
    "post": Composition(title="Post-LN", source="Vaswani et al. (2017)", stream_norm=True),
    "pre": Composition(title="Pre-LN", source="Xiong et al. (2020)", input_norm=True, final_norm=True),
    "peri": Composition(
        title="Peri-LN", source="Kim et al. (2025)", input_norm=True, output_norm=True, final_norm=True
    ),
    "output": Composition(
        title="output norm", source="Team OLMo (2024), there with RMSNorm", output_norm=True, final_norm=True
    ),
    "deepnorm": Composition(
        title="DeepNorm",
        source="Wang et al. (2022), encoder-only",
        stream_norm=True,
        residual=lambda depth: (2.0 * depth) ** 0.25,
        gain=lambda depth: (8.0 * depth) ** -0.25,
    ),
    "scaled": Composition(
        title="LayerNorm scaling",
        source="Sun et al. (2025)",
        input_norm=True,
        final_norm=True,
        input_scale=lambda layer: layer**-0.5,
    ),
    "keel": Composition(
        title="Keel",
        source="Chen and Wei (2026)",
        input_norm=True,
        stream_norm=True,
        residual=lambda depth: 2.0 * depth,
    ),
    "residual": Composition(
        title="ResiDual", source="Xie et al. (2023)", stream_norm=True, final_norm=True, second_stream=True
    ),
    "rezero": Composition(title="ReZero", source="Bachlechner et al. (2021)", branch=lambda _: 0.0),
    "unnormed": Composition(title="no norm", source="Hayou et al. (2021)", branch=lambda depth: depth**-0.5),
}

COMPOSITIONS: Table[Composition] = Table("placement", _BUILT_IN)
"""The compositions of all placements by the value of `Stack.placement`."""


class _Titles(Mapping[str, str]):
    """A mapping from the names of all current placements to their titles."""

    def __getitem__(self, name: str) -> str:
        return COMPOSITIONS[name].title

    def __iter__(self) -> Iterator[str]:
        return iter(COMPOSITIONS)

    def __len__(self) -> int:
        return len(COMPOSITIONS)


TITLES = _Titles()
"""Placements as prose and pictures have them."""


def title(name: object) -> str:
    """Return the title of a LayerNorm placement for text and figures; an unknown placement's own name."""
    return TITLES[str(name)] if str(name) in COMPOSITIONS else str(name)
