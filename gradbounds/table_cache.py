"""Tables that a folder keeps by key, so that a command that was stopped continues."""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from simulate.runs.files import write_whole


def kept(out: Path, key: dict[str, Any], make: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame, bool]:
    """A table of that key from the folder, or made and put there; and whether it was made."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    file = out / "models" / f"{name}.parquet"
    if file.is_file():
        return pd.read_parquet(file), False
    table, content = make(), io.BytesIO()
    table.to_parquet(content, index=False)
    write_whole(file, content.getvalue())
    return table, True
