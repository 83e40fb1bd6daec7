"""Training logs that are read, by framework."""

import tomllib
from pathlib import Path

LOGS = [Path(__file__).parents[2] / "data" / "public_logs" / f"{name}.toml" for name in ("logs", "more_logs")]
_ANSWERS = {
    "step 1": "judged",
    "no step": "judged; the log has no step numbers",
    "mean": "refused: its first record is a mean over several steps; log every step",
    "later": "refused: its first record is a later step",
    "refuse": "refused: the record of step 1 is missing",
    "trained": "fine-tuning",
}


def log_formats() -> str:
    """List the frameworks whose logs were read, by the answer to the log's first record."""
    rows = [row for path in LOGS for row in tomllib.loads(path.read_text())["log"]]
    names = {
        answer: "; ".join(
            row["framework"] + "†" * (row["grad_norm"] == "none") for row in rows if row["answer"] == answer
        )
        for answer in _ANSWERS
    }
    return "\n".join(
        ["| step 1 | logs (†: without a gradient norm) |", "|---|---|"]
        + [f"| {words} | {names[answer]} |" for answer, words in _ANSWERS.items()]
    )
