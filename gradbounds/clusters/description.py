"""A cluster as a TOML file describes it: any class of Dask clusters, for Slurm, PBS, LSF, SGE, Kubernetes, ..."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from gradbounds.clusters.dask import Errors, client_pool, silence_dask
from simulate.counts import MOST
from theory.stack.documents import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster; the keys of a file are these names.

    Attributes:
        kind: dotted name of a Dask cluster's class, such as dask_jobqueue.SLURMCluster.
        minimum: of jobs.
        maximum: of jobs; between the two their number follows the work.
        options: the class's own arguments.

    Raises:
        ValueError: they make no sense.
    """

    kind: str
    minimum: int = 0
    maximum: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = self.kind.split(".") if isinstance(self.kind, str) else []
        if len(words) < 2 or not all(word.isidentifier() for word in words):
            raise ValueError(
                f"kind must be the dotted name of a cluster's class, as dask_jobqueue.SLURMCluster, got {self.kind!r}."
            )
        jobs = self.minimum, self.maximum
        if (
            not all(type(count) is int for count in jobs)
            or not 0 <= jobs[0] <= jobs[1]
            or not 1 <= jobs[1] <= MOST["workers"]
        ):
            raise ValueError(
                "minimum and maximum must be numbers of jobs, 0 <= minimum <= maximum and "
                f"1 <= maximum <= {MOST['workers']}, got {self.minimum!r} and {self.maximum!r}."
            )
        if not isinstance(self.options, Mapping):
            raise ValueError(f"options must be a table, got {self.options!r}.")

    @contextmanager
    def cluster(self) -> Iterator[Any]:
        """The cluster, without jobs yet; its jobs end with the context.

        Raises:
            ValueError: there is no such class here, or it refuses its options.
        """
        make = self._class()
        try:
            with _quiet_processes():
                cluster = make(**self.options)
        except Exception as error:  # every kind of cluster has errors of its own
            raise ValueError(f"options must suit {self.kind}, which refused them: {_one_line(error)}.") from error
        try:
            yield cluster
        finally:
            try:
                cluster.close()
            except AssertionError:
                pass  # so a cluster of which no job could be submitted complains of its own state

    def _class(self) -> type:
        """The class, of which nothing was called yet: a file may name anything that Python can import.

        Raises:
            ValueError: there is no such class here, or it is none of a Dask cluster.
        """
        from distributed.deploy.cluster import Cluster

        module, _, name = self.kind.rpartition(".")
        try:
            with _handlers_kept():
                named = getattr(import_module(module), name)
        except BaseException as error:  # a module runs as it is loaded, and may do so to its end
            if isinstance(error, KeyboardInterrupt):
                raise
            raise ValueError(
                f"kind must name a class that is installed, got {self.kind!r}: {_one_line(error)}."
            ) from error
        if not isinstance(named, type) or not issubclass(named, Cluster) or named is Cluster:
            raise ValueError(
                f"kind must name a class of Dask clusters (distributed.deploy.Cluster), got {self.kind!r}."
            )
        return named


@contextmanager
def _quiet_processes() -> Iterator[None]:
    """Keep what processes that are started here write off the terminal, as `silence_dask` does in this one."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def read_cluster(path: Path) -> ClusterFile:
    """The cluster of a TOML file.

    Raises:
        ValueError: the file is missing, no TOML, or has other keys.
    """
    content = read_document(path, "cluster", "TOML")
    known = [f.name for f in fields(ClusterFile)]
    if (unknown := set(content) - set(known)) or "kind" not in content:
        has = f"has {', '.join(sorted(unknown))}" if unknown else "has no kind"
        raise ValueError(f"cluster must have the keys {', '.join(known)}, the first always, but {str(path)!r} {has}.")
    return ClusterFile(**content)


def job_script(path: Path) -> str:
    """What a cluster's file would submit for every job.

    Raises:
        ValueError: the file is wrong, or its kind of cluster submits no scripts.
    """
    described = read_cluster(path)
    silence_dask()
    with described.cluster() as cluster:
        if not hasattr(cluster, "job_script"):
            raise ValueError(f"dry_run must be left out with {described.kind}, which submits no scripts.")
        return str(cluster.job_script())


@contextmanager
def cluster_pool(path: Path, *, gpu: bool) -> Iterator[tuple[Executor, int]]:
    """An executor over the workers of a cluster that is started from a file, and ends with the context.

    Raises:
        ValueError: the file is wrong, the cluster does not start, or as `dask_pool`.
    """
    described = read_cluster(path)
    errors = silence_dask()
    with described.cluster() as cluster:
        cluster.adapt(minimum=max(1, described.minimum), maximum=described.maximum)
        print(
            f"Dask: waiting for the first of {described.maximum} jobs; dashboard {cluster.dashboard_link}", flush=True
        )
        _wait(cluster, errors, described.kind)
        cluster.adapt(minimum=described.minimum, maximum=described.maximum)
        with client_pool(cluster.get_client(), gpu=gpu) as (pool, workers):
            yield pool, max(workers, described.maximum)


def _wait(cluster: Any, errors: Errors, kind: str) -> None:
    """Wait for a first worker, however long a queue takes.

    Raises:
        ValueError: a job could not be submitted.
    """
    while not cluster.scheduler_info["workers"]:
        if errors.seen:
            raise ValueError(f"cluster must be able to submit jobs, but {kind} cannot: {_one_line(errors.seen[0])}.")
        time.sleep(0.2)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")[:400] or type(error).__name__


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Let no module take Ctrl-C or SIGTERM over as it is loaded: dask_jobqueue ends the process in silence then."""
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return
    before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            if handler is not None:  # of C, which Python cannot set again
                signal.signal(which, handler)
