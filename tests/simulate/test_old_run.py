"""A run folder that was written before modules were in subpackages: read, sampled again, and continued."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gradbounds.cli import main
from simulate import Cell, Run, sample
from theory import Stack

# gradbounds sweep --placement post pre --width 8 --depth 1 --draws 4 --tokens 2 --vocab 3 --seed 3
FOLDER = Path(__file__).parents[1] / "data" / "old_run"
SWEEP = "sweep --placement post pre --width 8 --depth 1 --draws 4 --tokens 2 --vocab 3 --seed 3 --out".split()
NAMES = {"post": "ed5b14c246329197", "pre": "52428b8a324d93a8"}
KEYS = {
    "post": '{"device":"cpu","dtype":"float32","engine":"dense","stack":{"depth":1,"tokens":2,"vocab":3,"width":8}}',
    "pre": (
        '{"device":"cpu","dtype":"float32","engine":"dense",'
        '"stack":{"depth":1,"placement":"pre","tokens":2,"vocab":3,"width":8}}'
    ),
}


@pytest.mark.quick
def test_keys_and_names_are_the_old_ones():
    """Numbers hang on them: they seed the generators."""
    for placement, name in NAMES.items():
        cell = Cell(Stack(placement=placement, width=8, depth=1, tokens=2, vocab=3))
        assert cell.key == KEYS[placement]
        assert cell.name == name
    assert Run.open(FOLDER).landed() == {(name, 3, 0) for name in NAMES.values()}


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
