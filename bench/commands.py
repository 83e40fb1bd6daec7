"""Time what of a command is not sampling: loading, planning, storing, reading, judging, drawing.

Every command is a process of its own with one worker; seconds are the processor's, of the part that is innermost.
"""

import functools
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMANDS = (
    "sweep --preset quick",
    "sweep --preset compare",
    "sweep --preset deep",
    "sweep --preset wide",
    "verify --workers 1",
)

# By module, where commands find the function; those of an action are timed where the command is its own.
PARTS = {
    "planning": (
        "gradbounds.actions.sweep.cells_of",
        "gradbounds.actions.sweep.begin",
        "gradbounds.actions.verify.check_sweep",
    ),
    "sampling": ("simulate.runs.execution.sample_batches",),
    "storing": ("simulate.runs.store.Run.append", "simulate.runs.store.Run.landed"),
    "reading": ("simulate.runs.store.Run.samples",),
    "judging": (
        "gradbounds.actions.verify.verdicts",
        "gradbounds.actions.verify.comparison",
        "gradbounds.actions.compare.comparison",
        "gradbounds.actions.compare.layer_norms",
        "gradbounds.actions.compare.depth_exponents",
        "gradbounds.actions.compare.layer_spreads",
    ),
    "drawing": (
        "gradbounds.actions.verify.draw_figures",
        "gradbounds.actions.compare.placements",
        "gradbounds.figure_files.save",
    ),
    "report": ("gradbounds.actions.verify.html",),
}


class Clock:
    """Processor seconds by part; what is called within a part is its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within, self._last = ["all else"], time.process_time()

    def turn(self) -> None:
        """Count what passed since the last turn."""
        now = time.process_time()
        part = self._within[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose seconds are those of a part."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.turn()
            self._within.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.turn()
                self._within.pop()

        return call


def run(command: list[str]) -> dict[str, float]:
    """Processor seconds of the parts of a command, run here; for a process that has loaded nothing yet."""
    clock = Clock()
    clock.seconds["before Python runs this"] = time.process_time()
    clock.timed("loading torch", importlib.import_module)("torch")
    load = clock.timed("loading all else", importlib.import_module)
    main = load("gradbounds.cli").main
    actions = [action for action in ("verify", "compare") if action in command]
    for part, places in PARTS.items():
        for place in places:
            module, _, name = place.rpartition(".")
            if module.endswith((".verify", ".compare", ".figure_files")) and not actions:
                continue  # another command does not load it
            if module.endswith((".verify", ".compare")) and not module.endswith(f".{actions[0]}"):
                continue
            owner = load(module[:-4]).Run if module.endswith(".Run") else load(module)
            if hasattr(owner, name):
                setattr(owner, name, clock.timed(part, getattr(owner, name)))
    main(command)
    clock.turn()
    return clock.seconds


def measured(command: str) -> dict[str, object]:
    """A command in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        words = [*command.split(), "--out", str(Path(folder) / "run")]
        subprocess.run([sys.executable, "-m", "bench.commands", str(file), *words], check=False, capture_output=True)
        seconds = json.loads(file.read_text(encoding="utf-8"))
    total = sum(seconds.values())
    return {
        "processor seconds": {name: round(value, 3) for name, value in seconds.items()}, "all": round(total, 2),
        "share that is not sampling": round(1 - seconds["sampling"] / total, 3),
        "the same without loading torch": round(1 - seconds["sampling"] / (total - seconds["loading torch"]), 3),
    }  # fmt: skip


def report() -> dict[str, object]:
    """Every command."""
    return {command: measured(command) for command in COMMANDS}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(run(sys.argv[2:])), encoding="utf-8")
