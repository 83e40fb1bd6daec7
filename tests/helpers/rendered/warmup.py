"""Tables of docs/warmup.md, from the committed rows of training runs."""

from pathlib import Path
from statistics import fmean

from gradbounds.actions.warmup.command import read_rows
from theory.stack import TITLES

ROWS = Path(__file__).parents[3] / "checks" / "data" / "warmup" / "warmup-small.json"
_OPTIMIZERS = {"adam": "Adam", "radam": "RAdam", "sgd": "SGD"}
_READINGS = {"a": ", (a)", "b": ", (b)", "both": "", "fixed": ", fixed rate"}


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
