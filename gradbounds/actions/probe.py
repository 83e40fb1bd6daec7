"""A verdict on any `torch.nn.Module` at initialization: `probe`, from Python and from the command line."""

import importlib
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from checks.models.health import Alarm, alarms
from checks.models.probe import TOTAL, Class, against_theory, classes, probe_exponents, profile_table, relative_to_last
from figures import probe as drawn
from gradbounds.actions.figures import save
from simulate import Probed
from simulate import probe as measured
from simulate.modules.catalogue import BUILTINS
from simulate.modules.factories import Factory
from simulate.runs.files import write_whole
from theory import Stack

_SHOWN = 12


@dataclass(frozen=True, slots=True, eq=False)
class Report:
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

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row per configuration, seed, layer and quantity."""
        return self.probed.frame

    def figure(self) -> Figure:
        """Energies and gradients over the layers."""
        return drawn(profile_table(self.probed.frame))

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
) -> Report:
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
    return Report(
        name=name,
        probed=found,
        exponents=exponents,
        classes=classes(found.frame, exponents),
        alarms=alarms(found.frame),
        theory=theory,
    )


def loaded(name: str) -> Factory:
    """The factory of a name MODULE:FACTORY; modules of the current folder are found too.

    Raises:
        ValueError: there is none.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"factory must be MODULE:FACTORY or one of {', '.join(BUILTINS)}, got {name!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        raise ValueError(f"factory must be importable, but {name!r} raised {type(error).__name__}: {error}.") from error
    if not callable(found):
        raise ValueError(f"factory must be a function of width and depth, but {name!r} is a {type(found).__name__}.")
    return found


def report(found: Report, out: Path | None, *, strict: bool) -> int:
    """Print a report and write its table and figure into a folder.

    Returns:
        1 where there is an alarm and `strict` asks for that, else 0.
    """
    for line in found.lines():
        print(line)
    if out is not None:
        table = io.BytesIO()
        found.to_frame().to_parquet(table, index=False)
        write_whole(out / "probe.parquet", table.getvalue())
        if found.theory is not None:
            write_whole(out / "theory.csv", found.theory.to_csv(index=False).encode())
        print(f"Table   {out / 'probe.parquet'}\nFigure  {save(found.figure(), out, 'probe')[-1]}")
    return 1 if strict and found.alarms else 0


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
