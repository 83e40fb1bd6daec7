"""The router of a mixture of experts: which experts each token uses, and with which weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from simulate.network.record import Record
from theory.stack import Stack


def expert_weights(
    stack: Stack, record: Record, logits: Float[Tensor, "draws tokens experts"]
) -> Float[Tensor, "draws tokens experts"]:
    """Return the weight of every expert for every token, 0 if it is not chosen, and record the experts' loads."""
    scores = logits.softmax(-1) if stack.router_scores == "softmax" else logits.sigmoid()
    chosen = torch.zeros_like(scores).scatter(-1, logits.topk(stack.experts_per_token, dim=-1).indices, 1.0)
    weights = scores * chosen
    if stack.router_norm == "sum":
        weights = weights / weights.sum(-1, keepdim=True)
    loads = chosen.sum(1)
    record.layer("expert_load_max", loads.amax(-1) / logits.shape[1])
    record.layer("expert_load_deviation", loads.std(-1, correction=0) / loads.mean(-1))
    balance = (loads * logits.detach().softmax(-1).mean(1)).sum(-1)
    record.layer("expert_balance", stack.experts / logits.shape[1] * balance)
    return stack.routed_scale * weights
