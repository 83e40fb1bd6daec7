"""A sweep that is killed, interrupted, or out of disk loses nothing that landed and repeats nothing."""

import errno
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from gradbounds.cli import main
from simulate import files
from tests.interruption import (
    BLOCKS,
    SWEEP,
    landed,
    repeated_draws,
    start,
    stop_at_random,
    table_digest,
    wait_for_a_file,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of the sweep that nobody interrupts."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*SWEEP, "--out", str(out)]) == 0
    assert landed(out) == BLOCKS
    return table_digest(out)


@pytest.mark.parametrize("trial", range(2))
def test_a_killed_sweep_continues_to_the_same_table(tmp_path, whole, trial):
    out, rng = tmp_path / "run", np.random.default_rng(trial)
    stop_at_random(out, rng, signal.SIGKILL, workers=1 + trial % 2)
    assert landed(out) > 0
    assert main([*SWEEP, "--out", str(out)]) == 0
    assert table_digest(out) == whole
    assert repeated_draws(out) == 0
    assert not list(out.rglob("*.tmp"))


def test_ctrl_c_keeps_what_had_landed_and_exits_with_130(tmp_path, whole):
    out = tmp_path / "run"
    process = start(out)
    wait_for_a_file(out, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "gradbounds: interrupted; draws that had landed stay in the run folder."
    assert "Traceback" not in said
    assert 0 < landed(out) < BLOCKS
    assert main([*SWEEP, "--out", str(out)]) == 0
    assert table_digest(out) == whole


def test_one_and_three_workers_give_identical_numbers(tmp_path, whole):
    out = tmp_path / "run"
    assert main([*SWEEP, "--out", str(out), "--workers", "3"]) == 0
    assert table_digest(out) == whole


def children(pid):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in done.stdout.split()]


def test_no_worker_outlives_a_killed_parent(tmp_path):
    process = start(tmp_path / "run", workers=2)
    wait_for_a_file(tmp_path / "run", process)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_disk_that_fills_up(tmp_path, whole, monkeypatch, capsys):
    """The disk is full from the fifth file on; with room again, the same command finishes."""
    out, sync, synced = tmp_path / "run", os.fsync, []

    def full(descriptor):
        synced.append(descriptor)
        if len(synced) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    assert main([*SWEEP, "--out", str(out)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device. What was written before is kept; give the same command again" in last
    monkeypatch.undo()
    assert not list(out.rglob("*.tmp"))
    assert 0 < landed(out) < BLOCKS
    assert main([*SWEEP, "--out", str(out)]) == 0
    assert table_digest(out) == whole


def test_a_small_file_system(tmp_path):
    """A real full disk, where this machine lets one be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a file system here")
    try:
        process = start(disk / "run")
        _, said = process.communicate(timeout=120)
        assert process.returncode == 2, said
        assert re.search(r"^gradbounds: out must be a place .* No space left on device\.", said.splitlines()[-1])
        assert "Traceback" not in said
        assert 0 < landed(disk / "run") < BLOCKS
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a busy machine may still read it


def test_two_sweeps_into_one_folder(tmp_path, whole, capsys):
    out = tmp_path / "run"
    process = start(out)
    wait_for_a_file(out, process)
    assert main([*SWEEP, "--out", str(out)]) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("gradbounds:")]
    assert line.startswith("gradbounds: out must not be in use, but another process writes into")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert table_digest(out) == whole
