"""The gradient norm of BigScience's 52B, whose log names float16 with the constant loss scale 12, beside theory.

Its arguments: four tokens' parts of tensor parallelism, 256 micro-batches of 4 sequences, whose gradients are added up.
"""

from functools import partial
from typing import Any

import pytest
import torch

from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.half_precision import UNIT, behind_attention, behind_units, label_gradient
from tests.helpers.public_runs import RUNS, laws, predicted_lines, stack_of
from theory.mean_field.tied import text_gradient

pytestmark = pytest.mark.evidence

RUN = next(run for run in RUNS if run["name"] == "BigScience 52B, ZeRO off")
LOGGED_SCALE, ENOUGH, PARTS, TOKENS = 12.0, 2.0**16, 4, 64


def of_a_layer(scale: float, energy: float) -> dict[str, float]:
    """Of a gradient behind the last layer, what half precision leaves; and coordinates in units of 2^-24."""
    torch.set_num_threads(1)
    stack, _ = stack_of(RUN)
    error = scale / (RUN["batch"] * RUN["tokens"])
    top = label_gradient(stack, error, energy**0.5, TOKENS, seed=0)
    units, attention = behind_units(stack, top, PARTS, seed=1), behind_attention(stack, top, PARTS, seed=2)
    size = top.exact.square().mean() ** 0.5 / UNIT
    return {
        "coordinate": float(size), "stream": top.share, "units": units.share, "attention": attention.share,
        "at units": float((units.rounded != 0).float().mean()),
        "at attention": float((attention.rounded != 0).float().mean()),
    }  # fmt: skip


def without_branches(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """First lines where no branch hands a gradient on, and the energy of the stream above the last layer."""
    energies: list[float] = []
    below = text_gradient._below_branch

    def nothing(gradient: Any, others: Any, overlaps: Any, inside: Any) -> Any:
        noise, part, squares = below(gradient, others, overlaps, inside)
        energies.append(float(inside.total.kernel[0, 0, 0]))
        return 0.0 * noise, 0.0 * part, squares

    patch.setattr(text_gradient, "_below_branch", nothing)
    found = predicted_lines(RUN)
    patch.undo()
    return {"norms": [line["norm"] for line in found["lines"]], "energy": energies[0]}


def test_52b(kept_folder, monkeypatch):
    """Nothing comes back through a branch, with a scale of 2^16 all does; and the printed norm is of such gradients."""
    theory = kept_case(kept_folder, "without branches", partial(without_branches, monkeypatch))
    layers = {
        f"{scale:g}": kept_case(kept_folder, f"{scale:g}", partial(of_a_layer, scale, theory["energy"]))
        for scale in (LOGGED_SCALE, ENOUGH)
    }
    record("half-precision", rounded({"printed": RUN["norm"], "parts": PARTS, "layers": layers, **theory}), short=True)
    logged, enough = layers.values()
    assert max(logged["units"], logged["attention"]) < 0.02
    assert all(enough[name] == pytest.approx(1.0, abs=0.1) for name in ("stream", "units", "attention"))
    assert len(theory["norms"]) == len(laws(RUN))
    assert min(theory["norms"]) < RUN["norm"] < max(theory["norms"])
