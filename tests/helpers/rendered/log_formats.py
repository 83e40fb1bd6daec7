"""Training logs that are read, by framework."""

import tomllib
from pathlib import Path

LOGS = Path(__file__).parents[2] / "data" / "public_logs" / "logs.toml"
_ANSWERS = {
    "step 1": "judged",
    "mean": "refused as a mean",
    "later": "refused as a later step",
    "no step": "judged as far as a log without steps can be",
    "trained": "fine-tuning: its initialization is not judged",
    "refuse": "refused: no loss of a training step",
}


def log_formats() -> str:
    """What the first record of every framework's log is, and how it is taken."""
    table = tomllib.loads(LOGS.read_text())
    lines = ["| framework | first record | step 1 is |", "|---|---|---|"]
    for row in table["log"]:
        numbers = [name for name, key in (("loss", "loss"), ("norm", "grad_norm")) if row[key] != "none"]
        record = "" if row["record"] in ("one step", "none", "unknown") else f", {row['record']}"
        step = "no step" if row["first_step"] == "none" else f"step {row['first_step']}"
        skipped = f", {row['skipped']} skipped" if row["skipped"] else ""
        first = f"{step}: {', '.join(numbers)}{record}{skipped}" if numbers else "none"
        lines.append(f"| {row['framework']} | {first} | {_ANSWERS[row['answer']]} |")
    return "\n".join(lines)
