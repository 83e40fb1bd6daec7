"""Each picture of docs/figures is of the command that its page prints; docs/figures/manifest.toml is the list."""

import hashlib
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from checks.experiment import DRAWS, verify_cells
from gradbounds.actions.figures import networks_line
from gradbounds.actions.sweep import cells_of
from gradbounds.cli import parsed
from gradbounds.figure_files import save

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures"
ENTRIES = tomllib.loads((FOLDER / "manifest.toml").read_text(encoding="utf-8"))


def faults(name: str, file: Path) -> list[str]:
    entry = ENTRIES[name]
    if "sha256" in entry:
        same = hashlib.sha256(file.read_bytes()).hexdigest() == entry["sha256"]
        return [] if same else [f"{name} is another file than the one of {entry['command']}"]
    with Image.open(file) as picture:
        said = picture.info.get("Description", "nothing")
    expected = networks_of(entry["command"])
    return [] if said == expected else [f"{name} says that it is of {said}, and {entry['command']} is {expected}"]


@cache
def networks_of(command: str) -> str:
    """What `gradbounds figures` writes into a picture of this command's run."""
    if command == "make verify":
        return networks_line(verify_cells(), DRAWS)
    recipe = parsed(shlex.split(command)[1:]).recipe()
    return networks_line(cells_of(recipe), recipe.draws)


def test_every_picture_has_an_entry_and_every_entry_a_picture():
    assert sorted(ENTRIES) == sorted(file.stem for file in FOLDER.glob("*.png"))
    assert {file.stem for file in FOLDER.glob("*.svg")} <= set(ENTRIES)
    assert {file.suffix for file in FOLDER.iterdir()} == {".png", ".svg", ".toml"}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_picture_is_of_the_command_on_its_page(name):
    entry = ENTRIES[name]
    text = (ROOT / entry["page"]).read_text(encoding="utf-8")
    assert f"figures/{name}.png)" in text
    assert entry["command"] in " ".join(re.sub(r"\\\n", " ", text).split())
    assert not faults(name, FOLDER / f"{name}.png")


def test_a_picture_of_another_run_is_seen(tmp_path):
    """One that the default experiment drew under the name of the run with one token, and one that says nothing."""
    for drawn_from in (networks_of("make verify"), ""):
        save(Figure(), tmp_path, "norms_of_one_token", drawn_from=drawn_from)
        assert faults("norms_of_one_token", tmp_path / "norms_of_one_token.png")
    save(Figure(), tmp_path, "norms_of_one_token", drawn_from=networks_of(ENTRIES["norms_of_one_token"]["command"]))
    assert not faults("norms_of_one_token", tmp_path / "norms_of_one_token.png")
    assert faults("placements", FOLDER / "probe.png")
