"""Time what of a command is not sampling: loading, planning, storing, reading, judging, drawing.

Every command is a process of its own with one worker; seconds are the processor's, of the part that is innermost; and
by the clock, of a second run of which sampling alone is timed.
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
        "gradbounds.actions.sweep_tables.comparison",
        "gradbounds.actions.sweep_tables.layer_norms",
        "gradbounds.actions.sweep_tables.depth_exponents",
        "gradbounds.actions.sweep_tables.layer_spreads",
    ),
    "drawing": (
        "gradbounds.actions.verify.draw_figures",
        "gradbounds.actions.sweep_tables.placements",
        "gradbounds.figure_files.save",
    ),
    "report": ("gradbounds.actions.verify.html",),
}


class Clock:
    """Seconds by part, the processor's or another clock's; what is called within a part is its own."""

    def __init__(self, now: Callable[[], float] = time.process_time) -> None:
        self.seconds: dict[str, float] = {}
        self._now, self._within, self._last = now, ["all else"], now()

    def turn(self) -> None:
        """Count what passed since the last turn."""
        now = self._now()
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


def sampling_alone(command: list[str]) -> dict[str, float]:
    """Seconds by the clock of a command's sampling, run here."""
    from simulate.runs import execution

    clock = Clock(time.perf_counter)
    execution.sample_batches = clock.timed("sampling", execution.sample_batches)
    main = importlib.import_module("gradbounds.cli").main
    main(command)
    clock.turn()
    return clock.seconds


def in_a_process(way: str, command: str) -> tuple[dict[str, float], float]:
    """What a command's process says of itself, in a folder of its own; and its seconds by the clock."""
    with tempfile.TemporaryDirectory() as folder:
        file, start = Path(folder) / "seconds.json", time.perf_counter()
        words = [way, str(file), *command.split(), "--out", str(Path(folder) / "run")]
        subprocess.run([sys.executable, "-m", "bench.commands", *words], check=False, capture_output=True)
        return json.loads(file.read_text(encoding="utf-8")), time.perf_counter() - start


def measured(command: str) -> dict[str, object]:
    """A command in processes of its own."""
    seconds, _ = in_a_process("parts", command)
    by_clock, whole = in_a_process("clock", command)
    total = sum(seconds.values())
    return {
        "processor seconds": {name: round(value, 3) for name, value in seconds.items()}, "all": round(total, 2),
        "share that is not sampling": round(1 - seconds["sampling"] / total, 3),
        "the same without loading torch": round(1 - seconds["sampling"] / (total - seconds["loading torch"]), 3),
        "seconds by the clock": round(whole, 2),
        "share of them that is not sampling": round(1 - by_clock["sampling"] / whole, 3),
    }  # fmt: skip


def report() -> dict[str, object]:
    """Every command."""
    return {command: measured(command) for command in COMMANDS}


if __name__ == "__main__":
    way, file, *words = sys.argv[1:]
    Path(file).write_text(json.dumps({"parts": run, "clock": sampling_alone}[way](words)), encoding="utf-8")
