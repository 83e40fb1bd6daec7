"""Durations and sizes of memory: parsed from text, and printed with a suitable unit."""

import math
import re

_DAY, _YEAR = 86400.0, 365.25 * 86400.0

# From here on hours are too many to be read.
_DAYS = 4 * _DAY

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(seconds: float) -> str:
    """Return a number of seconds as text with a suitable unit, such as "2.5 h".

    >>> duration(0.4), duration(61), duration(86400)
    ('0.4 s', '1.0 min', '24.0 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < _DAYS:
        return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
    return f"{seconds / _DAY:.0f} days" if seconds < 2 * _YEAR else f"{min(seconds / _YEAR, 1e9):.2g} years"


def format_bytes(count: float) -> str:
    """Return a number of bytes as text with a suitable unit.

    >>> format_bytes(512), format_bytes(3 * 2**20), format_bytes(5 * 2**50)
    ('1 KiB', '3.0 MiB', '5.0 PiB')
    """
    if count < 2**20:
        return f"{max(count / 2**10, 1):.0f} KiB"
    power = min(int(math.log2(count)) // 10, len(_UNITS) - 1)
    return f"{count / 2 ** (10 * power):.1f} {_UNITS[power]}"


def cpu_time(seconds: float) -> str:
    """Return CPU seconds, on one core, as text with a suitable unit.

    >>> cpu_time(8.6), cpu_time(90)
    ('8.6 CPU s', '1.5 CPU min')
    """
    return duration(seconds).replace(" ", " CPU ")


LIBRARIES, TORCH = 2.2e8, 2.2e8
"""The bytes of a process with the libraries that a prediction loads, and of torch, which sampling loads."""


def takes(seconds: float, size: float) -> str:
    """Describe the estimated time on one core, and the memory in bytes with the loaded libraries, as text.

    The memory is 15% above the estimate: measured processes needed up to 12% more than it. The time is that of an
    idle core; on a slow core that shared its cache, commands took 1.3 to 2.5 times as long.

    >>> takes(8.6, 2.0**30)
    'about 8.6 CPU s (busy or slow core: up to 3x), within 1.4 GiB'
    """
    return f"about {cpu_time(seconds)} (busy or slow core: up to 3x), within {format_bytes(1.15 * (size + LIBRARIES))}"


def seconds_of(text: str) -> float:
    """Parse a duration such as "90s" or "1.5h" into seconds.

    Raises:
        ValueError: the text is not a positive duration.

    >>> seconds_of("90"), seconds_of("1.5h")
    (90.0, 5400.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"max_time must be a positive duration such as 90s, 10m, 2h or 1d, got {text!r}.")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def byte_count(text: str) -> float:
    """Parse a size such as "4GB" into bytes; kB, MB and GB are powers of 1000, KiB, MiB and GiB powers of 1024.

    Raises:
        ValueError: the text is not a size above 0 with a unit.

    >>> byte_count("500MB"), byte_count("1.5 GiB")
    (500000000.0, 1610612736.0)
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+) *([kmgt]?)(i?)b", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]) or (match[3] and not match[2]):
        raise ValueError(f"memory must be a size above 0 with its unit, such as 500MB or 4GB, got {text!r}.")
    number, prefix, binary = match.groups()
    return float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " ")
