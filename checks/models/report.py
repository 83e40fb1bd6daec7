"""The one report of `probe`: what is to be said of a module, of a factory's modules, or of steps of an optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

import numpy as np
import pandas as pd

from checks.models.alarm import Alarm, alarm_lines, folded
from checks.models.growth_theory import GrowthTheory
from checks.models.layer_tables import profile_table
from checks.models.reference import Reference, reference_of
from checks.models.sections import (
    attention_lines,
    exponent_lines,
    growth_lines,
    growths,
    loss_line,
    loss_reason,
    no_layer,
    scope_line,
    sight_lines,
    step_lines,
    steps_lines,
    table_lines,
    theory_lines,
    update_lines,
)
from checks.models.streams import learning_later
from checks.models.whole_model import entry_notes, parts_of
from simulate.modules.coordinates import Stepped
from simulate.modules.one_step import OneStep
from simulate.modules.probe import Probed
from theory.stack.parametrizations import Parametrization

ALWAYS = ("non-finite", "no gradient", "detached", "leak", "norm", "copies", "attention", "units", "dtype", "optimizer")
"""Kinds of alarms that hold of any weights; the others are of an initialization."""
_TITLES = {
    "sp": "the standard parametrization", "mup": "mu-P", "mean-field": "the mean-field parametrization",
    "completep": "CompleteP",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProbeReport:
    """What is to be said of modules.

    Attributes:
        name: of the factory, or of the module's class.
        alarms: what is wrong, the most likely cause first, one for each.
        notes: what is no alarm, a line each.
        probed: everything measured of modules; None of steps.
        layers: of one module, or of the largest of several (`checks.models.layer_tables.layers_table`).
        exponents: of the last layers' gradients in depth and width (`probe_exponents`); empty of one module.
        steps: of steps over sizes a row for every exponent of coordinates and updates
            (`checks.models.coordinate_exponents.Exponent`); of one module's first step one for every parameter that an
            optimizer holds (`simulate.modules.one_step.OneStep.moves`).
        updates: of one module's first step at rate 1 (`updates_table`).
        theory: large-width theory for a Stack beside several modules (`against_theory`), or None.
        growth: theory of the growth over each list of layers of one module, where one is known.
        step: one module's first step; None where no optimizer was given.
        stepped: everything measured of steps over sizes, or None.
        optimizer: its name, of steps over sizes.
        parametrization: that these are held against.
        trained: whether thresholds of initialization are left out.
        compared: whether a reference or a Stack said what is right.
    """

    name: str
    alarms: list[Alarm]
    notes: list[str]
    probed: Probed | None = None
    layers: pd.DataFrame = field(default_factory=pd.DataFrame)
    exponents: pd.DataFrame = field(default_factory=pd.DataFrame)
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    updates: pd.DataFrame = field(default_factory=pd.DataFrame)
    theory: pd.DataFrame | None = None
    growth: tuple[GrowthTheory, ...] = ()
    step: OneStep | None = None
    stepped: Stepped | None = None
    optimizer: str = ""
    parametrization: Parametrization = "mup"
    trained: bool = False
    compared: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {len(self.alarms)} alarms>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(chr(10).join(self.lines()))}</pre>"

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Its tables by name, without those of other questions."""
        tables = {"layers": self.layers, "exponents": self.exponents, "steps": self.steps, "updates": self.updates}
        tables |= {} if self.theory is None else {"theory": self.theory}
        return {name: table for name, table in tables.items() if len(table.columns)}

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row per size, seed, layer or module, parameter and quantity, of steps also step."""
        return self.stepped.to_frame() if self.stepped is not None else self._measured.frame

    def reference(self) -> Reference:
        """What other modules can be held against; its `save` writes the file that `against` reads."""
        return reference_of(self.name, self._measured.frame, self._measured.tests)

    def profile(self) -> pd.DataFrame:
        """Energies and gradients over the layers of several modules, as `figures.probe.probe` draws them."""
        return profile_table(self._measured.frame)

    def lines(self) -> list[str]:
        """The report as text: alarms first, and the judgement last."""
        lines = alarm_lines(self.alarms)
        if self.stepped is not None:
            lines += steps_lines(self.steps, self.stepped)
        else:
            lines += self._measured_lines(self._measured)
        return [*lines, *folded(self.notes), self.judgement()]

    def judgement(self) -> str:
        """The verdict, and what was judged."""
        if self.stepped is not None:
            return self._steps_verdict()
        verdict, step = self._verdict(self._measured), self.step
        if self._alone and any(alarm.kind == "non-finite" for alarm in self.alarms):
            return f"{verdict} Behind numbers that are not finite nothing was judged but weights."
        stepped = step is not None and bool(np.isfinite(step.loss_before) and step.moves["rate"].any())
        return f"{verdict} {scope_line(self._measured, stepped=stepped, trained=self.trained, compared=self.compared)}"

    def assert_healthy(self) -> None:
        """Pass, or say what is wrong.

        Raises:
            AssertionError: there is an alarm.
        """
        if self.alarms:
            what = "healthy" if self.stepped is None else _TITLES[self.parametrization]
            raise AssertionError(f"{self.name} is not {what}:\n" + "\n".join(map(str, self.alarms)))

    @property
    def _measured(self) -> Probed:
        if self.probed is None:
            raise ValueError(f"{self.name} must be probed without steps for this, and steps were taken.")
        return self.probed

    @property
    def _alone(self) -> bool:
        """Whether it is one module, without sizes."""
        return not len(self.exponents.columns)

    def _measured_lines(self, probed: Probed) -> list[str]:
        frame, tests = probed.frame, probed.tests
        lines = [loss_line(frame, tests), *sight_lines(frame, tests)]
        if not self._alone:
            lines += exponent_lines(self.exponents)
            return [*lines, *([] if self.theory is None else theory_lines(self.theory, frame))]
        lines += [*growth_lines(probed, self.growth), *table_lines(self.layers), *attention_lines(self.layers, tests)]
        return lines + (update_lines(self.updates) if self.step is None else step_lines(self.step))

    def _verdict(self, probed: Probed) -> str:
        parts = parts_of(probed.frame)
        if self.alarms:
            first = self.alarms[0]
            what = "is not right" if first.kind in (*ALWAYS, "structure") else "is not initialized well"
            nothing = "" if parts else f" Besides, {no_layer(probed.unseen)}."
            return f"{self.name} {what}: {self._first_alarm()}{nothing}"
        if not parts:
            return f"{self.name} is not judged: {no_layer(probed.unseen)}."
        if not self._alone:
            return f"{self.name} raises no alarm: all layers are like their neighbours."
        if learning_later(probed.frame):
            return f"{self.name} raises no alarm, but layers get gradient 0 at the first step: see the note."
        if not self.trained and entry_notes(probed.frame):
            return f"{self.name} raises no alarm, but the entries of a matrix are unusual in all layers: see the note."
        if self.trained:
            return f"{self.name} passes all exact tests of what was judged."
        reasons = [loss_reason(probed.tests), *growths(probed.frame).values()]
        why = "".join(f": {reason}" for reason in ["; ".join(filter(None, reasons))] if reason)
        return f"{self.name} is initialized well in what was judged, by the thresholds of docs/probe.md{why}."

    def _first_alarm(self) -> str:
        count, first = len(self.alarms), str(self.alarms[0])
        return f"{count} alarm{'s' * (count > 1)}, first of all {first}{'' if first.endswith('?') else '.'}"

    def _steps_verdict(self) -> str:
        title, subject = _TITLES[self.parametrization], f"{self.name} with {self.optimizer}"
        if self.alarms:
            return f"{subject} is not {title}: {self._first_alarm()}"
        words = self.steps["word"].value_counts()
        agree, unsure = (int(words.get(word, 0)) for word in ("agrees", "undecided"))
        if not agree + unsure:
            return f"{subject}: nothing could be judged."
        if not unsure:
            return f"{subject} is {title}: all {agree} exponents agree."
        return (
            f"{subject}: no exponent is off from {title}; {agree} agree, and {unsure} are "
            "undecided, which more seeds or widths further apart would tell."
        )
