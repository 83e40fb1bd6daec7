"""The cases of the pretended GPU in a process of their own, without what the suite's own conftest loads."""

import os
import subprocess
import sys
from pathlib import Path

CASES = "tests/simulate/pretended_gpu_cases.py"


def cases_on_a_pretended_gpu(root: Path, marked: str) -> subprocess.CompletedProcess[str]:
    """What pytest says of the cases with these markers, in a checkout or a copy of one."""
    environment = os.environ | {
        "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "",
    }  # fmt: skip
    # Without the collections of garbage at the end, which take a second.
    options = ["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "-m", marked]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, CASES], cwd=root, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
