"""Weight initializations: the variance and the distribution of the entries of each layer's weight matrices."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from theory.stack.registry import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialization:
    """An initialization rule for weight matrices of shape (d_in, d_out).

    Attributes:
        gain: function of the matrix role ("W1", ...), d_in and d_out that returns the variance of an entry times
            d_in.
        uniform: whether entries are uniform instead of normal, with the same variance.
        source: the paper or code that defines the rule.
    """

    gain: Callable[[str, int, int], float]
    uniform: bool = False
    source: str


@dataclass(frozen=True, slots=True)
class Law:
    """The distribution of a weight matrix's entries, apart from their variance: uniform, normal or truncated normal.

    Attributes:
        uniform: whether entries are uniform instead of normal.
        cut: number of standard deviations at which normal entries are cut; 0 for no cut.
    """

    uniform: bool = False
    cut: float = 0.0

    @property
    def variance(self) -> float:
        """The variance of standard normal entries after truncation; 1 if they are not truncated.

        >>> round(Law(cut=2.0).variance ** 0.5, 4)
        0.8796
        """
        if not self.cut:
            return 1.0
        density = math.exp(-0.5 * self.cut**2) / math.sqrt(2.0 * math.pi)
        return 1.0 - 2.0 * self.cut * density / math.erf(self.cut / math.sqrt(2.0))


NORMAL = Law()


_BUILT_IN = {
    "xavier_normal": Initialization(
        gain=lambda _, d_in, d_out: 2 * d_in / (d_in + d_out), source="Glorot and Bengio (2010)"
    ),
    "xavier_uniform": Initialization(
        gain=lambda _, d_in, d_out: 2 * d_in / (d_in + d_out), uniform=True, source="Glorot and Bengio (2010)"
    ),
    "fan_in": Initialization(gain=lambda *_: 1.0, source="LeCun et al. (1998)"),
    "he": Initialization(gain=lambda *_: 2.0, source="He et al. (2015)"),
    # Its biases have an energy of 1/(3 d) per coordinate, which is nothing at large width; they are left out. The
    # matrices of queries, keys and values are one (3d, d) matrix to `xavier_uniform_`: 2/(3d + d).
    "pytorch": Initialization(
        gain=lambda role, *_: 0.5 if role == "WV" else 1 / 3,
        uniform=True,
        source="torch.nn.TransformerEncoderLayer as constructed",
    ),
}

INITIALIZATIONS: Table[Initialization] = Table("initialization", _BUILT_IN)
"""All initializations by the value of `Stack.initialization`."""
