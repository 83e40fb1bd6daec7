"""The sentence that suggests one change that would make the layers alike, for `probe` and `predict`."""


def remedy_line(change: str, *, partly: bool = False) -> str:
    """Return a sentence, without its period, that suggests a change that would even out the layers' gradients.

    Args:
        change: the change, such as "W2 initialized sqrt(2L) times smaller".
        partly: whether a visible difference remains.
    """
    return f"Change that evens out the layers' gradients{' most' * partly}: {change}"


def drawn_smaller(names: str) -> str:
    """Describe GPT-2's initialization in words: the named matrices, which end branches, sqrt(2L) times smaller."""
    return f"{names} initialized sqrt(2L) times smaller"
