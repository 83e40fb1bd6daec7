"""Where blocks are sampled: in processes of a command's own, or by the workers of a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from simulate.runs.execution import Execution

# Through a scheduler a task costs some milliseconds, whatever it does.
_CLUSTER_TASK = 0.2


@contextmanager
def executing(
    ours: Execution, *, device: str, dask: str | None = None, cluster: Path | None = None,
    task_seconds: float | None = None,
) -> Iterator[Execution]:  # fmt: skip
    """An execution, by a cluster's workers where there is one; clusters that it starts end with it.

    Args:
        ours: with processes of the command's own.
        device: of the cells.
        dask: address of a running scheduler.
        cluster: TOML file of a cluster to start.
        task_seconds: work sent to a worker at once; as much as hides what a scheduler costs if it is None.

    Raises:
        ValueError: Dask is not installed, nothing answers at the address, or the file describes no cluster.
    """
    gpu = device.startswith("cuda")
    if task_seconds is not None:
        ours = replace(ours, task_seconds=task_seconds)
    if dask is not None:
        from gradbounds.clusters.dask import dask_pool

        elsewhere = dask_pool(dask, gpu=gpu)
    elif cluster is not None:
        from gradbounds.clusters.description import cluster_pool

        elsewhere = cluster_pool(cluster, gpu=gpu)
    else:
        yield ours
        return
    with elsewhere as (pool, workers):
        seconds = _CLUSTER_TASK if task_seconds is None else task_seconds
        yield replace(ours, workers=workers, pool=pool, task_seconds=seconds)
