"""A verdict on any `torch.nn.Module` at initialization: `probe`, and the report that it gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd

from checks.models.alarm import Alarm, Report, alarm_lines, folded, one_a_cause
from checks.models.coordinate_report import CoordinateReport, coordinate_check
from checks.models.exact_alarms import exact_alarms, whole
from checks.models.health import alarms
from checks.models.initialization import against_initialization
from checks.models.one_report import OneReport, loss_alarms, loss_line, no_layer, one_report, scope_line, sight_lines
from checks.models.probe import (
    ROLES,
    TOTAL,
    against_theory,
    checked_roles,
    not_compared,
    probe_exponents,
    profile_table,
    relative_to_last,
)
from checks.models.questions import Question, check_question
from checks.models.reference import Reference, against_reference, one_against_one, reference_of
from checks.models.streams import learning_later, no_residual_anywhere, normed_residuals, other_depths
from simulate import Probed
from simulate import probe as measured
from simulate.modules.catalogue import BUILTINS, load_factory, made_one, makes_one
from simulate.modules.factories import Factory
from simulate.modules.one_module import is_module
from simulate.modules.step_optimizers import OptimizerFactory
from theory import Stack
from theory.stack.parametrizations import Parametrization

_SHOWN = 12
FILE = "probe.json"
"""What the command keeps of a module, for others to be held against."""
WORDS = ("agrees", "undecided", "differs", "not judged")
"""Of theory's table."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModuleReport(Report):
    """What is to be said of a module.

    Attributes:
        name: of its factory.
        probed: what was measured.
        exponents: of the last layers' gradients, in the depth and the width (`checks.models.probe.probe_exponents`).
        alarms: what is wrong, layer by layer or with the whole, the most likely cause first and one for each
            (`checks.models.alarm.one_a_cause`); none in a healthy module.
        theory: large-width theory for the nearest Stack beside it (`checks.models.probe.against_theory`; relative to
            the last layer where the Stack was read from the module), or None.
        compared: whether a reference or a Stack said what is right.
    """

    name: str
    probed: Probed
    exponents: pd.DataFrame
    alarms: list[Alarm]
    theory: pd.DataFrame | None
    compared: bool = False

    def reference(self) -> Reference:
        """What other modules can be held against; its `save` writes the file that `against` reads."""
        return reference_of(self.name, self.probed.frame, self.probed.tests)

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row per configuration, seed, layer and quantity."""
        return self.probed.frame

    def profile(self) -> pd.DataFrame:
        """Energies and gradients over the layers, as `figures.probe.probe` draws them."""
        return profile_table(self.probed.frame)

    def lines(self) -> list[str]:
        """The report as text: alarms first."""
        frame, tests = self.probed.frame, self.probed.tests
        lines = alarm_lines(self.alarms)
        if not (lines or (frame["quantity"] == "hidden_energy").any()):
            lines = [f"Not judged: {no_layer(self.probed.unseen)}."]
        lines = lines or ["No alarm: all layers are like their neighbours."]
        lines += [loss_line(frame, tests)] if np.isfinite(whole(tests, "cross_entropy")) else []
        lines += sight_lines(frame, tests)
        totals = self.exponents[self.exponents["parameter"] == TOTAL]
        for row in totals.itertuples():
            if row.against == "layer":
                factors = ", ".join(f"{exp(end):.3f}" for end in (row.low, row.high))
                lines.append(
                    f"{row.part}: gradient times {exp(row.exponent):.3f} [{factors}] a layer towards the output"
                )
            else:
                letter = {"depth": "L", "width": "d"}[str(row.against)]
                interval = f"[{row.low:.3f}, {row.high:.3f}]"
                lines.append(f"{row.part}, last layer: gradient ~ {letter}^{row.exponent:.3f} {interval}")
        if self.theory is not None:
            lines += _theory_lines(self.theory)
            if names := not_compared(self.probed.frame, self.theory):
                shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
                lines.append(f"not compared, as the Stack has no such parameter by that name: {shown}")
        scope = scope_line(frame, tests, self.probed.unseen, compared=self.compared)
        return [*lines, *folded(self.notes), scope]

    @property
    def notes(self) -> list[str]:
        """What is no alarm, a line each."""
        rules = (other_depths, learning_later, no_residual_anywhere, normed_residuals)
        return [line for rule in rules for line in rule(self.probed.frame)] + [*self.probed.notes]


@overload
def probe(
    factory: Factory | str, *, widths: Sequence[int], depths: Sequence[int], seeds: int = ..., seed: int = ...,
    layers: Sequence[str] = ..., device: str = ..., stack: Callable[[int, int], Stack] | None = ...,
    against: Factory | str | Path | Reference | None = ..., on_module: Callable[[int, int], None] | None = ...,
) -> ModuleReport: ...  # fmt: skip


@overload
def probe(
    factory: Factory | str, *, steps: int, optimizer: OptimizerFactory | str | None = ...,
    parametrization: Parametrization = ..., widths: Sequence[int], depths: Sequence[int] = ..., seeds: int = ...,
    seed: int = ..., learning_rate: float | None = ..., device: str = ...,
    on_module: Callable[[int, int], None] | None = ...,
) -> CoordinateReport: ...  # fmt: skip


@overload
def probe(
    factory: Any, batch: Any = ..., *, loss: Callable[[Any], Any] | None = ..., trained: bool = ..., seed: int = ...,
    layers: Sequence[str] = ..., device: str = ..., against: Any = ..., seeds: int = ...,
    optimizer: OptimizerFactory | str | Any = ..., learning_rate: float | None = ..., stack: Stack | None = ...,
    on_module: Callable[[int, int], None] | None = ...,
) -> OneReport: ...  # fmt: skip


def probe(
    factory: Any, batch: Any = None, *, loss: Callable[[Any], Any] | None = None, trained: bool = False,
    widths: Sequence[int] = (), depths: Sequence[int] = (), seeds: int = 8, seed: int = 0, layers: Sequence[str] = (),
    device: str = "cpu", stack: Any = None, against: Any = None, steps: int | None = None, optimizer: Any = None,
    learning_rate: float | None = None, parametrization: Parametrization = "mup",
    on_module: Callable[[int, int], None] | None = None,
) -> ModuleReport | OneReport | CoordinateReport:  # fmt: skip
    """Measure and judge one module with its weights, `probe(module, batch)`, or a factory's over widths and depths.

    Args:
        factory: a module, with its batch; a factory as `simulate.probe` has it; a function without arguments that gives
            (module, batch) or (module, batch, loss); or the name of one: a built-in, or MODULE:FACTORY.
        batch: a module's: a tensor, a tuple of arguments or a dict of keyword arguments.
        loss: a module's, from its output to a scalar; the output's own `.loss` if left out.
        trained: whether a module's weights are trained: thresholds of an initialization do not apply then.
        widths: given to the factory.
        depths: given to the factory.
        seeds: modules per width and depth; of one module against another, of each.
        seed: root seed.
        layers: globs that name the layers.
        device: where; one module stays where it is.
        stack: the network that one module is to be, or that of a width and a depth; if left out the factory's
            attribute `stack` (`roles` name parameters as `checks.models.probe.ROLES` does), or read from the module.
        against: what it is to be like: another factory or its name, probed with seeds of its own; a `Reference`; or the
            file or folder that `--out` wrote. For a function without arguments another one, or its name.
        steps: how many steps an optimizer takes: the answer is `checks.models.coordinate_report.coordinate_check`'s.
        optimizer: for steps, or for one module, whose first step is judged: "sgd", "adam", "adamw" (of steps that name
            none), "muon", or a function (or its name) of the module, and of its `width` and `depth` if it has such
            parameters, that gives a torch.optim.Optimizer, several, or (optimizer, schedule), or what it gives.
        learning_rate: of an `optimizer` by name.
        parametrization: held against steps: "sp", "mup", "mean-field" or "completep".
        on_module: called with how many modules are done, and of how many, after each; of one module with its parts.

    Raises:
        ValueError: an argument belongs to another question (`checks.models.questions`), something cannot be found, or
            as `simulate.modules.one_module.one_module`, `simulate.probe`, `against_reference` and `coordinate_check`.
    """
    alone = batch is not None or is_module(factory) or (not (widths or depths) and makes_one(factory))
    question: Question = "one" if alone else "grid" if steps is None else "steps"
    objects = {"loss": loss, "stack": stack, "against": against, "steps": steps, "optimizer": optimizer,
               "learning_rate": learning_rate, "trained": trained or None, "widths": widths or None,
               "depths": depths or None, "layers": layers or None}  # fmt: skip
    given = [name for name, value in objects.items() if value is not None]
    check_question(question, given if parametrization == "mup" else [*given, "parametrization"])
    if steps is not None:
        return coordinate_check(
            factory, optimizer or "adamw", parametrization=parametrization, widths=widths, depths=depths, steps=steps,
            seeds=seeds, seed=seed, learning_rate=learning_rate, device=device, on_module=on_module,
        )  # fmt: skip
    if alone:
        return _probe_one(
            factory, batch, loss, trained=trained, seeds=seeds, seed=seed, layers=layers, device=device, stack=stack,
            against=against, optimizer=optimizer, learning_rate=learning_rate, on_module=on_module,
        )  # fmt: skip
    run = partial(measured, widths=widths, depths=depths, seeds=seeds, layers=layers, device=device)
    return _probe_grid(factory, run, seed, stack, against, on_module)


def _probe_one(
    factory: Any, batch: Any, loss: Callable[[Any], Any] | None, *, trained: bool, seeds: int, seed: int,
    layers: Sequence[str], device: str, stack: Any, against: Any, optimizer: Any, learning_rate: float | None,
    on_module: Callable[[int, int], None] | None,
) -> OneReport:  # fmt: skip
    """Measure and judge one module."""
    differences, differences_notes = list[Alarm](), list[str]()
    if against is not None:
        differences, differences_notes = one_against_one(
            factory, against, seeds=seeds, seed=seed, layers=layers, device=device
        )
    name = "" if is_module(factory) else _name(factory)
    if batch is None and not is_module(factory):
        maker = load_factory(factory) if isinstance(factory, str) else factory
        stack = getattr(maker, "stack", None) if stack is None else stack
        factory, batch, loss = made_one(factory, seed, device)
    single = one_report(
        factory, batch, loss, seed=seed, layers=layers, trained=trained, name=name, optimizer=optimizer,
        learning_rate=learning_rate, stack=stack, on_part=on_module,
    )  # fmt: skip
    notes = [*differences_notes, *single.notes]
    return replace(single, alarms=[*single.alarms, *differences], notes=notes, compared=against is not None)


def _probe_grid(
    factory: Any, run: partial[Probed], seed: int, stack: Any, against: Any,
    on_module: Callable[[int, int], None] | None,
) -> ModuleReport:  # fmt: skip
    """Measure a factory's modules, and what they are to be like, by `run`, and judge them.

    Raises:
        ValueError: stack is no function, or a factory, a reference or a role cannot be found.
    """
    name, about, built = _name(factory), "", None
    if isinstance(factory, str):
        built = BUILTINS.get(factory)
        factory, stack = (built.factory, stack or built.stack) if built else (load_factory(factory), stack)
        about = built.note() if built else ""
    stack = getattr(factory, "stack", None) if stack is None else stack
    if stack is not None and not callable(stack):
        raise ValueError(f"stack must be a function of a width and a depth, which gives a Stack, got {stack!r}.")
    roles = {**ROLES, **(built.roles if built else {}), **checked_roles(getattr(factory, "roles", {}))}
    reference, other = _held_against(against)
    rounds = 1 + (other is not None)
    probed = run(factory, seed=seed, on_module=_part(on_module, 0, rounds))
    if about:
        probed = replace(probed, notes=(about, *probed.notes))
    if other is not None:
        probed_other = run(other, seed=seed + 1, on_module=_part(on_module, 1, rounds))
        reference = reference_of(_name(against), probed_other.frame, probed_other.tests)
    exponents = probe_exponents(probed.frame)
    theory = None
    wrong = alarms(probed.frame)
    exact, exact_notes = exact_alarms(probed.tests)
    exact += loss_alarms(probed.tests)
    first = run.keywords["widths"][0], run.keywords["depths"][0]
    wrong += [replace(alarm, where=(first,)) for alarm in exact]
    probed = replace(probed, notes=(*exact_notes, *probed.notes))
    if stack is not None:
        theory = against_theory(probed.frame, stack, roles)
        wrong += against_initialization(probed.frame, theory, stack, roles)
    elif probed.stacks:
        # Inputs and loss of the factory are its own: what does not depend on them is compared.
        theory = relative_to_last(against_theory(probed.frame, lambda width, depth: probed.stacks[width, depth]))
    if reference is not None:
        wrong += against_reference(reference_of(name, probed.frame, probed.tests), reference)
    return ModuleReport(
        name=name,
        probed=probed,
        exponents=exponents,
        alarms=one_a_cause(wrong),
        theory=theory,
        compared=reference is not None or stack is not None,
    )


def _part(on_module: Callable[[int, int], None] | None, place: int, rounds: int) -> Callable[[int, int], None] | None:
    """What counts the modules of one round of several."""
    return None if on_module is None else lambda done, of: on_module(place * of + done, rounds * of)


def _name(factory: object) -> str:
    return factory if isinstance(factory, str) else getattr(factory, "__qualname__", repr(factory))


def _held_against(against: Factory | str | Path | Reference | None) -> tuple[Reference | None, Factory | None]:
    """What was kept, or the factory to probe.

    Raises:
        ValueError: it cannot be found.
    """
    if against is None or isinstance(against, Reference):
        return against, None
    if isinstance(against, str) and against in BUILTINS:
        return None, BUILTINS[against].factory
    if isinstance(against, str | Path):
        path = Path(against)
        if isinstance(against, Path) or path.exists() or path.suffix == ".json":
            return Reference.read(path / FILE if path.is_dir() else path), None
        return None, load_factory(against)
    return None, against


def _theory_lines(table: pd.DataFrame) -> list[str]:
    """The last layer of the table at the largest size that is judged, and how many numbers agree in all of it."""
    if table.empty:
        return ["large-width theory: nothing to compare it with"]
    judged = table[table["agreement"] != WORDS[-1]]
    if judged.empty:
        return [
            f"large-width theory: none of {len(table)} numbers is judged, since networks are too narrow for their "
            "depth and classes, or theory is not exact for them; larger widths are (the table `theory` has all numbers)"
        ]
    width, depth = max(zip(judged["width"], judged["depth"], strict=True))
    last = table[(table["width"] == width) & (table["depth"] == depth)]
    last = last[last["layer"] == last["layer"].max()]
    head = f"large-width theory, d = {width}, L = {depth}, layer {last['layer'].max()}"
    lines = [f"{head:38} " + "predicted   measured    ratio +- s.e.".rjust(44)]
    for row in last.itertuples():
        error = f"+- {row.noise:.3f}" if np.isfinite(row.noise) else "(one seed)"
        numbers = f"{row.predicted:11.4g} {row.measured:10.4g} {row.ratio:8.3f} {error}"
        lines.append(f"  {row.quantity:36} {numbers}  {row.agreement}")
    counts = table["agreement"].value_counts()
    words = ", ".join(f"{counts[word]} {word}" for word in WORDS if word in counts)
    return [*lines, f"  of {len(table)} numbers, all layers and sizes: {words}"]
