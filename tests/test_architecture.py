"""Who may import whom, on every file's syntax tree, imports inside functions included."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("theory", "simulate", "checks", "figures", "gradbounds")
STANDARD = set(sys.stdlib_module_names)

# What a package may import besides the standard library and itself; a dotted name allows that module alone.
MAY_IMPORT = {
    "theory": {"sympy", "numpy", "scipy"},
    "simulate": {
        "torch", "numpy", "scipy", "pandas", "psutil", "pyarrow", "jaxtyping", "tomli_w", "filelock", "transformers",
        "sentencepiece", "curvlinops",
        "theory.stack",
        "theory.quantities", "theory.placements", "theory.initializations", "theory.weights",
    },
    "checks": {"theory", "simulate", "numpy", "scipy", "pandas", "jinja2"},
    "figures": {"theory", "matplotlib", "numpy", "pandas"},
    "gradbounds": {
        "theory", "simulate", "checks", "figures", "numpy", "pandas", "pyarrow", "torch", "matplotlib", "tyro", "rich",
        "sympy", "pytest", "dask", "distributed",
    },
    "tests": None,
    "bench": {"theory", "simulate", "figures", "numpy", "pandas", "torch", "distributed"},
}  # fmt: skip
FILES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports; of `from theory import Stack`, theory.Stack as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the package's name"
            found.add(str(node.module))
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_are_allowed(path):
    package = path.relative_to(ROOT).parts[0]
    allowed = MAY_IMPORT[package]
    if allowed is None:
        return
    for name in imports(path):
        top = name.partition(".")[0]
        assert top in STANDARD or top == package or top in allowed or name in allowed, (
            f"{package} may not import {name}"
        )


def test_the_vocabulary_is_importable_alone():
    """What simulate takes from theory are names and definitions, never a formula: no vocabulary module imports one."""
    vocabulary = {f"theory.{name}" for name in ("stack", "quantities", "placements", "initializations", "weights")}
    assert {name for name in MAY_IMPORT["simulate"] if name.startswith("theory")} == vocabulary
    for module in vocabulary | {"theory.fields"}:
        for name in imports(ROOT / f"{module.replace('.', '/')}.py"):
            known = name.partition(".")[0] in STANDARD or name.startswith("numpy")
            assert known or name in vocabulary | {"theory.fields"}, f"{module} imports {name}"


def test_no_cycle():
    graph = {module_name(path): set() for path in FILES}
    for path in FILES:
        graph[module_name(path)] = {name for name in imports(path) if name in graph} - {module_name(path)}
    done: set[str] = set()
    while ready := {name for name, needs in graph.items() if name not in done and needs <= done}:
        done |= ready
    assert done == set(graph), f"import cycle among {sorted(set(graph) - done)}"


def test_a_forbidden_import_is_seen(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def late():\n    from theory.mean_field import predict\n    import matplotlib.pyplot\n")
    found = imports(file)
    assert "theory.mean_field" in found
    assert "matplotlib.pyplot" in found
    assert not found & MAY_IMPORT["simulate"]


def test_torch_stays_out():
    """Of theory, of figures and of the command's help, in one process."""
    code = "import sys, theory, figures; from gradbounds.cli import main; assert main(['--help']) == 0; "
    check = code + "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_stay_readable():
    long = [(str(path.relative_to(ROOT)), n) for path in FILES if (n := len(path.read_text().splitlines())) > 260]
    assert not long, "split what has grown past about 250 lines"
