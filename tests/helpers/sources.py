"""Python files as syntax trees, each parsed once for all tests of a process."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(path: Path) -> list[ast.stmt]:
    """All statements of a file, those inside others included; expressions, which hold none, are not looked through."""
    found, blocks = [], [tree(path).body]
    while blocks:
        for node in blocks.pop():
            if isinstance(node, ast.stmt):
                found.append(node)
            blocks += [getattr(node, name, []) for name in ("body", "orelse", "finalbody", "handlers", "cases")]
    return found
