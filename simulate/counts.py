"""Check all counts that users give, such as numbers of networks and seeds, without importing torch."""

import numpy as np

MOST = {
    "draws": 2**40, "seed": 2**63 - 1, "seeds": 10**4, "workers": 4096, "steps": 10**5,
    "patterns": 10**6,
}  # fmt: skip
"""The largest allowed counts by name; other names have `MOST_OF_ANY`. Larger ones would never end or fit a table."""

MOST_OF_ANY = 2**31 - 1


def check_count(name: str, value: object, least: int) -> None:
    """Check that a value is an integer between a smallest value and the largest one allowed for its name.

    The smallest value is `least`.

    Raises:
        ValueError: the value is not an integer, or is outside this range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")
    if value > (most := MOST.get(name, MOST_OF_ANY)):
        raise ValueError(f"{name} must be at most {most}, got {value!r}.")
