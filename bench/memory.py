"""Hold what a batch of deep stacks is said to take against the peak of a process that samples it."""

import json
import resource
import subprocess
import sys
from dataclasses import replace
from unittest.mock import PropertyMock, patch

from simulate import Cell
from simulate.runs.cost import block_bytes
from simulate.runs.sample import sample_block, sample_blocks
from theory import Stack

DEPTH, BLOCKS = 200, 14
SETTING = {"placement": "post", "width": 1024, "depth": DEPTH, "tokens": 8}

CHANGES: tuple[dict[str, object], ...] = (
    {},
    *({"placement": name} for name in ("pre", "peri", "output", "deepnorm", "scaled", "keel", "residual", "unnormed")),
    {"activation": "gelu"},
    {"ffn": "gated", "activation": "silu"},
    {"ffn_ratio": 4},
    {"normalization": "rms"},
    {"branch_scale": 0.5},
    {"dropout": 0.1},
    {"mask": "causal"},
    {"query_key_scale": 1.0},
    {"output_projection": "random"},
    {"source_tokens": 8},
    {"width": 256, "tokens": 32},
)


def peak() -> float:
    """Bytes that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def measured(change: dict[str, object]) -> dict[str, object]:
    """Bytes of one batch as counted, and by how much the peak rises; for a process that has sampled nothing yet."""
    stack = Stack(**(SETTING | change))  # type: ignore[arg-type]
    sample_block(Cell(replace(stack, depth=2), "conditioned"), 0, 0)  # the libraries' own
    before, cell = peak(), Cell(stack, "conditioned")
    with patch.object(Cell, "draws_per_block", new_callable=PropertyMock, return_value=1):
        counted = BLOCKS * block_bytes(cell)
        sample_blocks(cell, 0, range(BLOCKS))
    taken = peak() - before
    return {"counted MB": round(counted / 1e6), "measured MB": round(taken / 1e6), "ratio": round(counted / taken, 3)}


def report() -> dict[str, object]:
    """Every stack, in a process of its own."""
    rows = []
    for change in CHANGES:
        command = [sys.executable, "-m", "bench.memory", json.dumps(change)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append({"change": change} | json.loads(done.stdout))
    return {"setting": SETTING, "draws": BLOCKS, "engine": "conditioned", "stacks": rows}


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]))))
