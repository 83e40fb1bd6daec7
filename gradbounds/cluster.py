"""A Dask cluster as the place where a sweep's blocks are sampled."""

import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch

# Blocks are in flight for this many workers at least, so that those that join find some; a block is tried again this
# often; and a scheduler that does not answer for so many seconds is gone.
_LEAST_WORKERS = 16
_RETRIES = 5
_SECONDS = 10


@contextmanager
def dask_pool(address: str) -> Iterator[tuple[Executor, int]]:
    """An executor over the workers of a running scheduler, and how many of them a sweep is to keep busy.

    Blocks of workers that die are sampled again elsewhere; workers may come and go.

    Raises:
        ValueError: dask is not installed, no scheduler answers, it has no workers, their versions are others, or it
            went away.
    """
    try:
        import dask
        from distributed import Client, KilledWorker
        from distributed.comm.addressing import get_address_host_port
        from distributed.comm.core import CommClosedError
    except ImportError as error:
        raise ValueError(
            f"dask must be installed to reach {address!r}: pip install 'gradbounds[distributed]'."
        ) from error
    # What they log of a lost connection, with tracebacks, is said in one line below.
    for name in ("asyncio", *logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "asyncio", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
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
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise ValueError(f"dask must name a scheduler with at least one worker, and {address!r} has none.")
        _check_versions(client)
        print(f"Dask: {threads} threads of workers; dashboard {client.dashboard_link}")
        try:
            yield client.get_executor(retries=_RETRIES, pure=False), max(_LEAST_WORKERS, threads)
        except (CancelledError, KilledWorker, CommClosedError) as error:
            raise ValueError(
                f"dask must stay reachable, but {address!r} lost the sweep ({type(error).__name__}). Draws that landed "
                "stay, and the same command continues."
            ) from error


def versions() -> dict[str, str]:
    """What must be one for draws to be: of this process."""
    return {"gradbounds": version("gradbounds"), "torch": torch.__version__}


def _check_versions(client: Any) -> None:
    """Refuse workers that would draw other numbers.

    Raises:
        ValueError: gradbounds or torch is of another version there, or missing.
    """
    here = versions()
    for worker, there in client.run(versions, on_error="return").items():
        if there != here:
            raise ValueError(f"dask must have workers with the versions here, {here}, but {worker} has {there}.")
