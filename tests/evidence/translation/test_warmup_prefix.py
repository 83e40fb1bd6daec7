"""The first 1000 updates of the paper's training at its width on Multi30k, a run a part, by the preset `prefix`.

MULTI30K names the folder of train.de and train.en, PREFIX one for checkpoints and records: without it the one of all
evidence. A run that was cut off leaves a row of what it had recorded when its part is started again, and goes on.
"""

import os
from functools import partial
from pathlib import Path

import pytest

from gradbounds.studies.warmup.outcomes import measured_row, unigram_loss
from gradbounds.studies.warmup.prefixes import arms
from gradbounds.studies.warmup.reproduce import grid_named, read_rows, rows_file
from gradbounds.studies.warmup.runs import cut_off, name_of, one_run
from simulate.runs.files import write_whole
from simulate.runs.provenance import processor
from simulate.translation.parallel_text import read_pairs
from tests.helpers.evidence_file import DEVICE, FOLDER, part

MULTI30K = os.environ.get("MULTI30K", "")
GRID = grid_named("prefix")
RUNS = {
    f"{d['placement']}-{d['warmup']}-{d['peak']:.0e}-{d['seed']}".replace("e-0", "e-"): run
    for run in GRID.runs for d in [run.described()]
}  # fmt: skip
ROWS = FOLDER / "warmup_prefix"
pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(not MULTI30K, reason="MULTI30K must name a folder with train.de and train.en"),
]


def tell(name, update, loss, _):
    """A line every 25 updates."""
    if update % 25 == 0:
        print(f"{name}: update {update}, loss {loss:.3f}", flush=True)


def write_row(name, table, texts, ended):
    """As `reproduce warmup` has it, with where it was run and whether it was cut off."""
    run = RUNS[name]
    row = run.described() | {"name": name_of(run, texts), "ended": ended, "processor": processor(DEVICE)}
    row |= measured_row(table, unigram_loss(*texts), GRID.start)
    write_whole(ROWS / f"{name}.json", rows_file([row], part(f"warmup-{name}")))
    return row


@pytest.mark.parametrize("name", list(RUNS))
def test_one_run(name, kept_folder):
    """One row, a file of its own, of a run that took all updates or whose loss was not finite."""
    whole = read_pairs(
        Path(MULTI30K) / "train.de", Path(MULTI30K) / "train.en", vocab=GRID.translation.vocab, units=GRID.units
    )
    texts, out = GRID.texts(whole), Path(os.environ.get("PREFIX", kept_folder))
    if (record := cut_off(RUNS[name], texts, out)) is not None:
        write_row(name, record, texts, "cut off")
    told = partial(tell, name)
    row = write_row(name, one_run(RUNS[name], texts, out, DEVICE, told), texts, "finished")
    assert row["updates"][-1] == GRID.runs[0].training.updates or row["outcome"] == "diverged"


def test_arms():
    """The words of the design on the rows that are there."""
    rows = [row for file in sorted(ROWS.glob("*.json")) for row in read_rows(file)]
    if not any(row["placement"] == "post" and row["warmup"] == GRID.start for row in rows):
        pytest.skip("no reference has run")
    found = arms(rows)
    print(*found, sep="\n")
    assert all(arm.update > 0 for arm in found)
