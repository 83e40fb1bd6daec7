"""How blocks are planned, carried out and landed: batches, workers, memory, GPUs; none of them changes a number."""

import itertools
import pickle
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, forkserver
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from gradbounds.actions import sweep as sampling
from gradbounds.recipe import Recipe
from gradbounds.units import duration
from simulate import Cell, Run, free_memory, read_windows, sample
from simulate.runs import execution, memory, planning
from simulate.runs.cost import block_bytes
from simulate.runs.execution import Execution, InProcess, sample_task
from simulate.runs.memory import BatchLimits
from simulate.runs.planning import Plan, plan
from simulate.runs.sample import sample_block, sample_blocks
from simulate.runs.sweep import sample_into
from theory import Stack

CELLS = [
    (Stack(width=16, depth=2, tokens=4, vocab=8), "dense"),
    (Stack(width=300, depth=1, tokens=4, vocab=8, labels="zipf"), "conditioned"),
    (Stack(width=16, depth=2, tokens=2, vocab=8, sequences=2, dropout=0.1, positions="learned"), "dense"),
    (Stack(width=96, depth=1, tokens=4, vocab=8, query_key_scale=1.0, attention_dropout=0.1), "conditioned"),
    (Stack(width=16, depth=1, tokens=4, vocab=8, embeddings="tied", initialization="pytorch"), "dense"),
    (Stack(width=96, depth=2, tokens=4, vocab=8, ffn="gated"), "gram"),
]


# Relative: how a library rounds products of many matrices may hang on how many there are.
ROUNDING = {"float32": 1e-4, "float64": 1e-10}


def same(one, other, dtype="float32"):
    return np.allclose(one, other, rtol=ROUNDING[dtype], atol=0, equal_nan=True)


def differences(cell, blocks):
    """How many quantities of blocks that share a batch differ from those of blocks by themselves, beyond rounding."""
    found = zip(blocks, sample_blocks(cell, 0, blocks), strict=True)
    alone = [(sample_block(cell, 0, block), values) for block, values in found]
    return sum(not same(one[name], values[name], cell.dtype) for one, values in alone for name in one)


@pytest.mark.parametrize(("stack", "engine"), CELLS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_batch_changes_nothing(stack, engine, dtype):
    assert differences(Cell(stack, engine, dtype=dtype), [3, 0, 7]) == 0


def test_tasks(monkeypatch):
    """Blocks of one cell, in order: by time, or by number."""
    first, second = Cell(CELLS[0][0]), Cell(CELLS[1][0])
    blocks = [(first, 0, k) for k in range(5)] + [(second, 0, k) for k in range(2)]

    def made(**how):
        return [(cell, indices) for cell, _, indices in Execution(**how).tasks(blocks)]

    one_by_one = [(cell, (k,)) for cell, _, k in blocks]
    whole = [(first, (0, 1, 2, 3, 4)), (second, (0, 1))]
    assert made() == [whole[0], *one_by_one[5:]], "what a batch would round otherwise stays alone"
    assert made(at_once=1) == one_by_one
    assert made(at_once=3) == [(first, (0, 1, 2)), (first, (3, 4)), (second, (0, 1))]
    assert made(workers=2) == [(first, (0, 1, 2)), (first, (3, 4)), *one_by_one[5:]]
    assert made(memory=1.0) == made(memory=1.0, task_seconds=1e-9) == one_by_one
    assert made(memory=1.0, task_seconds=1e9) == whole
    blocks = [(first, 0, k) for k in range(300)]
    assert [len(task) for _, task in made(at_once=300)] == [300], "what was asked for is done"
    endless = ((first, 0, k) for k in itertools.count())
    assert next(Execution(at_once=1).tasks(endless)) == (first, 0, (0,)), "blocks are not gathered first"


def test_memory_that_is_short(monkeypatch):
    """A batch that does not fit is halved, and one block that does not is an error."""
    cell, sizes = Cell(CELLS[0][0]), []

    def at_most(most):
        def tried(cell, seed, blocks):
            sizes.append(len(blocks))
            if len(blocks) > most:
                raise ValueError("width, depth and vocab must fit into the memory")
            return sample_blocks(cell, seed, blocks)

        return tried

    monkeypatch.setattr(sys.modules["simulate.runs.sample"], "sample_blocks", at_most(2))
    found = sample_task(cell, 0, range(7), BatchLimits(at_once=5))
    assert sizes == [4, 2, 2, 2, 1]
    for k, values in enumerate(found):
        assert same(values["loss"], sample_block(cell, 0, k)["loss"])
    monkeypatch.setattr(sys.modules["simulate.runs.sample"], "sample_blocks", at_most(0))
    with pytest.raises(ValueError, match="^width, depth and vocab must fit into the memory"):
        sample_task(cell, 0, range(4), BatchLimits(at_once=4))


def test_blocks_that_fit_a_gpu(monkeypatch):
    gpu, counts = Cell(Stack(width=256, depth=4), "dense", "cuda"), []
    for gibibytes in (0.1, 1, 8, 80, 800):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, g=gibibytes: (int(g * 2**30), 0))
        counts.append(BatchLimits().blocks(gpu))
    assert counts[0] >= 1
    assert counts[1] < counts[2] < counts[3] == counts[4]


def test_workers_of_one_gpu_share_its_memory(monkeypatch):
    """They take the GPUs in turn, unless one has a name."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 2**30, 0))
    plain, named = (Cell(Stack(width=256, depth=4), "dense", device) for device in ("cuda", "cuda:1"))
    blocks = {}
    for gpus in (1, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=gpus: count)
        for workers in (0, 1, 2, 3):  # 0 stands for workers elsewhere, with a GPU each
            blocks[gpus, workers] = [BatchLimits(sharers=workers).blocks(cell) for cell in (plain, named)]
    assert blocks[1, 0] == blocks[2, 0] == blocks[1, 1] == blocks[2, 1] == [blocks[1, 1][0]] * 2
    whole, half, third = (blocks[1, workers][0] for workers in (1, 2, 3))
    assert (half, third) == (whole // 2, whole // 3)
    assert blocks[2, 2] == [whole, half]
    assert blocks[2, 3] == [half, third]


DEEP = Cell(Stack(width=1024, depth=1000))


def test_batches_follow_memory(monkeypatch):
    """Half of what is free, at most 6 GiB each; what is given; a block at least; and no more than is of use."""
    monkeypatch.setattr(memory, "free_memory", lambda: 20.5 * block_bytes(DEEP))
    assert DEEP.draws_per_block == 1
    for limits, count in ((BatchLimits(), 10), (BatchLimits(sharers=2), 5)):
        assert limits.blocks(DEEP) == limits.as_now().blocks(DEEP) == count
    assert BatchLimits(memory=7.5 * block_bytes(DEEP)).blocks(DEEP) == 7
    assert BatchLimits(memory=7.5 * block_bytes(DEEP), sharers=2).blocks(DEEP) == 3
    assert BatchLimits(memory=1.0).blocks(DEEP) == 1
    assert 32 <= BatchLimits(memory=1e15).blocks(DEEP) <= 64
    tasks = Execution(workers=2, memory=9.5 * block_bytes(DEEP)).tasks([(DEEP, 0, k) for k in range(9)])
    assert [len(blocks) for _, _, blocks in tasks] == [3, 3, 3]
    monkeypatch.setattr(memory, "free_memory", lambda: 1e15)
    for limits in (BatchLimits(), BatchLimits(sharers=2), BatchLimits(sharers=2).as_now()):
        assert limits.blocks(DEEP) == 6 * 2**30 // block_bytes(DEEP)


@pytest.mark.parametrize(("engine", "width", "tokens", "vocab"), [("dense", 512, 1, 7), ("conditioned", 96, 5, 16)])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_memory_changes_nothing(monkeypatch, placement, engine, width, tokens, vocab):
    """To rounding, to the last bit on the CPUs where it was tried; and the batches do differ."""
    monkeypatch.setattr(sys.modules["simulate.runs.cell"], "MOST_DRAWS", 1)
    cell, sizes, blocks = (
        Cell(Stack(placement=placement, width=width, depth=2, tokens=tokens, vocab=vocab), engine),
        [],
        sample_blocks,
    )

    def counted(cell, seed, indices):
        sizes.append(len(indices))
        return blocks(cell, seed, indices)

    monkeypatch.setattr(sys.modules["simulate.runs.sample"], "sample_blocks", counted)
    found = [
        sample(cell.stack, draws=7, seed=0, engine=engine, memory=size) for size in (1.0, 3.5 * block_bytes(cell), None)
    ]
    assert sizes[:10] == [1] * 7 + [3, 2, 2]
    assert max(sizes[10:]) > 3
    for name in found[0]:
        assert same(found[1][name], found[0][name])
        assert same(found[2][name], found[0][name])


@pytest.mark.parametrize(
    "stack", [Stack(width=101), Stack(width=96, query_key_scale=1.0), Stack(width=96, embeddings="tied")]
)
def test_what_a_batch_would_round_otherwise_stays_alone(stack):
    assert BatchLimits(memory=1e15).blocks(Cell(stack, "conditioned")) == 1


@pytest.mark.parametrize("size", [0, -1.0, np.nan, np.inf, "4GB", True])
def test_memory_must_be_bytes(size):
    for call in (lambda: sample(Stack(), draws=1, seed=0, memory=size), lambda: Execution(memory=size)):
        with pytest.raises(ValueError, match="^memory must be a positive number of bytes"):
            call()


def test_workers_take_the_gpus_in_turn(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    before, numbers = signal.getsignal(signal.SIGINT), SimpleQueue()
    try:
        for number in range(3):
            numbers.put(number)
            execution._start_worker(numbers)
    finally:
        signal.signal(signal.SIGINT, before)
    assert taken == [0, 1, 0]


def test_a_worker_needs_no_text(tmp_path):
    """Its windows travel with the cell: what is sampled is the same where the file is not."""
    path = tmp_path / "words.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat " * 3)
    cell = Cell(Stack(width=8, depth=1, tokens=4, vocab=6), text=read_windows(path, tokens=4, vocab=6))
    here = sample_block(cell, 0, 0)
    path.unlink()
    (there,) = sample_task(pickle.loads(pickle.dumps(cell)), 0, [0], BatchLimits())
    for name in here:
        np.testing.assert_array_equal(there[name], here[name])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers begin without a server")
def test_ctrl_c_is_the_parents_from_the_start():
    """Workers, and the server that they are forks of while it still imports, never see one; the parent does."""
    here = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with Execution(workers=2).executor() as pool:
        blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
        assert {signal.SIGINT, signal.SIGTERM} <= blocked
    masks = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read_text().split("SigBlk:")[1]
    assert int(masks.split()[0], 16) >> (signal.SIGINT - 1) & 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == here
    assert signal.SIGINT not in here


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_leaves_no_worker_half_started(monkeypatch):
    """It comes after the call that may start one, and what the workers are at is not waited for."""
    others, handed = set(active_children()), ProcessPoolExecutor.submit

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        return done.append(handed(*args)) or done[-1]

    done = []
    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Execution(workers=2).executor() as pool:
        pool.submit(time.sleep, 600)
    assert len(done) == 1
    assert time.monotonic() - start < 60
    assert set(active_children()) == others


@pytest.mark.gpu
def test_batches_and_processes_on_gpus(tmp_path):
    """The numbers of one block at a time, to rounding."""
    cells = [Cell(stack, engine, "cuda") for stack, engine in CELLS]
    runs = [Run.create(tmp_path / name, {"request": {"command": "test"}}) for name in ("one", "many")]
    sample_into(cells, draws=256, seed=0, run=runs[0], execution=Execution(at_once=1))
    sample_into(cells, draws=256, seed=0, run=runs[1], execution=Execution(workers=2))
    for one, many in zip(runs[0].samples(), runs[1].samples(), strict=True):
        for name in one:
            np.testing.assert_allclose(many[name], one[name], rtol=1e-3, err_msg=name)


def test_memory_of_a_control_group(tmp_path):
    """The least of what limits leave, in both versions, above the own group too; files that were read are no loss."""
    own, root = tmp_path / "cgroup", tmp_path / "groups"
    for group, limit in (("job", "1000"), ("job/step", "max")):
        (root / group).mkdir(parents=True)
        for name, text in (("memory.max", limit), ("memory.current", "700"), ("memory.stat", "inactive_file 50")):
            (root / group / name).write_text(f"{text}\n")
    own.write_text("0::/job/step\n")
    assert list(free_memory._left_in_groups(own, root)) == [350]
    (root / "memory").mkdir()
    old = {"memory.limit_in_bytes": "500", "memory.usage_in_bytes": "600", "memory.stat": "total_inactive_file 20"}
    for name, text in old.items():
        (root / "memory" / name).write_text(text)
    own.write_text("3:cpu:/elsewhere\n4:memory:/not/seen/here\n")
    assert list(free_memory._left_in_groups(own, root)) == [0]
    assert list(free_memory._left_in_groups(tmp_path / "nowhere", root)) == []
    assert 0 < free_memory.free_memory() < 2**60


def test_every_worker_takes_memory_and_shares_the_time(monkeypatch):
    """With one rate for every step: no calibration."""
    monkeypatch.setattr(planning, "_rates", lambda *_: np.array([1.0, 0.0, 0.0, 0.0]))
    cells = [Cell(Stack(width=16, depth=depth)) for depth in (1, 3)]
    one, four = (plan(cells, draws=128, workers=workers, limits=BatchLimits(at_once=1)) for workers in (1, 4))
    assert one.seconds == pytest.approx(2 * (1 + 1) + 2 * (3 + 1)), "two blocks of 64 draws each, and a step more"
    assert four.seconds == pytest.approx(one.seconds / 4)
    assert four.memory == pytest.approx(4 * one.memory)
    assert (four.draws, four.blocks) == (one.draws, one.blocks) == (256, 4)


def test_a_dry_run_names_its_units(monkeypatch):
    known = Plan(cells=1, blocks=2, draws=128, seconds=90.0, memory=3 * 2**30, disk=5 * 2**20)
    monkeypatch.setattr(sampling, "plan", lambda *_, **__: known)
    recipe = Recipe(grid=({"width": [8], "depth": [1], "placement": "post"},))
    said = str(sampling.dry_run(None, recipe, Execution(workers=2)))
    for line in ("time    about 1.5 min with 2 workers", "memory  about 3.0 GiB", "disk    about 5.0 MiB"):
        assert line in said


def test_a_calibration_ends_soon_on_a_slow_machine(monkeypatch):
    """Nothing is repeated once the time is over: a clock on which every look takes a second."""
    ticks, timed = iter(range(10_000)), []
    monkeypatch.setattr(planning.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(planning, "sample_block", lambda cell, *_: timed.append(cell))
    plan([Cell(Stack(width=16))], draws=64, workers=1, limits=BatchLimits(at_once=1))
    assert len(timed) == len(planning._PROBES)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3 * 86400, "72.0 h"), (30 * 86400, "30 days"), (5e4 * 3600, "5.7 years"), (1e60, "1e+09 years")],
)
def test_long_times_are_in_units_that_suit(seconds, said):
    assert duration(seconds).startswith(said)


def test_some_of_many_cells_stand_for_all(monkeypatch):
    """The total within 25%: 100 of 300 cells, whose steps are uniform, have a standard error of 5%."""
    monkeypatch.setattr(planning, "_rates", lambda *_: np.array([1.0, 0.0, 0.0, 0.0]))
    monkeypatch.setattr(planning, "_MOST_CELLS", 100)
    cells = [Cell(Stack(width=width, depth=depth)) for width in range(2, 12) for depth in range(1, 31)]
    some = plan(cells, draws=64, workers=1, limits=BatchLimits(at_once=1))
    monkeypatch.setattr(planning, "_MOST_CELLS", len(cells))
    every = plan(cells, draws=64, workers=1, limits=BatchLimits(at_once=1))
    assert some.seconds == pytest.approx(every.seconds, rel=0.25)
    assert some.seconds != every.seconds
    assert some.memory == pytest.approx(every.memory, rel=0.1)
    assert (some.draws, some.blocks) == (every.draws, every.blocks)


REQUEST = {"request": {"draws": 70, "seed": 3}}


def test_what_is_read_back_is_what_sample_gives(tmp_path, cells):
    sample_into([*cells, cells[0]], draws=70, seed=3, run=Run.create(tmp_path / "run", REQUEST))
    found = {s.cell.name: s for s in Run.open(tmp_path / "run").samples()}
    assert set(found) == {cell.name for cell in cells}
    for cell in cells:
        stored = found[cell.name]
        assert stored.draws == 128, "70 draws in blocks of 64"
        assert stored.cell.key == cell.key
        assert (stored.seeds == 3).all()
        direct = sample(cell.stack, draws=128, seed=3, text=cell.text)
        for name in direct:
            np.testing.assert_array_equal(stored[name], direct[name], err_msg=name)
        if cell.text is not None:
            np.testing.assert_array_equal(stored.cell.text.ids, cell.text.ids)


def test_one_text_under_several_stacks(tmp_path):
    """Tokens and vocabulary decide a text's windows: every Stack keeps its own."""
    path = tmp_path / "words.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat " * 3)
    stacks = [Stack(width=8, depth=1, tokens=n, vocab=v) for n in (2, 4) for v in (3, 6)]
    cells = [Cell(s, text=read_windows(path, tokens=s.tokens, vocab=s.vocab)) for s in stacks]
    run = Run.create(tmp_path / "run", REQUEST)
    sample_into(cells, draws=1, seed=3, run=run)
    stored = {s.stack: s.cell.text.ids for s in run.samples()}
    for cell in cells:
        np.testing.assert_array_equal(stored[cell.stack], cell.text.ids)


def test_workers_and_order_change_nothing(tmp_path, cells):
    one, two = (Run.create(tmp_path / name, REQUEST) for name in ("one", "two"))
    sample_into(cells, draws=70, seed=3, run=one)
    sample_into(cells[::-1], draws=70, seed=3, run=two, execution=Execution(workers=2, task_seconds=0.01, at_once=2))
    for a, b in zip(one.samples(), two.samples(), strict=True):
        assert a.cell.key == b.cell.key
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_waits_for_a_file_that_is_being_written(tmp_path, cells, monkeypatch):
    run, append = Run.create(tmp_path / "run", REQUEST), Run.append

    def interrupted(self, blocks):
        signal.raise_signal(signal.SIGINT)
        append(self, blocks)

    monkeypatch.setattr(Run, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample_into(cells, draws=70, seed=3, run=run, execution=Execution(land_every=0.0))
    assert len(run.landed()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "^draws"),
        ({"seed": -1}, "^seed"),
        ({"cells": []}, "^cells"),
        ({"execution": {"workers": 2}}, "^execution must be an Execution, such as"),
    ],
)
def test_bad_arguments(tmp_path, cells, arguments, message):
    run = Run.create(tmp_path / "run", REQUEST)
    with pytest.raises(ValueError, match=message):
        sample_into(**({"cells": cells, "draws": 1, "seed": 0, "run": run} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "^workers must be an integer of at least 1, got 0"),
        ({"at_once": -1}, "^at_once must be an integer of at least 0, got -1"),
        ({"land_every": -1.0}, "^land_every must be a number of seconds of at least 0, got -1.0"),
        ({"land_every": float("nan")}, "^land_every"),
        ({"task_seconds": float("inf")}, "^task_seconds must be a number of seconds of at least 0, got inf"),
    ],
)
def test_bad_executions(arguments, message):
    with pytest.raises(ValueError, match=message):
        Execution(**arguments)


def test_what_a_sweep_reports(tmp_path, cells):
    run, seen = Run.create(tmp_path / "run", REQUEST), []
    sample_into(cells, draws=70, seed=3, run=run, on_block=seen.append)
    assert [now.blocks for now in seen] == [(k, 6) for k in range(1, 7)]
    shares = [now.share for now in seen]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_files_follow_the_clock(tmp_path, cells):
    every, late = (Run.create(tmp_path / name, REQUEST) for name in ("every", "late"))
    sample_into(cells, draws=200, seed=3, run=every, execution=Execution(land_every=0.0))
    sample_into(cells, draws=200, seed=3, run=late, execution=Execution(land_every=1e6))
    assert len(list((every.folder / "blocks").iterdir())) > 3
    assert len(list((late.folder / "blocks").iterdir())) == 1
    assert every.landed() == late.landed()


def test_files_hold_so_many_blocks(tmp_path, cells, monkeypatch):
    """What waits for the disk is bounded, whatever the clock says."""
    monkeypatch.setattr(sys.modules["simulate.runs.sweep"], "_FILE_BLOCKS", 4)
    run = Run.create(tmp_path / "run", REQUEST)
    sample_into(cells, draws=200, seed=3, run=run, execution=Execution(land_every=1e6))
    assert [len(rows.group_by(["cell", "block"]).aggregate([])) for rows in run.tables()] == [4, 4, 4]


def test_an_error_in_a_block_lands_the_others(tmp_path, cells, monkeypatch):
    run, submit = Run.create(tmp_path / "run", REQUEST), InProcess.submit

    def fails_at_the_fourth(self, fn, cell, seed, blocks, *rest):
        if (cell.name, *blocks) == (cells[1].name, 1):
            return submit(self, lambda: 1 / 0)
        return submit(self, fn, cell, seed, blocks, *rest)

    monkeypatch.setattr(InProcess, "submit", fails_at_the_fourth)
    with pytest.raises(ZeroDivisionError):
        sample_into(cells, draws=70, seed=3, run=run, execution=Execution(at_once=1))
    assert len(run.landed()) == 3
