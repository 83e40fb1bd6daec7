"""Commit the verdicts of a folder: `make accept RUN=runs/verify`, from the root of a checkout.

The folder is a run, which is judged anew, or holds the `verdicts.json` that a command wrote. What differs from theory
is refused. The pages of all committed results are then written again.
"""

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from checks.experiment import DRAWS, SEED
from checks.results import COMMITTED, FIELD, committed_results, load_results, results
from checks.stacks.judge import verdicts
from checks.stacks.own_claims import without_own
from checks.theory_and_samples import comparison
from checks.verdict import Verdict
from gradbounds.actions.runs import judged_samples
from gradbounds.actions.statements import CLAIMS_RUN
from simulate import Run
from simulate.runs.files import write_whole
from simulate.runs.manifests import MANIFEST
from theory.paper.claims import sources
from tools.paper_page import PAGE, page

_DATA = Path("checks/data")


def accept(folder: Path) -> list[str]:
    """Commit a folder's verdicts under its name, and render the pages.

    Returns:
        The files that were written.

    Raises:
        ValueError: this is no checkout, the folder has no verdicts, they differ from theory, or a default experiment
            was sampled otherwise.
    """
    if not _DATA.is_dir():
        raise ValueError("accept must be called in a checkout of gradbounds, but there is no checks/data here.")
    name = f"{folder.resolve().name}.json"
    if (folder / MANIFEST).exists() and Run.open(folder).request.get("command") == CLAIMS_RUN:
        return _of_statements(folder)
    if (folder / MANIFEST).exists():
        name, content = _of_run(folder, name)
    else:
        written = load_results(folder / "verdicts.json")
        _check(written.verdicts)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        content = results(
            written.verdicts, [], written.command, date=datetime.now(UTC).date().isoformat(),
            commit=commit.stdout.strip(),
        )  # fmt: skip
    if (folder / "rows.json").exists():  # of training runs, which pages show
        write_whole(_DATA / "warmup" / name, (folder / "rows.json").read_bytes())
    return accept_verdicts(name, content)


def accept_verdicts(name: str, content: str) -> list[str]:
    """Commit a results file, and write the pages of all of them again; the files that were written."""
    write_whole(_DATA / name, content.encode())
    write_whole(Path(PAGE), page(committed_results(folder=_DATA)).encode())
    return [str(_DATA / name), PAGE]


def _of_run(folder: Path, name: str) -> tuple[str, str]:
    """The name and the content of a run's results; of relaxations without the paper's setting, which others have.

    Raises:
        ValueError: it differs from theory, or is the default experiment with other draws or another seed.
    """
    run = Run.open(folder)
    sampled = judged_samples(run)
    differing = comparison(sampled).query("agreement == 'differs'")
    if len(differing):
        raise ValueError(f"run must agree with theory to be accepted, but {len(differing)} of its numbers differ.")
    judged = without_own(verdicts(sampled))
    _check(judged)
    if run.request.get("command") == "verify":
        asked = {"draws": run.manifest.get("draws"), "seed": run.request.get("seed")}
        if asked != {"draws": DRAWS, "seed": SEED}:
            raise ValueError(f"run must be the default experiment of {DRAWS} draws and seed {SEED}, got {asked}.")
        return COMMITTED.name, results(judged, sampled, "gradbounds verify")
    about = [v for v in judged if v.relaxed] or judged
    return name, results([v for v in about if v.cells], sampled, run.manifest["sessions"][0]["command"])


def _of_statements(folder: Path) -> list[str]:
    """Commit verdicts on statements of other papers, a file for each source; the files that were written.

    Raises:
        ValueError: there are none, or one differs from theory.
    """
    written, files = load_results(folder / "verdicts.json").verdicts, []
    _check(written)
    for name, claims in sources().items():
        if about := [v for v in written if v.claim in claims]:
            files.append(_DATA / FIELD.name / f"{name}.json")
            write_whole(files[-1], results(about, [], f"gradbounds verify --source {name}").encode())
    return [str(file) for file in files]


def _check(judged: Sequence[Verdict]) -> None:
    """Refuse verdicts that differ from theory.

    Raises:
        ValueError: there is one.
    """
    if differ := [f"{v.claim}, {v.part}" for v in judged if v.agreement == "differs"]:
        raise ValueError(f"verdicts must agree with theory to be accepted, but these differ: {'; '.join(differ)}.")


if __name__ == "__main__":
    try:
        print("Accepted", ", ".join(accept(Path(sys.argv[1]))))
    except (ValueError, IndexError) as error:
        sys.exit(f"accept: {error}")
