"""A verdict on any `torch.nn.Module` at initialization: `probe`, and the report that it gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import exp

import pandas as pd

from checks.models.health import Alarm, alarms
from checks.models.probe import TOTAL, Class, against_theory, classes, probe_exponents, profile_table, relative_to_last
from simulate import Probed
from simulate import probe as measured
from simulate.modules.catalogue import BUILTINS, loaded
from simulate.modules.factories import Factory
from theory import Stack

_SHOWN = 12


@dataclass(frozen=True, slots=True, eq=False)
class ModuleReport:
    """What is to be said of a module.

    Attributes:
        name: of its factory.
        probed: what was measured.
        exponents: of the last layers' gradients, in the depth and the width (`checks.models.probe.probe_exponents`).
        classes: which of the paper's placements each list of layers behaves like.
        alarms: what is wrong, layer by layer; none in a healthy module.
        theory: large-width theory for the nearest Stack beside it (`checks.models.probe.against_theory`; relative to
            the last layer where the Stack was read from the module), or None.
    """

    name: str
    probed: Probed
    exponents: pd.DataFrame
    classes: list[Class]
    alarms: list[Alarm]
    theory: pd.DataFrame | None

    def __repr__(self) -> str:
        return f"<ModuleReport of {self.name}: {len(self.alarms)} alarms>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(chr(10).join(self.lines()))}</pre>"

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row per configuration, seed, layer and quantity."""
        return self.probed.frame

    def profile(self) -> pd.DataFrame:
        """Energies and gradients over the layers, as `figures.probe` draws them."""
        return profile_table(self.probed.frame)

    def assert_healthy(self) -> None:
        """Pass, or say what is wrong.

        Raises:
            AssertionError: there is an alarm.
        """
        if self.alarms:
            raise AssertionError(f"{self.name} is not healthy:\n" + "\n".join(map(str, self.alarms)))

    def lines(self) -> list[str]:
        """The report as text."""
        said = []
        for one in self.classes:
            said.append(f"{one.part or self.name} is {one.kind}: {one.evidence}.")
        whole = self.exponents[self.exponents["parameter"] == TOTAL]
        for row in whole.itertuples():
            if row.against == "layer":
                factors = ", ".join(f"{exp(end):.3f}" for end in (row.low, row.high))
                said.append(
                    f"{row.part}: gradient times {exp(row.exponent):.3f} [{factors}] a layer towards the output"
                )
            else:
                letter = {"depth": "L", "width": "d"}[str(row.against)]
                interval = f"[{row.low:.3f}, {row.high:.3f}]"
                said.append(f"{row.part}, last layer: gradient ~ {letter}^{row.exponent:.3f} {interval}")
        if self.theory is not None:
            said += _theory_lines(self.theory)
        said += [f"note: {note}" for note in self.probed.notes[:_SHOWN]]
        if len(self.probed.notes) > _SHOWN:
            said.append(f"... and {len(self.probed.notes) - _SHOWN} notes more")
        said += [f"ALARM {alarm}" for alarm in self.alarms] or ["No alarm: all layers are like their neighbours."]
        return said


def probe(
    factory: Factory | str,
    *,
    widths: Sequence[int],
    depths: Sequence[int],
    seeds: int = 8,
    seed: int = 0,
    layers: Sequence[str] = (),
    device: str = "cpu",
    stack: Callable[[int, int], Stack] | None = None,
) -> ModuleReport:
    """Measure a module over widths, depths and seeds, and judge it.

    Args:
        factory: as `simulate.probe` has it, or the name of one: a built-in, or MODULE:FACTORY.
        widths: given to the factory.
        depths: given to the factory.
        seeds: modules per width and depth.
        seed: root seed.
        layers: globs that name the layers.
        device: where.
        stack: the network of a width and a depth that theory is to predict beside it; built-ins of `torch.nn` and
            factories with an attribute `stack` have one, and of layers of `torch.nn.TransformerEncoder` it is read.

    Raises:
        ValueError: the factory cannot be found, or as `simulate.probe`.
    """
    name = factory if isinstance(factory, str) else getattr(factory, "__qualname__", repr(factory))
    if isinstance(factory, str):
        built = BUILTINS.get(factory)
        factory, stack = (built.factory, stack or built.stack) if built else (loaded(factory), stack)
    stack = stack or getattr(factory, "stack", None)
    found = measured(factory, widths=widths, depths=depths, seeds=seeds, seed=seed, layers=layers, device=device)
    exponents = probe_exponents(found.frame)
    theory = None
    if stack is not None:
        theory = against_theory(found.frame, stack)
    elif found.stacks:
        # Inputs and loss of the factory are its own: what does not depend on them is compared.
        theory = relative_to_last(against_theory(found.frame, lambda width, depth: found.stacks[width, depth]))
    return ModuleReport(
        name=name,
        probed=found,
        exponents=exponents,
        classes=classes(found.frame, exponents),
        alarms=alarms(found.frame),
        theory=theory,
    )


def _theory_lines(table: pd.DataFrame) -> list[str]:
    """The last layer of the table at the largest width and depth."""
    last = table[(table["width"] == table["width"].max()) & (table["depth"] == table["depth"].max())]
    last = last[last["layer"] == last["layer"].max()]
    lines = [f"large-width theory, layer {last['layer'].max():<3} " + "predicted   measured    ratio +- s.e.".rjust(44)]
    for row in last.itertuples():
        lines.append(
            f"  {row.quantity:36} {row.predicted:11.4g} {row.measured:10.4g} {row.ratio:8.3f} +- {row.noise:.3f}"
        )
    return lines
