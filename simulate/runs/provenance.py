"""Write the content of a run's manifest: the request, the command, the versions, and the machine."""

import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from simulate.runs.cell import Cell


def manifest(command: str, cells: Sequence[Cell], *, draws: int, seed: int) -> dict[str, Any]:
    """Return the manifest of a sweep, with the settings that another run must repeat to continue it.

    The number of draws is not part of the request, so a larger number continues a folder.

    Args:
        command: the name of the command.
        cells: the cells to sample.
        draws: the smallest number of draws per cell.
        seed: the root seed.
    """
    keys = "\n".join(sorted(cell.key for cell in cells))
    request = {"command": command, "seed": seed, "cells": hashlib.sha256(keys.encode()).hexdigest()}
    return {"request": request} | {"cells": len(cells), "draws": draws, "own": "null"} | {"sessions": [session()]}


def session() -> dict[str, Any]:
    """Return the start time, command, versions and machine of this process, for a manifest."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": started_by(),
        "gradbounds": _version(),
        "revision": revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pandas": version("pandas"),
        "pyarrow": pa.__version__,
        "system": platform.platform(),
        "processor": f"{processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def started_by() -> str:
    """Return the command line of this process, which begins with `gradbounds` or `python`."""
    program = Path(sys.argv[0])
    if program.stem == "gradbounds" or program.parts[-2:] == ("gradbounds", "__main__.py"):
        return shlex.join(["gradbounds", *sys.argv[1:]])
    return shlex.join(["python", *filter(None, [program.name, *sys.argv[1:]])])


def _version() -> str:
    try:
        return version("gradbounds")
    except PackageNotFoundError:  # a checkout on Python's path
        return "not installed"


def revision() -> str:
    """Return the git revision of the running checkout, with "+" if it has changes; "" outside of a checkout."""
    folder = Path(__file__).parent
    # An installed package may lie in somebody else's repository: then this file is not tracked there.
    if not _git(folder, "ls-files", Path(__file__).name):
        return ""
    return _git(folder, "rev-parse", "HEAD") + ("+" if _git(folder, "status", "--porcelain", "-uno") else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def processor(device: str = "cpu") -> str:
    """Return the name of this machine's CPU, or of its GPU if networks are sampled there."""
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
