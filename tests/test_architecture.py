"""Who may import whom, on every file's syntax tree, imports inside functions included."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.sources import statements, tree

ROOT = Path(__file__).parent.parent
STANDARD = set(sys.stdlib_module_names)

# What a package may import besides the standard library and itself; a dotted name allows that package alone.
MAY_IMPORT = {
    "theory": {"sympy", "numpy", "scipy", "pandas"},
    "simulate": {
        "torch", "numpy", "scipy", "pandas", "psutil", "pyarrow", "jaxtyping", "tomli_w", "filelock", "transformers",
        "threadpoolctl",
        "theory.stack", "theory.coverage",
    },
    "checks": {"theory", "simulate", "numpy", "scipy", "pandas", "jinja2"},
    "figures": {"theory", "matplotlib", "numpy", "pandas"},
    "gradbounds": {
        "theory", "simulate", "checks", "figures", "numpy", "scipy", "pandas", "pyarrow", "torch", "matplotlib", "tyro",
        "rich", "sympy", "pytest", "dask", "distributed", "transformers",
    },
    "tools": {"checks", "gradbounds", "simulate", "theory", "numpy", "jinja2"},
    "tests": None,
    "studies": {
        "theory", "simulate", "checks", "figures", "gradbounds", "numpy", "scipy", "pandas", "torch", "matplotlib",
        "sympy", "tyro", "jaxtyping", "sentencepiece", "curvlinops", "pyarrow",
    },
    "bench": {
        "theory", "simulate", "checks", "figures", "gradbounds", "matplotlib", "numpy", "pandas", "torch",
        "distributed", "threadpoolctl", "bs4", "rdata", "tiktoken", "tiktoken_ext", "tokenizers", "transformers",
    },
}  # fmt: skip

# What a part of a package, a subpackage or a module beside them, may import from the other parts. There is no arrow
# but these, so that none goes back. The package's own __init__ imports all; only what needs the version imports it.
ARROWS = {
    "theory": {
        "stack": "", "coverage": "stack", "mean_field": "stack coverage", "paper": "stack coverage mean_field",
        "registration": "stack mean_field", "first_step": "stack coverage mean_field", "configurations": "stack",
    },
    "simulate": {
        "counts": "",
        "text": "",
        "free_memory": "",
        "threads": "",
        "network": "",
        "runs": "counts text free_memory network threads",
        "modules": "counts runs",
        "curvature": "network runs modules",
    },
    "checks": {
        "statistics": "",
        "experiment": "",
        "remedy": "",
        "verdict": "statistics",
        "fits": "statistics",
        "trust": "statistics",
        "first_step": "trust",
        "theory_and_samples": "statistics trust",
        "series": "fits",
        "results": "statistics verdict",
        "report": "results verdict",
        "stacks": "statistics verdict fits theory_and_samples trust series",
        "models": "statistics verdict fits trust remedy",
    },
    "figures": {
        "published": "style",
        "registry": "", "looks": "", "style": "looks",
        "concentration": "registry style",
        "layer_profile": "registry style", "proof_chain": "registry style", "scaling": "registry style",
        "logged_step": "style", "probe": "style", "sweeps": "style",
    },
    "studies": {
        "committed": "", "comparisons": "", "flags": "", "kept_rows": "", "presets": "", "schedules": "",
        "table_cache": "", "task": "",
        "parallel_text": "", "translation_model": "parallel_text",
        "measurements": "parallel_text translation_model",
        "ordering": "parallel_text",
        "translation_task": "measurements ordering parallel_text task translation_model",
        "training_run": "parallel_text schedules task translation_model translation_task",
        "trainer": "task training_run",
        "trained_step": "trainer",
        "fig3": "committed flags measurements parallel_text table_cache translation_model",
        "warmup": (
            "committed comparisons kept_rows measurements parallel_text presets schedules table_cache trained_step "
            "trainer training_run translation_model"
        ),
        "bert": "committed comparisons kept_rows presets schedules table_cache task trainer training_run",
        "stable_rate": "flags table_cache",
        "hessian": "committed flags parallel_text stable_rate table_cache translation_model",
        "mean_hessian": "committed flags table_cache",
        "training": "",
        "__main__": "bert fig3 hessian mean_hessian stable_rate training warmup",
        "conftest": "",
    },
    "gradbounds": {
        "grid": "",
        "plain_text": "",
        "units": "",
        "progress": "units",
        "budget": "units",
        "figure_files": "",
        "shadowing": "",
        "workers": "shadowing",
        "recipe": "grid",
        "clusters": "recipe shadowing",
        "network_text": "plain_text",
        "layer_summary": "network_text",
        "network_comparison": "network_text plain_text",
        "described_network": "grid",
        "json_output": "",
        "run_inspection": "grid units result",
        "result": "json_output help_text figure_files",
        "actions": (
            "budget grid recipe progress units figure_files layer_summary network_text network_comparison "
            "json_output described_network help_text clusters plain_text result"
        ),
        "explore": (
            "__init__ actions budget described_network grid json_output network_comparison network_text plain_text "
            "progress units"
        ),
        "help_text": "",
        "flags": "grid described_network",
        "commands": "grid recipe clusters actions explore run_inspection described_network units flags result",
        "cli": "__init__ commands json_output help_text grid plain_text flags result",
        "__main__": "cli shadowing",
        "run_suite": "actions",
        "pytest_plugin": "run_suite shadowing",
    },
}  # fmt: skip
FILES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports; of `from theory.paper import sharp` that one."""
    found = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the package's name"
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= named & MODULES
            if not named <= MODULES or node.module not in ARROWS:
                found.add(str(node.module))
    return found


def may_import(importer: str, name: str) -> bool:
    """Whether a module of ours may import a module, by both tables."""
    package, top = importer.partition(".")[0], name.partition(".")[0]
    allowed = MAY_IMPORT[package]
    if allowed is None or top in STANDARD:
        return True
    if top != package:
        return top in allowed or any(f"{name}.".startswith(f"{one}.") for one in allowed)
    if package not in ARROWS or importer == package:
        return True
    own, other = importer.split(".")[1], (name.split(".")[1:] or ["__init__"])[0]
    return own == other or other in ARROWS[package][own].split()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_are_allowed(package):
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == package]
    files = files if package == "tests" else [path for path in files if not is_a_test(path)]
    pairs = [(module_name(path), name) for path in files for name in imports(path)]
    assert pairs
    assert [f"{importer} imports {name}" for importer, name in pairs if not may_import(importer, name)] == []


def is_a_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts or path.name == "conftest.py"


def test_nobody_imports_a_study():
    """Only studies and tests do; of studies, one imports another only as `ARROWS` has it."""
    for path in (path for path in FILES if not is_a_test(path) and path.relative_to(ROOT).parts[0] != "studies"):
        assert [name for name in imports(path) if name.partition(".")[0] == "studies"] == [], path
    assert not may_import("gradbounds.actions.verify", "studies.fig3.claims")
    assert not may_import("studies.warmup.claims", "studies.fig3.claims")


def test_every_part_has_its_arrows():
    for package, parts in ARROWS.items():
        there = {name.split(".")[1] for name in MODULES if name.startswith(f"{package}.")}
        assert set(parts) == there
        for part, arrows in parts.items():
            assert set(arrows.split()) <= there | {"__init__"} - {part}


def test_arrows_go_one_way():
    for package, parts in ARROWS.items():
        done = {"__init__"}
        while ready := {part for part, arrows in parts.items() if part not in done and set(arrows.split()) <= done}:
            done |= ready
        assert done == set(parts) | {"__init__"}, f"arrows of {package} go round"


def test_no_cycle():
    graph = {module_name(path): set() for path in FILES}
    for path in FILES:
        graph[module_name(path)] = {name for name in imports(path) if name in graph} - {module_name(path)}
    done: set[str] = set()
    while ready := {name for name, needs in graph.items() if name not in done and needs <= done}:
        done |= ready
    assert done == set(graph), f"import cycle among {sorted(set(graph) - done)}"


MOST_CHECKS_OF_LAYOUTS = 10
"""Places of theory that ask which layout tokens have; a layout owns its rules, so that this number only falls."""


def test_layouts_own_their_rules():
    calls = [
        node
        for path in (ROOT / "theory").rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "hasattr")
    ]
    found = sum("Layout" in ast.unparse(call) or "AttendingMembers" in ast.unparse(call) for call in calls)
    assert found == MOST_CHECKS_OF_LAYOUTS, "lower the number if there are fewer"


def test_the_vocabulary_is_importable_alone():
    """What simulate takes from theory are names and definitions, never a formula: no vocabulary module imports one."""
    vocabulary = ("theory.stack", "theory.coverage")
    assert {name for name in MAY_IMPORT["simulate"] if name.startswith("theory")} == set(vocabulary)
    for path in (path for name in vocabulary for path in (ROOT / name.replace(".", "/")).glob("*.py")):
        for name in imports(path):
            known = name.partition(".")[0] in STANDARD | {"numpy"}
            assert known or name.startswith(vocabulary), f"{path.name} imports {name}"


@pytest.mark.parametrize(
    ("importer", "line", "name"),
    [
        ("theory.mean_field.prediction", "from theory.paper.sharp import bracket", "theory.paper.sharp"),
        ("theory.mean_field.prediction", "from theory.paper import sharp", "theory.paper.sharp"),
        ("theory.stack.weights", "from theory import paper", "theory.paper"),
        ("theory.stack.weights", "from theory import Stack", "theory"),
        ("simulate.network.dense", "import simulate.runs.cell", "simulate.runs.cell"),
        ("simulate.network.dense", "from theory.mean_field.recursion import recursion", "theory.mean_field.recursion"),
        ("simulate.network.dense", "from theory import predict", "theory"),
        ("simulate.runs.cell", "import matplotlib.pyplot", "matplotlib.pyplot"),
        ("checks.stacks.judge", "from checks.models import health", "checks.models.health"),
        ("gradbounds.grid", "from gradbounds.actions.sweep import sweep_into", "gradbounds.actions.sweep"),
    ],
)  # fmt: skip
def test_a_forbidden_import_is_seen(tmp_path, importer, line, name):
    file = tmp_path / "bad.py"
    file.write_text(f"def late():\n    {line}\n")
    assert name in imports(file)
    assert importer in MODULES
    assert not may_import(importer, name)


def test_a_pair_without_an_arrow_is_seen():
    for package, parts in ARROWS.items():
        for own, arrows in parts.items():
            allowed = {other for other in parts if may_import(f"{package}.{own}.a", f"{package}.{other}.b")}
            assert allowed == {own, *arrows.split()} - {"__init__"}


def test_heavy_libraries_stay_out(tmp_path):
    """Help, lists, a folder without a run and a prediction load none of them, in one process."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.toml").write_text('format = 1\n[request]\ncommand = "sweep"\n')
    code = f"""
import sys
from gradbounds.cli import main

def absent(*names):
    assert not set(names) & set(sys.modules), sorted(set(names) & set(sys.modules))

assert main(["--help"]) == main(["claims"]) == 0
assert main(["check", "nowhere"]) == main(["predict", "--widht", "8"]) == 2
absent("torch", "scipy", "sympy", "pandas")
assert main(["runs", {str(tmp_path)!r}]) == main(["runs", {str(tmp_path / "mine")!r}]) == 0
absent("torch", "scipy", "sympy")
assert main("predict --like gpt2 --width 64 --depth 1 --heads 1 --tokens 2 --vocab 8".split()) == 0
absent("torch", "sympy", "scipy.stats", "matplotlib")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
