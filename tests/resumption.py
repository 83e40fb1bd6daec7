"""A plugin of pytest for evidence: a test that passed is not run again while the sources are the same."""

import hashlib
from pathlib import Path

import pytest

KEPT = Path("runs", "evidence")
"""Where it is noted what passed, in the checkout."""
SOURCES = ("theory", "simulate", "checks", "figures", "gradbounds")


class Resumption:
    """What passed, one folder for a file of tests and a state of the sources.

    Sources are the packages, tests but evidence (which imports from them), the pins and the file itself, as they were
    at the start: evidence in another file may be added or changed without running this again.
    """

    def __init__(self, root: Path):
        self.root = root
        self.digest = hashlib.sha256()
        files = [file for folder in SOURCES for file in (root / folder).rglob("*.py")]
        for file in sorted([*files, *self._test_files(root), *root.glob("constraints.txt")]):
            self._add(self.digest, file)

    @staticmethod
    def _test_files(root: Path) -> list[Path]:
        tests = root / "tests"
        return [file for file in tests.rglob("*.py") if tests / "evidence" not in file.parents]

    def _add(self, digest: "hashlib._Hash", file: Path) -> None:
        # Names and lengths too: no text moves from one file to another unseen.
        content = file.read_bytes()
        digest.update(f"{file.relative_to(self.root)}\n{len(content)}\n".encode() + content)

    def folder(self, file: Path) -> Path:
        """Of a file of tests: what its tests noted."""
        digest = self.digest.copy()
        self._add(digest, file)
        return self.root / KEPT / file.name / digest.hexdigest()[:16]

    def note(self, node: str) -> Path:
        """The file that is there when this test passed."""
        # With xdist a node has its group behind it.
        file, _, name = node.partition("@")[0].partition("::")
        return self.folder(self.root / file) / (name.replace("/", "-") + ".passed")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what passed."""
        done = [item for item in items if self.note(item.nodeid).exists()]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item not in done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what passed, at once."""
        if report.when == "call" and report.passed:
            note = self.note(report.nodeid)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with the sources as they are."""
    config.pluginmanager.register(Resumption(config.rootpath), "resumption")
