"""The slow obvious twin of relaxed networks: one draw at a time, every rule written out, gradients by autograd."""

import torch
from torch import nn

PHI = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "leaky_relu": nn.functional.leaky_relu,
    "identity": lambda u: u,
}


def slow_quantities(stack, weights, x, labels):
    """Energies, loss and gradients of one draw of a Post-LN or Pre-LN stack without dropout, matrices as given.

    Args:
        stack: the network.
        weights: by role the matrices of the layers.
        x: the input, sequences one after another, (rows, width).
        labels: of every row.
    """
    n, length = stack.rows, stack.tokens
    weights = {role: [w.clone().requires_grad_() for w in group] for role, group in weights.items()}

    def norm(rows):
        if stack.normalization == "none":
            return rows
        centred = rows - rows.mean(-1, keepdim=True) if stack.normalization == "layer" else rows
        return centred / (centred.square().mean(-1, keepdim=True) + stack.norm_epsilon).sqrt()

    def attention(rows, layer):
        out = torch.zeros_like(rows)
        for i in range(n):
            start = i // length * length
            stop = i + 1 if stack.mask == "causal" else start + length
            out[i] = sum(rows[j] @ weights["WV"][layer] for j in range(start, stop)) / (stop - start)
        return out @ weights["WO"][layer] if "WO" in weights else out

    def feed_forward(rows, layer):
        if "WG" in weights:
            hidden = PHI[stack.activation](rows @ weights["WG"][layer]) * (rows @ weights["W1"][layer])
        else:
            hidden = PHI[stack.activation](rows @ weights["W1"][layer])
        return hidden @ weights["W2"][layer]

    sums = []
    for layer in range(stack.depth):
        for branch in (attention, feed_forward):
            if stack.placement == "post":
                sums.append(x + branch(x, layer))
                x = norm(sums[-1])
            else:
                x = x + branch(norm(x), layer)
                sums.append(x)
    output = x if stack.placement == "post" else norm(x)
    logits = output @ weights["Wemb"][0]
    losses = []
    for i in range(n):
        if stack.loss_on == "last" and (i + 1) % length:
            continue
        target = torch.full((stack.vocab,), stack.label_smoothing / stack.vocab, dtype=x.dtype)
        target[labels[i]] += 1 - stack.label_smoothing
        losses.append(-(target * logits[i].log_softmax(0)).sum())
    loss = sum(losses) / len(losses)
    loss.backward()
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j and i // length == j // length]
    found = {
        "loss": loss,
        "attention_energy": torch.stack([s.square().mean() for s in sums[::2]]),
        "hidden_energy": torch.stack([s.square().mean() for s in sums[1::2]]),
        "token_correlation": torch.stack(
            [torch.stack([(s[i] * s[j]).mean() for i, j in pairs]).mean() for s in sums[1::2]]
        ),
    }
    for role, group in weights.items():
        norms = torch.stack([w.grad.square().sum() for w in group])
        found[f"grad_sq_{role}"] = norms[0] if role == "Wemb" else norms
    return found
