"""A sweep that is killed, interrupted, or out of disk loses nothing that landed and repeats nothing."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gradbounds.__main__ as entry
from gradbounds import cli
from gradbounds.cli import main
from simulate.runs import files
from tests.helpers.interruption import (
    BLOCKS,
    SWEEP,
    kill_at_random,
    landed,
    repeated_draws,
    start,
    table_digest,
    wait_for_a_file,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*SWEEP, "--out", str(out)]) == 0
    assert landed(out) == BLOCKS
    return table_digest(out)


def test_a_killed_sweep_continues_to_the_same_table(tmp_path, whole):
    """At a random moment."""
    out, rng = tmp_path / "run", np.random.default_rng(0)
    for last in (0.6, 0.1, 0.0):  # a fast machine finishes within the first of them
        kill_at_random(out, rng, last)
        if landed(out) < BLOCKS:
            break
        shutil.rmtree(out)
    assert 0 < landed(out) < BLOCKS
    assert_finished_by_the_same_command(out, whole)


def assert_finished_by_the_same_command(out, whole):
    assert main([*SWEEP, "--out", str(out)]) == 0
    assert table_digest(out) == whole
    assert repeated_draws(out) == 0
    assert not list(out.rglob("*.tmp"))


def test_a_folder_in_use_and_ctrl_c(tmp_path, whole, capsys):
    """A second sweep into the folder is refused; Ctrl-C keeps what had landed and exits with 130."""
    out = tmp_path / "run"
    process = start(out)
    wait_for_a_file(process)
    assert main([*SWEEP, "--out", str(out)]) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("gradbounds:")]
    assert line.startswith("gradbounds: --out must not be in use, but another process writes to")
    process.send_signal(signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "gradbounds: interrupted; draws that were saved stay in the run folder."
    assert "Traceback" not in said
    assert 0 < landed(out) < BLOCKS
    assert_finished_by_the_same_command(out, whole)


def descendants(pid):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [one for child in done.stdout.split() for one in (int(child), *descendants(int(child)))]


def assert_all_gone(pids):
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_no_worker_outlives_a_killed_parent(tmp_path, whole):
    """Nor does one end with the SIGTERM that a scheduler sends to all; what two sampled is what one samples."""
    out = tmp_path / "run"
    process = start(out, workers=2)
    wait_for_a_file(process)
    workers = descendants(process.pid)
    assert len(workers) >= 2
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.1)
    assert set(workers) <= set(descendants(process.pid))
    process.kill()
    process.communicate()
    assert_all_gone(workers)
    assert 0 < landed(out)
    assert_finished_by_the_same_command(out, whole)


@pytest.mark.quick
def test_sigterm_ends_any_command(monkeypatch, capsys):
    """Also while it is loading, and the signal has its meaning back after it; a second one changes nothing."""
    before = signal.getsignal(signal.SIGTERM)

    def loading(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)

    for module, name in ((entry, "check_own_packages"), (cli, "parsed")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, loading)
            assert entry.main() == 143
        assert capsys.readouterr().err.startswith("gradbounds: interrupted")
        assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_when_the_work_is_done_changes_nothing():
    """While the interpreter takes itself apart, after it has given signals their meaning back."""
    leaving = """
import os, sys, time
class Last:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b"leaving\\n")
        sleep(0.1)
sys.last, sys.argv = Last(), ["gradbounds", "--version"]
from gradbounds.__main__ import program
program()
"""
    with subprocess.Popen([sys.executable, "-c", leaving], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("gradbounds ")
        assert process.stdout.readline() == "leaving\n"
        for which in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(which)
        assert process.wait(30) == 0


@pytest.mark.quick
def test_a_disk_that_fills_up(tmp_path, whole, monkeypatch, capsys):
    """The disk is full from the fifth file on; with room again, the same command finishes."""
    out, sync, synced = tmp_path / "run", os.fsync, []

    def full(descriptor):
        synced.append(descriptor)
        if len(synced) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    assert main([*SWEEP, "--land-every", "0", "--out", str(out)]) == 2  # a file for every block
    last = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device. Files written before are kept; run the same command again" in last
    monkeypatch.undo()
    assert not list(out.rglob("*.tmp"))
    assert 0 < landed(out) < BLOCKS
    assert_finished_by_the_same_command(out, whole)
