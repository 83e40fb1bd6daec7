"""A share of a test's cases, made by a process of its own on any machine: as many as there are may run at once.

    python -m tests.helpers.evidence_shares tests.evidence.test_probe_models healthy 3/14 FOLDER

writes FOLDER/test_probe_models.healthy.3of14.json; `make evidence PART=probe-models SHARES=FOLDER` takes what is there.
No case depends on how many shares there are.
"""

import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from simulate.runs.files import write_whole
from tests.helpers.evidence_file import Cases, case_name, kept_case

# A folder of shares that were made elsewhere.
SHARES = os.environ.get("SHARES", "")
_EVERY = 20.0


def take_shares(folder: Path) -> None:
    """Keep the cases of all shares in a folder of kept cases."""
    for file in sorted(Path(SHARES).glob("*of*.json")) if SHARES else []:
        for name, value in json.loads(file.read_text(encoding="utf-8")).items():
            kept_case(folder, name, lambda value=value: value)


def make_share(cases: Cases, share: int, of: int, file: Path) -> None:
    """Cases that follow one another, into a file that is whole at any time, and goes on where it was."""
    keys = list(cases)[len(cases) * share // of : len(cases) * (share + 1) // of]
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    written = time.monotonic()
    for key in keys:
        name = case_name(key)
        if name not in found:
            found[name] = cases[key]()
        if time.monotonic() > written + _EVERY or key == keys[-1]:
            write_whole(file, json.dumps(found).encode())
            written = time.monotonic()


def main() -> None:
    module, what, share, folder = sys.argv[1:]
    number, of = map(int, share.split("/"))
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        cases = importlib.import_module(module).CASES[what](Path(work))
        make_share(cases, number, of, Path(folder, f"{module.rpartition('.')[2]}.{what}.{number}of{of}.json"))


if __name__ == "__main__":
    main()
