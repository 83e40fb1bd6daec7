"""Pass a user's registered names, such as activations, from the main process to worker processes."""

import pickle
from collections.abc import Sequence

from theory.stack import Stack
from theory.stack.stack import NAMED


def packed(stack: Stack) -> bytes:
    """Return a user's registered entries (such as activations) that a network needs, as bytes for another process.

    The result is empty if all are built in; `unpack` reads the bytes.

    Functions are stored by module and name, and entries from an entry point only by their version.

    Raises:
        ValueError: a function cannot be found by a module and a name.
    """
    if not stack.versions:
        return b""
    items = []
    for field, version in stack.versions.items():
        name, table = getattr(stack, field), NAMED[field]
        items.append((field, name, version, None if name in table.installed else table[name]))
    try:
        return pickle.dumps(items)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{_needed(stack)}: {error}.") from error


def unpack(stack: Stack, registrations: bytes) -> None:
    """Register in this process the names that another process has registered for a network.

    Raises:
        ValueError: this process cannot import an entry, or has a different entry under the same name.
    """
    if not registrations:
        return
    try:
        items: Sequence = pickle.loads(registrations)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{_needed(stack)}: {error}.") from error
    for field, name, version, entry in items:
        table = NAMED[field]
        if entry is not None:
            table.register(name, entry, version)
        else:
            table[name]  # which loads the entry points
        if table.versions.get(name) != version:
            raise ValueError(
                f"{field} {name!r} must have version {version!r} where it is sampled, got "
                f"{table.versions.get(name)!r} there."
            )


def _needed(stack: Stack) -> str:
    names = " and ".join(f"{field} {getattr(stack, field)!r}" for field in stack.versions)
    return (
        f"{names} must be registered by an entry point, or with functions at the top level of a module or script, to "
        "be sampled by other processes"
    )
