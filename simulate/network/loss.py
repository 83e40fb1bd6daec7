"""The loss of a batch of random networks, and the positions that count in it."""

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
    """Return the cross-entropy loss of each random network in nats, averaged over positions.

    The shape is (draws,), and labels may be smoothed.
    """
    losses = F.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=smoothing)
    return losses.mean(1) if weights is None else (losses * weights).sum(1)


def weights_of_some(engine: Engine, rows: int, count: int) -> Float[Tensor, "draws rows"]:
    """Sample which positions count in the loss, and return the weights of all positions.

    A weight is 1/count for `count` random rows of each random network, and 0 for the others.
    """
    return (engine.streams.uniform(rows, dtype=engine.dtype).argsort(1).argsort(1) < count).to(engine.dtype) / count
