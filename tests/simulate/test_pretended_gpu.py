"""Sampling on a pretended GPU, in a process of its own: the fixture answers for torch.cuda."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nothing_leaves_the_device():
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "",
    }  # fmt: skip
    # Without the collections of garbage at the end, which take a second.
    options = ["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
    command = [sys.executable, "-m", "pytest", *options, "tests/simulate/pretended_gpu_cases.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
