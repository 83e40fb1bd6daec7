"""The loss of a batch of networks, and which positions it counts."""

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
    """Cross-entropy in nats, averaged over the positions of each draw; the target is spread by `smoothing`."""
    losses = F.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=smoothing)
    return losses.mean(1) if weights is None else (losses * weights).sum(1)


def weights_of_some(engine: Engine, rows: int, count: int) -> Float[Tensor, "draws rows"]:
    """1/P for P of the rows, drawn anew in every draw, and 0 for the others."""
    ranks = engine.streams.uniform(rows, dtype=engine.dtype).argsort(1).argsort(1)
    return (ranks < count).to(engine.dtype) / count
