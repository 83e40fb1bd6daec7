"""The rules by which training frameworks initialize weights, where they differ from Hugging Face transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from theory.stack.documents import parsed
from theory.stack.initializations import Law
from theory.stack.registry import nearest

HUGGING_FACE = "hf"
"""The value "hf" of `drawn_by`, for the initialization by the model's own class in transformers."""

Variance = Mapping[str, float]
"""A variance as a product: a number `times`, and powers of sizes.

The sizes are width d, MLP width f, depth L, layer l, the file's sigma, and the base model's d0 and L0.
"""

BASES = {"d0": "WIDTH", "L0": "DEPTH"}
"""The sizes of a base model that rules need, by symbol in a product; their values follow the name, as in `mup:256`."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The sizes of weights that a model's configuration file sets, for every initialization rule.

    Attributes:
        std: standard deviation of a matrix entry, `initializer_range`.
        inputs: factor on the embeddings.
        logits: factor on the output matrix.
    """

    std: float
    inputs: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCode:
    """The rule by which a training framework initializes weights: the variance of every matrix's entries.

    Attributes:
        name: value of `drawn_by` for the rule.
        title: name of the framework in text.
        rule: the framework's own name for the rule.
        source: files and commit of the framework that define the rule.
        date: month of the commit.
        families: the model_types of models that the framework trains.
        matrices: variance for W^Q, W^K, W^V and the first matrix of the MLP (in a gated MLP the gate and, unless `up`
            is given, W1).
        units: variance for the first matrix of the MLP and the gate, if it differs from `matrices`.
        up: variance for W1 of a gated MLP; empty if it is that of the gate.
        projection: variance for W^O.
        down: variance for W2.
        embeddings: variance for the input embeddings and learned positions.
        head: variance for the output matrix, and for the embeddings if they are tied to it.
        cut: number of standard deviations at which normal entries of `layers`, `embeddings` and `head` are cut.
        logits: factor on the output logits, as a product of sizes (not a variance).
        branches: factor on the output of every branch, as a product of sizes (not a variance).
        attention: "linear" if attention logits are divided by d_k; ignored for a file that has its own factor.
        routers: whether the rule covers routers of experts, whose variance is then `matrices`.
        asks: symbols of the base model's sizes that the rule needs, in their order in the name.
        base: values of these sizes, by symbol.
        refused: why no Stack has this initialization; "" if one has.
    """

    name: str
    title: str
    rule: str
    source: str
    date: str
    families: tuple[str, ...] = ()
    matrices: Variance = field(default_factory=dict)
    units: Variance = field(default_factory=dict)
    up: Variance = field(default_factory=dict)
    projection: Variance = field(default_factory=dict)
    down: Variance = field(default_factory=dict)
    embeddings: Variance = field(default_factory=dict)
    head: Variance = field(default_factory=dict)
    cut: Mapping[str, float] = field(default_factory=dict)
    logits: Variance = field(default_factory=dict)
    branches: Variance = field(default_factory=dict)
    attention: str = ""
    routers: bool = False
    asks: tuple[str, ...] = ()
    base: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""

    @property
    def reads_std(self) -> bool:
        """Return whether a framework's initialization rule uses the file's `initializer_range`."""
        return "sigma" in self.matrices

    @property
    def pattern(self) -> str:
        """The form of the user's `drawn_by` for a framework's rule, with the numbers that the rule needs."""
        return ":".join([self.name, *(BASES[symbol] for symbol in self.asks)])

    def fields(self, values: Mapping[str, Any], scales: Scales) -> dict[str, Any]:
        """Return the fields of a network that describe its initialization by a framework's rule.

        Args:
            values: the other fields of the Stack; sizes, `ffn` and `embeddings` are read among others.
            scales: sizes of the weights in the configuration.

        Raises:
            ValueError: the network has a matrix that the rule does not cover.
        """
        if values.get("output_transform", "none") != "none" or values.get("source_tokens", 0):
            raise ValueError(
                "drawn_by must be 'hf' for encoders and decoders and for models of masked words, got a rule of "
                f"{self.title}, which covers only decoders."
            )
        if values.get("experts", 0) and not self.routers:
            able = ", ".join(repr(name) for name, code in TRAINING_CODES.items() if code.routers)
            raise ValueError(
                f"drawn_by must be 'hf' or {able} for models with experts, got a rule of {self.title}: theory does "
                "not know how it initializes experts and routers."
            )
        width, depth, gated = values["width"], values["depth"], values.get("ffn") == "gated"
        sizes = {"d": width, "f": values["ffn_ratio"] * width, "L": depth, "l": 1.0, "sigma": scales.std, **self.base}
        inputs = "head" if values.get("embeddings") == "tied" else "embeddings"
        first = self.units or self.matrices
        up = self.up if gated and self.up else first
        scaling = "depth" if self.down.get("L") == -1 else "layer" if "l" in self.down else "none"
        # By which a Stack divides the variances of what it scales, in layer 1.
        divided = {"none": 1.0, "depth": 2.0 * depth, "layer": 2.0}[scaling]
        std, root = _product(self.matrices, sizes) ** 0.5, width**0.5

        def cut_std(part: str) -> float:
            return float((_product(getattr(self, part), sizes) * Law(cut=self.cut.get(part, 0.0)).variance) ** 0.5)

        other: dict[str, Any] = {}
        if self.attention and values.get("logit_factor", 1.0) == 1.0:
            other["attention_scale"] = self.attention
        if self.units and gated:
            other["gate_gain"] = _product(first, sizes) ** 0.5 / std
        if self.branches:
            given = values.get("branch_scale")
            other["branch_scale"] = (1.0 if given is None else given) * _product(self.branches, sizes)
        return other | {
            "init_std": std,
            "truncation": self.cut.get("layers", 0.0),
            "depth_scaling": "layer_up" if "l" in up else scaling,
            "up_gain": (_product(up, sizes) * (divided if "l" in up else 1.0)) ** 0.5 / std,
            "projection_gain": (_product(self.projection, sizes) * divided) ** 0.5 / std,
            "down_gain": (_product(self.down, sizes) * divided) ** 0.5 / std,
            "query_key_scale": std * root,
            "embedding_scale": cut_std(inputs) * scales.inputs,
            "output_scale": cut_std("head") * root * scales.logits * self.logits_times(width),
        }

    def logits_times(self, width: int) -> float:
        """Return the framework's factor on the output logits, which becomes a part of the output matrix."""
        return _product(self.logits, {"d": width, **self.base})


def _product(powers: Variance, sizes: Mapping[str, float]) -> float:
    # Return a product of powers of sizes, such as an entry's variance in layer 1.
    product = powers.get("times", 1.0)
    for name, power in powers.items():
        product *= 1.0 if name == "times" else sizes[name] ** power
    return float(product)


_TABLE = parsed(Path(__file__).with_name("training_codes.toml").read_bytes(), "TOML")

TRAINING_CODES: dict[str, TrainingCode] = {
    name: TrainingCode(name=name, **{**entry, **{key: tuple(entry.get(key, ())) for key in ("families", "asks")}})
    for name, entry in _TABLE.items()
}
"""The initialization rules by the first word of `drawn_by`."""


NAMES = (HUGGING_FACE, *(code.pattern for code in TRAINING_CODES.values() if not code.refused))
"""The allowed values of `drawn_by`."""


def training_code(name: str) -> TrainingCode | None:
    """Return the training framework with a given name, such as "neox"; None for the model's own class.

    The name is a value of `drawn_by`.

    Args:
        name: value of `drawn_by`.

    Raises:
        ValueError: the name is not known, no Stack has its initialization, or the numbers after it are not those that
            the rule needs.

    >>> training_code("neox").title
    'GPT-NeoX'
    >>> training_code("completep:256:2").base
    {'d0': 256.0, 'L0': 2.0}
    """
    if name == HUGGING_FACE:
        return None
    word, *numbers = name.split(":") if isinstance(name, str) else [name]
    if not isinstance(word, str) or word not in TRAINING_CODES:
        raise ValueError(
            f"drawn_by must be one of {', '.join(NAMES)}, got {name!r}.{nearest(str(word), TRAINING_CODES)}"
        )
    code = TRAINING_CODES[word]
    if code.refused:
        raise ValueError(f"drawn_by must be one of {', '.join(NAMES)}, got {name!r}: {code.refused}.")
    wrong = [number for number in numbers if not (number.isascii() and number.isdigit() and 1 <= int(number) <= 1e9)]
    if wrong or len(numbers) != len(code.asks):
        what = " and ".join(BASES[symbol].lower() for symbol in code.asks)
        of_base = f"with the {what} of the base model as integers from 1 to 1e9" if code.asks else "without a number"
        raise ValueError(f"drawn_by must be {code.pattern}, {of_base}, got {name!r}.")
    base = dict(zip(code.asks, map(float, numbers), strict=True))
    return replace(code, name=name, base=base) if base else code
