"""A run folder that was written before modules were in subpackages: read, sampled again, and continued."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from gradbounds.cli import main
from gradbounds.recipe import read_recipe
from simulate import Cell, Execution, Run, sample
from simulate.runs.provenance import manifest
from simulate.runs.sweep import sample_into
from studies.training.cells import arrays_in, training_cell
from studies.training.optimizers import Optimizer
from studies.training.schedule import Schedule, roles
from studies.training.train import train_block, train_task
from theory import Stack

# gradbounds sweep --placement post pre --width 8 --depth 1 --draws 4 --tokens 2 --vocab 3 --seed 3
FOLDER = Path(__file__).parents[1] / "data" / "old_run"
SWEEP = "sweep --placement post pre --width 8 --depth 1 --draws 4 --tokens 2 --vocab 3 --seed 3 --out".split()
NAMES = {"post": "ed5b14c246329197", "pre": "52428b8a324d93a8"}


def test_old_draws_are_read_and_sampled_again():
    for old in Run.open(FOLDER).samples():
        assert old.cell.name == NAMES[old.stack.placement]
        new = sample(old.stack, draws=old.draws, seed=3)
        assert set(old) <= set(new)
        for quantity, values in old.items():
            # Another processor rounds differently.
            np.testing.assert_allclose(new[quantity], values, rtol=1e-3, atol=1e-5, err_msg=quantity)


def test_an_old_run_is_continued(tmp_path):
    """The same command finds all blocks landed; its request is the one in the old manifest."""
    run = shutil.copytree(FOLDER, tmp_path / "old_run")
    before = {file.name: file.read_bytes() for file in (run / "blocks").iterdir()}
    assert main([*SWEEP, str(run)]) == 0
    assert {file.name: file.read_bytes() for file in (run / "blocks").iterdir()} == before
    assert len(Run.open(run).manifest["sessions"]) == 2


# gradbounds sweep --placement post --width 3400 --depth 1 --tokens 1 --vocab 2 --engine dense --branch-scale 0 0.5
# --draws 1, as it was when 0 left branch_scale to the placement; rows have 0 in every field left to its own.
ZEROS = Path(__file__).parents[1] / "data" / "own_as_zero"
BEFORE = {None: "bdac0f05c6d03854", 0.5: "991476c166df0b4e"}


def test_a_zero_of_an_older_file_is_the_placements_own(tmp_path):
    """Cells keep their names; beside rows of today, in which 0 is 0, each is read as it was written."""
    assert pq.read_table(ZEROS / "blocks", columns=["branch_scale"])["branch_scale"].to_pylist() == [0.0, 0.5]
    run = Run.open(shutil.copytree(ZEROS, tmp_path / "run"))
    assert {s.stack.branch_scale: s.cell.name for s in run.samples()} == BEFORE
    assert {name for name, _, _ in run.landed()} == set(BEFORE.values())
    assert all(s.to_frame()["init_std"].isna().all() for s in run.samples())
    own = run.samples()[0].stack
    sample_into([Cell(replace(own, branch_scale=0)), Cell(replace(own, width=2))], draws=1, seed=0, run=run)
    assert sorted((s.stack.branch_scale is None, s.stack.branch_scale or 0.0) for s in run.samples()) == [
        (False, 0.0), (False, 0.5), (True, 0.0), (True, 0.0),
    ]  # fmt: skip
    new = pq.read_table(run.files()[-1])
    assert new["branch_scale"].null_count == 64
    assert new["init_std"].null_count == new.num_rows


def test_the_recipe_of_an_older_manifest_has_own_for_its_zeros(tmp_path):
    """So that `sweep --file` and `watch` mean the same networks; a manifest of today keeps its zeros."""
    scales = [stack.branch_scale for stack in read_recipe(ZEROS / "manifest.toml").stacks()]
    assert scales == [None, 0.5]
    again = tmp_path / "manifest.toml"
    again.write_text('own = "null"\n' + (ZEROS / "manifest.toml").read_text())
    assert [stack.branch_scale for stack in read_recipe(again).stacks()] == [0.0, 0.5]


# Both by the engine that draws no matrices, from before it waited once in training for a use of a map:
# gradbounds sweep --placement post pre --width 16 --depth 2 --tokens 3 --vocab 5 --draws 4 --seed 3
#   --engine conditioned
# gradbounds train --placement post pre --width 16 --depth 1 --tokens 3 --vocab 5 --draws 4 --seed 3 --steps 4
#   --learning-rate 0.05 --engine conditioned
CONDITIONED = Path(__file__).parents[1] / "data" / "before_one_wait"
ROUNDING = {"rtol": 1e-3, "atol": 1e-5}


def test_draws_of_the_conditioned_engine_continue(tmp_path):
    """The first block stays as it is and is what is sampled now, to rounding; another lands beside it."""
    run = Run.open(shutil.copytree(CONDITIONED / "sweep", tmp_path / "run"))
    before = {one.cell.name: one for one in run.samples()}
    cells = [one.cell for one in before.values()]
    assert run.request["cells"] == manifest("sweep", cells, draws=4, seed=3)["request"]["cells"]
    sample_into(cells, draws=65, seed=3, run=run)
    assert sorted(block for _, _, block in run.landed()) == [0, 0, 1, 1]
    for one in run.samples():
        new = sample(one.stack, draws=128, seed=3, engine="conditioned")
        for name, values in one.items():
            np.testing.assert_array_equal(values[:64], before[one.cell.name][name], err_msg=name)
            np.testing.assert_allclose(new[name], values, **ROUNDING, err_msg=name)


def test_training_by_the_conditioned_engine_continues(tmp_path):
    """Likewise, over four steps of training."""
    run = Run.open(shutil.copytree(CONDITIONED / "train", tmp_path / "run"))
    cells = []
    for placement in ("post", "pre"):
        stack = Stack(placement=placement, width=16, depth=1, tokens=3, vocab=5)
        schedule = Schedule.of(
            roles(stack), steps=4, learning_rate=0.05, optimizer=Optimizer(), factors=None, batch="same"
        )
        cells.append(training_cell(stack, schedule, engine="conditioned"))
    assert run.request["cells"] == manifest("train", cells, draws=4, seed=3)["request"]["cells"]
    before = arrays_in(run, cells, 3, 64)
    sample_into(cells, draws=65, seed=3, run=run, execution=Execution(work=train_task, at_once=1))
    assert sorted(block for _, _, block in run.landed()) == [0, 0, 1, 1]
    for cell, old, both in zip(cells, before, arrays_in(run, cells, 3, 128), strict=True):
        new = train_block(cell, cell.trained, cell.block_seed(3, 0), 64)
        assert set(new) == {*old, "stream_gradient_sq"}  # which these files are older than
        for name, values in old.items():
            np.testing.assert_array_equal(both[name][:64], values, err_msg=name)
            np.testing.assert_allclose(new[name], values, **ROUNDING, err_msg=name)
