"""Run folders: what is refused, what a later version leaves valid, what is merged, what is read back."""

import re
import shutil
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checks.theory_and_samples import comparison
from simulate import Cell, Run, sample
from simulate.runs import cell, store, tables
from simulate.runs.execution import Execution
from simulate.runs.sweep import sample_into
from simulate.runs.tables import Block
from theory import QUANTITIES, Stack
from theory.stack.fields import integer

REQUEST = {"request": {"draws": 70, "seed": 3}}


def sampled_run(folder, cells, draws, **options):
    run = Run.create(folder / "run", REQUEST)
    sample_into(cells, draws=draws, seed=3, run=run, **options)
    return run


def test_a_folder_of_another_run_is_refused(tmp_path):
    Run.create(tmp_path / "run", REQUEST)
    assert Run.create(tmp_path / "run", REQUEST).manifest["request"] == REQUEST["request"]
    with pytest.raises(ValueError, match="^out must be a new folder or one of the same command, but .* another run"):
        Run.create(tmp_path / "run", {"request": {"draws": 71, "seed": 3}})
    replaced = Run.create(tmp_path / "run", {"request": {"draws": 71, "seed": 3}}, replace=True)
    assert Run.open(replaced.folder).manifest["request"]["draws"] == 71


def test_replacing_a_run_removes_its_draws_only(tmp_path, cells):
    run = sampled_run(tmp_path, cells, 1)
    (run.folder / "notes.txt").write_text("mine")
    assert Run.create(tmp_path / "run", REQUEST, replace=True).landed() == set()
    assert (run.folder / "notes.txt").read_text() == "mine"


def test_folders_that_are_no_run(tmp_path):
    with pytest.raises(ValueError, match="^run must be a folder that `gradbounds sweep` wrote"):
        Run.open(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="^out must be a new or empty folder"):
        Run.create(tmp_path / "full", REQUEST)
    with pytest.raises(ValueError, match="^out must be a new or empty folder"):
        Run.create(tmp_path / "full" / "thesis.tex", REQUEST)
    with pytest.raises(ValueError, match="^out must be writable"):
        Run.create("/proc/nowhere/run", REQUEST)
    run = Run.create(tmp_path / "empty", REQUEST)
    with pytest.raises(ValueError, match="^run must hold draws, but .* has none"):
        run.samples()
    (tmp_path / "empty" / "manifest.toml").write_text("format = 1\n")
    with pytest.raises(ValueError, match="^out must be a new folder or one of the same command"):
        Run.create(tmp_path / "empty", REQUEST)
    (tmp_path / "empty" / "manifest.toml").write_text("format = 99\n")
    with pytest.raises(ValueError, match="^run must have format 1, but .* has 99"):
        Run.open(tmp_path / "empty")


def damaged(content: bytes, rng: np.random.Generator) -> dict[str, bytes]:
    """A file with one bit flipped, and with 64 bytes that a disk has lost."""
    bit, start = rng.integers(8 * len(content)), rng.integers(max(1, len(content) - 64))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    return {f"bit {bit}": bytes(flipped), f"zeros from {start}": content[:start] + bytes(64) + content[start + 64 :]}


def test_damage_is_refused_with_the_files_name(tmp_path, cells):
    """Anywhere in a block, in windows of a text and in the manifest; a flip in the word `digest` changes no number."""
    run = sampled_run(tmp_path, cells, 1)
    files, rng = [*run.folder.rglob("*.parquet"), run.folder / "manifest.toml"], np.random.default_rng(0)
    assert len(files) == 3
    for file in files:
        content = file.read_bytes()
        for what, other in [one for _ in range(20) for one in damaged(content, rng).items()]:
            file.write_bytes(other)
            try:
                opened = Run.open(run.folder)
                assert opened.manifest.items() >= run.manifest.items(), (file, what)
                opened.samples()
                assert other.partition(b"\n")[0] != content.partition(b"\n")[0], (file, what)
                assert other.partition(b"\n")[2] == content.partition(b"\n")[2], (file, what)
            except ValueError as error:
                assert str(file if file.suffix == ".parquet" else run.folder) in str(error)
        file.write_bytes(content)
    run.samples()


@pytest.mark.parametrize(("edit", "reason"), [
    (lambda v: {"loss_gradient_sq": np.where(np.arange(64) == 9, -5, v["loss_gradient_sq"])}, "loss_gradient_sq is b"),
    (lambda v: {"hidden_energy": v["hidden_energy"][:, 1:]}, "hidden_energy does not have one number for each"),
    (lambda v: {name: value[:32] for name, value in v.items()}, "instead of 64 from 0 on"),
])  # fmt: skip
def test_rows_that_no_network_has_are_refused(tmp_path, edit, reason):
    """Whoever wrote them: the file is whole, and its digest fits. A sweep does not continue half a block."""
    run, cell = Run.create(tmp_path / "run", REQUEST), Cell(Stack(width=8, depth=2))
    values = sample(cell.stack, draws=64, seed=0).arrays
    run.append([Block(cell, 0, 0, values | edit(values))])
    said = f"^run must hold whole .*{run.files()[0].name}.*{reason}"
    with pytest.raises(ValueError, match=said):
        run.samples()
    if len(next(iter(edit(values).values()))) < 64:
        with pytest.raises(ValueError, match=said):
            sample_into([cell], draws=64, seed=0, run=run)


def test_an_empty_file_is_never_written(tmp_path):
    run = Run.create(tmp_path / "run", REQUEST)
    run.append([])
    assert not list(run.folder.rglob("*.parquet"))
    cell = Cell(Stack(width=8, depth=1))
    values = {name: array for name, array in sample(cell.stack, draws=64, seed=0).items() if name != "head_norm"}
    run.append([Block(cell, 0, 0, values)])
    assert "head_norm" not in run.samples()[0], "a quantity that an engine does not give stays absent"


def test_keys_are_what_they_have_always_been():
    """Keys, names and seeds fix every number that was ever sampled: none may change."""
    plain = Cell(Stack(), "dense")
    assert plain.key == '{"device":"cpu","dtype":"float32","engine":"dense","stack":{}}'
    assert plain.name == "060f3adcae5d884c"
    assert plain.block_seed(0, 5) == 62120415122708597
    assert Cell(Stack(), device="cuda:1").key == Cell(Stack(), device="cuda").key
    other = Cell(Stack(placement="pre", width=64, output_scale=2.0), "dense", dtype="float64")
    assert other.key == (
        '{"device":"cpu","dtype":"float64","engine":"dense","stack":{"output_scale":2.0,"placement":"pre","width":64}}'
    )


def test_a_field_added_later_leaves_numbers_and_folders_valid(tmp_path, cells, monkeypatch):
    """A Stack with one more field, at its default: same keys, same seeds, old folders read and continued."""
    run = sampled_run(tmp_path, cells, 64)
    before = run.samples()

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Later(Stack):
        to_come: int = integer(1, 1, "of a field to come")

        def non_default(self) -> dict[str, Any]:
            return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    for module in (store, tables, cell):
        monkeypatch.setattr(module, "Stack", Later)
    later = [replace(c, stack=Later(**{f.name: getattr(c.stack, f.name) for f in fields(Stack)})) for c in cells]
    assert [c.key for c in later] == [c.key for c in cells]
    assert [c.block_seed(3, 1) for c in later] == [c.block_seed(3, 1) for c in cells]
    after = run.samples()
    assert [s.stack.to_come for s in after] == [1, 1, 1]
    for a, b in zip(before, after, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    calls = []
    sample_into(later, draws=64, seed=3, run=run, on_block=calls.append)
    assert not calls, "every block had landed"
    relaxed = Cell(Later(width=8, depth=2, to_come=2))
    assert relaxed.key != later[0].key
    sample_into([relaxed], draws=64, seed=3, run=run)
    assert sorted(s.stack.to_come for s in run.samples()) == [1, 1, 1, 2], "old and new files in one folder"
    monkeypatch.undo()
    with pytest.raises(ValueError, match="^run must hold cells that this version of gradbounds can describe"):
        run.samples()


def test_a_half_deleted_folder(tmp_path, cells):
    run = sampled_run(tmp_path, cells, 128, execution=Execution(land_every=0.0))
    before = {s.cell.name: s for s in run.samples()}
    for file in sorted((run.folder / "blocks").iterdir())[::2]:
        file.unlink()
    (windows,) = (run.folder / "windows").iterdir()
    windows.unlink()
    with pytest.raises(ValueError, match="^run must hold the windows of its texts, but .* is missing; the same sweep"):
        run.samples()
    assert len(run.landed()) == 3
    sample_into(cells, draws=128, seed=3, run=run)
    for s in run.samples():
        for name in s:
            np.testing.assert_array_equal(s[name], before[s.cell.name][name])
    (run.folder / "manifest.toml").unlink()
    with pytest.raises(ValueError, match="nor a run with a manifest.toml"):
        Run.create(run.folder, REQUEST)
    with pytest.raises(ValueError, match="has no readable manifest.toml"):
        Run.open(run.folder)


@pytest.mark.parametrize("change", [
    lambda rows: pa.table({"a": [1]}),
    lambda rows: rows.drop_columns("engine"),
    lambda rows: rows.set_column(rows.column_names.index("seed"), "seed", pa.array(["3"] * len(rows))),
    lambda rows: rows.set_column(rows.column_names.index("cell"), "cell", pa.array([1] * len(rows))),
    lambda rows: rows.set_column(rows.column_names.index("cell"), "cell", pa.array([None] * len(rows), pa.string())),
    lambda rows: rows.set_column(rows.column_names.index("loss"), "loss", pa.array([None] * len(rows), pa.float32())),
    lambda rows: rows.set_column(rows.column_names.index("loss"), "loss", pa.array(["3.5"] * len(rows))),
    lambda rows: rows.slice(0, 0),
])  # fmt: skip
def test_a_foreign_file_among_the_blocks(tmp_path, cells, change):
    run = sampled_run(tmp_path, cells[:1], 1)
    pq.write_table(change(pq.read_table(run.files()[0])), run.folder / "blocks" / "000009-aaaaaaaaaaaaaaaa.parquet")
    for read in (run.landed, run.samples):
        with pytest.raises(ValueError, match="^run must hold whole Parquet .*000009-a*.parquet.* is damaged"):
            read()


COPIED = """^run must hold every draw once, but 64 are there twice, the first of them in '.*{0}' and again in '.*{1}'"""


def test_a_copied_block_is_named_before_anything_is_read(tmp_path, cells):
    """Its draws would count twice; whatever reads the folder says so, and a sweep before it samples."""
    run = sampled_run(tmp_path, cells[:2], 64)
    (file,) = run.files()
    rows = pq.read_table(file)
    copy = file.with_name("000001-aaaaaaaaaaaaaaaa.parquet")  # as another host leaves it, on a disk without locks
    pq.write_table(rows.slice(64), copy)
    again = lambda: sample_into(cells[:2], draws=128, seed=3, run=run, on_block=pytest.fail)  # noqa: E731
    for read in (run.samples, run.landed, lambda: next(run.tables()), again):
        with pytest.raises(ValueError, match=COPIED.format(file.name, copy.name)):
            read()
    copy.unlink()
    file.unlink()
    pq.write_table(pa.concat_tables([rows, rows.slice(3, 1)]), copy)
    with pytest.raises(ValueError, match=f"but 1 are there twice, the first of them twice in '.*{copy.name}'"):
        run.samples()


@pytest.mark.parametrize("name", ["copy of 000000.parquet", "{} (conflicted copy).parquet", "._{}.parquet"])
def test_a_strange_name_among_the_blocks(tmp_path, cells, name):
    """It is said before anything is sampled; one that comes meanwhile does not cost what was sampled."""
    run = sampled_run(tmp_path, cells[:1], 64)
    (file,) = run.files()
    copy = file.with_name(name.format(file.stem))

    def copied(_):
        copy.write_bytes(file.read_bytes())

    sample_into(cells[:1], draws=192, seed=3, run=run, on_block=copied)
    said = f"^run must hold only Parquet files that a sweep wrote, but .*{re.escape(copy.name)}"
    with pytest.raises(ValueError, match=said):
        sample_into(cells[:1], draws=256, seed=3, run=run, on_block=pytest.fail)
    copy.unlink()
    assert [s.draws for s in run.samples()] == [192]


@pytest.mark.parametrize("at", [1, 2])
def test_a_folder_deleted_while_it_is_swept(tmp_path, cells, at):
    """At the next file, or after the last one."""
    run, done = Run.create(tmp_path / "run", REQUEST), []

    def deleted(_):
        done.append(None)
        if len(done) == at:
            shutil.rmtree(run.folder)

    with pytest.raises(
        ValueError, match="^out must not be moved while a sweep writes to it, but .*run' was deleted or"
    ):
        sample_into(cells[:2], draws=64, seed=3, run=run, on_block=deleted, execution=Execution(land_every=0.0))
    assert not (run.folder / "blocks").exists()


def test_one_writer_at_a_time(tmp_path):
    run = Run.create(tmp_path / "run", REQUEST)
    with run.hold():
        with pytest.raises(ValueError, match="^out must not be in use, but another process writes to"):
            Run.create(tmp_path / "run", REQUEST)
        with pytest.raises(ValueError, match="^out must not be in use"):
            sample_into([Cell(Stack(width=8))], draws=1, seed=0, run=run)
    Run.create(tmp_path / "run", REQUEST)


def test_frames_hold_every_number_once(tmp_path, cells):
    run = sampled_run(tmp_path, cells, 70, execution=Execution(land_every=0.0))
    for s in run.samples():
        rows = s.to_frame()
        assert len(rows) == 128 * (1 + s.stack.depth)
        assert list(rows["text"].unique()) == ["" if s.cell.text is None else "words.txt"]
        for name in s:
            here = (rows["layer"] > 0) == QUANTITIES[name].per_layer
            np.testing.assert_array_equal(rows.loc[here, name], s[name].ravel(), err_msg=name)
            assert rows.loc[~here, name].isna().all()
        assert (rows["width"] == s.stack.width).all()


@pytest.mark.parametrize("encoder_depth", [1, 3])
def test_an_encoder_of_another_depth(tmp_path, encoder_depth):
    """Its layers land, are read and stand in frames by their own number, beside networks that have none."""
    fields = {"width": 8, "depth": 2, "tokens": 2, "vocab": 4}
    cells = [Cell(Stack(**fields)), Cell(Stack(**fields, source_tokens=3, encoder_depth=encoder_depth))]
    run = sampled_run(tmp_path, cells, 64)
    sampled = {s.cell.name: s for s in run.samples()}
    here = sampled[cells[1].name]
    direct = sample(cells[1].stack, draws=64, seed=3)
    assert here["encoder_hidden_energy"].shape == (here.draws, encoder_depth)
    assert here["hidden_energy"].shape == (here.draws, 2)
    for name in direct:
        np.testing.assert_array_equal(here[name][:64], direct[name], err_msg=name)
    frame, other = here.to_frame(), sampled[cells[0].name]
    assert len(frame) == here.draws * (1 + max(2, encoder_depth))
    assert len(other.to_frame()) == other.draws * 3
    for name in here:
        np.testing.assert_array_equal(frame[name].dropna(), here[name][~np.isnan(here[name])], err_msg=name)
    layers = comparison([here], patterns=4).groupby("quantity")["layer"].max()
    assert (layers["encoder_grad_sq_W2"], layers["grad_sq_W2"]) == (encoder_depth, 2)


def test_an_older_file_lacks_a_quantity(tmp_path):
    run = Run.create(tmp_path / "run", REQUEST)
    old, new = Cell(Stack(width=8, depth=2)), Cell(Stack(width=8, depth=3))
    arrays = {c: sample(c.stack, draws=64, seed=0).arrays for c in (old, new)}
    run.append([Block(old, 0, 0, {k: v for k, v in arrays[old].items() if k != "grad_sq_W1"})])
    run.append([Block(new, 0, 0, arrays[new])])
    assert ["grad_sq_W1" in s for s in run.samples()] == [False, True]
    run.append(
        [Block(old, 1, 0, {k: v for k, v in arrays[old].items() if k != "loss"} | {"loss": arrays[old]["loss"]})]
    )
    assert [(s.stack.depth, s.draws) for s in run.samples()] == [(2, 128), (3, 64)]
