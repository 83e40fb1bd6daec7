"""The choice of the machines that sample networks: local processes, or the workers of a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from simulate.runs.execution import Execution

# Through a scheduler a task costs some milliseconds, whatever it does.
_CLUSTER_TASK = 0.2


@contextmanager
def executing(
    ours: Execution, *, device: str, dask: str | None = None, task_seconds: float | None = None
) -> Iterator[Execution]:
    """Yield an object that runs tasks: on the workers of a Dask cluster if one is named, else in local processes.

    Args:
        ours: the execution without Dask.
        device: device of the cells.
        dask: address of a running scheduler.
        task_seconds: seconds of work sent to a worker at once; if None, enough to hide the scheduler's overhead.

    Raises:
        ValueError: Dask is not installed, or nothing answers at the address.
    """
    gpu = device.startswith("cuda")
    if task_seconds is not None:
        ours = replace(ours, task_seconds=task_seconds)
    if dask is None:
        yield ours
        return
    from gradbounds.clusters.dask import dask_pool

    with dask_pool(dask, gpu=gpu) as (pool, workers):
        seconds = _CLUSTER_TASK if task_seconds is None else task_seconds
        yield replace(ours, workers=workers, pool=pool, task_seconds=seconds)
