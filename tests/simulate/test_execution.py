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

from gradbounds.units import duration
from simulate import Cell, Run, free_memory, read_windows, sample
from simulate.runs import execution, memory
from simulate.runs.cost import block_bytes
from simulate.runs.execution import Execution, sample_task
from simulate.runs.memory import BatchLimits
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
        assert limits.blocks(DEEP) == count
    assert BatchLimits(memory=7.5 * block_bytes(DEEP)).blocks(DEEP) == 7
    assert BatchLimits(memory=7.5 * block_bytes(DEEP), sharers=2).blocks(DEEP) == 3
    assert BatchLimits(memory=1.0).blocks(DEEP) == 1
    assert 32 <= BatchLimits(memory=1e15).blocks(DEEP) <= 64
    tasks = Execution(workers=2, memory=9.5 * block_bytes(DEEP)).tasks([(DEEP, 0, k) for k in range(9)])
    assert [len(blocks) for _, _, blocks in tasks] == [3, 3, 3]
    monkeypatch.setattr(memory, "free_memory", lambda: 1e15)
    for limits in (BatchLimits(), BatchLimits(sharers=2)):
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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3 * 86400, "72.0 h"), (30 * 86400, "30 days"), (5e4 * 3600, "5.7 years"), (1e60, "1e+09 years")],
)
def test_long_times_are_in_units_that_suit(seconds, said):
    assert duration(seconds).startswith(said)
