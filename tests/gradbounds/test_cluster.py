"""A Dask cluster of processes on this machine: workers that are killed and that join, and a scheduler that dies."""

import os
import signal
import socket
import time
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Thread

import pytest

from gradbounds import clusters as cluster
from gradbounds.cli import main
from simulate.runs.execution import InProcess
from tests.helpers.interruption import BLOCKS, SWEEP, Forked, landed, start, table_digest, wait_for_a_file

# Looked for, not loaded: every worker of the suite imports this file.
pytestmark = pytest.mark.skipif(find_spec("distributed") is None, reason="needs distributed")


class Cluster:
    """Scheduler and workers as processes."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.scheduler = self.run("scheduler", "--host", self.address, "--no-dashboard", "--no-jupyter")
        self.wait("scheduler", "Scheduler at")

    def run(self, *arguments):
        program, *flags = arguments
        log = self.folder / f"{program}{len(self.processes)}.log"
        process = Forked(f"distributed.cli.dask_{program}", flags, log)
        self.processes.append(process)
        return process

    def worker(self):
        number = len(self.processes)
        process = self.run("worker", self.address, *self.flags)
        self.wait(f"worker{number}", "Registered to")
        return process

    @property
    def flags(self):
        return ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self.folder)]

    def wait(self, name, words):
        (log,) = self.folder.glob(f"{name}*.log")
        deadline = time.monotonic() + 60
        while words not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def close(self):
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*SWEEP, "--out", str(out)]) == 0
    return table_digest(out)


@contextmanager
def after_the_first_file(out, happens):
    """Something that happens while a sweep of this process runs, as soon as its first blocks have landed."""

    def follow():
        while not list((out / "blocks").glob("*.parquet")):
            time.sleep(0.005)
        happens()

    thread = Thread(target=follow, daemon=True)
    thread.start()
    yield
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_the_cluster(dask, whole, tmp_path, capsys):
    """The only worker is killed and another joins: numbers of one process, byte for byte. Then the scheduler dies."""
    assert "has none" in refusal(tmp_path, dask.address, capsys), "no worker yet"
    first, out = dask.worker(), tmp_path / "workers"
    with after_the_first_file(out, lambda: (first.kill(), dask.worker())):
        assert main([*SWEEP, "--out", str(out), "--dask", dask.address]) == 0
    assert landed(out) == BLOCKS
    assert table_digest(out) == whole

    process = start(tmp_path / "scheduler", dask=dask.address)
    wait_for_a_file(process)
    dask.scheduler.kill()
    os.kill(process.pid, signal.SIGCONT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2, error
    assert "dask must stay reachable" in error.splitlines()[-1]
    assert "Traceback" not in error
    assert 0 < landed(tmp_path / "scheduler") < BLOCKS
    assert main([*SWEEP, "--out", str(tmp_path / "scheduler")]) == 0
    assert table_digest(tmp_path / "scheduler") == whole


def refusal(tmp_path, address, capsys):
    assert main([*SWEEP, "--out", str(tmp_path / "no"), "--dask", address]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert not (tmp_path / "no").exists()
    return error.splitlines()[-1]


@pytest.mark.quick
def test_bad_addresses_are_refused(tmp_path, capsys):
    assert "dask must be the address of a running scheduler" in refusal(tmp_path, "nonsense", capsys)


def test_a_worker_that_joins_later_must_have_the_versions_too(monkeypatch):
    """Every task compares those of the sweep with its own."""
    pool = cluster.SameVersions(InProcess())
    assert pool.submit(len, "ab").result() == 2
    here = iter([cluster.versions(), {"torch": "1.0"}])
    monkeypatch.setattr(cluster, "versions", lambda: next(here))
    with pytest.raises(ValueError, match="^dask must have workers with the versions here, .* has {'torch': '1.0'}"):
        pool.submit(len, "ab").result()


def test_gpus_are_a_resource():
    """Without one, every task would wait for ever."""

    class Client:
        def __init__(self, resources):
            self.resources = resources

        def scheduler_info(self, n_workers):
            return {"workers": {"tcp://there:1": {"resources": self.resources}}}

    cluster._check_resources(Client({"GPU": 1}), gpu=True)
    cluster._check_resources(Client({}), gpu=False)
    with pytest.raises(ValueError, match="^dask must have workers with the resource GPU for device 'cuda'"):
        cluster._check_resources(Client({}), gpu=True)
