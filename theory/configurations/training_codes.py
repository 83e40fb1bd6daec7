"""How codes that train models draw their weights, where a model's class in transformers draws them otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from theory.stack.documents import parsed
from theory.stack.initializations import Law
from theory.stack.registry import nearest

HUGGING_FACE = "hf"
"""What stands for the model's own class."""

Variance = Mapping[str, float]
"""A product: `times`, and powers of d, f, L, l and sigma."""


@dataclass(frozen=True, slots=True)
class Scales:
    """What a configuration says of sizes of weights, beside how they are drawn.

    Attributes:
        std: its `initializer_range`.
        queries: factor on W^Q and on W^K, which stands for another factor of attention's logits.
        inputs: factor on embeddings.
        logits: factor on the output matrix.
    """

    std: float
    queries: float = 1.0
    inputs: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCode:
    """A code that trains models, and the variance of an entry of each matrix as it draws them.

    Attributes:
        name: that `drawn_by` takes.
        title: as prose has it.
        rule: which of its rules this is, by its own name.
        source: the files and the commit where it stands.
        date: of the commit, a month.
        families: the model_types of the models that were trained by it.
        matrices: W^Q, W^K, W^V, and of the units the first matrix; of gated ones the gate, and `up` the other.
        up: W1 of gated units; that of `matrices` if empty.
        projection: W^O.
        down: W2.
        embeddings: the inputs, and learned positions.
        head: the output matrix, and the embeddings where they are the same.
        cut: standard deviations at which normal entries of `layers`, `embeddings` and `head` are cut.
        refused: why no Stack is drawn like that; "" of all others.
    """

    name: str
    title: str
    rule: str
    source: str
    date: str
    families: tuple[str, ...] = ()
    matrices: Variance = field(default_factory=dict)
    up: Variance = field(default_factory=dict)
    projection: Variance = field(default_factory=dict)
    down: Variance = field(default_factory=dict)
    embeddings: Variance = field(default_factory=dict)
    head: Variance = field(default_factory=dict)
    cut: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""

    @property
    def reads_std(self) -> bool:
        """Whether the file's `initializer_range` counts."""
        return "sigma" in self.matrices

    def fields(self, values: Mapping[str, Any], scales: Scales) -> dict[str, Any]:
        """The fields of a Stack that say how its weights are drawn.

        Args:
            values: the other fields, of which sizes, `ffn` and `embeddings` are read.
            scales: what the configuration says of them.

        Raises:
            ValueError: the network has a matrix of which the rule says nothing.
        """
        if values.get("output_transform", "none") != "none" or values.get("source_tokens", 0):
            raise ValueError(
                "drawn_by must be 'hf' for encoders and decoders and for models of masked words, got a rule of "
                f"{self.title}, which is about decoders."
            )
        width, depth, gated = values["width"], values["depth"], values.get("ffn") == "gated"
        sizes = {"d": width, "f": values["ffn_ratio"] * width, "L": depth, "l": 1.0, "sigma": scales.std}
        inputs = "head" if values.get("embeddings") == "tied" else "embeddings"
        up = self.up if gated and self.up else self.matrices
        scaling = "depth" if self.down.get("L") == -1 else "layer" if "l" in self.down else "none"
        # By which a Stack divides the variances of what it scales, in layer 1.
        divided = {"none": 1.0, "depth": 2.0 * depth, "layer": 2.0}[scaling]
        std, root = _variance(self.matrices, sizes) ** 0.5, width**0.5

        def cut_std(part: str) -> float:
            left = Law(cut=self.cut.get(part, 0.0)).variance
            return float((_variance(getattr(self, part), sizes) * left) ** 0.5)

        return {
            "init_std": std,
            "truncation": self.cut.get("layers", 0.0),
            "depth_scaling": "layer_up" if "l" in up else scaling,
            "up_gain": (_variance(up, sizes) * (divided if "l" in up else 1.0)) ** 0.5 / std,
            "projection_gain": (_variance(self.projection, sizes) * divided) ** 0.5 / std,
            "down_gain": (_variance(self.down, sizes) * divided) ** 0.5 / std,
            "query_key_scale": std * root * scales.queries,
            "embedding_scale": cut_std(inputs) * scales.inputs,
            "output_scale": cut_std("head") * root * scales.logits,
        }


def _variance(variance: Variance, sizes: Mapping[str, float]) -> float:
    """Of an entry, in layer 1."""
    product = variance.get("times", 1.0)
    for name, power in variance.items():
        product *= 1.0 if name == "times" else sizes[name] ** power
    return float(product)


_TABLE = parsed(Path(__file__).with_name("training_codes.toml").read_bytes(), "TOML")

TRAINING_CODES: dict[str, TrainingCode] = {
    name: TrainingCode(name=name, **{**entry, "families": tuple(entry.get("families", ()))})
    for name, entry in _TABLE.items()
}
"""By the name that `drawn_by` takes."""


NAMES = (HUGGING_FACE, *(name for name, code in TRAINING_CODES.items() if not code.refused))
"""What `drawn_by` takes."""


def training_code(name: str) -> TrainingCode | None:
    """The code of a name; None for the model's own class.

    Raises:
        ValueError: there is none of that name, or no Stack is drawn as it draws.

    >>> training_code("neox").title
    'GPT-NeoX'
    """
    if name == HUGGING_FACE:
        return None
    if not isinstance(name, str) or name not in TRAINING_CODES:
        raise ValueError(f"drawn_by must be one of {', '.join(NAMES)}, got {name!r}.{nearest(str(name), NAMES)}")
    code = TRAINING_CODES[name]
    if code.refused:
        raise ValueError(f"drawn_by must be one of {', '.join(NAMES)}, got {name!r}: {code.refused}.")
    return code
