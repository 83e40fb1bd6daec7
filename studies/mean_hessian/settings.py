"""The networks of the study: within the theorem, and without one of its conditions."""

from typing import Any

from studies.mean_hessian.draws import gaussian_draw, sparse_draw, tied_draw

SETTINGS: dict[str, dict[str, Any]] = {
    "Post-LN": {"width": 4, "depth": 2, "tokens": 3, "vocab": 5},
    "Pre-LN, causal": {"placement": "pre", "width": 4, "depth": 3, "tokens": 2, "vocab": 40, "mask": "causal"},
    "Peri-LN, Zipf labels": {
        "placement": "peri", "width": 8, "depth": 2, "tokens": 4, "vocab": 20, "labels": "zipf",
    },
    "output norm, GELU, twice the output scale": {
        "placement": "output", "width": 8, "depth": 2, "tokens": 2, "vocab": 10, "activation": "gelu",
        "output_scale": 2.0,
    },
    "DeepNorm, smoothed labels": {
        "placement": "deepnorm", "width": 16, "depth": 4, "tokens": 4, "vocab": 8, "label_smoothing": 0.2,
    },
    "LayerNorm scaling, causal, loss on last": {
        "placement": "scaled", "width": 16, "depth": 3, "tokens": 6, "vocab": 12, "mask": "causal", "loss_on": "last",
        "sequences": 2,
    },
    "Post-LN, two sequences": {"width": 16, "depth": 2, "tokens": 16, "vocab": 4, "sequences": 2},
    "Pre-LN, many classes": {"placement": "pre", "width": 16, "depth": 2, "tokens": 2, "vocab": 500},
    "Post-LN, with an encoder": {"width": 32, "depth": 2, "tokens": 3, "vocab": 30, "source_tokens": 4},
    "Pre-LN, RMSNorm, SwiGLU, sinusoidal": {
        "placement": "pre", "width": 32, "depth": 2, "tokens": 4, "vocab": 16, "ffn": "gated", "activation": "silu",
        "normalization": "rms", "positions": "sinusoidal",
    },
    "Post-LN, six layers": {"width": 64, "depth": 6, "tokens": 4, "vocab": 100},
    "Pre-LN, queries and keys, half the output scale": {
        "placement": "pre", "width": 64, "depth": 2, "tokens": 4, "vocab": 16, "query_key_scale": 1.0, "heads": 4,
        "output_scale": 0.5,
    },
}  # fmt: skip
"""Networks within the theorem."""

SMALL = {"width": 4, "depth": 2, "tokens": 3, "vocab": 5}
OUTSIDE: dict[str, tuple[Any, dict[str, Any]]] = {
    "tied embeddings": (tied_draw, SMALL | {"placement": "pre", "width": 16, "vocab": 12}),
    "W_emb mostly 0": (sparse_draw, SMALL | {"output_scale": 2.0}),
    "no norm": (gaussian_draw, SMALL | {"placement": "unnormed"}),
    "norms with an epsilon of 0.1": (gaussian_draw, SMALL | {"norm_epsilon": 0.1}),
    "ResiDual": (gaussian_draw, SMALL | {"placement": "residual"}),
}
"""Networks without one of its conditions, with the condition as the name."""
