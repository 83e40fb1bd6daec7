"""The report of `probe` on one module, on modules of several sizes, or on optimizer steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

import numpy as np
import pandas as pd

from checks.models.alarm import Alarm, alarm_lines, folded
from checks.models.exact_alarms import SAME_NUMBERS
from checks.models.reference import Reference, reference_of
from checks.models.sections import (
    attention_lines,
    exponent_lines,
    growth_lines,
    growths,
    loss_line,
    loss_reason,
    no_layer,
    scope_lines,
    sight_lines,
    step_lines,
    steps_lines,
    table_lines,
    theory_lines,
)
from checks.models.streams import learning_later
from checks.models.whole_model import entry_notes, parts_of
from simulate.modules.coordinates import Stepped
from simulate.modules.one_step import OneStep
from simulate.modules.probe import Probed
from theory.stack.parametrizations import Parametrization

ALWAYS = ("non-finite", "no gradient", "detached", "leak", "norm", "copies", "attention", "units", "dtype", "optimizer")
"""The kinds of alarms that apply to any weights; other kinds apply only to an initialization."""
_TITLES = {
    "sp": "the standard parametrization", "mup": "mu-P", "mean-field": "the mean-field parametrization",
    "completep": "CompleteP",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProbeReport:
    """The report on one or several PyTorch modules: alarms, notes, tables and a verdict.

    Attributes:
        name: the name of the factory, or of the module's class.
        alarms: the faults, one alarm each, the most likely cause first.
        notes: remarks that are not alarms, one line each.
        probed: all measured numbers of modules; None for optimizer steps of modules of several sizes.
        layers: a row for each layer of one module or of the largest module
            (`checks.models.layer_tables.layers_table`).
        exponents: exponents of the last layers' gradient norms in depth and width (`probe_exponents`); empty for one
            module.
        steps: for optimizer steps over sizes, a row for each exponent of outputs and updates
            (`checks.models.coordinate_exponents.Exponent`); for one module's first step, a row for each parameter that
            the optimizer holds (`simulate.modules.one_step.OneStep.moves`).
        theory: predictions for a Stack next to the measurements of several modules (`against_theory`), or None.
        step: the first step of one module; None without an optimizer.
        stepped: all measured numbers of optimizer steps over sizes, or None.
        optimizer: the optimizer's name, for steps over sizes.
        parametrization: the parametrization that the steps are compared with.
        trained: whether thresholds for initialized weights are skipped.
        compared: whether a reference or a Stack defined the expected values.
    """

    name: str
    alarms: list[Alarm]
    notes: list[str]
    probed: Probed | None = None
    layers: pd.DataFrame = field(default_factory=pd.DataFrame)
    exponents: pd.DataFrame = field(default_factory=pd.DataFrame)
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    theory: pd.DataFrame | None = None
    step: OneStep | None = None
    stepped: Stepped | None = None
    optimizer: str = ""
    parametrization: Parametrization = "mup"
    trained: bool = False
    compared: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {len(self.alarms)} alarms>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The tables of this report by name, without tables that do not apply."""
        tables = {"layers": self.layers, "exponents": self.exponents, "steps": self.steps}
        tables |= {} if self.theory is None else {"theory": self.theory}
        return {name: table for name, table in tables.items() if len(table.columns)}

    def to_frame(self) -> pd.DataFrame:
        """Return all measured numbers as a data frame with one row for each number."""
        return self.stepped.to_frame() if self.stepped is not None else self._measured.frame

    def reference(self) -> Reference:
        """Return the measurements as a `Reference`, with which other modules can be compared."""
        return reference_of(self.name, self._measured.frame, self._measured.tests)

    def lines(self) -> list[str]:
        """Return the report as lines of text: the verdict, alarms, measurements, notes, and what was judged."""
        lines = [f"Verdict: {self._verdict()}", *alarm_lines(self.alarms)]
        if self.stepped is not None:
            return [*lines, *steps_lines(self.steps, self.stepped), *folded(self.notes)]
        return [*lines, *self._measured_lines(self._measured), *folded(self.notes), *self._scope()]

    def judgement(self) -> str:
        """Return one paragraph with the verdict on the module, the first alarm, and what was judged."""
        first = [f"First alarm: {alarm}{'' if alarm.what.endswith('?') else '.'}" for alarm in self.alarms[:1]]
        return " ".join([self._verdict(), *first, *([] if self.stepped is not None else self._scope())])

    def assert_healthy(self, *known: str) -> None:
        """Raise an error that lists the alarms, if the module raised any that is not known.

        Args:
            known: beginnings of alarms that you accept, such as "bias: layer 2 of h"; the report still lists them.

        Raises:
            AssertionError: the report has another alarm.
        """
        if alarms := [alarm for alarm in self.alarms if not str(alarm).startswith(known)]:
            what = "healthy" if self.stepped is None else _TITLES[self.parametrization]
            raise AssertionError(f"{self.name} is not {what}:\n" + "\n".join(map(str, alarms)))

    @property
    def _measured(self) -> Probed:
        if self.probed is None:
            raise ValueError(f"this cannot be combined with steps: probe {self.name} without them.")
        return self.probed

    @property
    def _alone(self) -> bool:
        """Return whether the report is about one module, not modules of several sizes."""
        return not len(self.exponents.columns)

    def _measured_lines(self, probed: Probed) -> list[str]:
        frame, tests = probed.frame, probed.tests
        lines = [loss_line(frame, tests), *sight_lines(frame, tests)]
        if not self._alone:
            lines += exponent_lines(self.exponents)
            return [*lines, *([] if self.theory is None else theory_lines(self.theory, frame))]
        lines += [*growth_lines(probed), *table_lines(self.layers), *attention_lines(self.layers, tests)]
        return lines + ([] if self.step is None else step_lines(self.step))

    def _scope(self) -> list[str]:
        if self._alone and any(alarm.kind == "non-finite" for alarm in self.alarms):
            return ["Only the weights are judged, because later numbers are not finite."]
        step = self.step
        stepped = step is not None and bool(np.isfinite(step.loss_before) and step.moves["rate"].any())
        return scope_lines(self._measured, stepped=stepped, trained=self.trained, compared=self.compared)

    def _verdict(self) -> str:
        if self.stepped is not None:
            return self._steps_verdict()
        probed, parts = self._measured, parts_of(self._measured.frame)
        if self.alarms:
            what = "is not right" if self.alarms[0].kind in (*ALWAYS, "structure") else "is not initialized well"
            nothing = "" if parts else f" N{no_layer(probed.unseen)[1:]}."
            return f"{self.name} {what}: {self._count()}.{nothing}"
        if not parts:
            return f"{self.name} is not judged: {no_layer(probed.unseen)}."
        if learning_later(probed.frame):
            return f"{self.name} raises no alarm, but layers get gradient 0 at the first step: see the note."
        if any(SAME_NUMBERS in note for note in self.notes):
            return f"{self.name} raises no alarm, but layers have the same numbers: see the note."
        if not self._alone:
            return f"{self.name} raises no alarm: every layer agrees with its nearest layers."
        if not self.trained and entry_notes(probed.frame):
            return f"{self.name} raises no alarm, but the entries of a matrix are unusual in all layers: see the note."
        if self.trained:
            return f"{self.name} passes all exact tests that were run."
        reasons = [loss_reason(probed.tests), *growths(probed.frame).values()]
        why = "".join(f": {reason}" for reason in ["; ".join(filter(None, reasons))] if reason)
        return f"{self.name} is initialized well in every tested respect, by the thresholds of docs/probe.md{why}."

    def _count(self) -> str:
        return f"{len(self.alarms)} alarm{'s' * (len(self.alarms) > 1)}"

    def _steps_verdict(self) -> str:
        title, subject = _TITLES[self.parametrization], f"{self.name} with {self.optimizer}"
        if self.alarms:
            return f"{subject} is not {title}: {self._count()}."
        words = self.steps["word"].value_counts()
        agree, unsure = (int(words.get(word, 0)) for word in ("agrees", "undecided"))
        if not agree + unsure:
            return f"{subject}: no number could be judged."
        if not unsure:
            return f"{subject} is {title}: all {agree} exponents agree."
        return (
            f"{subject}: no exponent is outside the range of {title}; {agree} agree and {unsure} are undecided. "
            "More seeds, or widths that differ more, would decide the undecided ones."
        )
