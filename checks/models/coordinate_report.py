"""A coordinate check that answers: do a module's outputs and updates go with the width, or depth, as they are to?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from checks.fits import LEAST_POINTS
from checks.models.alarm import Alarm, Report, folded, of_weights
from checks.models.coordinate_causes import causes
from checks.models.coordinate_exponents import BEND, FARTHER, Against, Exponent, exponents, sizes_of
from simulate.modules.catalogue import BUILTINS, load_factory
from simulate.modules.coordinates import Stepped, coordinate_steps
from simulate.modules.factories import Factory
from simulate.modules.step_optimizers import OptimizerFactory, optimizer_factory
from theory.stack.parametrizations import PARAMETRIZATIONS, Parametrization

_SHOWN = 12
_ASKS = {
    "sp": "the standard parametrization", "mup": "mu-P", "mean-field": "the mean-field parametrization",
    "completep": "CompleteP",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CoordinateReport(Report):
    """What is to be said of steps of an optimizer from a factory's modules.

    Attributes:
        name: of the factory.
        optimizer: its name.
        parametrization: that was asked for.
        stepped: what was measured.
        table: every exponent, its interval, what is asked and whether it agrees
            (columns as of `checks.models.coordinate_exponents.Exponent`).
        alarms: causes, what acts first before what may follow from it, and what is wrong with optimizer or steps.
    """

    name: str
    optimizer: str
    parametrization: Parametrization
    stepped: Stepped
    table: pd.DataFrame
    alarms: list[Alarm]

    @property
    def asked(self) -> str:
        """The parametrization in words."""
        return _ASKS[self.parametrization]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is no alarm, a line each."""
        return (*_rates_not_judged(self.alarms), *self.stepped.notes, *_bends(self.table), *_ahead(self.table))

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row per size, seed, step, module or weight, and quantity."""
        return self.stepped.to_frame()

    def coordinates(self) -> pd.DataFrame:
        """Mean |y| of every module with a matrix, and of the whole, as `figures.coordinates.coordinates` draws it.

        Returns:
            Columns place, width, step, value, sem: over seeds, at the greatest depth.
        """
        frame = self.to_frame()
        frame = frame[(frame["quantity"] == "coordinates") & (frame["depth"] == frame["depth"].max())]
        places = {owner.place for owners in self.stepped.owners.values() for owner in owners if len(owner.shape) > 1}
        values = frame[frame["place"].isin(places)].groupby(["place", "width", "step"], sort=False)["value"]
        return pd.DataFrame({"value": values.mean(), "sem": values.sem()}).reset_index()

    def judgement(self) -> str:
        """One sentence."""
        if self.alarms:
            count = "1 alarm" if len(self.alarms) == 1 else f"{len(self.alarms)} alarms"
            first = str(self.alarms[0])
            end = "" if first.endswith("?") else "."
            return f"{self.name} with {self.optimizer} is not {self.asked}: {count}, first of all {first}{end}"
        words = self.table["word"].value_counts()
        agree, unsure = (int(words.get(word, 0)) for word in ("agrees", "undecided"))
        if not agree + unsure:
            return f"{self.name} with {self.optimizer}: nothing could be judged."
        if not unsure:
            return f"{self.name} with {self.optimizer} is {self.asked}: all {agree} exponents agree."
        return (
            f"{self.name} with {self.optimizer}: no exponent is off from {self.asked}; {agree} agree, and {unsure} are "
            "undecided, which more seeds or widths further apart would tell."
        )

    def lines(self) -> list[str]:
        """The report as text: alarms first, and the judgement last."""
        lines = [f"ALARM {alarm}" for alarm in self.alarms[:_SHOWN]]
        if len(self.alarms) > _SHOWN:
            lines.append(f"... and {len(self.alarms) - _SHOWN} alarms more")
        for against, table in self.table.groupby("against", sort=False):
            sizes = {size[str(against) == "depth"] for size in self.stepped.owners}
            values, seeds = " ".join(map(str, sorted(sizes))), self.stepped.seeds
            last = int(table["step"].max())
            lines.append(
                f"Exponents in the {against} ({values}; {seeds} seeds): of mean |y| at the start, of the change of y "
                f"that a weight's own update makes in steps 1 and {last}, and of what is passed on in step {last}. ! "
                "is off from what is asked, ? undecided."
            )
            lines += _rows(table, last)
        breaches = int((self.table["word"] == "breach").sum())
        if breaches:
            lines.append(
                f"{breaches} of {len(self.table)} exponents are off; those of no cause above may follow from one."
            )
        return [*lines, *folded(self.notes), self.judgement()]


def _rates_not_judged(alarms: Sequence[Alarm]) -> list[str]:
    """A line where updates follow from an initial scale that is off, so that a wrong rate may hide behind it."""
    kinds = {alarm.kind for alarm in alarms}
    which = "not all learning rates are judged" if "learning rate" in kinds else "learning rates are not judged"
    line = f"{which} while the initial scale is off: mend that, and probe again"
    return [line] if "initial scale" in kinds else []


def _bends(table: pd.DataFrame) -> list[str]:
    """Powers that still change with the size: those of larger sizes are others."""
    notes = []
    for against, rows in table[table["off"].notna()].groupby("against", sort=False):
        bent = rows[rows["bend"].abs() > rows["bend_half"].clip(lower=BEND)]
        if bent.empty:
            continue
        row = bent.loc[bent["bend"].abs().idxmax()]
        notes.append(
            f"{len(bent)} of {len(rows)} powers still change with the {against}, most of all that of {_what(row)}: by "
            f"{row['bend']:+.2f} (+- {row['bend_half']:.2f}) from the two least to the two largest; at larger ones the "
            "power is another"
        )
    return notes


def _ahead(table: pd.DataFrame) -> list[str]:
    """Powers that are others at larger sizes, as sums of two."""
    notes = []
    for against, rows in table[table["off"].notna()].groupby("against", sort=False):
        away = (rows["ahead"] - rows["exponent"]).abs()
        if not (away > BEND).any():
            continue
        row = rows.loc[away.idxmax()]
        notes.append(
            f"{(away > BEND).sum()} of {len(rows)} powers are taken for those of two parts, like "
            f"{against}^{row['asked_low']:g} and {against}^{row['asked_high']:g}: at {FARTHER:g} times the {against} "
            f"that of {_what(row)} is about {row['ahead']:.2f}, and here {row['exponent']:.2f} (column ahead has all)"
        )
    return notes


def _what(row: Any) -> str:
    return f"{row['quantity']} of {row['place']}.{row['parameter']}".rstrip(".") + f" in step {row['step']}"


def _rows(table: pd.DataFrame, last: int) -> list[str]:
    """A line for each weight where it is used; modules with the same name of a weight are in it."""
    cells = {
        (r.place, r.parameter, r.quantity, r.step): (r.exponent, r.low, r.high, r.word) for r in table.itertuples()
    }
    names = [(r.place, r.parameter, r.role) for r in table.itertuples() if r.quantity == "own"]
    updates = dict.fromkeys((1, last))
    titles = ("start", *(f"own, step {step}" for step in updates), "passed on")
    lines = [f"  {'weight':36} {'role':7} {' '.join(f'{title:>20}' for title in titles)}"]
    for place, parameter, role in dict.fromkeys(names):
        keys = [(place, "", "coordinates", 0), *((place, parameter, "own", step) for step in updates),
                (place, "", "passed", last)]  # fmt: skip
        text = " ".join(f"{_cell(cells.get(key)):>20}" for key in keys)
        lines.append(f"  {f'{place}.{parameter}':36} {role:7} {text}")
    return lines


def _cell(cell: tuple[float, float, float, str] | None) -> str:
    if cell is None or cell[3] == "zero" or cell[0] != cell[0]:
        return "-" if cell is None else "0"
    exponent, low, high, word = cell
    return f"{exponent:.2f} [{low:.2f}, {high:.2f}]" + {"breach": "!", "undecided": "?"}.get(word, " ")


def coordinate_check(
    factory: Factory | str,
    optimizer: OptimizerFactory | str,
    *,
    parametrization: Parametrization = "mup",
    widths: Sequence[int],
    depths: Sequence[int],
    steps: int,
    seeds: int = 8,
    seed: int = 0,
    learning_rate: float | None = None,
    device: str = "cpu",
    on_module: Callable[[int, int], None] | None = None,
) -> CoordinateReport:
    """Take steps from a factory's modules, and hold how they go with the width against a parametrization.

    Args:
        factory: as `gradbounds.probe` takes it; a list of layers is not needed.
        optimizer: as `simulate.modules.step_optimizers.optimizer_factory` takes it.
        parametrization: what is asked: "sp", "mup", "mean-field", or "completep", in the depth too.
        widths: three or more different ones, but for CompleteP.
        depths: the greatest one counts; for CompleteP three or more different ones, at the greatest width.
        steps: how many.
        seeds: modules of every size, two or more.
        seed: root seed.
        learning_rate: of an optimizer by name.
        device: of module and batch.
        on_module: called with how many modules are done, and of how many, after each.

    Raises:
        ValueError: an argument is outside its range.
        ProbeError: something of the user's fails.
    """
    if parametrization not in PARAMETRIZATIONS:
        raise ValueError(f"parametrization must be one of {', '.join(PARAMETRIZATIONS)}, got {parametrization!r}.")
    needed = {"depths": depths} if parametrization == "completep" else {"widths": widths}
    for what, values in needed.items():
        if len(set(values)) < LEAST_POINTS:
            raise ValueError(
                f"{what} must have {LEAST_POINTS} different values or more for an exponent of {parametrization}, got "
                f"{' '.join(map(str, values)) or 'none'}."
            )
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2 for an interval of an exponent, got {seeds!r}.")
    name = factory if isinstance(factory, str) else getattr(factory, "__qualname__", repr(factory))
    if isinstance(factory, str):
        built = BUILTINS.get(factory)
        factory = built.factory if built else load_factory(factory)
    title, make = optimizer_factory(optimizer, learning_rate)
    depths = depths if parametrization == "completep" else [max(depths, default=0)]
    stepped = coordinate_steps(
        factory, make, name=title, widths=widths, depths=depths, steps=steps, seeds=seeds, seed=seed, device=device,
        on_module=on_module,
    )  # fmt: skip
    return judged_steps(stepped, parametrization, name, title)


def judged_steps(stepped: Stepped, parametrization: Parametrization, name: str, optimizer: str) -> CoordinateReport:
    """The report on what was measured."""
    rows, alarms = list[Exponent](), [of_weights(kind, names, what, (at,)) for at, kind, names, what in stepped.alarms]
    alarms = _gathered(alarms)
    dead = any(alarm.kind == "non-finite" for alarm in alarms)
    against: list[Against] = ["width"] if parametrization != "completep" else ["width", "depth"]
    for axis in against:
        sizes = sizes_of(stepped, axis)
        if len(sizes.values) < LEAST_POINTS:
            continue
        of_axis = exponents(stepped, sizes, parametrization)
        rows += of_axis
        alarms += [of_weights(cause.kind, cause.names, cause.what) for cause in causes(sizes, of_axis, parametrization)]
    table = pd.DataFrame(rows, columns=Exponent._fields)
    if dead:
        alarms = [alarm for alarm in alarms if alarm.kind != "unexplained"]
    return CoordinateReport(name, optimizer, parametrization, stepped, table, alarms)


def _gathered(alarms: list[Alarm]) -> list[Alarm]:
    """One of what was seen at several sizes."""
    alike: dict[Any, list[Alarm]] = {}
    for alarm in alarms:
        alike.setdefault((alarm.part, alarm.kind, alarm.what), []).append(alarm)
    return [replace(same[0], where=tuple(alarm.where[0] for alarm in same)) for same in alike.values()]
