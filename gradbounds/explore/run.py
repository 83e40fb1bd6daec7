"""The command `gradbounds explore`: serve the interactive page on this machine, or write it as a file."""

import contextlib
from pathlib import Path

from gradbounds.explore.page import page
from gradbounds.explore.prepared import prepared
from gradbounds.explore.samples import RunSamples
from gradbounds.explore.server import Server
from simulate.runs.files import write_whole

_MOST_PORTS = 65535


def serve(port: int | None, folder: Path | None = None) -> int:
    """Serve the interactive page until Ctrl-C is pressed, optionally with the samples of a run folder.

    Raises:
        ValueError: the port is not to be had, or the folder holds no samples.
    """
    if port is not None and not 0 < port <= _MOST_PORTS:
        raise ValueError(f"port must be an integer from 1 to {_MOST_PORTS}, got {port}.")
    run = None if folder is None else RunSamples(folder)
    try:
        server = Server(port or 0, page(run=None if run is None else run.about), run)
    except OSError as error:
        raise ValueError(f"port must be free, but {port} cannot be used: {error.strerror}.") from error
    print(f"The page is {server.address} on this machine alone, and Ctrl-C ends it.", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def write(path: Path) -> int:
    """Write the interactive page as a file with its answers, which are computed again if another version made them.

    Raises:
        ValueError: the file cannot be written.
    """
    from gradbounds.explore.precomputed import answers

    known = prepared()
    content = page(known if known["given"] else answers()).encode()
    write_whole(path, content)
    print(f"Page    {path}, {len(content) / 1e6:.2g} MB, which opens without a network.")
    return 0
