"""Sampled standard deviations of the first gradient norm of random networks, next to the printed ones.

    python -m bench.norm_deviation OUT.json

The settings were committed before anything was measured. Neither part chose the present constant of Post-LN without
depth scaling (docs/report.md); the first 24 chose an earlier one. Networks without a rule are left out.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradbounds.actions.first_line import first_line
from simulate import sample
from simulate.text import TextWindows
from theory import NoRuleError, Stack
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import TextLaw

USUAL: dict[str, Any] = {
    "heads": 4, "mask": "causal", "output_projection": "random", "query_key_scale": 1.0, "ffn_ratio": 4.0,
}  # fmt: skip
VARIED: dict[str, list[Any]] = {
    "width": [64, 128, 256], "depth": [2, 4, 8], "tokens": [8, 16, 32], "vocab": [128, 512, 2048],
    "sequences": [1, 4, 16], "depth_scaling": ["depth", "none"], "embeddings": ["untied", "tied"],
    "placement": ["pre", "pre", "post"], "units": ["gelu", "relu", "swiglu"], "exponent": [None, None, 1.0],
}  # fmt: skip
GATED = {"normalization": "rms", "ffn": "gated", "activation": "silu", "ffn_ratio": 2.0}
FITTED, NETWORKS, DRAWS = 24, 48, 40
DEPTH_SCALED = range(216, 232)
INTERVALS = {"68%": 1.0, "95%": 1.96}


def varied(number: int) -> tuple[Stack, TextLaw | None]:
    """Return one random network with a batch of sequences, and its text."""
    generator = np.random.default_rng((74, number))
    fields = {name: values[generator.integers(len(values))] for name, values in VARIED.items()}
    exponent, units = fields.pop("exponent"), fields.pop("units")
    units_fields = GATED if units == "swiglu" else {"activation": units}
    stack = Stack(**USUAL | fields | units_fields | {"init_std": fields["width"] ** -0.5})
    return stack, None if exponent is None else TextLaw.zipf(exponent, stack.vocab)


def depth_scaled(number: int) -> tuple[Stack, None]:
    """Return a random Pre-LN network with depth scaling and untied embeddings, whose tokens all differ.

    The form of their deviation was committed before any of them was sampled. On networks 200 to 215, the square of the
    mean weight within a sequence had been too narrow: 58% and 89% of the runs were inside the two intervals.
    """
    return replace(varied(number)[0], placement="pre", depth_scaling="depth", embeddings="untied"), None


def norms(stack: Stack, law: TextLaw | None, seed: int) -> Any:
    """Return gradient norms of the matrices of sampled networks, each on a batch of its own."""
    text = None
    if law is not None:
        ids = law.windows(stack.sequences * DRAWS, stack.tokens, np.random.default_rng(seed))
        text = TextWindows(ids=ids, digest=hashlib.sha256(ids.tobytes()).hexdigest(), source="Zipf's law")
    samples = sample(stack, draws=DRAWS, seed=seed, text=text)
    squares = [np.asarray(samples[name], float) for name in samples if name.startswith("grad_sq_")]
    return np.sqrt(sum(square.reshape(DRAWS, -1).sum(1) for square in squares))


def compared(number: int, network: Callable[[int], tuple[Stack, TextLaw | None]] = varied) -> dict[str, float]:
    """Return the sampled and the printed deviation of one network, and the shares of runs inside two intervals.

    Raises:
        ValueError: the network has no prediction.
        NoRuleError: theory has no rule for the network.
    """
    stack, law = network(number)
    single = replace(stack, sequences=1)
    line = first_line(noise_scale(single, text=law, patterns=4), stack.sequences, (), law)
    logs, printed = np.log(norms(stack, law, 100 + number)), line.norm_deviation / line.norm
    offs = abs(logs - np.log(line.norm)) / printed
    inside = {name: round(float((offs < limit).mean()), 4) for name, limit in INTERVALS.items()}
    return {"sampled": round(float(logs.std(ddof=1)), 4), "printed": round(printed, 4)} | inside


def main() -> None:
    """Write the comparison of all networks, and the coverage of the held-out ones."""
    rows: dict[int, dict[str, float]] = {}
    for number in range(NETWORKS):
        try:
            rows[number] = compared(number)
        except (NoRuleError, ValueError) as error:
            print(number, error, file=sys.stderr)
    scaled = {number: compared(number, depth_scaled) for number in DEPTH_SCALED}
    rows_held_out = [row for number, row in rows.items() if number >= FITTED]
    shares = {name: round(float(np.mean([row[name] for row in rows_held_out])), 3) for name in INTERVALS}
    of_scaled = {name: round(float(np.mean([row[name] for row in scaled.values()])), 3) for name in INTERVALS}
    results = {"held out": shares, "networks": rows, "depth scaled": of_scaled, "depth-scaled networks": scaled}
    Path(sys.argv[1]).write_text(json.dumps({"draws": DRAWS} | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
