"""The one error for a count that is none; it loads no torch."""

import numpy as np


def check_count(name: str, value: object, least: int) -> None:
    """Refuse what is not an integer of at least `least`.

    Raises:
        ValueError: the value is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")
