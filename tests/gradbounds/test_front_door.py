"""`import gradbounds as gb`: its names, what they load, and what is said where other modules have the same names."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

import figures
import gradbounds as gb
import simulate
import theory
from checks.models.judge import probe
from gradbounds.cli import main
from gradbounds.shadowing import ShadowedError, check_own_packages, load_own
from simulate.runs.execution import worker_context

HEAVY = ("torch", "numpy", "scipy", "pandas", "sympy", "matplotlib", "pyarrow", "tyro")


def test_editors_and_python_see_the_same_names():
    tree = ast.parse(Path(gb.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {}
    for line in block.body:
        for alias in line.names:
            renamed = f"{line.module}:{alias.name}" if alias.asname else line.module
            typed[alias.asname or alias.name] = renamed
    assert typed == gb._HOMES
    assert sorted(typed) == sorted(gb.__all__)
    assert dir(gb) == sorted([*gb.__all__, "__version__"])


def test_no_module_has_the_name_of_a_public_name():
    """Importing it would overwrite the name."""
    assert not {module.name for module in pkgutil.iter_modules(gb.__path__)} & set(gb.__all__)


def test_a_wrong_name_says_which_may_be_meant():
    with pytest.raises(AttributeError, match=r"no attribute 'predcit'; did you mean 'predict'\?"):
        gb.predcit  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'claims'"):
        gb.CLAIMS  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'xyz'$"):
        gb.xyz  # noqa: B018


def test_a_wrong_field_says_which_may_be_meant():
    with pytest.raises(TypeError, match=r"^Stack has no field widht\. Did you mean width\?$"):
        gb.Stack(widht=3)


@pytest.mark.parametrize("take", [
    gb.predict, gb.first_step, gb.noise_scale, gb.bound_value, gb.Cell,
    lambda stack: gb.sample(stack, draws=1, seed=0),
])  # fmt: skip
def test_what_is_no_stack_is_said(take):
    with pytest.raises(ValueError, match=r"^stack must be a Stack, such as Stack\(width=512\), got 512\.$"):
        take(512)


def test_names_are_lazy(tmp_path):
    code = f"""
import sys
import gradbounds as gb
dir(gb), gb.__version__, hasattr(gb, "nothing")
assert not set({HEAVY}) & set(sys.modules), "import gradbounds loads a library"
gb.predict(gb.Stack(width=8, depth=1))
assert "torch" not in sys.modules
gb.sweep([gb.Stack(width=8, depth=1)], draws=1, seed=0, out={str(tmp_path)!r})
assert not {{"pandas", "matplotlib", "scipy.stats"}} & set(sys.modules), "a sweep loads what it does without"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_submodule_overwrites_a_name():
    """In this process, which has loaded most of them: each name is still what its home has."""
    for package in ("theory", "simulate", "checks", "figures", "gradbounds"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)
    for name, home in gb._HOMES.items():
        module, _, renamed = home.partition(":")
        assert getattr(gb, name) is getattr(importlib.import_module(module), renamed or name)
    assert gb.Stack is theory.Stack and gb.claims is theory.CLAIMS
    assert gb.probe is probe and (gb.sample, gb.Run) == (simulate.sample, simulate.Run)


@pytest.mark.parametrize("name", ["theory", "simulate", "checks", "figures"])
def test_another_module_is_named_and_a_bare_folder_does_no_harm(tmp_path, monkeypatch, name):
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / name).mkdir()
    check_own_packages()
    (tmp_path / f"{name}.py").touch()
    with pytest.raises(ShadowedError) as said:
        check_own_packages()
    assert f"own package {name!r}, but Python finds {tmp_path / name}.py first" in str(said.value)
    assert "\n" not in str(said.value)
    if name != "theory":
        check_own_packages("theory")  # which needs no other
    (tmp_path / f"{name}.py").unlink()
    (tmp_path / name / "__init__.py").touch()
    with pytest.raises(ShadowedError, match="__init__.py first"):
        check_own_packages(name)


def test_a_module_loaded_before_ours_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "theory", pytest)
    with pytest.raises(ShadowedError, match="finds .*pytest.* first"):
        check_own_packages("theory")


def run(folder, *arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["theory"])
def test_a_script_may_have_the_name_of_a_package(tmp_path, name):
    """And nobody runs it again by that name, of which another module in its folder is still an error."""
    script = tmp_path / f"{name}.py"
    script.write_text(
        "print(__name__)\nimport gradbounds as gb, theory, simulate, checks\n"
        "print(gb.Stack(width=8), simulate.__all__)\n"
        "import importlib.util\nprint(importlib.util.find_spec('figures').submodule_search_locations)\n"
        "from gradbounds.shadowing import check_own_packages\ncheck_own_packages()\n"
    )
    code, out, err = run(tmp_path, script.name)
    assert (code, err) == (0, "")
    assert out == f"__main__\nStack(width=8) {simulate.__all__}\n{[str(Path(figures.__file__).parent)]}\n"
    code, out, err = run(
        tmp_path.parent, "-c", f"import runpy; runpy.run_path({str(script)!r}, run_name='__mp_main__')"
    )
    assert (code, err) == (0, "")  # as a worker runs it
    other = next(package for package in ("theory", "figures") if package != name)
    (tmp_path / f"{other}.py").touch()
    code, out, err = run(tmp_path, script.name)
    assert code == 1
    assert f"own package {other!r}, but Python finds {tmp_path / other}.py first" in err


def test_workers_take_our_packages_from_where_they_are(tmp_path):
    """Their server looks into its folder first, and would run what it finds there."""
    for name in ("theory", "simulate"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else was run')")
    code, out, err = run(
        tmp_path, "-c",
        "from gradbounds.shadowing import load_own; load_own('theory', 'simulate'); import simulate, theory\n"
        "print(simulate.__file__, theory.__file__)",
    )  # fmt: skip
    assert (code, err) == (0, "") and out.split() == [simulate.__file__, theory.__file__]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers begin without a server")
def test_the_server_of_workers_begins_with_that(monkeypatch):
    monkeypatch.setattr(forkserver, "ensure_running", lambda: None)
    worker_context()
    assert forkserver._forkserver._preload_modules[0] == "gradbounds.workers"
    assert importlib.import_module("gradbounds.workers").load_own is load_own


def test_every_way_to_start_works_or_says_what_shadows(tmp_path):
    """`python -m` and scripts look into the folder first; the installed command does not."""
    (tmp_path / "checks.py").touch()
    (tmp_path / "mine.py").write_text("import gradbounds as gb\ngb.verdicts\n")
    code, out, err = run(tmp_path, "-m", "gradbounds", "--version")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "its own package 'checks'" in err
    code, out, err = run(tmp_path, "mine.py")
    assert (code, out) == (1, "")
    assert str(tmp_path / "checks.py") in err
    (tmp_path / "checks.py").rename(tmp_path / "numpy.py")
    code, out, err = run(tmp_path, "-m", "gradbounds", "predict")
    said = f"gradbounds needs the library 'numpy', but Python finds {tmp_path / 'numpy.py'} first: "
    assert (code, out, err.count("\n"), err[: len(said)]) == (2, "", 1, said)
    code, out, err = run(tmp_path, str(Path(sys.executable).parent / "gradbounds"), "--version")
    assert (code, out, err) == (0, f"gradbounds {gb.__version__}\n", "")


def test_a_module_named_on_the_command_line_is_imported(own_names, monkeypatch, tmp_path, capsys):
    name = "own_module_of_a_folder"
    (tmp_path / f"{name}.py").write_text(
        "import gradbounds as gb\n"
        "def gain(role, d_in, d_out):\n    return 1.0\n"
        "gb.register_initialization('own.imported', gb.Initialization(gain=gain, source='here'))\n"
    )
    (tmp_path / "own_broken.py").write_text("raise KeyError('nothing')\n")
    (tmp_path / "own_ending.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    given = ["predict", "--initialization", "own.imported", "--width", "64", "--depth", "1"]
    assert main(given) == 2
    assert "initialization must be one of" in capsys.readouterr().err
    for arguments in ([*given, "--import", name], [f"--import={name}", *given]):
        assert main(arguments) == 0
        assert "Post-LN" in capsys.readouterr().out
    for wrong, said in (
        ("own_broken", "import must name a module that can be imported, but 'own_broken' raised KeyError: 'nothing'."),
        ("own_ending", "import must name a module that can be imported, but 'own_ending' raised SystemExit: 0."),
        ("own_absent", "import must name a module that can be imported, but 'own_absent' raised ModuleNotFoundError: "),
    ):
        assert main([*given, "--import", wrong]) == 2
        assert capsys.readouterr().err.startswith(f"gradbounds: --{said}")
    assert main([*given, "--import"]) == 2
    assert (
        capsys.readouterr().err
        == "gradbounds: --import must be followed by the name of a module, as in --import mine.\n"
    )
