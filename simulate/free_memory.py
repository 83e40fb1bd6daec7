"""Find the free memory of this machine and process, without importing torch."""

import math
from collections.abc import Iterator
from pathlib import Path

import psutil


def free_memory() -> float:
    """Return the number of bytes that this process may still allocate on this machine.

    Control groups limit it, as in a container.
    """
    groups = _left_in_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return float(min(psutil.virtual_memory().available, *groups, math.inf))


def _left_in_groups(membership: Path, root: Path) -> Iterator[float]:
    """Yield the free bytes of each control group (versions 1 and 2), which limit containers and jobs."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, used, cached = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top = root / "memory"
            limit, used, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        # A limit of any group above holds too. In a container the path may be the host's, and the top is its own.
        inside = top / path.lstrip("/")
        for group in [inside, *inside.parents]:
            if group.is_relative_to(top):
                yield from _left(group, limit, used, cached)


def _left(group: Path, limit: str, used: str, cached: str) -> Iterator[float]:
    try:
        most, now = (group / limit).read_text().strip(), int((group / used).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if most != "max":
        # Pages of files that were not read lately are given up for the asking.
        yield max(0.0, int(most) - now + int(stat.get(cached, 0)))
