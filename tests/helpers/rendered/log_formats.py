"""Training logs that are read, by framework."""

import tomllib
from pathlib import Path

LOGS = [Path(__file__).parents[2] / "data" / "public_logs" / f"{name}.toml" for name in ("logs", "more_logs")]
_ANSWERS = {
    "step 1": "judged",
    "mean": "refused",
    "later": "refused",
    "no step": "judged, without its step",
    "trained": "fine-tuning",
    "refuse": "refused",
}


def log_formats() -> str:
    """What the first record of every framework's log is, and how it is taken."""
    lines = ["| framework | step and first record | step 1 is |", "|---|---|---|"]
    for row in (row for path in LOGS for row in tomllib.loads(path.read_text())["log"]):
        numbers = [name for name, key in (("loss", "loss"), ("norm", "grad_norm")) if row[key] != "none"]
        record = "" if row["record"] in ("one step", "none", "unknown") else f", {row['record']}"
        step = "no step" if row["first_step"] == "none" else row["first_step"]
        skipped = f", {row['skipped']} skipped" if row["skipped"] else ""
        first = f"{step}: {', '.join(numbers)}{record}{skipped}" if numbers else "none"
        lines.append(f"| {row['framework']} | {first} | {_ANSWERS[row['answer']]} |")
    return "\n".join(lines)
