"""What `make evidence` found, as small files that are committed, and the cases that a stopped run has already."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulate.runs.files import write_whole

FOLDER = Path(__file__).parent.parent / "evidence"

# Of runs that any device can make: `make evidence PART=... DEVICE=cuda`.
DEVICE = os.environ.get("DEVICE", "cpu")


def part(name: str) -> str:
    """The command of a part on this device."""
    return f"make evidence PART={name}" + ("" if DEVICE == "cpu" else f" DEVICE={DEVICE}")


def record(name: str, found: dict[str, Any], *, short: bool = False) -> None:
    """Write one file of findings; if short, with a list of plain values on one line, for columns of many."""
    text = json.dumps(found, indent=1)
    if short:
        text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda one: f"[{' '.join(one[1].split())}]", text)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def kept_case(folder: Path, name: str, make: Callable[[], Any]) -> Any:
    """What was found for this case before, from the folder, or made and put there; as JSON has it, exactly."""
    file = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    if not file.is_file():
        write_whole(file, json.dumps(make()).encode())
    return json.loads(file.read_text(encoding="utf-8"))


def kept_cases(folder: Path, cases: Mapping[tuple[Any, ...], Callable[[], Any]]) -> dict[tuple[Any, ...], Any]:
    """Each by `kept_case`, under the words of its key."""
    return {key: kept_case(folder, case_name(key), make) for key, make in cases.items()}


def case_name(key: tuple[Any, ...]) -> str:
    return " ".join(map(str, key))


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
