"""The choice of the machines that sample networks: local processes, or the workers of a Dask cluster."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from platform import node
from typing import Any

import torch

from gradbounds.shadowing import check_own_packages
from simulate.runs.execution import Execution

# Blocks are in flight for this many workers at least, so that those that join find some; a block is tried again this
# often; and a scheduler that does not answer for so many seconds is gone.
_LEAST_WORKERS = 16
_RETRIES = 5
_SECONDS = 10
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
    with dask_pool(dask, gpu=gpu) as (pool, workers):
        seconds = _CLUSTER_TASK if task_seconds is None else task_seconds
        yield replace(ours, workers=workers, pool=pool, task_seconds=seconds)


def silence_dask() -> None:
    """Keep Dask's own messages off the terminal; an error is reported in one line instead.

    This lasts for the rest of the process, because Dask logs errors of connections after they were closed.

    Raises:
        ValueError: dask is not installed.
    """
    try:
        import distributed  # noqa: F401 - it sets up the loggers that are silenced here
    except ImportError as error:
        raise ValueError("dask requires the package dask: pip install 'gradbounds[distributed]'.") from error
    for name in ("asyncio", "distributed", "tornado", "tornado.application", *logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("asyncio", "distributed", "tornado"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [logging.NullHandler()], False
            logger.setLevel(logging.ERROR)


@contextmanager
def dask_pool(address: str, *, gpu: bool) -> Iterator[tuple[Executor, int]]:
    """Yield an executor that runs tasks on a Dask cluster, and the number of its workers.

    The blocks of workers that die are sampled again by others. Workers may join and leave.

    Args:
        address: address of the scheduler.
        gpu: whether every task takes one of the resource "GPU"; a worker is started with as many as its machine has.

    Raises:
        ValueError: dask is not installed, no scheduler answers, it has no workers, their versions are others, or it
            went away.
    """
    silence_dask()
    import dask
    from distributed import Client
    from distributed.comm.addressing import get_address_host_port

    dask.config.set({"distributed.comm.timeouts.connect": f"{_SECONDS}s"})
    try:
        # A client for what is no address would complain once more when it is collected.
        get_address_host_port(address, strict=True)
        client = Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ValueError(
            f"dask must be the address of a running scheduler, such as tcp://host:8786, got {address!r}: "
            f"{str(error) or 'no answer'}."
        ) from error
    with client_pool(client, gpu=gpu) as pair:
        yield pair


@contextmanager
def client_pool(client: Any, *, gpu: bool) -> Iterator[tuple[Executor, int]]:
    """Yield an executor that runs tasks through a Dask client, which is closed at the end.

    Raises:
        ValueError: it has no workers, their versions are others, or the scheduler went away.
        ImportError: a task raised it.
        AttributeError: a task raised it.
    """
    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    with client:
        address = client.scheduler_info(n_workers=0)["address"]
        threads = sum(client.nthreads().values())
        if not threads:
            raise ValueError(f"dask must name a scheduler with at least one worker, and {address!r} has none.")
        _check_resources(client, gpu=gpu)
        print(f"Dask: {threads} threads of workers; dashboard {client.dashboard_link}", flush=True)
        options: dict[str, Any] = {"resources": {"GPU": 1}} if gpu else {}
        try:
            pool = SameVersions(client.get_executor(retries=_RETRIES, pure=False, **options))
            yield pool, max(_LEAST_WORKERS, threads)
        except (ImportError, AttributeError) as error:
            # So it ends where a worker that joined has no gradbounds, or one without these functions.
            if "gradbounds" not in str(error):
                raise
            raise ValueError(f"dask must have workers with the versions here, {versions()}: {error}.") from error
        except (CancelledError, KilledWorker, CommClosedError) as error:
            raise ValueError(
                f"dask must stay reachable, but {address!r} lost the sweep ({type(error).__name__}). Draws that "
                "were saved are kept, and the same command continues."
            ) from error


class SameVersions(Executor):
    """An executor whose tasks fail on workers with other versions of packages than this process."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Submit a function call to the workers; a worker checks its versions of packages before the call."""
        return self._pool.submit(_with_versions, versions(), fn, *args, **kwargs)


def _with_versions(here: dict[str, str], fn: Callable, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function on a worker with the same versions, and return its result.

    Raises:
        ValueError: this worker would draw other numbers.
    """
    if (there := versions()) != here:
        raise ValueError(f"dask must have workers with the versions here, {here}, but {node()} has {there}.")
    return fn(*args, **kwargs)


def versions() -> dict[str, str]:
    """Return the versions of the packages in this process, which all workers must have.

    Raises:
        ImportError: another module shadows a package of gradbounds where this process was started.
    """
    check_own_packages()
    return {"gradbounds": version("gradbounds"), "torch": torch.__version__}


def _check_resources(client: Any, *, gpu: bool) -> None:
    """Refuse a cluster without the resource "GPU" that every task would wait for.

    Raises:
        ValueError: no worker has it.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if gpu and not any(worker.get("resources", {}).get("GPU") for worker in workers):
        raise ValueError(
            "dask must have workers with the resource GPU for device 'cuda', and none has; start one for each GPU "
            "with: dask worker ADDRESS --nthreads 1 --resources GPU=1"
        )
