"""The slow obvious twin of experts: token by token, the chosen ones in a loop, gradients by autograd."""

import math

import torch


def mixture(stack, weights, rows, layer, phi):
    """What the experts of one layer make of each row, and the shared one; matrices by role, in the order of layers.

    Layers without experts come first, with one matrix of W1, W2 and WG each.
    """
    own = layer - stack.dense_layers
    first = stack.dense_layers + own * stack.experts

    def network(row, kind, position):
        inner = row @ weights[kind + "1"][position]
        hidden = phi(row @ weights[kind + "G"][position]) * inner if stack.ffn == "gated" else phi(inner)
        return hidden @ weights[kind + "2"][position]

    made = []
    for row in rows:
        logits = list(row @ weights["WR"][own])
        best = sorted(range(stack.experts), key=lambda e: -float(logits[e].detach()))[: stack.experts_per_token]
        if stack.router_scores == "sigmoid":
            scores = {e: 1 / (1 + (-logits[e]).exp()) for e in best}
        elif stack.router_norm == "none":
            scores = {e: logits[e].exp() / sum(logit.exp() for logit in logits) for e in best}
        else:  # over the chosen ones alone
            scores = {e: logits[e].exp() for e in best}
        if stack.router_norm == "sum":
            total = sum(scores.values())
            scores = {e: score / total for e, score in scores.items()}
        out = sum(stack.routed_scale * scores[e] * network(row, "W", first + e) for e in best)
        if stack.shared_ratio:
            gate = 1.0
            if stack.shared_gate == "sigmoid":
                gate = 1 / (1 + (-(row @ weights["SR"][own])[0]).exp())
            out = out + gate * network(row, "S", own)
        made.append(out)
    return torch.stack(made)


def summed_by_layer(stack, role, group):
    """Squared gradients of the matrices of a role, a number a layer: of experts their sum, NaN where none is."""
    squares = [torch.zeros(()) if w.grad is None else w.grad.square().sum() for w in group]
    if not stack.experts or role not in ("W1", "W2", "WG", "WR", "S1", "S2", "SG", "SR"):
        return torch.stack(squares)
    dense, each = stack.dense_layers, stack.experts if role in ("W1", "W2", "WG") else 1
    below, squares = (squares[:dense], squares[dense:]) if each > 1 or len(squares) == stack.depth else ([], squares)
    below = below or [torch.tensor(math.nan)] * dense
    return torch.stack([*below, *(sum(squares[k : k + each]) for k in range(0, len(squares), each))])
