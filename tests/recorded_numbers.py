"""Numbers of some 300 settings, for comparing two checkouts: `python -m tests.recorded_numbers FILE [OTHER]`.

The first call writes predictions, batches, first steps and reports of modules to FILE. With OTHER it writes nothing and
prints what moved by more than 1e-12 between two such files. A refactoring moves nothing.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checks.models.judge import judged_module, probe
from tests.helpers.random_stacks import random_stacks
from tests.helpers.single_modules import HEALTHY, OF_TRANSFORMERS
from theory import Stack, predict
from theory.configurations import PUBLISHED, stack_from_config
from theory.coverage import gaps
from theory.first_step.noise_scale import noise_scale
from theory.first_step.prediction import first_step
from theory.mean_field.text_law import TextLaw

SEED, STACKS = 20_281, 120
TOLERANCE = 1e-12

# Fields that random_stacks leaves out, each with a model or a stack of its own.
FIELDS: dict[str, dict[str, Any]] = {
    "gated rotary": {"ffn": "gated", "activation": "silu", "rotary": 1.0, "query_key_scale": 1.0, "heads": 4},
    "shared keys": {"heads": 4, "kv_heads": 2, "query_key_scale": 1.0, "logit_softcap": 20.0},
    "query norm": {"heads": 4, "query_key_scale": 1.0, "query_key_norm": "head"},
    "experts": {"experts": 4, "ffn": "gated", "shared_ratio": 1.0, "dense_layers": 1},
    "sigmoid experts": {"experts": 3, "router_scores": "sigmoid", "router_norm": "sum"},
    "parallel": {"layout": "parallel", "placement": "pre", "embeddings": "tied"},
    "transform": {"output_transform": "added", "embeddings": "tied", "loss_share": 0.5},
    "two placements": {"lower_placement": "pre", "lower_share": 0.5},
    "source": {"source_tokens": 3, "encoder_depth": 2},
    "rezero": {"placement": "rezero"},
    "window": {"mask": "causal", "window": 2, "positions": "learned"},
    "attention alone": {"branches": "attention"},
    "tanh": {"normalization": "tanh"},
}

# Settings that may differ, each with the reason.
ALLOWED = {
    "groups parallel distinct": "tied embeddings by groups take the rule of a text, which refuses so sure a softmax",
}


def settings() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each setting's name, and a function that gives its numbers."""
    stacks = {f"random {k}": stack for k, stack in enumerate(random_stacks(SEED, 0, STACKS))}
    stacks |= {name: Stack(**{"depth": 3, "width": 256, "tokens": 6, "vocab": 32} | of) for name, of in FIELDS.items()}
    law, none = TextLaw.zipf(1.0, 128), "distinct"
    for name, stack in stacks.items():
        if not gaps(stack, "prediction"):
            yield f"predict {name}", lambda s=stack: dict(predict(s, patterns=8))
        if not gaps(stack, "noise_scale") and not gaps(replace(stack, sequences=2), "prediction"):
            yield f"batch {name}", lambda s=stack: _batch(s)
        if not gaps(stack, "first_step") and stack.depth <= 3:
            yield f"first step {name}", lambda s=stack: _step(s)
    for name in FIELDS:
        for text in (none, law):
            longer = replace(stacks[name], tokens=64, vocab=128 if text is law else 512, mask="causal")
            yield f"groups {name} {'text' if text is law else none}", lambda s=longer, t=text: _grouped(s, t)
    for like in PUBLISHED:
        yield f"published {like}", lambda one=like: dict(predict(stack_from_config(like=one, tokens=4)[0], patterns=2))
    for name, make in HEALTHY.items():
        if name not in OF_TRANSFORMERS:
            yield f"report {name}", lambda of=make: _report(of)
    for name in ("encoder-post", "encoder-pre"):
        yield f"probe {name}", lambda of=name: _probe(of)


def _batch(stack: Stack) -> dict[str, Any]:
    scale = noise_scale(stack, patterns=8, grouped=False)
    return {"whole": scale.whole, "loss": scale.loss} | scale.single | {f"2 {k}": v for k, v in scale.product.items()}


def _step(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for optimizer in ("sgd", "adam"):
        step = first_step(stack, optimizer, patterns=2)
        found |= {f"{optimizer} {name}": getattr(step, name) for name in ("gain", "curvature", "logit_change_sq")}
        found |= {f"{optimizer} {role}": value for role, value in step.gain_shares.items()}
    return found


def _grouped(stack: Stack, text: Any) -> dict[str, Any]:
    law = {} if text == "distinct" else {"text": text}
    return dict(predict(stack, patterns=2, grouped=True, **law))


def _report(make: Callable[[int, int], Any]) -> dict[str, Any]:
    torch.manual_seed(5)
    report = judged_module(*make(32, 4))
    return {"alarms": sorted(map(str, report.alarms))} | _columns(report.layers)


def _probe(name: str) -> dict[str, Any]:
    report = probe(name, widths=[16, 32], depths=[2, 4], seeds=2)
    return {"alarms": sorted(map(str, report.alarms))} | _columns(report.exponents)


def _columns(frame: Any) -> dict[str, Any]:
    return {str(name): frame[name].tolist() for name in frame.select_dtypes("number")}


def recorded() -> dict[str, Any]:
    """All settings' numbers; what is refused has the reason in their place."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, numbers in settings():
        try:
            found[name] = {key: np.asarray(value).tolist() for key, value in numbers().items()}
        except (ValueError, ArithmeticError) as error:
            found[name] = {"refused": repr(error)}
    return found


def moved(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line for each number, or setting, that is not the same in both."""
    lines = [f"{name}: in one file alone" for name in sorted(before.keys() ^ after.keys())]
    for name in (before.keys() & after.keys()) - ALLOWED.keys():
        one, other = before[name], after[name]
        lines += [f"{name}: {key} in one file alone" for key in sorted(one.keys() ^ other.keys())]
        for key in one.keys() & other.keys():
            if not _same(one[key], other[key]):
                lines.append(f"{name}: {key} is {one[key]} and {other[key]}")
    return sorted(lines)


def _same(one: Any, other: Any) -> bool:
    if np.asarray(one).dtype.kind not in "fiu" or np.shape(one) != np.shape(other):
        return bool(one == other)
    return bool(np.allclose(one, other, rtol=TOLERANCE, atol=0.0, equal_nan=True))


if __name__ == "__main__":
    paths = [Path(word) for word in sys.argv[1:]]
    if len(paths) == 1:
        start = time.monotonic()
        numbers = recorded()
        paths[0].write_text(json.dumps(numbers), encoding="utf-8")
        refused = sum("refused" in one for one in numbers.values())
        print(f"{len(numbers)} settings, {refused} refused, {time.monotonic() - start:.0f} s")
    elif len(paths) == 2:
        found = moved(*(json.loads(path.read_text(encoding="utf-8")) for path in paths))
        print(*found or ["Nothing moved."], sep="\n")
        sys.exit(bool(found))
    else:
        sys.exit(__doc__)
