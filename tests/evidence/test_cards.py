"""The card of three published models: at most 18 lines, a line with the learning rate's flag, and 10 CPU seconds."""

import os
import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.evidence


@pytest.mark.parametrize("model", ["gpt2", "llama-3-8b", "qwen3-30b-a3b"])
def test_a_card_fits_a_screen_within_seconds(model):
    """On one thread, with imports; rates of experts take too long, and the line has the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = subprocess.run(
        [sys.executable, "-m", "gradbounds", "predict", "--like", model], capture_output=True, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    ).stdout.splitlines()  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(lines) <= 18 and max(map(len, lines)) <= 118 and ", before clipping (" in "\n".join(lines)
    (rates,) = (line for line in lines if line.startswith("Learning rate of step 1"))
    assert ("not on this card" in rates) == (model == "qwen3-30b-a3b")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 10.0
