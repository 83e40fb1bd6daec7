"""The sentence that suggests one change of a network that would make the gradients of its layers more equal."""


def remedy_line(change: str, *, partly: bool = False) -> str:
    """Return a sentence, without its full stop, that suggests a change that would even out the layers' gradients.

    Args:
        change: the change, such as "W2 initialized sqrt(2L) times smaller".
        partly: whether a visible difference remains.
    """
    return f"Change that evens out the layers' gradients{' most' * partly}: {change}"


def drawn_smaller(names: str) -> str:
    """Return the words "NAMES initialized sqrt(2L) times smaller" for given matrices, as in GPT-2's initialization."""
    return f"{names} initialized sqrt(2L) times smaller"
