"""Clusters that a file describes: their job scripts, one of threads, and files and clusters that will not do."""

import dataclasses
import logging
import signal

import pytest

from gradbounds.cli import main
from gradbounds.clusters import dask as cluster
from gradbounds.clusters import description as cluster_file
from gradbounds.clusters.description import read_cluster
from tests.helpers.interruption import table_digest

with cluster_file._handlers_kept():  # of the whole suite
    dask_jobqueue = pytest.importorskip("dask_jobqueue")
SWEEP = ["sweep", "--width", "8", "--depth", "1", "--draws", "300"]
OPTIONS = {"cores": 1, "memory": "4GB", "queue": "long", "walltime": "02:00:00"}
SLURM = """
kind = "dask_jobqueue.SLURMCluster"
maximum = 20
[options]
cores = 1
memory = "4GB"
queue = "long"
walltime = "02:00:00"
"""
THREADS = """
kind = "distributed.LocalCluster"
maximum = 2
[options]
n_workers = 0
threads_per_worker = 1
processes = false
dashboard_address = "127.0.0.1:0"
"""


def written(tmp_path, content):
    path = tmp_path / "cluster.toml"
    path.write_text(content)
    return str(path)


@pytest.mark.filterwarnings("default::UserWarning")  # of a dashboard's port that is taken
def test_the_job_script_is_that_of_dask_jobqueue(tmp_path, capsys):
    assert main([*SWEEP, "--dry-run", "--cluster", written(tmp_path, SLURM)]) == 0
    found = capsys.readouterr().out.strip().splitlines()
    with dask_jobqueue.SLURMCluster(**OPTIONS) as expected:
        lines = expected.job_script().strip().splitlines()
    assert "#SBATCH -p long" in found
    # The last line names the scheduler, whose port is another each time.
    assert found[:-1] == lines[:-1]
    without_address = [[word for word in line[-1].split() if "://" not in word] for line in (found, lines)]
    assert without_address[0] == without_address[1]


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_cluster_of_threads(tmp_path, capsys):
    for name, flags in (("one", []), ("far", ["--cluster", written(tmp_path, THREADS)])):
        assert main([*SWEEP, *flags, "--out", str(tmp_path / name)]) == 0
    assert "dashboard http" in capsys.readouterr().out
    assert table_digest(tmp_path / "far") == table_digest(tmp_path / "one")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a cluster that was not made
@pytest.mark.parametrize(("content", "message"), [
    ("kind = 3", "kind must be the dotted name of a cluster's class, as dask_jobqueue.SLURMCluster, got 3"),
    ("maximum = 3", "cluster must have the keys kind, minimum, maximum, options, the first always, but"),
    ('kind = "a.B"\njobs = 3', "has jobs."),
    ('kind = "a.B"\noptions = 3', "options must be a table, got 3"),
    ('kind = "a.B"\nmaximum = 0', "minimum and maximum must be numbers of jobs"),
    ('kind = "a.B"\nminimum = true', "minimum and maximum must be numbers of jobs"),
    ('kind = "nowhere.Cluster"', "kind must name a class that is installed, got 'nowhere.Cluster'"),
    ('kind = "dask_jobqueue.Slrm"', "kind must name a class that is installed, got 'dask_jobqueue.Slrm'"),
    ('kind = "dask_jobqueue.SLURMCluster"', "options must suit dask_jobqueue.SLURMCluster, which refused them: "),
    ("kind = [", "cluster must be TOML, but"),
    ('kind = "..."', "kind must be the dotted name of a cluster's class, as dask_jobqueue.SLURMCluster, got '...'"),
    ('kind = "sys.exit"', "kind must name a class of Dask clusters (distributed.deploy.Cluster), got 'sys.exit'"),
    ('kind = "builtins.str"', "kind must name a class of Dask clusters (distributed.deploy.Cluster), got 'builtins"),
    ('kind = "distributed.deploy.Cluster"', "kind must name a class of Dask clusters"),
    ('kind = "os.makedirs"\n[options]\nname = "run"', "kind must name a class of Dask clusters"),
])  # fmt: skip
def test_bad_files_are_refused(tmp_path, monkeypatch, capsys, content, message):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, content)
    assert main([*SWEEP, "--dry-run", "--cluster", path]) == 2
    assert message in capsys.readouterr().err
    assert main([*SWEEP, "--out", str(tmp_path / "run"), "--cluster", written(tmp_path, content)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("flags", "message"), [
    (["--cluster", "nowhere.toml"], "cluster must be a readable TOML file, got 'nowhere.toml'"),
    (["--workers", "2", "--dask", "tcp://h:1"], "workers, dask and cluster must not be given together"),
    (["--dry-run", "--dask", "tcp://h:1"], "--dry-run must stand without dask"),
    (["--dry-run", "--target-sem", "0.1"], "--dry-run must stand without a target"),
    (["--task-seconds", "-1"], "--task-seconds must be a number of seconds of at least 0"),
    (["--blocks-at-once", "-1"], "at_once must be an integer of at least 0"),
    (["--memory", "4 cats"], "memory must be a size above 0 with its unit, such as 500MB or 4GB, got '4 cats'"),
    (["--memory", "0GB"], "memory must be a size above 0"),
])  # fmt: skip
def test_flags_that_would_be_ignored_are_refused(tmp_path, capsys, flags, message):
    assert main([*SWEEP, "--out", str(tmp_path / "run"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_cluster_without_scripts_has_no_dry_run(tmp_path, capsys):
    assert main([*SWEEP, "--dry-run", "--cluster", written(tmp_path, THREADS)]) == 2
    assert "--dry-run must be left out with distributed.LocalCluster" in capsys.readouterr().err


def test_a_job_that_cannot_be_submitted_is_said():
    """What Dask logs while it waits becomes one line."""

    class Waiting:
        scheduler_info = {"workers": {}}  # noqa: RUF012

    errors = cluster.Errors()
    error = RuntimeError("Command exited with non-zero exit code.\nstderr:\nno partition")
    errors.handle(logging.makeLogRecord({"levelno": logging.ERROR, "exc_info": (RuntimeError, error, None)}))
    with pytest.raises(ValueError, match="^cluster must be able to submit jobs, but some.Cluster cannot: .*partition"):
        cluster_file._wait(Waiting(), errors, "some.Cluster")


def test_the_file_has_the_fields_names(tmp_path):
    found = read_cluster(tmp_path / written(tmp_path, SLURM))
    assert dataclasses.asdict(found) == {
        "kind": "dask_jobqueue.SLURMCluster", "minimum": 0, "maximum": 20, "options": OPTIONS,
    }  # fmt: skip


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


def test_the_module_of_a_cluster_leaves_ctrl_c_alone(tmp_path, monkeypatch):
    """As it is loaded, dask_jobqueue lets Ctrl-C end the process in silence, whoever waits for it."""
    (tmp_path / "own_cluster_of_signals.py").write_text(
        "import signal, sys\n"
        "from distributed import LocalCluster\n"
        "for which in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(which, lambda *_: sys.exit())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    cluster_file.ClusterFile(kind="own_cluster_of_signals.LocalCluster")._class()
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before
