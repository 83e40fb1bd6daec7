"""A single change that would make layers alike, in words: those of `probe` and of `predict`."""


def remedy_line(change: str, *, partly: bool = False) -> str:
    """Return a sentence, without its end, on a change that would even out the layers.

    Args:
        change: the change, such as "W2 drawn sqrt(2L) smaller".
        partly: whether a visible difference remains.
    """
    return f"What would even it out{' most' * partly}: {change}"


def drawn_smaller(names: str) -> str:
    """The change of matrices that end branches, which GPT-2 has."""
    return f"{names} drawn sqrt(2L) smaller"
