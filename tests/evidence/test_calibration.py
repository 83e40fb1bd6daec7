"""How often theory and samples differ in the judged domain: random stacks from all fields, by a seed fixed beforehand.

No coefficient and no rule of the domain was fitted to these stacks; it was looked at with those of another seed.
"""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.statistics import CHANCE, MARGIN
from checks.theory_and_samples import comparison
from checks.trust import Trust
from simulate import sample
from tests.helpers.evidence_file import kept_case, record
from tests.helpers.random_stacks import CALIBRATED, random_stacks
from theory import NoRuleError, Stack, predict
from theory.stack.initializations import INITIALIZATIONS

pytestmark = pytest.mark.evidence

# Stacks in each part.
PARTS, STACKS = 3, 100
DRAWS = {"conditioned": 512, "dense": 192}
OF_EACH_CLASS = ("loss", "grad_sq_WQ", "grad_sq_XQ")


def case(number: int, stack: Stack) -> dict[str, Any]:
    """A stack, why it is not judged, or its judged numbers: how many, which differ, and how sharp they are."""
    about: dict[str, Any] = {"number": number, "stack": stack.non_default()}
    if all(Trust.of(stack, name).why for name in OF_EACH_CLASS):
        return about | {"not judged": Trust.of(stack).why}
    try:
        predict(stack, patterns=1)
    except NoRuleError as error:
        return about | {"not judged": f"no rule: {error}"}
    except ValueError as error:
        return about | {"not judged": f"refused: {error}"}
    dense = INITIALIZATIONS[stack.initialization].uniform
    samples = sample(stack, draws=DRAWS["dense" if dense else "conditioned"], seed=number)
    # Of many heads fewer patterns have the same error, which counts.
    table = comparison([samples], patterns=min(4096, max(64, 65536 // (stack.heads * stack.sequences**2))))
    table = table[table["agreement"].isin(["agrees", "undecided", "differs"])]
    size = table["predicted"].abs().to_numpy()
    off = np.divide(table["mean"] - table["predicted"], size, out=np.zeros_like(size), where=size > 0)
    error = np.divide(table["sem"].to_numpy(), size, out=np.zeros_like(size), where=size > 0)
    rows = [
        {"quantity": name, "layer": int(layer), "deviation": round(float(one), 4), "error": round(float(sem), 4)}
        for name, layer, one, sem in zip(table["quantity"], table["layer"], off, error, strict=True)
    ]
    widest = int(np.argmax(np.abs(off) - 2 * error))
    return about | {
        "numbers": len(rows),
        "words": dict(Counter(table["agreement"])),
        "errors": sorted(round(float(one), 5) for one in error),
        "widest": rows[widest],
        "differs": [row for row, word in zip(rows, table["agreement"], strict=True) if word == "differs"],
    }


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over cases, and the standard errors of the judged numbers: the power that stands beside them."""
    judged = [one for one in cases if "numbers" in one]
    errors = np.concatenate([one["errors"] for one in judged])
    reasons = Counter(one["not judged"].partition(":")[0] for one in cases if "not judged" in one)
    return {
        "stacks": len(cases),
        "judged stacks": len(judged),
        "not judged": dict(reasons),
        "numbers": len(errors),
        "words": dict(sum((Counter(one["words"]) for one in judged), Counter())),
        "differing stacks": [one["number"] for one in judged if one["differs"]],
        "median standard error": round(float(np.median(errors)), 4),
        "share where 3% is 4 standard errors": round(float(np.mean(CHANCE * errors <= MARGIN)), 3),
    }


def committed(folder: Path) -> dict[str, Any]:
    """What all parts have found so far, in one file: sums, and per stack what is not in them."""
    cases = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")]
    cases.sort(key=lambda one: one["number"])
    kept = [{name: value for name, value in one.items() if name not in ("errors", "words")} for one in cases]
    found = {"seed": CALIBRATED, "draws": DRAWS, "summary": summary(cases), "cases": kept}
    record("calibration", found)
    return found["summary"]


@pytest.mark.parametrize("part", range(PARTS))
def test_random_stacks(part, kept_folder):
    """At most 1 in 1000 judged numbers differs, or one number; by chance alone 1 in 16000 would."""
    first = part * STACKS
    for number, stack in enumerate(random_stacks(CALIBRATED, first, first + STACKS), first):
        kept_case(kept_folder, f"{number}", partial(case, number, stack))
    found = committed(kept_folder)
    assert found["words"].get("differs", 0) <= max(1, 0.001 * found["numbers"]), found
