"""The recipe of a sweep: all settings that determine its samples, from flags, a TOML file or a preset."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from gradbounds.grid import FIELDS, OWN_WORD, field_values, stacks
from simulate.runs.manifests import check_seal
from simulate.text import TEXTS
from theory import Stack
from theory.stack.documents import parsed, read_document
from theory.stack.registry import nearest
from theory.stack.stack import OWN

_FOLDER = resources.files("gradbounds") / "presets"
PRESETS = tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a sweep, which flags or a TOML file give under the names of these attributes.

    Attributes:
        grid: one grid or several, whose cells are taken together; see `gradbounds.grid.stacks`.
        draws: smallest number of random networks per cell.
        seed: root seed.
        engine: how weights are sampled.
        device: "cpu", "cuda" or "cuda:N".
        dtype: data type of weights and tokens.
        text: text file for inputs and labels, or the name of one that comes along; "" for Gaussian tokens.
    """

    grid: tuple[Mapping[str, Any], ...] = ({},)
    draws: int = 64
    seed: int = 0
    engine: str = "auto"
    device: str = "cpu"
    dtype: str = "float32"
    text: str = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            kind: Any = tuple if f.name == "grid" else f.type
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ValueError(f"{f.name} must be {'an integer' if kind is int else 'a string'}, got {value!r}.")

    def stacks(self) -> list[Stack]:
        """Return all different networks of the recipe's grids.

        Raises:
            ValueError: a grid makes no sense.
        """
        return list(dict.fromkeys(stack for grid in self.grid for stack in stacks(grid)))

    def changed(self, grid: Mapping[str, Any], **others: Any) -> "Recipe":
        """Return a copy of this recipe, with changed fields of its networks and other changed settings.

        Raises:
            ValueError: a value is of the wrong kind.
        """
        given = {name: value for name, value in others.items() if value is not None}
        return replace(self, grid=tuple({**table, **grid} for table in self.grid), **given)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as a dictionary, with the keys of a recipe's TOML file."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "grid"}
        return plain | {"grid": [dict(table) for table in self.grid]}


def read_recipe(path: Path) -> Recipe:
    """Read the recipe of a sweep from a TOML file or from the manifest of an earlier run.

    The path of a text file is relative to the TOML file.

    Raises:
        ValueError: the file is missing, no TOML, has keys that a recipe has not, or is of a run from Python.
    """
    content = read_document(path, "file", "TOML")
    check_seal(path)
    if isinstance(content.get("networks"), list):
        raise ValueError(
            f"file must hold a recipe, but {str(path)!r} is of a run from Python: repeat its call of gradbounds.sweep."
        )
    is_manifest = isinstance(content.get("recipe"), dict)
    recipe = recipe_in(content) if is_manifest else recipe_of(content)
    beside = path.parent / recipe.text
    return replace(recipe, text=str(beside)) if (recipe.text not in ("", *TEXTS)) and not is_manifest else recipe


def recipe_in(manifest: Mapping[str, Any]) -> Recipe:
    """Return the recipe in the manifest of a run, which may have been written by an older version.

    Older manifests write 0 instead of "own" for fields such as `branch_scale`.

    Raises:
        ValueError: the recipe has unknown keys or values of a wrong type; see `recipe_of`.
    """
    recipe = recipe_of(manifest["recipe"])
    if "own" in manifest:
        return recipe
    meant = [
        {
            name: [OWN_WORD if value == 0 else value for value in field_values(name, table[name])]
            for name in OWN
            if name in table
        }
        for table in recipe.grid
    ]
    return replace(recipe, grid=tuple({**table, **changes} for table, changes in zip(recipe.grid, meant, strict=True)))


def preset(name: str) -> Recipe:
    """Return a recipe that ships with gradbounds, by its name."""
    return recipe_of(parsed((_FOLDER / f"{name}.toml").read_bytes(), "TOML"))


def recipe_of(content: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a dictionary describes, after checking its keys and values.

    Raises:
        ValueError: the mapping has unknown keys, or values of a wrong type.
    """
    known = [f.name for f in fields(Recipe)]
    unknown = set(content) - set(known)
    if unknown:
        hint = " (fields of the network belong in [grid])" if unknown & set(FIELDS) else ""
        near = "" if hint else nearest(unknown, known)
        raise ValueError(f"file must have keys {', '.join(known)}, got {', '.join(sorted(unknown))}{hint}.{near}")
    grid = content.get("grid", {})
    grids = grid if isinstance(grid, list) else [grid]
    if not grids or not all(isinstance(table, dict) for table in grids):
        raise ValueError("grid must be a table [grid] or several [[grid]], got something else.")
    return Recipe(**{**content, "grid": tuple(grids)})
