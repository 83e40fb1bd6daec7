"""`python -m bench NAME` prints one JSON object with the machine named; three other names draw pictures."""

import json
import os
import platform
import sys
from pathlib import Path

import torch

from bench import (
    commands,
    coordinates,
    depth,
    device,
    drawing,
    engines,
    exponents,
    memory,
    one_module,
    predictions,
    probing,
    published_models,
    scale,
    store,
    token_alignment,
)

REPORTS = {
    "batches": depth.batches,
    "commands": commands.report,
    "coordinates": coordinates.report,
    "costs": predictions.costs,
    "deepest": depth.deepest,
    "depth": depth.report,
    "device": device.report,
    "device-deep": device.deep,
    "engines": engines.report,
    "engines-1024": engines.middle,
    "exponents": exponents.report,
    "memory": memory.report,
    "one-module": one_module.report,
    "predictions": predictions.report,
    "probing": probing.report,
    "published-experts": published_models.experts,
    "published-models": published_models.report,
    "scale": scale.report,
    "store": store.report,
}


def processor() -> str:
    """The processor's name: Linux says it in a file, others to Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def main() -> None:
    """Print the report that the first argument names."""
    if sys.argv[1:2] == ["figure"] and len(sys.argv) == 4:
        drawing.draw(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    if sys.argv[1:2] == ["growth"] and len(sys.argv) >= 4:
        drawing.draw_growth([Path(path) for path in sys.argv[2:-1]], Path(sys.argv[-1]))
        return
    if sys.argv[1:2] == ["tokens"] and len(sys.argv) == 3:
        token_alignment.draw(Path(sys.argv[2]))
        return
    if len(sys.argv) != 2 or sys.argv[1] not in REPORTS:
        sys.exit(
            f"usage: python -m bench {{{','.join(REPORTS)}}}, or python -m bench {{figure,growth}} "
            "RESULTS.json PICTURE.png, or python -m bench tokens PICTURE.png"
        )
    machine = {
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    json.dump(machine | REPORTS[sys.argv[1]](), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
