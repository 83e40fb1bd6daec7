"""What `make evidence` found, as small files that are committed."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "evidence"


def record(name: str, found: dict[str, Any]) -> None:
    """Write one file of findings."""
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
