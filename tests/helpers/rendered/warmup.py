"""Tables of docs/warmup.md, from the committed rows of training runs."""

from pathlib import Path
from statistics import fmean
from typing import Any

from checks.verdict import Verdict
from gradbounds.studies.bert.reproduce import COMMITTED
from gradbounds.studies.kept_rows import read_rows
from gradbounds.studies.warmup.claims import judge
from gradbounds.studies.warmup.prefixes import arms
from gradbounds.studies.warmup.reproduce import grid_named
from theory.stack import TITLES

ROWS = Path(__file__).parents[3] / "checks" / "data" / "warmup" / "warmup-small.json"
PREFIXES = Path(__file__).parents[2] / "evidence" / "warmup_prefix"
_OPTIMIZERS = {"adam": "Adam", "radam": "RAdam", "sgd": "SGD"}
_LATER = ": trains,"
"""Of the statements that were not judged before premises were asked for."""
_READINGS = {"a": ", (a)", "b": ", (b)", "both": "", "fixed": ", fixed rate"}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Of a folder with a file for every run."""
    return [row for file in sorted(folder.glob("*.json")) for row in read_rows(file)]


def prefix_arms() -> str:
    """What became of the beginnings of runs at the paper's width, an arm a row; the reference first."""
    rows = rows_of(PREFIXES)
    judged = {(arm.placement, arm.warmup, arm.peak): arm for arm in arms(rows)}
    lines = ["| | warm-up | rate | loss | failed | at equal sums of rates |", "|---" * 6 + "|"]
    kinds = dict.fromkeys((row["placement"], row["warmup"], row["peak"]) for row in rows)
    for key in sorted(kinds, key=lambda key: (key in judged, key[0], -key[2], key[1])):
        placement, warmup, peak = key
        arm = judged.get(key)
        loss = fmean(row["final"] for row in rows if (row["placement"], row["warmup"], row["peak"]) == key)
        words = list(arm.seeds.values()) if arm else []
        failed = f"{words.count('failed')} of {len(words)}" if arm else "reference"
        gaps = list(arm.equal_sums.values()) if arm else []
        told = f"{fmean(gap for _, gap in gaps):+.2f} at {gaps[0][0]}".replace("-", "−") if gaps else ""
        said = "none" if warmup == 1 else f"{warmup} updates"
        lines.append(f"| {TITLES[placement]} | {said} | {peak:g} | {loss:.2f} | {failed} | {told} |")
    head = f"Nats a token after {rows[0]['updates'][-1]} updates, means over 3 seeds; word frequencies alone have "
    return f"{head}{rows[0]['unigram']:.2f}.\n\n" + "\n".join(lines)


def pretraining_arms() -> str:
    """Final losses of pre-training, an arm a row."""
    rows = rows_of(COMMITTED)
    lines = ["| | warm-up | rate | final loss of each seed |", "|---" * 4 + "|"]
    kinds = dict.fromkeys((row["placement"], row["peak"], row["warmup"]) for row in rows)
    for placement, peak, warmup in sorted(kinds):
        runs = sorted(
            (row for row in rows if (row["placement"], row["peak"], row["warmup"]) == (placement, peak, warmup)),
            key=lambda row: row["seed"],
        )
        losses = [f"**{row['final']:.2f}**" if row["outcome"] == "trained" else f"{row['final']:.2f}" for row in runs]
        said = "none" if warmup == 1 else f"{warmup} updates"
        lines.append(f"| {TITLES[placement]} | {said} | {peak:g} | {', '.join(losses)} |")
    head = "Nats a hidden word, bold where a run has trained; word frequencies alone have "
    return f"{head}{rows[0]['unigram']:.2f}.\n\n" + "\n".join(lines)


def steps_and_break_even() -> str:
    """Of how many measured updates the rate was above critical, Hessian and break-even rates, by what became of runs.

    A rate that there is none of, since the curvature is not positive or the loss never comes back, is not passed.
    """
    return _steps(read_rows(ROWS))


def steps_at_the_papers_width() -> str:
    """The same of the beginnings of runs."""
    return _steps(rows_of(PREFIXES))


def _steps(table: list[dict[str, Any]]) -> str:
    rows = [row for row in table if row["steps"]]
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
