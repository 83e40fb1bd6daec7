"""`make evidence`: what is too heavy for the suite, in the parts of evidence/parts.toml, each of which goes on."""

import argparse
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.helpers.evidence_file import FOLDER
from tests.resumption import KEPT

ROOT = Path(__file__).parents[1]
NOTHING_LEFT = 5
"""pytest's exit status where no test is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is run by one name.

    Attributes:
        about: what it is evidence of.
        tests: files of tests/evidence, or tests in them.
        files: what these write there, without `.json`.
        minutes: on two cores.
        measured: the machine of these minutes; empty for an estimate.
        needs: what not every machine has; tests that lack it are skipped.
        environment: the folder of the virtual environment that runs it; the current one if left out.
    """

    about: str
    tests: list[str]
    files: list[str]
    minutes: float
    measured: str = ""
    needs: str = ""
    environment: str = ""


def read_parts(file: Path = FOLDER / "parts.toml") -> dict[str, Part]:
    return {name: Part(**fields) for name, fields in tomllib.loads(file.read_text(encoding="utf-8")).items()}


def listing(parts: dict[str, Part]) -> Table:
    table = Table("part", "minutes", "about", box=None)
    for name, part in parts.items():
        minutes = f"{part.minutes:g}" if part.measured else f"{part.minutes:g}, estimated"
        table.add_row(name, minutes, part.about + (f" (needs {part.needs})" if part.needs else ""))
    table.add_row("all", f"{sum(part.minutes for part in parts.values()):g}")
    return table


def forget(root: Path, part: Part) -> None:
    """Let everything run again that the part's files of tests have done."""
    for file in {test.partition("::")[0] for test in part.tests}:
        shutil.rmtree(root / KEPT / Path(file).name, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make evidence", description=__doc__)
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    asked, parts = parser.parse_args(arguments), read_parts()
    if asked.list:
        Console(width=None if sys.stdout.isatty() else 200).print(listing(parts))
        return 0
    if asked.part and asked.part not in parts:
        print(f"PART must be one of {', '.join(parts)}, got {asked.part!r}.", file=sys.stderr)
        return 2
    chosen = [parts[asked.part]] if asked.part else list(parts.values())
    if asked.fresh:
        for part in chosen:
            forget(ROOT, part)
    tests = [f"tests/evidence/{test}" for part in chosen for test in part.tests]
    options = ["-m", "evidence", "-n", "auto", "--dist", "loadgroup", "-rs", "-p", "tests.resumption"]
    # A run of all parts skips the parts with another environment, because their imports are missing here.
    own = ROOT / chosen[0].environment / "bin" / "python" if asked.part and chosen[0].environment else sys.executable
    status = subprocess.run([str(own), "-m", "pytest", *options, *tests], cwd=ROOT, check=False).returncode
    if status == NOTHING_LEFT:
        print("Nothing is left to run for these sources; FRESH=1 runs it again.")
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
