"""Find matrices of a module that are copies of one another, and matrices with repeated rows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# So many entries tell two draws apart; those that are equal there are compared whole.
_HEAD = 64
# A matrix with few different values among so many is no draw: zeros, ones, the identity, a table of steps.
_LOOKED_AT, _VALUES = 4096, 64
# How far sin^2 + cos^2 may be from 1 in single precision.
_ROUNDED = 1e-3
# The number of entries of a row from which on its order is no chance.
_ORDERED = 16


def copies(module: nn.Module) -> list[tuple[str, ...]]:
    """Return groups of parameter names whose tensors are separate objects with equal entries."""
    groups: list[tuple[Tensor, list[str]]] = []
    heads: dict[tuple[object, ...], list[int]] = {}
    for name, parameter in module.named_parameters():
        if not _is_drawn(parameter):
            continue
        key = (parameter.shape, parameter.dtype, *parameter.detach().flatten()[:_HEAD].tolist())
        same = next((k for k in heads.get(key, []) if torch.equal(groups[k][0], parameter)), None)
        if same is None:
            heads.setdefault(key, []).append(len(groups))
            groups.append((parameter, [name]))
        else:
            groups[same][1].append(name)
    return [tuple(names) for _, names in groups if len(names) > 1]


def repeated_rows(module: nn.Module) -> dict[str, float]:
    """Return the share of repeated rows of each matrix that has such rows, by the parameter's name."""
    shares = {}
    for name, parameter in module.named_parameters():
        if parameter.ndim != 2 or not _is_drawn(parameter):
            continue
        rows = parameter.detach().double()
        # Rows that are equal have equal products; those that have are few, and compared whole.
        generator = torch.Generator().manual_seed(0)
        products = rows @ torch.randn(rows.shape[1], generator=generator, dtype=torch.float64).to(rows.device)
        _, inverse, counts = products.unique(return_inverse=True, return_counts=True)
        again = rows[counts[inverse] > 1]
        again = again[again.any(-1)]
        if len(again) and (repeats := len(again) - len(again.unique(dim=0))):
            shares[name] = repeats / len(rows)
    return shares


def copied_by_torch(module: nn.Module, names: Sequence[str]) -> bool:
    """Return whether some parameters belong to one `torch.nn` encoder or decoder, which copies its layer.

    The copy is deep, so that all layers begin with equal weights.
    """
    owners = [
        name for name, part in module.named_modules() if isinstance(part, nn.TransformerEncoder | nn.TransformerDecoder)
    ]
    places = []
    for name in names:
        owner = next((o for o in owners if name.startswith(f"{o}.layers." if o else "layers.")), None)
        if owner is None:
            return False
        places.append((owner, name.removeprefix(f"{owner}.").split(".", 2)[2]))
    return len(set(places)) == 1


def _is_drawn(parameter: Tensor) -> bool:
    """Return whether a parameter looks like a random draw: at least two rows, and not a pattern of few values."""
    if parameter.ndim < 2 or parameter.shape[0] < 2 or not parameter.is_floating_point():
        return False
    values = parameter.detach().flatten()[:_LOOKED_AT]
    drawn = len(values.unique()) > min(_VALUES, len(values) // 2) and not _is_of_waves(parameter.detach())
    # Random rows of so many entries are not in order: the chance is 2 / 16!.
    return drawn and not (parameter.ndim == 2 and parameter.shape[1] >= _ORDERED and _in_order(parameter.detach()))


def _in_order(table: Tensor) -> bool:
    """Return whether every row of a table increases, or every row decreases, as a computed range does."""
    steps = table.diff(dim=1)
    return bool((steps > 0).all() or (steps < 0).all())


def _is_of_waves(table: Tensor) -> bool:
    """Return whether most rows of a table are sines and cosines of the same angles, as computed positions are."""
    if table.ndim != 2 or table.shape[1] % 2:
        return False
    pairs = (table.unflatten(1, shape).square().sum(axis) for shape, axis in (((2, -1), 1), ((-1, 2), 2)))
    return any(bool(((of - 1).abs().amax(1) < _ROUNDED).float().mean() > 0.5) for of in pairs)
