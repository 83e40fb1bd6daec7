"""A verdict on any `torch.nn.Module` at initialization: `probe`, and the report that it gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from math import exp
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd

from checks.models.alarm import Alarm, alarm_lines, folded, one_a_cause
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


@dataclass(frozen=True, slots=True, eq=False)
class ModuleReport:
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

    def __repr__(self) -> str:
        return f"<ModuleReport of {self.name}: {len(self.alarms)} alarms>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(chr(10).join(self.lines()))}</pre>"

    def reference(self) -> Reference:
        """What other modules can be held against; its `save` writes the file that `against` reads."""
        return reference_of(self.name, self.probed.frame, self.probed.tests)

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row per configuration, seed, layer and quantity."""
        return self.probed.frame

    def profile(self) -> pd.DataFrame:
        """Energies and gradients over the layers, as `figures.probe.probe` draws them."""
        return profile_table(self.probed.frame)

    def assert_healthy(self) -> None:
        """Pass, or say what is wrong.

        Raises:
            AssertionError: there is an alarm.
        """
        if self.alarms:
            raise AssertionError(f"{self.name} is not healthy:\n" + "\n".join(map(str, self.alarms)))

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
    factory: Any,
    batch: Any = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    trained: bool = False,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    seeds: int = 8,
    seed: int = 0,
    layers: Sequence[str] = (),
    device: str = "cpu",
    stack: Any = None,
    against: Factory | str | Path | Reference | None = None,
    learning_rate: float | None = None,
    steps: int | None = None,
    optimizer: OptimizerFactory | str | Any = None,
    parametrization: Parametrization = "mup",
    on_module: Callable[[int, int], None] | None = None,
) -> ModuleReport | OneReport | CoordinateReport:
    """Measure and judge one module with its weights, `probe(module, batch)`, or a factory's over widths and depths.

    Args:
        factory: a module, with its batch; or as `simulate.probe` has it, or the name of one: a built-in, or
            MODULE:FACTORY; or a function without arguments that gives (module, batch) or (module, batch, loss), or
            its name.
        batch: of a module: a tensor, a tuple of arguments or a dict of keyword arguments.
        loss: of a module: from its output to a scalar; the output's own `.loss` if left out.
        trained: of a module: whether its weights are trained, so that thresholds of an initialization do not apply.
        widths: given to the factory.
        depths: given to the factory.
        seeds: modules per width and depth; of one module against another, of each.
        seed: root seed.
        layers: globs that name the layers.
        device: where; one module stays where it is.
        stack: the network that one module is to be, for theory of its growth; or the network of a width and a depth,
            that theory is to predict beside it. Built-ins of `torch.nn` and factories with an attribute `stack` have
            one (and may say by an attribute `roles` what their parameters are called in it, as
            `checks.models.probe.ROLES` does); of layers of `torch.nn.TransformerEncoder`, and of one module of
            transformers, it is read.
        against: what it is to be like: another factory or its name, which is probed at the same sizes with seeds of its
            own, or a `Reference`, or the file or folder that the command's `--out` wrote. Of a function without
            arguments another one, or its name.
        learning_rate: of an `optimizer` by name.
        steps: where given, so many steps of an optimizer are taken, and how coordinates and updates go with the width
            is held against a parametrization (`checks.models.coordinate_report.coordinate_check`); nothing else is
            asked then.
        optimizer: of steps, or of one module, whose first step is judged then: "sgd", "adam", "adamw" (of steps that
            name none) or "muon", or a function of the module, and of its `width` and `depth` if it has such
            parameters, or its name; it gives a torch.optim.Optimizer, several, or (optimizer, schedule). Of one module
            also what it gives.
        parametrization: of steps: "sp", "mup", "mean-field" or "completep".
        on_module: called with how many modules are done, and of how many, after each; of one module with its parts.

    Raises:
        ValueError: what belongs to a factory stands with one module, or the other way round; a factory or a reference
            cannot be found, stack gives no Stack, roles are no names of matrices, learning_rate is not above 0 or has
            no optimizer, or as `simulate.modules.one_module.one_module`, `simulate.probe`, `against_reference` and
            `checks.models.coordinate_report.coordinate_check`.
    """
    alone = batch is not None or is_module(factory) or (not (widths or depths) and makes_one(factory))
    rated = optimizer is not None or learning_rate is not None
    if steps is None and (parametrization != "mup" or (rated and not alone)):
        raise ValueError(
            "optimizer and learning_rate must stand with steps or with one module, and parametrization with steps, got "
            f"{optimizer!r}, {learning_rate!r} and {parametrization!r}."
        )
    if alone:
        if widths or depths or steps is not None:
            raise ValueError(
                "widths, depths and steps must stand with a factory of a width and a depth, got one module."
            )
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
    if loss is not None or trained:
        raise ValueError("loss and trained must stand with one module and its batch, got a factory.")
    if steps is not None:
        if stack is not None or against is not None or layers:
            raise ValueError("steps must stand without stack, against and layers.")
        return coordinate_check(
            factory, optimizer or "adamw", parametrization=parametrization, widths=widths, depths=depths, steps=steps,
            seeds=seeds, seed=seed, learning_rate=learning_rate, device=device, on_module=on_module,
        )  # fmt: skip
    name, about, built = _name(factory), "", None
    if isinstance(factory, str):
        built = BUILTINS.get(factory)
        factory, stack = (built.factory, stack or built.stack) if built else (load_factory(factory), stack)
        about = built.note() if built else ""
    stack = getattr(factory, "stack", None) if stack is None else stack
    if stack is not None and not callable(stack):
        raise ValueError(f"stack must be a function of a width and a depth, which gives a Stack, got {stack!r}.")
    roles = {**ROLES, **(built.roles if built else {}), **checked_roles(getattr(factory, "roles", {}))}
    run = partial(measured, widths=widths, depths=depths, seeds=seeds, layers=layers, device=device)
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
    wrong += [replace(alarm, where=((widths[0], depths[0]),)) for alarm in exact]
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
