"""No function of the packages binds a name that says nothing of what it holds, on every file's syntax tree."""

import ast
from collections.abc import Iterator

import pytest

from tests.helpers.sources import tree
from tests.test_architecture import FILES, ROOT

# Words that fit whatever a variable holds, and so say nothing of it.
VAGUE = {"found", "own", "one", "said", "some", "more", "held", "made"}


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of variables and parameters, with their lines; not fields, nor parameters that callers may name."""
    owners = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    inside = [node for owner in owners for node in owner.body]
    kept = {id(node.target) for node in inside if isinstance(node, ast.AnnAssign)}
    for node in inside:
        if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name.endswith("__")):
            arguments = node.args
            kept |= {id(argument) for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
            kept |= {id(arguments.vararg), id(arguments.kwarg)}
    methods = {id(node) for node in inside}
    for node in ast.walk(tree):
        if id(node) in kept:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef) and id(node) not in methods:
            yield node.name, node.lineno


def vague(parsed: ast.Module) -> list[tuple[str, int]]:
    return [(name, line) for name, line in bound_names(parsed) if name in VAGUE]


def test_a_local_is_named_for_what_it_holds():
    seen = {}
    for path in FILES:
        name = str(path.relative_to(ROOT))
        if not name.startswith("tests/") and "/tests/" not in name and (names := vague(tree(path))):
            seen[name] = names
    assert not seen, "name a variable for what it holds: verdicts, rows, norms"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(x):\n    found = x\n    return found", ["found"]),
        ("def f(x):\n    for one, (y, own) in x:\n        pass", ["one", "own"]),
        ("def f(x):\n    return [one for one in x], lambda said: said", ["one", "said"]),
        ("def f(x):\n    def made():\n        return (more := x)\n    return made", ["made", "more"]),
        ("def _f(held):\n    pass", ["held"]),
        ("class A:\n    def f(self):\n        with self as some:\n            pass", ["some"]),
        ("class A:\n    own: int\n    def some(self, found, *, one=1, **more):\n        return self.own", []),
    ],
)
def test_a_vague_name_is_seen(source, names):
    assert sorted(name for name, _ in vague(ast.parse(source))) == names
