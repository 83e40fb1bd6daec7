"""A single change that would make layers alike, in words: those of `probe` and of `predict`."""


def remedy_line(change: str, after: str, *, partly: bool = False) -> str:
    """What would make layers alike.

    Args:
        change: as a subject, such as "W2 drawn sqrt(2L) smaller".
        after: what is left of the difference then.
        partly: whether that is more than little.
    """
    return f"What would even it out{' most' * partly}: {change} -> {after}."


def drawn_smaller(names: str) -> str:
    """The change of matrices that end branches, which GPT-2 has."""
    return f"{names} drawn sqrt(2L) smaller"
