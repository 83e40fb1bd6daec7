"""Words for a single change that would even out the layers, for the reports of `probe` and `predict`."""


def remedy_line(change: str, *, partly: bool = False) -> str:
    """Return a sentence, without its end, on a change that would even out the layers.

    Args:
        change: the change, such as "W2 drawn sqrt(2L) smaller".
        partly: whether a visible difference remains.
    """
    return f"What would even it out{' most' * partly}: {change}"


def drawn_smaller(names: str) -> str:
    """Describe the initialization of GPT-2, which divides the weights at the end of branches by sqrt(2L)."""
    return f"{names} drawn sqrt(2L) smaller"
