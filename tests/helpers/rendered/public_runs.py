"""The table of public training runs beside theory, of committed results and of the settings that were fixed before."""

from tests.helpers.public_runs import RUNS
from tests.helpers.rendered.tables import _committed, _table

_RULES = {"network": "", "last norm": "last norm"}


def public_runs() -> str:
    """What was printed, theory's interval of 95%, whether the one is in the other, and its half by the exponent 1."""
    found, rows = _committed("tests/evidence/public-runs.json")["runs"], []
    for run in RUNS:
        row = found[run["name"]]
        low, mean, high = run["loss"]
        loss = f"{mean:.6g}" if run["count"] == 1 else f"{mean:.6g} ({low:.6g} to {high:.6g}; {run['count']})"
        where = "yes" if row["inside"] else "mean" if row["mean inside"] else "no"
        norm = ["", "", "", ""]
        if "norm" in run:
            low_norm, high_norm = row["norm interval"]
            norm = [f"{run['norm']:.4g}", f"{row['norm']:.3g}: {low_norm:.3g} to {high_norm:.3g}"]
            norm += ["yes" if row["norm inside"] else "no", f"{row['norm by one law']:.0%}"]
        low, high = row["loss interval"]
        rows.append(
            [
                run["name"],
                loss,
                f"{row['loss']:.2f}: {low:.2f} to {high:.2f}",
                where,
                f"{row['loss by one law']:.1%}",
                *norm,
                _RULES[row["rule"]],
            ]
        )
    head = ["run", "loss", "theory", "inside", "by one law ±", "norm", "theory", "inside", "by one law ±", "by"]
    return _table(head, rows)
