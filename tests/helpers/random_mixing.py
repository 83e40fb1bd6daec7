"""Random stacks with a depth-mixing matrix, by a seed that is fixed beforehand."""

import numpy as np

from theory import Stack
from theory.stack.depth_mixing import SCHEMES

# Root seed of the stacks that are compared.
MIXED = 77_04

_CHOICES = {
    "activation": ("gelu", "silu", "tanh"),
    "ffn": ("gated",),
    "ffn_ratio": (0.5, 2.0),
    "output_projection": ("random",),
    "normalization": ("rms", "none"),
    "mask": ("causal",),
    "layout": ("parallel",),
    "branch_scaling": ("depth", "layer"),
    "embedding_scale": (0.5, 2.0),
    "dropout": (0.1,),
    "query_key_scale": (0.5, 1.0),
    "sequences": (2,),
    "loss_on": ("last",),
    "positions": ("learned",),
}
_SIZES = {"placement": ("pre", "pre", "pre", "peri", "output", "scaled"), "width": (512, 1024), "vocab": (16, 64)}


def mixed_stack(generator: np.random.Generator) -> Stack:
    """One stack of 1 to 4 layers and 2 to 6 tokens; every other field relaxes the paper's setting with probability 1/4.

    Half of the matrices are published ones. The others have entries uniform in [-1, 1.5], 30% of which below the first
    column are 0.
    """
    while True:
        fields = {name: some[generator.integers(len(some))] for name, some in _SIZES.items()}
        fields |= {
            name: some[generator.integers(len(some))] for name, some in _CHOICES.items() if generator.random() < 0.25
        }
        fields |= {"depth": int(generator.integers(1, 5)), "tokens": int(generator.integers(2, 7))}
        rows = 1 + fields["depth"] * (1 if "layout" in fields else 2)
        matrix = np.tril(generator.uniform(-1.0, 1.5, (rows, rows)) * (generator.random((rows, rows)) > 0.3)).round(3)
        matrix[:, 0] += matrix[:, 0] == 0.0
        published = tuple(SCHEMES)[generator.integers(len(SCHEMES))]
        fields["depth_mixing"] = published if generator.random() < 0.5 else matrix
        try:
            return Stack(**fields)
        except ValueError:
            continue
