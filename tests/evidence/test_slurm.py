"""A sweep through a real Slurm of one node, started here, where Debian's packages slurm-wlm and munge are installed."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from platform import node

import pytest

from tests.helpers.evidence_file import record
from tests.helpers.interruption import BLOCKS, SWEEP, landed, table_digest

pytestmark = pytest.mark.evidence
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
CLUSTER = """
kind = "dask_jobqueue.SLURMCluster"
maximum = 2
[options]
cores = 1
memory = "900MB"
walltime = "00:10:00"
log_directory = "{folder}"
[options.scheduler_options]
host = "127.0.0.1"
dashboard_address = "127.0.0.1:0"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder of a cluster of this machine."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and the programs of slurm-wlm and munge, lacks {missing}")
    tmp_path.chmod(0o755)
    key = tmp_path / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (tmp_path / "slurm.conf").write_text(CONFIGURATION.format(host=node().partition(".")[0], folder=tmp_path))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    names = {"key-file": "key", "socket": "munge.sock", "pid-file": "munge.pid", "log-file": "munge.log"}
    places = [f"--{flag}={tmp_path / name}" for flag, name in (names | {"seed-file": "munge.seed"}).items()]
    daemons = []
    for command in (["munged", "--foreground", "--force", *places], ["slurmctld", "-D"], ["slurmd", "-D"]):
        with (tmp_path / f"{command[0]}.log").open("w") as log:
            daemons.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        time.sleep(2)
    yield tmp_path
    for daemon in reversed(daemons):
        daemon.terminate()
        daemon.wait(timeout=30)


def test_a_sweep_is_submitted(slurm):
    """The numbers of one process, byte for byte, from jobs that end with the sweep."""
    (slurm / "cluster.toml").write_text(CLUSTER.format(folder=slurm))
    version = subprocess.run(["sbatch", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    digests = []
    for name, flags in (("one", []), ("far", ["--cluster", str(slurm / "cluster.toml")])):
        command = [sys.executable, "-m", "gradbounds", *SWEEP, *flags, "--out", str(slurm / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert landed(slurm / name) == BLOCKS
        digests.append(table_digest(slurm / name))
    assert digests[0] == digests[1]
    deadline = time.monotonic() + 60
    while left := subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout:
        assert time.monotonic() < deadline, left
        time.sleep(1)
    scripts = [path.name for path in Path(slurm).glob("*.out")]
    assert scripts, "the jobs wrote their logs"
    record("slurm", {"slurm": version, "blocks": BLOCKS, "jobs": len(scripts), "equal": True})
