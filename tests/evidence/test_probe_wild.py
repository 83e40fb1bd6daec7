"""Reports on many fresh modules that nothing is wrong with: how many raise an alarm.

Seeds, sizes, data and bars were chosen before the first of these modules was made; no threshold was set on them.
"""

from functools import partial

import pytest
import torch

from checks.models.one_report import one_report
from tests.evidence.test_probe_models import interval
from tests.helpers.evidence_file import kept_case, record
from tests.helpers.single_modules import HEALTHY, Single

pytestmark = pytest.mark.evidence

FAMILIES = {
    "nanoGPT-like": ("nanoGPT-like",), "Llama": ("Llama",), "BERT": ("BERT",), "ViT-like": ("ViT-like",),
    "torch.nn": ("torch.nn, Pre-LN", "torch.nn, Post-LN"), "without attention": ("without attention",),
    "GPT-2": ("GPT-2",),
}  # fmt: skip
"""Builders by family; of two every other seed has one."""
FRESH = {"widths": [32, 64], "depths": [3, 6], "seeds": 25, "first seed": 710_000}
MOST = 8
"""Reports with an alarm that are allowed."""


def made(family: str, width: int, depth: int, seed: int) -> Single:
    builders = FAMILIES[family]
    torch.manual_seed(seed)
    return HEALTHY[builders[seed % len(builders)]](width, depth)


def fresh(family: str, seed: int) -> list[str]:
    """The first alarm of every module of a family and seed; "" where there is none."""
    found = []
    for width in FRESH["widths"]:
        for depth in FRESH["depths"]:
            alarms = one_report(*made(family, width, depth, seed)).alarms
            found.append(f"{family}, width {width}, depth {depth}, seed {seed}: {alarms[0]}" if alarms else "")
    return found


def test_fresh_modules(kept_folder):
    pytest.importorskip("transformers")
    found = {
        family: sum((kept_case(kept_folder, f"fresh {family} {seed}", partial(fresh, family, seed))
                     for seed in range(FRESH["first seed"], FRESH["first seed"] + FRESH["seeds"])), [])
        for family in FAMILIES
    }  # fmt: skip
    said = [one for of in found.values() for one in of if one]
    modules = sum(map(len, found.values()))
    record("probe-fresh", FRESH | {
        "modules": {family: len(of) for family, of in found.items()}, "in all": modules, "with an alarm": len(said),
        "95% of the rate": interval(len(said), modules), "said": said,
    })  # fmt: skip
    assert modules >= 700
    assert len(said) <= MOST
