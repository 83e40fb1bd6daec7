"""One-line errors planted in the packages, each of which some test must catch: `python -m tests.mutants [NAME ...]`.

Each mutant of `tests/mutants.toml` is put into a copy of the tracked files. There its own few tests run first; only
what survives them meets the whole suite. The copy stands first on the path of every process, the command line's too.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from simulate.runs.provenance import processor

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).parent / "mutants.toml"

WHOLE_SUITE = ("--ignore=tests/test_mutants.py",)
"""Arguments of pytest for all tests but the one of the list itself, which would see every mutant as a rotten entry."""

TIMEOUT = "time limit"

# Seconds: the suite takes a quarter of an hour on one core, and a mutant may make it hang.
_FIRST_LIMIT, _SUITE_LIMIT = 900.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One error, as a replacement of text in one file.

    Attributes:
        name: its key in the list.
        file: path from the root.
        old: text that occurs exactly once in the file.
        new: what replaces it.
        why: what a user would be told wrongly.
        tests: arguments of pytest that are tried first, the cheapest first.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        name: of the mutant.
        caught_by: the test that failed, or `TIMEOUT`; None where none did.
        stage: "first" for the mutant's own tests, "suite" for all.
        seconds: wall clock, of both stages together.
        trouble: why pytest said neither, "" if it did.
    """

    name: str
    caught_by: str | None
    stage: str = "first"
    seconds: float = 0.0
    trouble: str = ""


def read_mutants(path: Path = LIST) -> list[Mutant]:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Mutant(name=name, **one | {"tests": tuple(one["tests"])}) for name, one in content.items()]


def rotten(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """A line for every mutant that no longer fits the files, or changes nothing."""
    lines = []
    for mutant in mutants:
        file = root / mutant.file
        count = file.read_text(encoding="utf-8").count(mutant.old) if file.is_file() else 0
        if count != 1 or mutant.old == mutant.new:
            lines.append(f"{mutant.name}: old occurs {count} times in {mutant.file}, or new is the same")
        lines += [f"{mutant.name}: there is no {test}" for test in mutant.tests if not _exists(test, root)]
    return lines


def _exists(test: str, root: Path) -> bool:
    """Whether there is such a file and, where one is named, such a test in it."""
    name, _, function = test.partition("::")
    file = root / name
    return file.is_file() and (not function or f"def {function}(" in file.read_text(encoding="utf-8"))


def copy_tracked(root: Path, tree: Path) -> None:
    """Copy the files that git tracks, as they are in the working tree."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        if (root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)


def tested(tree: Path, arguments: Sequence[str], limit: float) -> tuple[str | None, str]:
    """Run pytest in a tree until a test fails.

    Args:
        tree: where it runs, and what is imported.
        arguments: of pytest.
        limit: seconds after which it is stopped.

    Returns:
        The test that failed, `TIMEOUT`, or None; and the last lines of pytest where it neither passed nor failed.
    """
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    said = tree / "pytest.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", *arguments], cwd=tree, env=environment, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return TIMEOUT, ""
    # Pytest's own record has the names of tests whole, whatever the terminal made of them.
    failures = tree / ".pytest_cache" / "v" / "cache" / "lastfailed"
    failed = list(json.loads(failures.read_text(encoding="utf-8"))) if failures.is_file() else []
    if code == 0:
        return None, ""
    if failed:
        return failed[0], ""
    last = said.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    return None, "\n".join([f"exit code {code}", *last])


def judged(mutant: Mutant, arguments: Sequence[str], stage: str, limit: float, root: Path = ROOT) -> Verdict:
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tracked(root, tree)
        file = tree / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        caught_by, trouble = tested(tree, arguments, limit)
    seconds = time.perf_counter() - start
    verdict = Verdict(name=mutant.name, caught_by=caught_by, stage=stage, seconds=round(seconds, 1), trouble=trouble)
    word = "TROUBLE" if trouble else "SURVIVED" if caught_by is None else "caught"
    print(f"{word:8} {stage:5} {verdict.seconds:7.1f} s  {mutant.name}  {caught_by or trouble}", flush=True)
    return verdict


def verdicts(mutants: Sequence[Mutant], jobs: int, root: Path = ROOT) -> list[Verdict]:
    """All mutants under their own tests, and what survives under the whole suite; so many at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda one: judged(one, one.tests, "first", _FIRST_LIMIT, root), mutants))
        left = [one for one, first in zip(mutants, found, strict=True) if first.caught_by is None and not first.trouble]
        under_all = partial(judged, arguments=WHOLE_SUITE, stage="suite", limit=_SUITE_LIMIT, root=root)
        again = {second.name: second for second in pool.map(under_all, left)}
    return [
        replace(again[first.name], seconds=round(first.seconds + again[first.name].seconds, 1))
        if first.name in again
        else first
        for first in found
    ]


def fail_without_mutant(found: Sequence[Verdict], root: Path = ROOT) -> str | None:
    """A test that caught a mutant and fails without one, so that it caught nothing; None if all pass."""
    tests = sorted({one.caught_by for one in found if one.caught_by not in (None, TIMEOUT)})
    if not tests:
        return None
    with TemporaryDirectory() as folder:
        copy_tracked(root, Path(folder))
        failed, trouble = tested(Path(folder), tests, _SUITE_LIMIT)
    return failed or trouble or None


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants and write a file of verdicts; 1 where one survives, or a test that caught one fails without."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("name", nargs="*", help="mutants, all if none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time (default: cores)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants.json", help="file of verdicts")
    given = parser.parse_args(arguments)
    mutants = read_mutants()
    if unknown := set(given.name) - {one.name for one in mutants}:
        parser.error(f"name must be that of a mutant in {LIST.name}, got {', '.join(sorted(unknown))}")
    chosen = [one for one in mutants if not given.name or one.name in given.name]
    if lines := rotten(chosen):
        print("\n".join(lines))
        return 1
    start = time.perf_counter()
    found = verdicts(chosen, given.jobs)
    failing = fail_without_mutant(found)
    survived = [one.name for one in found if one.caught_by is None]
    about = {
        "processor": processor(), "python": platform.python_version(), "jobs": given.jobs,
        "minutes": round((time.perf_counter() - start) / 60, 1), "mutants": len(found),
        "caught by their own tests": sum(one.caught_by is not None and one.stage == "first" for one in found),
        "caught by the suite alone": sum(one.caught_by is not None and one.stage == "suite" for one in found),
        "survived": survived, "fails without a mutant": failing, "verdicts": [asdict(one) for one in found],
    }  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found) - len(survived)} of {len(found)} mutants caught; {given.out}")
    if failing:
        print(f"A test that caught a mutant fails without one: {failing}")
    return 1 if survived or failing else 0


if __name__ == "__main__":
    sys.exit(main())
