"""`make compatibility`: `make quick` with the oldest and the newest Python and libraries that pyproject.toml allows.

uv resolves both, without the pins of constraints.txt. torch's builds for Linux bring GPU libraries: 3 GB to download
and 6 GB of disk for each environment.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console
from rich.table import Table

from tests.helpers.evidence_file import record

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "runs" / "compatibility"
UV = Path(sys.executable).with_name("uv")


def allowed(project: dict[str, Any]) -> dict[str, Requirement]:
    """What `pip install .[dev]` asks for by name, but for gradbounds itself."""
    extras = project["optional-dependencies"]
    asked = [Requirement(text) for text in [*project["dependencies"], *extras["dev"]]]
    of_others = [extra for one in asked if one.name == project["name"] for extra in one.extras]
    found = {one.name: one for one in [*asked, *(Requirement(text) for extra in of_others for text in extras[extra])]}
    return {name: found[name] for name in sorted(found) if name != project["name"]}


def pythons(requires: str) -> list[str]:
    """Versions of CPython at hand that are allowed, those of pyenv included, in order."""
    listed = json.loads(_uv("python", "list", "--only-installed", "--output-format", "json").stdout)
    specifier = Requirement(f"python {requires}").specifier
    found = {one["version"] for one in listed if one["implementation"] == "cpython" and one["variant"] == "default"}
    return sorted((one for one in found if one in specifier), key=Version)


def _uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    path = os.pathsep.join([*map(str, sorted(versions.glob("*/bin"))), os.environ["PATH"]])
    environment = os.environ | {"PATH": path}
    return subprocess.run([UV, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def tried(name: str, python: str, resolution: str) -> dict[str, Any]:
    """One environment: its versions, and what `make quick` gave in it."""
    place = FOLDER / name
    found: dict[str, Any] = {"python": python, "versions": {}, "outcome": "not installed"}
    for step in (
        ("venv", "--clear", "--python", python, str(place)),
        ("pip", "install", "--python", str(place), "--resolution", resolution, "--editable", ".[dev]"),
    ):
        done = _uv(*step)
        if done.returncode:
            return found | {"why": done.stderr.strip().splitlines()}
    listed = json.loads(_uv("pip", "list", "--python", str(place), "--format", "json", "--outdated").stdout)
    found["held back"] = {one["name"]: one["latest_version"] for one in listed}
    listed = json.loads(_uv("pip", "list", "--python", str(place), "--format", "json").stdout)
    found["versions"] = {one["name"]: one["version"] for one in listed}
    log = FOLDER / f"{name}.log"
    with log.open("w") as file:
        # What a library of one age warns of in one of another age is not ours to mend.
        environment = os.environ | {"PYTEST_ADDOPTS": "-W default"}
        done = subprocess.run(["make", "quick", f"BIN={place / 'bin'}"], cwd=ROOT, env=environment, stdout=file,
                              stderr=subprocess.STDOUT, check=False)  # fmt: skip
    said = log.read_text(encoding="utf-8").splitlines()
    return found | {
        "outcome": "failed" if done.returncode else "passed",
        "tests": next((line.strip("= ").partition(" in ")[0] for line in reversed(said) if " passed" in line), ""),
        "failed": [line.partition(" - ")[0] for line in said if line.startswith(("FAILED ", "ERROR "))],
    }


def lowest(requirement: Requirement) -> str:
    """The version of a lower bound or a pin."""
    return next((one.version for one in requirement.specifier if one.operator in (">=", "==")), "")


def not_had(name: str, found: dict[str, Any], wanted: dict[str, Requirement]) -> dict[str, list[str]]:
    """Direct dependencies of which another version was wanted: [wanted, had]."""
    if name == "newest":
        asked = {one: version for one, version in found.get("held back", {}).items() if one in wanted}
    else:
        asked = {one: lowest(requirement) for one, requirement in wanted.items()}
    had = {one: found["versions"].get(one, "none") for one, version in asked.items() if version}
    return {
        one: [asked[one], had[one]] for one in had if had[one] == "none" or Version(had[one]) != Version(asked[one])
    }


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, at_hand = allowed(project), pythons(project["requires-python"])
    found = {}
    for name, python, resolution in (("oldest", at_hand[0], "lowest-direct"), ("newest", at_hand[-1], "highest")):
        one = tried(name, python, resolution)
        one["wanted, had"] = not_had(name, one, wanted)
        one["versions"] = {key: one["versions"][key] for key in wanted if key in one["versions"]}
        one.pop("held back", None)
        found[name] = one
    record("compatibility", {"pythons at hand": at_hand} | found)
    table = Table("", *found, box=None)
    for row in ("python", "outcome", "tests"):
        table.add_row(row, *(one.get(row, "") for one in found.values()))
    for key, requirement in wanted.items():
        table.add_row(str(requirement), *(one["versions"].get(key, "none") for one in found.values()))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    for name, one in found.items():
        lines = [f"{key} {asked} could not be had, {had} was" for key, (asked, had) in one["wanted, had"].items()]
        for line in [*lines, *one.get("why", []), *one.get("failed", [])]:
            console.print(f"{name}: {line}", markup=False)
    return int(any(one["outcome"] != "passed" for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
