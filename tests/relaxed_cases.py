"""Every relaxation alone, and some together, as fields of a Stack with four tokens."""

from typing import Any

ALONE: list[dict[str, Any]] = [
    {"ffn_ratio": 4.0},
    {"activation": "gelu"},
    {"activation": "silu"},
    {"activation": "tanh"},
    {"activation": "leaky_relu"},
    {"activation": "identity"},
    {"ffn": "gated", "activation": "silu", "ffn_ratio": 2.5},
    {"initialization": "he"},
    {"initialization": "fan_in", "ffn_ratio": 2.0},
    {"initialization": "xavier_uniform", "ffn_ratio": 2.0},
    {"initialization": "pytorch"},
    {"output_projection": "random"},
    {"normalization": "rms"},
    {"normalization": "none"},
    {"norm_epsilon": 0.5},
    {"dropout": 0.2},
    {"attention_dropout": 0.2},
    {"mask": "causal"},
    {"input_correlation": 0.5},
    {"input_gram": "[[1.0, 0.5, 0.0, 0.0], [0.5, 2.0, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0], [0.0, 0.3, 0.0, 0.5]]"},
    {"positions": "sinusoidal"},
    {"positions": "learned"},
    {"labels": "zipf"},
    {"label_smoothing": 0.3},
    {"loss_on": "last"},
    {"sequences": 3},
]
TOGETHER: list[dict[str, Any]] = [
    {"mask": "causal", "ffn_ratio": 4.0, "activation": "gelu", "output_projection": "random"},
    {"placement": "deepnorm", "ffn_ratio": 4.0},
    {"placement": "peri", "normalization": "rms", "mask": "causal", "ffn": "gated", "activation": "gelu"},
    {"placement": "pre", "positions": "sinusoidal", "mask": "causal", "loss_on": "last", "norm_epsilon": 0.1},
    {"placement": "unnormed", "mask": "causal", "activation": "tanh", "label_smoothing": 0.1},
    {"placement": "residual", "sequences": 2, "dropout": 0.1, "output_projection": "random"},
    {"placement": "scaled", "initialization": "he", "ffn_ratio": 0.5, "input_correlation": 0.3},
    {"placement": "output", "positions": "learned", "labels": "zipf", "activation": "silu"},
    {"placement": "residual", "positions": "sinusoidal", "normalization": "layer", "mask": "causal"},
    {"dropout": 0.1, "attention_dropout": 0.1, "mask": "causal", "ffn_ratio": 4.0},
]
