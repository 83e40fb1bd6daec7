"""The loss of a batch of random networks, and the positions that count for it."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from simulate.network.engines import Engine


def sequence_loss(
    logits: Float[Tensor, "draws tokens vocab"],
    labels: Int[Tensor, "draws tokens"],
    smoothing: float = 0.0,
    weights: Float[Tensor, "draws tokens"] | None = None,
) -> Tensor:
    """Return the cross-entropy in nats, averaged over the positions of each draw, (draws,), with label smoothing."""
    losses = F.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=smoothing)
    return losses.mean(1) if weights is None else (losses * weights).sum(1)


def weights_of_some(engine: Engine, rows: int, count: int) -> Float[Tensor, "draws rows"]:
    """Sample the weights of positions for the loss: 1/count for `count` random rows of each draw, 0 for the others."""
    ranks = engine.streams.uniform(rows, dtype=engine.dtype).argsort(1).argsort(1)
    return (ranks < count).to(engine.dtype) / count
