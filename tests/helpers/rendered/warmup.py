"""Tables of docs/warmup.md, from the committed rows of training runs."""

from pathlib import Path
from statistics import fmean
from typing import Any

from checks.verdict import Verdict
from gradbounds.studies.kept_rows import read_rows
from gradbounds.studies.warmup.claims import judge
from gradbounds.studies.warmup.reproduce import grid_named
from theory.stack import TITLES

ROWS = Path(__file__).parents[3] / "checks" / "data" / "warmup" / "warmup-small.json"
_OPTIMIZERS = {"adam": "Adam", "radam": "RAdam", "sgd": "SGD"}
_LATER = ": trains,"
"""Of the statements that were not judged before premises were asked for."""
_READINGS = {"a": ", (a)", "b": ", (b)", "both": "", "fixed": ", fixed rate"}


def steps_and_break_even() -> str:
    """Of how many measured updates the rate was above critical, Hessian and break-even rates, by what became of runs.

    A rate that there is none of, since the curvature is not positive or the loss never comes back, is not passed.
    """
    rows = [row for row in read_rows(ROWS) if row["steps"]]
    heads = ["", "outcome", "runs", "updates", "above critical", "above Hessian", "above break-even", "runs with any"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for optimizer, placement in dict.fromkeys((row["optimizer"], row["placement"]) for row in rows):
        for outcome in ("trained", "stuck", "diverged"):
            runs = [
                row for row in rows
                if (row["optimizer"], row["placement"], row["outcome"]) == (optimizer, placement, outcome)
            ]  # fmt: skip
            if not runs:
                continue
            above = {
                name: [sum(rate > limit for rate, limit in zip(row["rates"], row[name], strict=True)) for row in runs]
                for name in ("critical", "hessian", "break_even")
            }
            updates, any_above = sum(len(row["rates"]) for row in runs), sum(map(bool, above["break_even"]))
            cells = [f"{TITLES[placement]}, {_OPTIMIZERS[optimizer]}", outcome, len(runs), updates]
            cells += [sum(counts) for counts in above.values()] + [any_above]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def final_losses() -> str:
    """Mean final validation loss of every kind of run, a column for each rate of Adam's; bold where it has trained."""
    rows = read_rows(ROWS)
    seeds = len({row["seed"] for row in rows})
    parts = []
    for optimizers in (("adam", "radam"), ("sgd",)):
        some = [row for row in rows if row["optimizer"] in optimizers and row["reading"] != "fixed"]
        rates = sorted({row["peak"] for row in some})
        lines = ["| | warm-up | " + " | ".join(f"{rate:g}" for rate in rates) + " |", "|---" * (len(rates) + 2) + "|"]
        kinds = dict.fromkeys((row["optimizer"], row["placement"], row["warmup"], row["reading"]) for row in some)
        for optimizer, placement, warmup, reading in sorted(kinds, key=lambda k: (k[0], k[1], k[3] == "b", k[2])):
            cells = []
            for rate in rates:
                own = [
                    row for row in some
                    if (row["optimizer"], row["placement"], row["warmup"], row["reading"], row["peak"])
                    == (optimizer, placement, warmup, reading, rate)
                ]  # fmt: skip
                value = f"{fmean(row['final'] for row in own):.2f}" if own else ""
                trained = own and all(row["outcome"] == "trained" for row in own)
                cells.append(f"**{value}**" if trained else value)
            said = "none" if warmup == 1 else f"{warmup} updates"
            name = f"{TITLES[placement]}, {_OPTIMIZERS[optimizer]}"
            lines.append(f"| {name} | {said}{_READINGS[reading]} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    head = f"Means over {seeds} seed{'s' if seeds > 1 else ''}, nats a token; word frequencies alone have "
    return head + f"{rows[0]['unigram']:.2f}.\n\n" + "\n\n".join(parts)


def at_the_printed_rate() -> str:
    """What the statements come to at the paper's own number for the rate, a row a statement and reading."""
    paper = grid_named("small").paper
    verdicts = [one for one in judge(read_rows(ROWS), paper, "") if one.relaxed]
    lines = ["| claim | statement | nats a token, 95% interval | at d = 64 |", "|---|---|---|---|"]
    for one in verdicts:
        low, high = one.interval
        lines.append(f"| {one.claim} | {one.subject} | {one.measured:.2f} [{low:.2f}, {high:.2f}] | {one.verdict} |")
    return "\n".join(lines)


def words_without_premises() -> str:
    """Of every statement the word that it had when every rate judged, whoever trained at it, beside the word it has."""
    rows = read_rows(ROWS)
    lines = ["| claim | statement | before, every rate judged | now |", "|---" * 4 + "|"]
    for before, now in zip(_words([row | {"outcome": "trained"} for row in rows]), _words(rows), strict=True):
        old = "not judged" if _LATER in now.part else before.verdict
        new = now.verdict if old == now.verdict else f"**{now.verdict}**"
        lines.append(f"| {now.claim} | {now.part} | {old} | {new} |")
    return "\n".join(lines)


def _words(rows: list[dict[str, Any]]) -> list[Verdict]:
    return [one for one in judge(rows, grid_named("small").paper, "") if not one.relaxed]
