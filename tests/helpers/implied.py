"""The matrix that the products of a map with a history imply: one of them, as what it was not asked for is free."""

import torch

from studies.training.history import HistoryMap


def implied_matrix(one: HistoryMap, tilde: torch.Tensor) -> torch.Tensor:
    """W_0 of every draw, (draws, d_in, d_out), that made all products so far, with W̃ where nothing is known."""
    p, s = (part.double() for part in (one.inputs.directions, one.inputs.images))
    r, t = (part.double() for part in (one.gradients.directions, one.gradients.images))
    return p.mT @ s + across(p, t.mT @ r) + across(p, tilde - (tilde @ r.mT) @ r)


def across(directions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What a projection on some directions leaves of columns."""
    return rows - directions.mT @ (directions @ rows)
