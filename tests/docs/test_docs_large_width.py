"""What the pages say of the judged domain: coefficients, random stacks, and how sharp the comparisons are."""

import json
from pathlib import Path

import numpy as np

from checks.large_width import in_large_width
from tests.helpers.printed_numbers import says
from theory import Stack

ROOT = Path(__file__).parents[2]


def committed(path):
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def test_random_stacks():
    found = committed("tests/evidence/calibration.json")["summary"]
    words = {name: found["words"].get(name, 0) for name in ("agrees", "undecided", "differs")}
    counts = [str(found[name]) for name in ("stacks", "judged stacks", "numbers")]
    told = [term for name, count in words.items() for term in (str(count), name.removesuffix("s"))]
    assert says("verdicts.md", *counts, *told, f"{100 * found['median standard error']:.2f}%")
    assert sum(words.values()) == found["numbers"]


def test_the_power_of_what_none_differs_from():
    """Standard errors of the committed cells that are judged: those of their last layers."""
    for name, page, gradient in (("relax", "relaxations.md", "1.1%"), ("queries", "queries.md", "1.2%")):
        cells = [one for one in committed(f"checks/data/{name}.json")["cells"] if in_large_width(Stack(**one["stack"]))]
        medians = {
            quantity: float(np.median([one[quantity]["sem"] / one[quantity]["mean"] for one in cells]))
            for quantity in ("grad_sq_W2", "ffn_hidden_energy", "attention_energy", "hidden_energy")
        }
        assert f"{medians.pop('grad_sq_W2'):.1%}" == gradient
        assert says(page, gradient, "$W^2$", "0.3% to 0.5%")
        assert {f"{one:.1%}" for one in medians.values()} == {"0.3%", "0.5%"}
