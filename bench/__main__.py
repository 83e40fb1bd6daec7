"""`python -m bench engines` or `python -m bench store`: one JSON object, with the machine it was measured on."""

import json
import platform
import sys

import torch

from bench import engines, store

REPORTS = {"engines": engines.report, "store": store.report}


def main() -> None:
    """Print the report that the first argument names."""
    if len(sys.argv) != 2 or sys.argv[1] not in REPORTS:
        sys.exit(f"usage: python -m bench {{{','.join(REPORTS)}}}")
    machine = {
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    json.dump(machine | REPORTS[sys.argv[1]](), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
